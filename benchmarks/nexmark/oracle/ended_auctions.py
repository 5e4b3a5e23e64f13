"""What queries give about the bid that wins an auction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.nexmark.events import Event
from benchmarks.nexmark.oracle.past import Past, Row, some, start_of
from benchmarks.nexmark.queries.ended_auctions import LAST_AUCTIONS


class _Won(NamedTuple):
    auction: Event
    bid: Event

    @property
    def price(self) -> int:
        price: int = self.bid.fields["price"]
        return price


def average_prices(past: Past) -> Iterator[Row]:
    finals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for won in _all_won(past):
        fields = won.auction.fields
        finals[start_of(fields["expires"]), fields["category"]].append(won.price)
    for (start_ms, category), prices in finals.items():
        average = sum(prices) / len(prices)
        yield {**past.window(start_ms), "category": category, "average": average}


def last_prices(past: Past) -> Iterator[Row]:
    sellers: dict[tuple[int, int], list[_Won]] = defaultdict(list)
    for won in _all_won(past):
        fields = won.auction.fields
        sellers[start_of(fields["expires"]), fields["seller"]].append(won)
    for (start_ms, seller), theirs in sellers.items():
        theirs.sort(key=_end_and_number)
        prices = [won.price for won in theirs[-LAST_AUCTIONS:]]
        average = sum(prices) / len(prices)
        yield {**past.window(start_ms), "seller": seller, "average": average}


def _end_and_number(won: _Won) -> tuple[int, int]:
    return won.auction.fields["expires"], won.auction.fields["id"]


def winning_bids(past: Past) -> Iterator[Row]:
    for auction, bid in _all_won(past):
        row = some(auction, "id", "item", "seller", "category")
        yield {**row, **some(bid, "price", "bidder"), "at": past.at(bid.at_ms)}


def _all_won(past: Past) -> Iterator[_Won]:
    """Yield auctions with their highest bid, of several the first."""
    auctions = {auction.fields["id"]: auction for auction in past.auctions}
    best: dict[int, Event] = {}
    for bid in past.bids:
        auction = auctions.get(bid.fields["auction"])
        if auction is not None and auction.at_ms <= bid.at_ms <= auction.fields["expires"]:
            number = auction.fields["id"]
            best[number] = min(best.get(number, bid), bid, key=_price_and_time)
    for number, bid in best.items():
        yield _Won(auctions[number], bid)


def _price_and_time(bid: Event) -> tuple[int, int, int]:
    return -bid.fields["price"], bid.at_ms, bid.fields["bidder"]
