"""Queries about the bid that wins an auction. It is known when the auction has ended.

A bid counts while its auction lasts, and how long that is stands in the auction. A definition
has one `within` for all pairs, so these are functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.nexmark.events import AUCTION, AUCTION_SCHEMA, BID, BID_SCHEMA, LONGEST_AUCTION_MS
from benchmarks.nexmark.filling import Queues
from benchmarks.nexmark.queries.query import GRACE_S, WINDOW_S, Query
from queen.spark import pipeline, timed
from queen.spark.pipelines.functions import Function
from queen.spark.windows.event_time import event_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen import SyncQueen

LAST_AUCTIONS = 10


def average_prices(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Query 4: the average of each category."""
    from pyspark.sql import functions as f

    finals = _final_prices(auctions, bids)
    averages = finals.groupBy("window", "category").agg(f.avg("final").alias("average"))
    return averages.select(*_window_bounds(), "category", "average")


def last_prices(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Query 6: the average of the last auctions of each seller."""
    from pyspark.sql import functions as f

    finals = _final_prices(auctions, bids)
    ordered = f.sort_array(f.collect_list(f.struct("expires", "id", "final")), asc=False)
    sellers = finals.groupBy("window", "seller").agg(ordered.alias("ended"))
    last = f"slice(ended, 1, {LAST_AUCTIONS}).final"
    total = f"aggregate({last}, 0L, (sum, price) -> sum + price)"
    average = f.expr(f"{total} / size({last})").alias("average")
    return sellers.select(*_window_bounds(), "seller", average)


def winning_bids(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Query 9: the highest bid of each auction; of several, the first."""
    from pyspark.sql import functions as f

    order = f.struct("price", -f.unix_micros("made"), -f.col("bidder"))
    winner = f.max_by(f.struct("price", "bidder", f.col("made").alias("at")), order)
    by = ("ended", "id", "item", "seller", "category")
    won = _auctions_with_bids(auctions, bids).groupBy(*by).agg(winner.alias("bid"))
    return won.select("id", "item", "seller", "category", "bid.*")


def _auctions_with_bids(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Return all auctions with each of their bids, at the time at which the auction ends."""
    from pyspark.sql import functions as f

    offered = timed(auctions, time="data.at", name="offered", grace=GRACE_S).rows
    fields = ("id", "item", "seller", "category", "expires")
    offered = offered.select("offered", *(f"data.{field}" for field in fields))
    made = timed(bids, time="data.at", name="made", grace=GRACE_S).rows
    made = made.select("made", "data.auction", "data.bidder", "data.price")
    condition = "id = auction and made >= offered and made <= expires"
    bounds = f"made <= offered + interval {LONGEST_AUCTION_MS} milliseconds"
    joined = offered.join(made, f.expr(f"{condition} and {bounds}"))
    # An auction ends after its last bid, so when it ends is a time that only moves on.
    ended = event_time(f.col("expires"), "ended", 0)
    # A DataFrame has one time; the other one is a field from here on.
    plain = f.col("made").alias("made", metadata={})
    return joined.select(*fields, ended, plain, "bidder", "price")


def _final_prices(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    window = f.window("ended", f"{WINDOW_S} seconds").alias("window")
    by = ("id", "seller", "category", "expires")
    ended = _auctions_with_bids(auctions, bids)
    return ended.groupBy(window, *by).agg(f.max("price").alias("final"))


def _window_bounds() -> list[Column]:
    from pyspark.sql import functions as f

    return [f.col("window.start").alias("windowStart"), f.col("window.end").alias("windowEnd")]


def _function(made: Callable[..., DataFrame]) -> Callable[[SyncQueen, Queues, str], Function]:
    def build(_: SyncQueen, queues: Queues, name: str) -> Function:
        reads = {queues.auctions: AUCTION_SCHEMA, queues.bids: BID_SCHEMA}
        return pipeline(reads=reads, writes=name, name=name, markers=True)(made)

    return build


ENDED_AUCTIONS = (
    Query(
        4,
        "average of categories: join, two aggregates",
        (AUCTION, BID),
        _function(average_prices),
        "of the auctions that ended in each window, instead of all until now",
    ),
    Query(
        6,
        "average of the last ten of each seller",
        (AUCTION, BID),
        _function(last_prices),
        "of the last ten that ended in each window, instead of the last ten until now",
    ),
    Query(
        9,
        "winning bids: join, first of each auction",
        (AUCTION, BID),
        _function(winning_bids),
        "given once, when the auction has ended, instead of replaced by each higher bid",
    ),
)
