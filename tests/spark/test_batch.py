"""Queues read in a batch: columns, ranges, filters, and what goes wrong."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from queen.core.ids import message_id, parse_message
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import IS_LONG

Read = Callable[..., DataFrame]


def push(api: Api, queue: str, *payloads: Any, partition: str = "Default") -> list[Any]:
    items = [{"queue": queue, "partition": partition, "payload": one} for one in payloads]
    answer = api.push(*items)
    assert answer.status == 201
    pushed: list[Any] = answer.json
    return pushed


def fill(api: Api, queue: str, partitions: int, each: int) -> None:
    """Numbers in many partitions, pushed a few thousand at a time."""
    for first in range(0, partitions, 2000):
        items = [
            {"queue": queue, "partition": f"p{p}", "payload": {"p": p, "n": n}}
            for p in range(first, min(first + 2000, partitions))
            for n in range(each)
        ]
        assert api.push(*items).status == 201


def values(frame: DataFrame) -> list[Any]:
    return sorted(json.loads(row.data) for row in frame.select("data").collect())


# ---- columns ----


def test_entries_of_a_stream_are_rows(api: Api, read: Read, queue: str) -> None:
    added = [
        api.call("POST", f"/stream/{queue}/add", {"n": number}).json["messageId"]
        for number in range(3)
    ]
    rows = sorted(read(queue=queue).select("data", "transactionId").collect())
    assert [(json.loads(row.data), row.transactionId) for row in rows] == [
        ({"n": number}, entry_id) for number, entry_id in enumerate(added)
    ]


def test_every_column_is_what_the_broker_says(api: Api, read: Read, queue: str) -> None:
    items: list[dict[str, Any]] = [
        {"queue": queue, "partition": "lane", "transactionId": "ä-1", "payload": {"n": 1}},
        {
            "queue": queue,
            "partition": "lane",
            "transactionId": "t2",
            "traceId": str(uuid.UUID(int=7)),
            "payload": "täxt",
        },
    ]
    assert api.push(*items).status == 201
    popped = api.messages(queue, "lane", batch=2, consumerGroup="g")
    frame = read(queue=queue)
    assert [field.name for field in frame.schema] == [
        "queue", "partition", "offset", "id", "transactionId", "traceId", "createdAt", "data",
    ]  # fmt: skip
    first, second = frame.orderBy("offset").collect()
    assert (first.queue, first.partition, first.offset) == (queue, "lane", 0)
    assert (first.transactionId, second.transactionId) == ("ä-1", "t2")
    assert (first.traceId, second.traceId) == (None, str(uuid.UUID(int=7)))
    assert (json.loads(first.data), json.loads(second.data)) == ({"n": 1}, "täxt")
    assert [first.id, second.id] == [one["id"] for one in popped]
    written = datetime.fromisoformat(popped[0]["createdAt"]).astimezone().replace(tzinfo=None)
    assert first.createdAt == second.createdAt == written


def test_ids_are_those_of_partition_and_offset(api: Api, read: Read, queue: str) -> None:
    push(api, queue, *range(300))
    rows = read("id STRING, offset BIGINT", queue=queue).collect()
    partition, _ = parse_message(rows[0].id) or (0, 0)
    assert [row.id for row in rows] == [message_id(partition, row.offset) for row in rows]
    assert {row.offset for row in rows} == set(range(300))


def test_only_the_columns_of_a_schema_are_there_in_its_order(
    api: Api, read: Read, queue: str
) -> None:
    push(api, queue, 5)
    (row,) = read("data STRING, queue STRING", queue=queue).collect()
    assert row.asDict() == {"data": "5", "queue": queue}


def test_payloads_may_be_variants(api: Api, read: Read, queue: str) -> None:
    push(api, queue, {"a": {"b": 7}}, [1, "x"], None, 2.5)
    frame = read("offset BIGINT, data VARIANT", queue=queue)
    picked = frame.select(
        f.expr("try_variant_get(data, '$.a.b', 'int') as b"), f.expr("to_json(data) as text")
    )
    assert [tuple(row) for row in picked.collect()] == [
        (7, '{"a":{"b":7}}'), (None, '[1,"x"]'), (None, "null"), (None, "2.5"),
    ]  # fmt: skip


def test_payloads_may_be_structs(api: Api, read: Read, queue: str) -> None:
    push(
        api,
        queue,
        {"id": 1, "price": 2.5, "tags": ["a", "b"], "at": "2026-01-02T03:04:05Z",
         "who": {"name": "Ada"}, "day": "2026-01-02", "sum": 12.34, "more": "ignored"},
        {"id": 2},
        None,
    )  # fmt: skip
    kind = (
        "data STRUCT<id: BIGINT, price: DOUBLE, tags: ARRAY<STRING>, at: TIMESTAMP, "
        "who: STRUCT<name: STRING>, day: DATE, sum: DECIMAL(10,2)>"
    )
    full, sparse, none = read(f"offset BIGINT, {kind}", queue=queue).orderBy("offset").collect()
    assert (full.data.id, full.data.price, full.data.tags) == (1, 2.5, ["a", "b"])
    assert full.data.at.astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (full.data.who.name, str(full.data.day), str(full.data.sum)) == (
        "Ada", "2026-01-02", "12.34",
    )  # fmt: skip
    assert sparse.data.asDict() == {
        "id": 2, "price": None, "tags": None, "at": None, "who": None, "day": None, "sum": None,
    }  # fmt: skip
    assert none.data is None


def test_payloads_may_be_lists_or_numbers(api: Api, read: Read, queue: str) -> None:
    push(api, queue, [1, 2], None, [])
    assert [row.data for row in read("data ARRAY<BIGINT>", queue=queue).collect()] == [
        [1, 2], None, [],
    ]  # fmt: skip
    push(api, f"{queue}-2", 1, 2.5)
    assert [row.data for row in read("data DOUBLE", queue=f"{queue}-2").collect()] == [1.0, 2.5]


def test_what_does_not_fit_is_kept_beside_its_neighbours(api: Api, read: Read, queue: str) -> None:
    good = [{"n": n} for n in range(100)]
    bad = [{"n": 1.5}, "text", [1], {"n": "7"}, {"n": {"deep": 1}}, 12]
    push(api, queue, *good[:50], *bad, *good[50:])
    schema = "offset BIGINT, data STRUCT<n: BIGINT>, _corrupt STRING"
    rows = read(schema, queue=queue).orderBy("offset").collect()
    assert [row.data.n for row in rows if row.data] == list(range(100))
    kept = [json.loads(row._corrupt) for row in rows if row._corrupt is not None]
    assert kept == bad
    assert all(row.data is None for row in rows if row._corrupt is not None)


def test_what_does_not_fit_is_never_dropped_in_silence(api: Api, read: Read, queue: str) -> None:
    push(api, queue, {"n": 1}, {"n": "x"})
    with pytest.raises(Exception, match=r"offset 1 of partition 'Default'.*_corrupt STRING"):
        read("data STRUCT<n: BIGINT>", queue=queue).collect()


# ---- what is shown ----


def test_deleted_messages_and_copies_for_one_group_are_left_out(
    api: Api, read: Read, queue: str
) -> None:
    pushed = push(api, queue, *range(10))
    gone = pushed[3]
    path = f"/api/v1/messages/{gone['partition_id']}/{quote(gone['transaction_id'])}"
    assert api.call("DELETE", path).status == 200
    message = api.messages(queue, consumerGroup="g")[0]
    assert api.ack(message, "dlq").status == 200
    retry = f"/api/v1/messages/{message['partitionId']}/{quote(message['transactionId'])}/retry"
    answer = api.call("POST", f"{retry}?consumerGroup=g")
    assert answer.status == 200, answer.raw
    schema = "offset BIGINT, id STRING, transactionId STRING, data BIGINT"
    rows = read(schema, queue=queue).orderBy("offset").collect()
    assert [row.data for row in rows] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [row.offset for row in rows] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert rows[3].transactionId == pushed[4]["transaction_id"]
    assert (parse_message(rows[3].id) or (0, 0))[1] == 4


def test_an_encrypted_queue_is_read_as_any_other(api: Api, read: Read, queue: str) -> None:
    api.configure(queue, encryptionEnabled=True)
    push(api, queue, {"n": 1}, {"n": 2})
    assert values(read(queue=queue).select(f.get_json_object("data", "$.n").alias("data"))) == [
        1,
        2,
    ]


# ---- how much, and from where ----

MANY = 10_000 if IS_LONG else 2_000


@pytest.mark.parametrize(("partitions", "each"), [(1, 3000), (100, 30), (MANY, 1)])
def test_the_count_of_partitions_does_not_matter(
    api: Api, read: Read, queue: str, partitions: int, each: int
) -> None:
    fill(api, queue, partitions, each)
    frame = read("partition STRING, data STRUCT<p: BIGINT, n: BIGINT>", queue=queue, tasks=4)
    (row,) = frame.agg(
        f.count("*").alias("rows"),
        f.countDistinct("partition").alias("lanes"),
        f.sum("data.n").alias("n"),
        f.sum(f.when(f.concat(f.lit("p"), f.col("data.p")) == f.col("partition"), 0).otherwise(1)),
    ).collect()
    assert tuple(row) == (partitions * each, partitions, partitions * sum(range(each)), 0)


def test_several_queues_are_one_frame(api: Api, read: Read, queue: str) -> None:
    push(api, queue, 1)
    push(api, f"{queue}-2", 2, 3)
    rows = read(queue=f"{queue}, {queue}-2").groupBy("queue").count().collect()
    assert {row.queue: row["count"] for row in rows} == {queue: 1, f"{queue}-2": 2}


def test_times_and_offsets_choose_a_range(api: Api, read: Read, queue: str) -> None:
    times = []
    for n in range(5):
        push(api, queue, n, partition="a")
        cut = api.call("POST", "/api/v1/fetch/cut", {"queues": [queue]}).json["sealed"]
        times.append(datetime.fromtimestamp(cut / 1e6, UTC).isoformat())
    push(api, queue, 9, partition="b")
    assert values(read(queue=queue, startingTime=times[0], endingTime=times[2])) == [1, 2]
    assert values(read(queue=queue, startingTime=times[3])) == [4, 9]
    assert values(read(queue=queue, startingTime="earliest", endingTime=times[0])) == [0]
    assert values(read(queue=queue, startingTime="latest")) == []
    assert values(read(queue=queue, partition="b")) == [9]
    assert values(read(queue=queue, partition='["a", "b"]', startingTime=times[3])) == [4, 9]
    assert values(read(queue=queue, partition="a", startingOffset=1, endingOffset=3)) == [1, 2]


def test_a_frame_is_filtered_anew_each_time(api: Api, read: Read, queue: str) -> None:
    for name in ("a", "b"):
        push(api, queue, *range(20), partition=name)
    frame = read(queue=queue)
    assert frame.where("partition = 'b'").count() == 20
    # Spark keeps the reader of a frame, and with it filters that were pushed into it.
    assert frame.where("partition = 'b' or offset = 0").count() == 21
    assert frame.count() == 40


def test_a_frame_stays_as_it_was_when_it_was_first_used(api: Api, read: Read, queue: str) -> None:
    push(api, queue, 1)
    frame = read(queue=queue)
    assert frame.count() == 1
    push(api, queue, 2)
    assert frame.count() == 1
    assert read(queue=queue).count() == 2


def test_an_empty_queue_is_an_empty_frame(api: Api, read: Read, queue: str) -> None:
    api.configure(queue)
    assert read(queue=queue).collect() == []
    assert read("data STRUCT<n: BIGINT>, _corrupt STRING", queue=queue).collect() == []


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        (None, {}, "say which queue to read"),
        ("amount DOUBLE", {"queue": "q"}, "no column 'amount'.*data STRUCT<amount"),
        ("offset STRING", {"queue": "q"}, "column offset is bigint, not string"),
        ("data MAP<STRING, STRING>", {"queue": "q"}, "a map cannot be parsed into"),
        ("data STRUCT<v: VARIANT>", {"queue": "q"}, "VARIANT is possible for all of data"),
        ("sealed TIMESTAMP", {"queue": "q"}, "sealed and option markers go together"),
        (None, {"queue": "q", "startingTime": "soon"}, "'soon' is not earliest, latest or a time"),
        (None, {"queue": "q", "startingOffset": "3"}, "give option partition too"),
        (None, {"queue": "q", "tasks": "many"}, "'many' is not a whole number"),
        (None, {"queue": "q", "url": "localhost"}, "is not a URL"),
    ],
)
def test_wrong_options_are_explained(
    read: Read, schema: str | None, options: dict[str, str], says: str
) -> None:
    with pytest.raises(AnalysisException, match=says):
        read(schema, **options).collect()


def test_an_unknown_queue_is_named(read: Read, queue: str) -> None:
    with pytest.raises(AnalysisException, match=f"Queue '{queue}' not found: `queen queue list`"):
        read(queue=queue).collect()


def test_a_server_that_is_not_there_is_named(read: Read, queue: str) -> None:
    with pytest.raises(AnalysisException, match=r"no Queen server answers at http://127.0.0.1:9"):
        read(queue=queue, url="http://127.0.0.1:9").collect()


def test_tokens_and_namespaces_are_respected(
    start_server: Callable[..., ServerProcess],
    dsn: str,
    api: Api,
    read: Read,
    read_stream: Read,
    queue: str,
    checkpoint: str,
) -> None:
    mine, theirs = f"{queue}-mine", f"{queue}-theirs"
    for name in (mine, theirs):
        wanted = {"queue": name, "namespace": name, "options": {}}
        assert api.call("POST", "/api/v1/configure", wanted).status == 201
        push(api, name, 1)
    wanted = {"name": "reader", "role": "read-only", "namespaces": [mine]}
    token = api.call("POST", "/api/v1/tokens", wanted).json["token"]
    closed = start_server("--database-url", dsn, "--auth", "tokens")
    place = {"url": closed.url, "token": token}
    assert read(queue=mine, **place).count() == 1
    with pytest.raises(AnalysisException, match=f"Queue '{theirs}' not found"):
        read(queue=theirs, **place).collect()
    with pytest.raises(AnalysisException, match="wants a good token: give one with option token"):
        read(queue=mine, url=closed.url, token="qn_nobody").collect()  # noqa: S106
    # To read needs no more than that; to be a group does.
    frame = read_stream(queue=mine, group="report", **place)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    with pytest.raises(StreamingQueryException, match="the token does not allow this"):
        query.processAllAvailable()
    query.stop()


class _Numbers(DataSource):
    """A source that takes filters, as ours would."""

    @classmethod
    def name(cls) -> str:
        return "numbers-to-filter"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Filtering()


class _Filtering(DataSourceReader):
    def __init__(self) -> None:
        self._only: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        for one in filters:
            if isinstance(one, EqualTo):
                self._only = one.value
            else:
                yield one

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield from ((n,) for n in range(23) if self._only in (None, n))


def test_spark_keeps_the_filters_of_the_query_before(spark: SparkSession) -> None:
    """Why `format("queen")` takes none. When this fails, Spark is mended, and it can."""
    spark.dataSource.register(_Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", True)
    try:
        numbers = spark.read.format("numbers-to-filter").load()
        assert numbers.where("n = 7").count() == 1
        # There are 23.
        assert numbers.count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
