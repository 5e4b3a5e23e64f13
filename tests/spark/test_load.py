"""`queen.spark.read`: times, partitions, offsets and columns reach the broker and the parser."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructType

import queen.spark
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.test_batch import push, values
from tests.spark.test_streaming import Collected, sealed


def at(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@pytest.fixture
def url(server: ServerProcess) -> str:
    return server.url


def test_times_choose_a_stretch(api: Api, spark: SparkSession, url: str, queue: str) -> None:
    push(api, queue, 1)
    first = at(sealed(api, queue))
    push(api, queue, 2)
    second = at(sealed(api, queue))
    push(api, queue, 3)

    def chosen(**asked: Any) -> list[Any]:
        return values(queen.spark.read(spark, queue, url=url, **asked))

    assert chosen() == [1, 2, 3]
    assert chosen(since=first) == [2, 3]
    assert chosen(since=first, until=second) == [2]
    # The same instant, said in other ways.
    assert chosen(until=first.astimezone(timezone(timedelta(hours=9)))) == [1]
    assert chosen(until=first.replace(tzinfo=None)) == [1]
    assert chosen(until=first.isoformat()) == [1]
    assert chosen(since=timedelta(days=1)) == [1, 2, 3]
    assert chosen(until=timedelta(days=1)) == []


def test_partitions_and_offsets_choose_a_part(
    api: Api, spark: SparkSession, url: str, queue: str
) -> None:
    for partition in ("a", "b,c", "d"):
        push(api, queue, f"{partition}0", f"{partition}1", f"{partition}2", partition=partition)

    def chosen(**asked: Any) -> list[Any]:
        return values(queen.spark.read(spark, [queue], url=url, **asked))

    assert chosen(partitions=["a", "b,c"], tasks=2) == ["a0", "a1", "a2", "b,c0", "b,c1", "b,c2"]
    assert chosen(partitions="b,c", from_offset=1, to_offset=2) == ["b,c1"]


class Order(msgspec.Struct):
    user: str
    amount: float


@dataclass
class Bill:
    user: str
    amount: float


FIELDS = StructType().add("user", "string").add("amount", "double")


@pytest.mark.parametrize(
    "schema",
    ["user string, amount double", FIELDS, Order, Bill],
    ids=["text", "type", "struct", "dataclass"],
)
def test_a_schema_says_what_data_is(
    api: Api, spark: SparkSession, url: str, queue: str, schema: Any
) -> None:
    push(api, queue, {"user": "anna", "amount": 2.5}, {"user": "ben", "amount": "free"})
    frame = queen.spark.read(spark, queue, url=url, schema=schema)
    rows = frame.selectExpr("data.user", "data.amount", "_corrupt").collect()
    kept = '{"user": "ben", "amount": "free"}'
    assert {tuple(row) for row in rows} == {("anna", 2.5, None), (None, None, kept)}


def test_columns_are_all_that_is_made(api: Api, spark: SparkSession, url: str, queue: str) -> None:
    push(api, queue, "not what the schema says")
    frame = queen.spark.read(spark, queue, url=url, columns=["offset", "partition"])
    assert frame.columns == ["offset", "partition"]
    assert [tuple(row) for row in frame.collect()] == [(0, "Default")]
    frame = queen.spark.read(spark, queue, url=url, columns=["data"], schema=BinaryType())
    assert frame.dtypes == [("data", "binary")]


def test_a_stream_is_asked_for_alike(
    api: Api, spark: SparkSession, url: str, queue: str, checkpoint: str
) -> None:
    push(api, queue, {"n": 1})
    first = at(sealed(api, queue))
    push(api, queue, {"n": 2})
    push(api, queue, {"n": 3}, partition="other")
    frame = queen.spark.read_stream(
        spark, queue, url=url, since=first, partitions="Default", schema="n int", columns=["data"]
    )
    assert frame.dtypes == [("data", "struct<n:int>")]
    assert Collected(checkpoint).run(frame.selectExpr("string(data.n)")).values() == [2]


@pytest.mark.parametrize("since", [timedelta.max, datetime.min, datetime(1900, 1, 1, tzinfo=UTC)])
def test_nothing_is_too_long_ago(
    api: Api, spark: SparkSession, url: str, queue: str, since: Any
) -> None:
    push(api, queue, {"n": 1})
    assert queen.spark.read(spark, queue, url=url, since=since).count() == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"queue": None}, "say which queue"),
        ({"queue": []}, "a name or several"),
        ({"queue": 5}, "a name or several"),
        ({"since": timedelta(hours=1), "startingTime": "earliest"}, "startingTime says again"),
        ({"partitions": "a", "from_offset": 2**70}, "startingOffset: .* is more than"),
        ({"schema": "n itn"}, "schema: 'n itn' is not as Spark writes it"),
        ({"since": 5}, "a datetime, a timedelta"),
        ({"since": timedelta(hours=-1)}, "how long ago"),
        ({"since": "yesterday"}, "not earliest, latest or a time"),
        ({"since": timedelta(hours=1), "until": timedelta(hours=2)}, "nothing lies between"),
        ({"from_offset": 1}, "offsets count within a partition"),
        ({"partitions": "a", "from_offset": -1}, "not a whole number"),
        ({"partitions": "a", "from_offset": 3, "to_offset": 2}, "is after endingOffset"),
        ({"columns": ["ofset"]}, "did you mean 'offset'"),
        ({"columns": []}, "none is asked for"),
        ({"columns": ["data", "data"]}, "twice"),
        ({"columns": ["offset"], "schema": "n int"}, "leaves data out"),
        ({"schema": 5}, "schema: what is in data"),
        ({"schema": object}, "Spark has no type"),
        ({"maxTask": 5}, "did you mean maxTasks"),
        ({"group": "g"}, "not for reading a batch"),
    ],
)
def test_what_means_nothing_is_refused_at_once(
    spark: SparkSession, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        queen.spark.read(spark, **{"queue": "orders", **asked})
