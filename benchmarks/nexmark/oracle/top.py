"""What queries give for the most, the last or the first of something."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.nexmark.events import Event
from benchmarks.nexmark.oracle.past import SIZE_MS, Past, Row, some, start_of
from benchmarks.nexmark.queries.query import SLIDE_S
from benchmarks.nexmark.queries.top import TOP

_SLIDE_MS = SLIDE_S * 1000


def hot_items(past: Past) -> Iterator[Row]:
    windows: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in past.bids:
        newest = bid.at_ms // _SLIDE_MS * _SLIDE_MS
        for start_ms in range(newest, bid.at_ms - SIZE_MS, -_SLIDE_MS):
            windows[start_ms][bid.fields["auction"]] += 1
    for start_ms, counts in windows.items():
        auction, bids = min(counts.items(), key=lambda item: (-item[1], item[0]))
        yield {**past.window(start_ms), "rank": 1, "auction": auction, "bids": bids}


def highest_bid(past: Past) -> Iterator[Row]:
    best: dict[int, tuple[int, int, int]] = {}
    for bid in past.bids:
        start_ms = start_of(bid.at_ms)
        fields = bid.fields
        this = (fields["price"], fields["auction"], fields["bidder"])
        best[start_ms] = max(best.get(start_ms, (0, 0, 0)), this)
    for start_ms, (price, auction, bidder) in best.items():
        row = {"price": price, "auction": auction, "bidder": bidder}
        yield {**past.window(start_ms), **row}


def last_bids(past: Past) -> Iterator[Row]:
    last: dict[tuple[int, int, int], Event] = {}
    for bid in past.bids:
        key = (start_of(bid.at_ms), bid.fields["bidder"], bid.fields["auction"])
        last[key] = max(last.get(key, bid), bid, key=_time_and_price)
    for (start_ms, _, _), bid in last.items():
        row = some(bid, "bidder", "auction", "price", "channel", "url")
        yield {**past.window(start_ms), **row, "at": past.at(bid.at_ms)}


def _time_and_price(bid: Event) -> tuple[int, int]:
    return bid.at_ms, bid.fields["price"]


def highest_bids_of_auctions(past: Past) -> Iterator[Row]:
    auctions: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for bid in past.bids:
        auctions[start_of(bid.at_ms), bid.fields["auction"]].append(bid)
    for (start_ms, _), bids in auctions.items():
        bids.sort(key=lambda bid: (-bid.fields["price"], bid.at_ms, bid.fields["bidder"]))
        for rank, bid in enumerate(bids[:TOP], 1):
            row = {**some(bid, "auction", "bidder", "price", "url"), "at": past.at(bid.at_ms)}
            yield {**past.window(start_ms), "rank": rank, **row}
