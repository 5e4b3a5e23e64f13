"""What queries give that look at one event at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.nexmark.oracle.past import Past, Row, some
from benchmarks.nexmark.queries.stateless import (
    CHANNEL_IDS,
    EURO_PER_DOLLAR,
    LARGE,
    LUCKY,
    SIDE_ROWS,
    TOO_LARGE,
)

_CHANNEL_ID = re.compile(r"&channel_id=([^&]*)")


def pass_through(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        yield {**bid.fields, "at": past.at(bid.at_ms)}


def currency(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        price = bid.fields["price"] * EURO_PER_DOLLAR
        yield {**some(bid, "auction", "bidder"), "at": past.at(bid.at_ms), "price": price}


def selection(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        if bid.fields["auction"] % LUCKY == 0:
            yield some(bid, "auction", "price")


def into_files(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        time = past.time(bid.at_ms)
        row = {**bid.fields, "at": past.at(bid.at_ms)}
        yield {**row, "day": f"{time:%Y-%m-%d}", "minute": f"{time:%H:%M}"}


def side_input(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        value = f"value {bid.fields['auction'] % SIDE_ROWS}"
        row = some(bid, "auction", "bidder", "price")
        yield {**row, "at": past.at(bid.at_ms), "value": value}


def calculation(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        price = bid.fields["price"] * EURO_PER_DOLLAR
        if LARGE < price < TOO_LARGE:
            row = {**some(bid, "auction", "bidder", "extra"), "at": past.at(bid.at_ms)}
            hour = past.time(bid.at_ms).hour
            is_night = hour <= 6 or hour >= 20
            time_of_day = "day" if 8 <= hour <= 18 else "night" if is_night else "other"
            letters = bid.fields["extra"].count("c")
            yield {**row, "price": price, "timeOfDay": time_of_day, "letters": letters}


def channel_ids(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        named = _CHANNEL_ID.search(bid.fields["url"])
        channel_id = CHANNEL_IDS.get(bid.fields["channel"].lower(), named and named[1])
        if channel_id is not None:
            row = some(bid, "auction", "bidder", "price", "channel")
            yield {**row, "channelId": channel_id}


def folders(past: Past) -> Iterator[Row]:
    for bid in past.bids:
        parts = bid.fields["url"].split("/")
        names = {f"folder{at}": parts[at + 2] for at in (1, 2, 3)}
        yield {**some(bid, "auction", "bidder", "price", "channel"), **names}
