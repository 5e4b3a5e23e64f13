"""Persons, auctions and bids, as the NEXMark benchmark makes them: 1 to 3 to 46.

Of every 50 events the first is a person, the next three are auctions, the rest are bids. One
seed gives one history. What makes it hard is kept: half of all bids go to one auction at a time,
a quarter come from one bidder, and events are told out of order by up to a second.

    event number   0       1 2 3     4 … 49   50      51 …
                   person  auctions  bids     person  …
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

PERSON, AUCTION, BID = "person", "auction", "bid"

_ROUND = 50
_AUCTIONS_IN_ROUND = 3
_FIRST_ID = 1000
_FIRST_CATEGORY, _CATEGORIES = 10, 5
# New bids go to one of so many auctions, new auctions and bids come from so many persons.
_ACTIVE_AUCTIONS, _ACTIVE_PERSONS = 100, 1000
_HOT_AUCTIONS, _HOT_PERSONS = 100, 40
_DISORDER_MS = 1000
LONGEST_AUCTION_MS = 20_000

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "Boise", "Portland", "Bend", "Seattle", "Cheyenne")
_FIRST_NAMES = (
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
)
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones")
# Half of all bids come through one of these, the others through one of very many.
_HOT_CHANNELS = ("Apple", "Google", "Facebook", "Baidu")
_CHANNELS = 10_000
_FOLDER_LETTERS = 5
_SHORTEST_EXTRA, _LONGEST_EXTRA = 10, 60

PERSON_SCHEMA = "id bigint, name string, email string, city string, state string, at timestamp"
AUCTION_SCHEMA = (
    "id bigint, item string, initialBid bigint, reserve bigint, at timestamp, expires timestamp, "
    "seller bigint, category bigint"
)
BID_SCHEMA = (
    "auction bigint, bidder bigint, price bigint, channel string, url string, extra string, "
    "at timestamp"
)
SCHEMAS = {PERSON: PERSON_SCHEMA, AUCTION: AUCTION_SCHEMA, BID: BID_SCHEMA}


class Event(NamedTuple):
    """Something that happened; `fields` is the payload but for its times."""

    kind: str
    # In milliseconds since the first event.
    at_ms: int
    # When the auction house heard of it; never before it happened, and never going back.
    told_ms: int
    fields: dict[str, Any]

    @property
    def key(self) -> int:
        """What its partition is chosen by."""
        found: int = self.fields["auction" if self.kind == BID else "id"]
        return found

    @property
    def written_ms(self) -> int:
        """When it is in its queue: at the end of the second in which it was told."""
        return (self.told_ms // 1000 + 1) * 1000


def events(count: int, *, per_s: float, seed: int = 1) -> Iterator[Event]:
    """Yield so many events, of which so many happen in a second."""
    chance = random.Random(seed)
    for number in range(count):
        told_ms = int(number * 1000 / per_s) + _DISORDER_MS
        at_ms = told_ms - chance.randrange(_DISORDER_MS)
        place, rounds = number % _ROUND, number // _ROUND
        if place == 0:
            fields = _person(chance, rounds)
        elif place <= _AUCTIONS_IN_ROUND:
            fields = _auction(chance, rounds, rounds * _AUCTIONS_IN_ROUND + place - 1, at_ms)
        else:
            fields = _bid(chance, rounds)
        kind = PERSON if place == 0 else AUCTION if place <= _AUCTIONS_IN_ROUND else BID
        yield Event(kind, at_ms, told_ms, fields)


def payload(event: Event, begin: datetime) -> dict[str, Any]:
    """Return what a message about an event says; times as in JSON."""
    said = {**event.fields, "at": iso(begin, event.at_ms)}
    if event.kind == AUCTION:
        said["expires"] = iso(begin, event.fields["expires"])
    return said


def iso(begin: datetime, at_ms: int) -> str:
    at = (begin + timedelta(milliseconds=at_ms)).astimezone(UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _person(chance: random.Random, number: int) -> dict[str, Any]:
    name = f"{chance.choice(_FIRST_NAMES)} {chance.choice(_LAST_NAMES)}"
    return {
        "id": _FIRST_ID + number,
        "name": name,
        "email": f"{name.replace(' ', '.').lower()}@example.org",
        "city": chance.choice(_CITIES),
        "state": chance.choice(_STATES),
    }


def _auction(chance: random.Random, rounds: int, number: int, at_ms: int) -> dict[str, Any]:
    price = chance.randrange(1, 10_000)
    return {
        "id": _FIRST_ID + number,
        "item": f"item {chance.randrange(10**6)}",
        "initialBid": price,
        "reserve": price + chance.randrange(1, 10_000),
        "expires": at_ms + chance.randrange(1, LONGEST_AUCTION_MS),
        "seller": _some_person(chance, rounds, is_hot=chance.random() < 0.25),
        "category": _FIRST_CATEGORY + chance.randrange(_CATEGORIES),
    }


def _bid(chance: random.Random, rounds: int) -> dict[str, Any]:
    last = rounds * _AUCTIONS_IN_ROUND + _AUCTIONS_IN_ROUND - 1
    if chance.random() < 0.5:
        auction = last // _HOT_AUCTIONS * _HOT_AUCTIONS
    else:
        auction = chance.randrange(max(0, last - _ACTIVE_AUCTIONS), last + 1)
    channel, url = _channel(chance)
    return {
        "auction": _FIRST_ID + auction,
        # Who bids most is another person than who sells most.
        "bidder": _some_person(chance, rounds, is_hot=chance.random() < 0.25, hot=1),
        "price": round(10 ** (chance.random() * 6) * 100),
        "channel": channel,
        "url": url,
        "extra": _letters(chance, chance.randrange(_SHORTEST_EXTRA, _LONGEST_EXTRA)),
    }


def _channel(chance: random.Random) -> tuple[str, str]:
    """Return a channel and an address; those of most unknown channels name the channel."""
    folders = "/".join(_letters(chance, _FOLDER_LETTERS) for _ in range(3))
    url = f"https://www.example.org/{folders}/item.htm?query=1"
    if chance.random() < 0.5:
        return chance.choice(_HOT_CHANNELS), url
    number = chance.randrange(_CHANNELS)
    return f"channel-{number}", f"{url}&channel_id={number}" if chance.random() < 0.9 else url


def _letters(chance: random.Random, count: int) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=count))


def _some_person(chance: random.Random, last: int, *, is_hot: bool, hot: int = 0) -> int:
    if is_hot:
        return _FIRST_ID + last // _HOT_PERSONS * _HOT_PERSONS + hot
    return _FIRST_ID + chance.randrange(max(0, last - _ACTIVE_PERSONS), last + 1)
