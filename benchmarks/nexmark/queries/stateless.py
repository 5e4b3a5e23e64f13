"""Queries that look at one event at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.events import BID, BID_SCHEMA
from benchmarks.nexmark.filling import Queues
from benchmarks.nexmark.queries.query import BID_FIELDS, Query, bids_of
from queen.spark import pipeline
from queen.spark.pipelines.functions import Function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from queen import SyncQueen

EURO_PER_DOLLAR = 0.908
LUCKY = 123
SIDE_ROWS = 1000
# Cents, between which a bid is a large one.
LARGE, TOO_LARGE = 1_000_000, 50_000_000
CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}

_EURO = f"data.price * {EURO_PER_DOLLAR}D"
_OTHER_CHANNEL = "nullif(regexp_extract(data.url, '(&|^)channel_id=([^&]*)', 2), '')"


def _pass_through(queen: SyncQueen, queues: Queues, name: str) -> Any:
    return bids_of(queen, queues, name).select(*(f"data.{field}" for field in BID_FIELDS))


def _currency(queen: SyncQueen, queues: Queues, name: str) -> Any:
    return bids_of(queen, queues, name).select(
        "data.auction", "data.bidder", "data.at", price=_EURO
    )


def _selection(queen: SyncQueen, queues: Queues, name: str) -> Any:
    stream = bids_of(queen, queues, name).where(f"data.auction % {LUCKY} = 0")
    return stream.select("data.auction", "data.price")


def _into_files(queen: SyncQueen, queues: Queues, name: str) -> Any:
    fields = (f"data.{field}" for field in BID_FIELDS)
    return bids_of(queen, queues, name).select(
        *fields, day="date_format(data.at, 'yyyy-MM-dd')", minute="date_format(data.at, 'HH:mm')"
    )


def _side_input(_: SyncQueen, queues: Queues, name: str) -> Function:
    return pipeline(reads={queues.bids: BID_SCHEMA}, writes=name, name=name)(with_side_input)


def with_side_input(bids: DataFrame) -> DataFrame:
    """Query 13: each bid with a value from a table that does not change."""
    from pyspark.sql import functions as f

    table = bids.sparkSession.range(SIDE_ROWS)
    table = table.select(f.col("id").alias("key"), f.expr("concat('value ', id)").alias("value"))
    joined = bids.join(f.broadcast(table), f.expr(f"data.auction % {SIDE_ROWS} = key"))
    fields = [f.col(f"data.{field}") for field in ("auction", "bidder", "price", "at")]
    return joined.select("partition", f.struct(*fields, "value").alias("data"))


def _calculation(queen: SyncQueen, queues: Queues, name: str) -> Any:
    hour = "hour(data.at)"
    time_of_day = (
        f"case when {hour} between 8 and 18 then 'day' "
        f"when {hour} <= 6 or {hour} >= 20 then 'night' else 'other' end"
    )
    letters = "length(data.extra) - length(replace(data.extra, 'c', ''))"
    stream = bids_of(queen, queues, name).where(f"{_EURO} > {LARGE}", f"{_EURO} < {TOO_LARGE}")
    fields = ("data.auction", "data.bidder", "data.at", "data.extra")
    return stream.select(*fields, price=_EURO, timeOfDay=time_of_day, letters=letters)


def _channel_ids(queen: SyncQueen, queues: Queues, name: str) -> Any:
    cases = " ".join(f"when '{channel}' then '{id}'" for channel, id in CHANNEL_IDS.items())
    channel_id = f"case lower(data.channel) {cases} else {_OTHER_CHANNEL} end"
    stream = bids_of(queen, queues, name).where(f"{channel_id} is not null")
    fields = ("data.auction", "data.bidder", "data.price", "data.channel")
    return stream.select(*fields, channelId=channel_id)


def _folders(queen: SyncQueen, queues: Queues, name: str) -> Any:
    folders = {f"folder{at}": f"split_part(data.url, '/', {at + 3})" for at in (1, 2, 3)}
    fields = ("data.auction", "data.bidder", "data.price", "data.channel")
    return bids_of(queen, queues, name).select(*fields, **folders)


_WHERE_IT_WAS = "partition"

STATELESS = (
    Query(0, "pass through", (BID,), _pass_through, partition=_WHERE_IT_WAS),
    Query(1, "currency conversion", (BID,), _currency, partition=_WHERE_IT_WAS),
    Query(2, "selection", (BID,), _selection, partition=_WHERE_IT_WAS),
    Query(
        10,
        "into files",
        (BID,),
        _into_files,
        "day and minute are columns of the files, not folders",
        writes_files=True,
    ),
    Query(
        13,
        "join with a table that does not change",
        (BID,),
        _side_input,
        "a function: a definition reads queues only",
    ),
    Query(
        14,
        "calculation, filter",
        (BID,),
        _calculation,
        "letters are counted in SQL, not by a function of the user",
        _WHERE_IT_WAS,
    ),
    Query(21, "channel ids: regular expressions", (BID,), _channel_ids, partition=_WHERE_IT_WAS),
    Query(22, "folders of addresses", (BID,), _folders, partition=_WHERE_IT_WAS),
)
