"""The queries: all but one are definitions, as a user of queues would write them.

They differ from the benchmark's SQL where that never ends: a stream that only adds rows has no
place for an answer that is taken back. Query 3 joins within an hour, query 4 gives the average of
the auctions that ended in each window, and of several hottest items in query 5 the first is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.nexmark.events import (
    AUCTION,
    AUCTION_SCHEMA,
    BID,
    BID_SCHEMA,
    PERSON,
    PERSON_SCHEMA,
)
from benchmarks.nexmark.filling import Queues
from queen.spark import pipeline, timed
from queen.spark.pipelines.functions import Function
from queen.spark.pipelines.run import Options, Running, start_pipeline, store
from queen.spark.windows.event_time import event_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queen import SyncQueen

# Events are told at most two seconds after they happened.
GRACE_S = 5
WINDOW_S = 10
SLIDE_S = 2
EURO_PER_DOLLAR = 0.908
LUCKY = 123
_LONGEST_AUCTION = "interval 20 seconds"
_WINDOW_OF = f"floor(unix_millis(data.at) / {WINDOW_S * 1000})"


class Query(NamedTuple):
    """One query of the benchmark."""

    number: int
    about: str
    # Kinds of the events that it reads.
    reads: tuple[str, ...]
    # Gives the definition, or the function that takes the place of one.
    build: Callable[[SyncQueen, Queues, str], Any]


def run(
    query: Query, url: str, spark: SparkSession, queues: Queues, out: str, **options: Any
) -> Running:
    """Start a query over everything that is in the queues now; its results go to `out`, which is
    also its name."""
    from queen import SyncQueen

    options = {"url": url, "available_now": True, "starting": "earliest", **options}
    with SyncQueen(url) as queen:
        made = query.build(queen, queues, out)
        if not isinstance(made, Function):
            made = made.to(out, partition=_PLACES.get(query.number, "'all'"))
            running: Running = made.run(spark, **options)
            return running
    store(made.definition, Options(**options))
    return start_pipeline(made.definition, spark, Options(**options), made)


# Where results go that are many.
_PLACES = {
    0: "partition",
    1: "partition",
    2: "partition",
    11: "cast(pmod(bidder, 4) as string)",
}


def _bids(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = queen.stream(name).sources(queues.bids)
    return stream.schema(BID_SCHEMA).event_time("data.at").grace_period(GRACE_S)


def _side(queen: SyncQueen, queues: Queues, kind: str, name: str) -> Any:
    schema = PERSON_SCHEMA if kind == PERSON else AUCTION_SCHEMA
    stream = queen.stream(name).sources(queues.of(kind)).schema(schema)
    return stream.event_time("data.at").grace_period(GRACE_S).named(kind)


def _pass_through(queen: SyncQueen, queues: Queues, name: str) -> Any:
    fields = (f"data.{one}" for one in ("auction", "bidder", "price", "channel", "url", "at"))
    return _bids(queen, queues, name).select(*fields)


def _currency(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = _bids(queen, queues, name)
    price = f"data.price * {EURO_PER_DOLLAR}D"
    return stream.select("data.auction", "data.bidder", "data.at", price=price)


def _selection(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = _bids(queen, queues, name).where(f"data.auction % {LUCKY} = 0")
    return stream.select("data.auction", "data.price")


def _local_items(queen: SyncQueen, queues: Queues, name: str) -> Any:
    sellers = _side(queen, queues, PERSON, name).where("data.state in ('OR', 'ID', 'CA')")
    auctions = _side(queen, queues, AUCTION, name).where("data.category = 10")
    joined = auctions.join(sellers, on={"data.seller": "data.id"}, within=3600)
    person = {one: f"person.data.{one}" for one in ("name", "city", "state")}
    return joined.select(auction="auction.data.id", **person)


def _average_prices(_: SyncQueen, queues: Queues, name: str) -> Function:
    reads = {queues.auctions: AUCTION_SCHEMA, queues.bids: BID_SCHEMA}
    made = pipeline(reads=reads, writes=name, name=name, markers=True)
    return made(average_prices)


def average_prices(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Query 4: join, then the best bid of each auction, then the average of each category."""
    from pyspark.sql import functions as f

    offered = timed(auctions, time="data.at", name="offered", grace=GRACE_S).rows
    offered = offered.select("offered", "data.id", "data.category", "data.expires")
    made = timed(bids, time="data.at", name="made", grace=GRACE_S).rows
    made = made.select("made", "data.auction", "data.price")
    condition = "id = auction and made >= offered and made <= expires"
    bounds = f"made <= offered + {_LONGEST_AUCTION}"
    joined = offered.join(made, f.expr(f"{condition} and {bounds}"))
    # An auction ends after its last bid, so when it ends is a time that only moves on.
    ended = joined.select("id", "category", "price", event_time(f.col("expires"), "ended", 0))
    window = f.window("ended", f"{WINDOW_S} seconds").alias("window")
    best = ended.groupBy(window, "id", "category").agg(f.max("price").alias("final"))
    averages = best.groupBy("window", "category").agg(f.avg("final").alias("average"))
    return averages.select(
        f.col("window.start").alias("windowStart"),
        f.col("window.end").alias("windowEnd"),
        "category",
        "average",
    )


def _hot_items(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = _bids(queen, queues, name).sliding_time(WINDOW_S, SLIDE_S).key("data.auction")
    return stream.aggregate(bids="count(*)").top(1, by="bids")


def _highest_bid(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = _bids(queen, queues, name).tumbling_time(WINDOW_S)
    best = "max(struct(data.price, data.auction, data.bidder))"
    fields = {one: f"best.{one}" for one in ("price", "auction", "bidder")}
    return stream.aggregate(best=best).select("windowStart", "windowEnd", **fields)


def _new_users(queen: SyncQueen, queues: Queues, name: str) -> Any:
    sellers = _side(queen, queues, PERSON, name)
    auctions = _side(queen, queues, AUCTION, name)
    on = {"data.id": "data.seller", _WINDOW_OF: _WINDOW_OF}
    joined = sellers.join(auctions, on=on, within=WINDOW_S).dedup("person.data.id")
    return joined.select(id="person.data.id", name="person.data.name", at="person.data.at")


def _sessions(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = _bids(queen, queues, name).session(WINDOW_S).key("data.bidder")
    return stream.aggregate(bids="count(*)")


QUERIES = (
    Query(0, "pass through", (BID,), _pass_through),
    Query(1, "currency conversion", (BID,), _currency),
    Query(2, "selection", (BID,), _selection),
    Query(3, "local items: join", (PERSON, AUCTION), _local_items),
    Query(4, "average of categories: join and two aggregates", (AUCTION, BID), _average_prices),
    Query(5, "hot items: sliding windows, top", (BID,), _hot_items),
    Query(7, "highest bid: tumbling windows", (BID,), _highest_bid),
    Query(8, "new users: join in a window, dedup", (PERSON, AUCTION), _new_users),
    Query(11, "sessions of bidders", (BID,), _sessions),
)
