"""Queries for the most, the last or the first of something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.events import BID
from benchmarks.nexmark.filling import Queues
from benchmarks.nexmark.queries.query import SLIDE_S, WINDOW_S, Query, timed_bids_of

if TYPE_CHECKING:
    from queen import SyncQueen

TOP = 10


def _hot_items(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = timed_bids_of(queen, queues, name).sliding_time(WINDOW_S, SLIDE_S).key("data.auction")
    return stream.aggregate(bids="count(*)").top(1, by="bids")


def _highest_bid(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = timed_bids_of(queen, queues, name).tumbling_time(WINDOW_S)
    best = "max(struct(data.price, data.auction, data.bidder))"
    fields = {field: f"best.{field}" for field in ("price", "auction", "bidder")}
    return stream.aggregate(best=best).select("windowStart", "windowEnd", **fields)


def _last_bids(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = timed_bids_of(queen, queues, name).tumbling_time(WINDOW_S)
    stream = stream.key("data.bidder", "data.auction")
    # Of several at the same time, the highest.
    stream = stream.aggregate(last="max(struct(data.at, data.price, data.channel, data.url))")
    fields = {field: f"last.{field}" for field in ("at", "price", "channel", "url")}
    return stream.select("windowStart", "windowEnd", "bidder", "auction", **fields)


def _highest_bids_of_auctions(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = timed_bids_of(queen, queues, name).tumbling_time(WINDOW_S)
    # Of equal prices the first bid is ahead.
    fields = ("auction", "at", "bidder", "price", "url")
    stream = stream.key(*(f"data.{field}" for field in fields)).aggregate(bids="count(*)")
    stream = stream.top(TOP, by="price", per=["auction"])
    return stream.select("windowStart", "windowEnd", "rank", *fields)


_SPREAD = "cast(pmod(auction, 4) as string)"

MOST = (
    Query(
        5,
        "hot items: sliding windows, top",
        (BID,),
        _hot_items,
        "of several items that are equally hot, the first is given",
    ),
    Query(
        7,
        "highest bid: tumbling windows",
        (BID,),
        _highest_bid,
        "of several bids that are equally high, one is given",
    ),
    Query(
        18,
        "last bid of each bidder for each auction",
        (BID,),
        _last_bids,
        "the last of each window, instead of one that takes the place of the one before",
        _SPREAD,
    ),
    Query(
        19,
        "ten highest bids of each auction",
        (BID,),
        _highest_bids_of_auctions,
        "the ten of each window, instead of ranks that change with every bid",
        _SPREAD,
    ),
)
