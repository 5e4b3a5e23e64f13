"""Queries that count in windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.events import BID, BID_SCHEMA
from benchmarks.nexmark.filling import Queues
from benchmarks.nexmark.queries.query import DAY_S, GRACE_S, WINDOW_S, Query, timed_bids_of

if TYPE_CHECKING:
    from queen import SyncQueen

# Prices in cents at which a rank begins.
RANKS = {"rank1": (0, 10_000), "rank2": (10_000, 1_000_000), "rank3": (1_000_000, 10**9)}
_DAYS = f"a day has {DAY_S} seconds, and is told when it is over"


def _sessions(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = timed_bids_of(queen, queues, name).session(WINDOW_S).key("data.bidder")
    return stream.aggregate(bids="count(*)")


def _by_time_of_writing(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = queen.stream(name).sources(queues.bids).schema(BID_SCHEMA).grace_period(GRACE_S)
    return stream.tumbling_time(WINDOW_S).key("data.bidder").aggregate(bids="count(*)")


def _statistics_of_days(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = timed_bids_of(queen, queues, name).tumbling_time(DAY_S).aggregate(**_counts())
    return stream.distinct(**_different("bidder"), **_different("auction"))


def _statistics_of_channels(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = _statistics_of_days(queen, queues, name).key("data.channel")
    return stream.aggregate(minute="max(date_format(data.at, 'HH:mm'))")


def _statistics_of_auctions(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = timed_bids_of(queen, queues, name).tumbling_time(DAY_S).key("data.auction")
    prices = {f"{kind}Price": f"{kind}(data.price)" for kind in ("min", "max", "avg", "sum")}
    return stream.aggregate(**_counts(), **prices)


def _counts() -> dict[str, str]:
    ranked = {f"{rank}Bids": f"count_if({_is_in(rank)})" for rank in RANKS}
    return {"totalBids": "count(*)", **ranked}


def _different(field: str) -> dict[str, str]:
    """Return how many different values a field has, in all and in each rank."""
    # What is not of the rank is null, and null is no value.
    ranked = {
        f"{rank}{field.title()}s": f"if({_is_in(rank)}, data.{field}, null)" for rank in RANKS
    }
    return {f"total{field.title()}s": f"data.{field}", **ranked}


def _is_in(rank: str) -> str:
    first, end = RANKS[rank]
    return f"data.price >= {first} and data.price < {end}"


_SPREAD = "cast(pmod({}, 4) as string)"

WINDOWS = (
    Query(11, "sessions of bidders", (BID,), _sessions, partition=_SPREAD.format("bidder")),
    Query(
        12,
        "bids of bidders by processing time",
        (BID,),
        _by_time_of_writing,
        "the time is that of writing, so that a second run gives the same",
        _SPREAD.format("bidder"),
    ),
    Query(15, "statistics of days: 8 distinct counts", (BID,), _statistics_of_days, _DAYS),
    Query(16, "statistics of channels: 8 distinct counts", (BID,), _statistics_of_channels, _DAYS),
    Query(
        17,
        "statistics of auctions",
        (BID,),
        _statistics_of_auctions,
        _DAYS,
        _SPREAD.format("auction"),
    ),
)
