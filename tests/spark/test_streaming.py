"""Queues read as a stream: offsets, limits, restarts, groups, retention, markers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.api import Api
from tests.contract.groupcalls import detail, pause, resume, seek
from tests.spark.test_batch import fill, push

Read = Callable[..., DataFrame]
Batches = list[list[Any]]


class Collected:
    """What a query gave, batch by batch."""

    def __init__(self, checkpoint: str) -> None:
        self.batches: Batches = []
        self.ids: list[int] = []
        self._checkpoint = checkpoint
        self._changed = threading.Condition()

    def run(self, frame: DataFrame) -> Collected:
        """Take what is there, then stop."""
        query = self.start(frame, availableNow=True)
        query.awaitTermination(100)
        return self

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", self._checkpoint)
        return writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = [tuple(row) for row in frame.collect()]
        with self._changed:
            self.batches.append(rows)
            self.ids.append(number)
            self._changed.notify_all()

    def wait_for_batches(self, count: int) -> None:
        """For a query that never runs out of them, where `processAllAvailable` would wait."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.batches) >= count, timeout=100)

    def values(self) -> list[Any]:
        return sorted(json.loads(row[0]) for batch in self.batches for row in batch)


@pytest.fixture
def collected(checkpoint: str) -> Collected:
    return Collected(checkpoint)


def sealed(api: Api, queue: str) -> int:
    at: int = api.call("POST", "/api/v1/fetch/cut", {"queues": [queue]}).json["sealed"]
    return at


DATA = "data STRING"


def test_a_query_goes_on_where_it_stopped(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    push(api, queue, 1, 2)
    frame = read_stream(DATA, queue=queue)
    assert collected.run(frame).values() == [1, 2]
    push(api, queue, 3)
    assert collected.run(frame).values() == [1, 2, 3]
    # Nothing came: no batch.
    assert collected.run(frame).ids == [0, 1]


def test_limits_cut_what_is_there_into_batches(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    for n in range(6):
        push(api, queue, n, n)
    collected.run(read_stream(DATA, queue=queue, maxMessagesPerTrigger=4))
    assert [len(batch) for batch in collected.batches] == [4, 4, 4]
    assert collected.values() == sorted([*range(6), *range(6)])


def test_bytes_limit_batches_too(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    for n in range(4):
        push(api, queue, n)
    # Less than a segment has: one of them for each batch.
    collected.run(read_stream(DATA, queue=queue, maxBytesPerTrigger=1))
    assert [len(batch) for batch in collected.batches] == [1, 1, 1, 1]
    assert collected.values() == [0, 1, 2, 3]


def test_several_queues_and_partitions_are_one_stream(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    fill(api, queue, 50, 2)
    push(api, f"{queue}-2", {"p": -1, "n": 0})
    frame = read_stream("queue STRING, data STRUCT<n: BIGINT>", queue=f"{queue},{queue}-2")
    collected.run(frame)
    (batch,) = collected.batches
    assert len(batch) == 101
    assert sum(row[0] == f"{queue}-2" for row in batch) == 1


def test_a_batch_that_failed_is_read_again_as_it_was(
    api: Api, read_stream: Read, queue: str, checkpoint: str
) -> None:
    push(api, queue, *range(5))
    seen: list[list[int]] = []

    def fail(frame: DataFrame, _number: int) -> None:
        seen.append(sorted(int(row.data) for row in frame.collect()))
        if len(seen) == 1:
            raise RuntimeError("the sink is broken")

    def run() -> None:
        writer = read_stream(DATA, queue=queue).writeStream.foreachBatch(fail)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination(100)

    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        run()
    push(api, queue, *range(5, 9))
    run()
    assert seen == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(("start", "expected"), [("earliest", [1, 2]), ("middle", [2])])
def test_where_it_starts(
    api: Api, read_stream: Read, queue: str, collected: Collected, start: str, expected: list[int]
) -> None:
    push(api, queue, 1)
    middle = datetime.fromtimestamp(sealed(api, queue) / 1e6, UTC).isoformat()
    push(api, queue, 2)
    time = middle if start == "middle" else start
    assert collected.run(read_stream(DATA, queue=queue, startingTime=time)).values() == expected


def test_a_running_query_follows_its_group(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    push(api, queue, 1)
    frame = read_stream(DATA, queue=queue, startingTime="latest", group="report")
    query = collected.start(frame)
    try:
        query.processAllAvailable()
        push(api, queue, 2)
        query.processAllAvailable()
        assert collected.values() == [2]
        assert detail(api, "report", queue)["Default"]["offsetLag"] == 0
        # Back to the beginning: the next trigger reads everything again.
        assert seek(api, "report", queue, toBeginning=True).status == 200
        query.processAllAvailable()
        assert collected.values() == [1, 2, 2]
        assert pause(api, "report").status == 200
        push(api, queue, 3)
        query.processAllAvailable()
        assert collected.values() == [1, 2, 2]
        assert detail(api, "report", queue)["Default"]["offsetLag"] == 1
        assert resume(api, "report").status == 200
        query.processAllAvailable()
        assert collected.values() == [1, 2, 2, 3]
    finally:
        query.stop()


def test_a_new_checkpoint_starts_where_its_group_is(
    api: Api, read_stream: Read, queue: str, tmp_path: Any
) -> None:
    frame = read_stream(DATA, queue=queue, group="report")
    push(api, queue, 1)
    first = Collected(str(tmp_path / "first"))
    assert first.run(frame).values() == [1]
    push(api, queue, 2)
    # The last batch is told of when the next one is asked for.
    assert first.run(frame).values() == [1, 2]
    assert first.run(frame).values() == [1, 2]
    push(api, queue, 3)
    assert Collected(str(tmp_path / "second")).run(frame).values() == [3]


async def test_what_retention_has_removed_stops_a_query(
    api: Api,
    read_stream: Read,
    queue: str,
    collected: Collected,
    connection: asyncpg.Connection,
) -> None:
    push(api, queue, 1)
    frame = read_stream(DATA, queue=queue)
    collected.run(frame)
    push(api, queue, 2)
    sealed(api, queue)
    queue_id = await connection.fetchval("select id from queen.queues where name = $1", queue)
    await connection.fetch(
        "select * from queen.expire_segments($1, clock_timestamp(), '-infinity', null, 100)",
        queue_id,
    )
    push(api, queue, 3)
    with pytest.raises(StreamingQueryException, match=r"retention has removed messages of"):
        collected.run(frame)
    assert collected.run(read_stream(DATA, queue=queue, failOnDataLoss="false")).values() == [1, 3]


def test_markers_tell_the_sealed_time(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    push(api, queue, 1)
    frame = read_stream(queue=queue, markers="true", markerInterval=200)
    assert frame.columns[-1] == "sealed"
    query = collected.start(frame.select("data", "sealed"))
    try:
        # Time goes on for a queue to which nobody writes.
        collected.wait_for_batches(3)
    finally:
        query.stop()
    told = []
    for batch in collected.batches:
        (marker,) = [row for row in batch if row[1] is not None]
        assert marker[0] is None
        told.append(marker[1])
    assert told == sorted(told)
    assert len(set(told)) == len(told)
    assert [row[0] for batch in collected.batches for row in batch if row[1] is None] == ["1"]


def test_an_idle_query_makes_no_batches(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    api.configure(queue)
    query = collected.start(read_stream(DATA, queue=queue))
    try:
        query.processAllAvailable()
        query.processAllAvailable()
        # Spark makes the first one of nothing, whatever a source says.
        assert collected.batches == [[]]
    finally:
        query.stop()


def test_a_group_of_consumers_is_not_a_query(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    push(api, queue, 1)
    assert api.messages(queue, consumerGroup="workers")
    with pytest.raises(StreamingQueryException, match="choose another name for the query"):
        collected.run(read_stream(DATA, queue=queue, group="workers"))


def test_a_limit_does_not_stop_before_the_partition_that_is_wanted(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    for n in range(6):
        push(api, queue, n, partition="other")
    push(api, queue, 7, partition="wanted")
    push(api, queue, 8, partition="other")
    frame = read_stream(DATA, queue=queue, partition="wanted", maxMessagesPerTrigger=2)
    assert collected.run(frame).values() == [7]
