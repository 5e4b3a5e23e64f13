"""What Spark and the broker show of how far a query is: how much is left, of which queues."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from queen import SyncQueen
from queen.cli.main import app
from queen.spark.source.streaming import StreamReader, stream_reader
from tests import waiting
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.history import run_to_end
from tests.spark.test_batch import push
from tests.spark.test_streaming import DATA, Collected, Read, sealed

_LIMIT = ReadMaxRows(4)
# Longer than any test: a query with this trigger makes its first batch and waits.
_TEN_DAYS_S = 864_000


def open_reader(server: ServerProcess, *queues: str, **options: str) -> StreamReader:
    """What plans a query with limits, without Spark."""
    given = {"url": server.url, "queue": ",".join(queues), "maxmessagespertrigger": "4"}
    reader = stream_reader({**given, **options}, StructType().add("data", "string"))
    assert isinstance(reader, StreamReader)
    return reader


@pytest.fixture
def collected(checkpoint: str) -> Collected:
    return Collected(checkpoint)


def left(reader: StreamReader, queue: str) -> int:
    messages: int = reader.reportLatestOffset()["behind"][queue]["messages"]
    return messages


def test_progress_says_how_much_of_each_queue_is_left(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    for n in range(6):
        push(api, queue, n, n)
    frame = read_stream(DATA, queue=queue, maxMessagesPerTrigger=4)
    query = collected.start(frame, availableNow=True)
    assert query.awaitTermination(100)
    shown: list[Any] = [
        json.loads(progress.json)["sources"][0] for progress in query.recentProgress
    ]
    behind = [source["latestOffset"]["behind"] for source in shown]
    assert [one[queue]["messages"] for one in behind] == [8, 4, 0]
    sizes = [one[queue]["bytes"] for one in behind]
    assert sizes[0] > sizes[1] > sizes[2] == 0
    # What is compared and remembered is what it always was.
    assert all(set(source["endOffset"]) == {"sealed"} for source in shown)


def test_a_query_without_limits_leaves_nothing(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    push(api, queue, 1, 2)
    query = collected.start(read_stream(DATA, queue=queue), availableNow=True)
    assert query.awaitTermination(100)
    assert query.lastProgress is not None
    (source,) = json.loads(query.lastProgress.json)["sources"]
    assert source["latestOffset"]["behind"] == {queue: {"messages": 0, "bytes": 0}}
    assert source["latestOffset"]["sealed"] >= source["endOffset"]["sealed"]


def test_what_comes_meanwhile_is_counted(api: Api, server: ServerProcess, queue: str) -> None:
    other = f"{queue}-2"
    for n in range(5):
        push(api, queue, n, n)
    push(api, other, 1)
    reader = open_reader(server, queue, other)
    offset = reader.latestOffset(reader.initialOffset(), _LIMIT)
    assert (left(reader, queue), left(reader, other)) == (6, 1)
    push(api, other, 2, 3, 4)
    offset = reader.latestOffset(offset, _LIMIT)
    assert (left(reader, queue), left(reader, other)) == (2, 4)
    # Asked again from the same place, as after a failure: the same answer.
    again = reader.latestOffset(offset, _LIMIT)
    assert (left(reader, queue), left(reader, other)) == (0, 3)
    assert reader.latestOffset(offset, _LIMIT) == again
    assert (left(reader, queue), left(reader, other)) == (0, 3)
    offset = reader.latestOffset(again, _LIMIT)
    assert reader.latestOffset(offset, _LIMIT) == offset
    assert (left(reader, queue), left(reader, other)) == (0, 0)


def test_only_the_partitions_that_are_read_are_counted(
    api: Api, server: ServerProcess, queue: str
) -> None:
    for n in range(5):
        push(api, queue, n, partition="wanted")
        push(api, queue, n, n, n, partition="other")
    reader = open_reader(server, queue, partition="wanted")
    reader.latestOffset(reader.initialOffset(), _LIMIT)
    assert left(reader, queue) == 4


def test_an_offset_of_an_older_checkpoint_is_a_start(
    api: Api, server: ServerProcess, queue: str
) -> None:
    push(api, queue, 1)
    first = sealed(api, queue)
    for n in range(3):
        push(api, queue, n, n)
    old = {"sealed": first, "moves": {queue: 1}, "from": {queue: 0}}
    reader = open_reader(server, queue)
    end = reader.latestOffset(old, _LIMIT)
    assert set(end) == {"sealed"}
    assert left(reader, queue) == 2
    (task,) = reader.partitions(old, end)
    assert getattr(task, "messages", None) == 4


def test_the_broker_knows_how_far_a_pipeline_is(
    spark: SparkSession,
    api: Api,
    queen: SyncQueen,
    server: ServerProcess,
    queue: str,
    checkpoint: str,
) -> None:
    for n in range(6):
        push(api, queue, {"n": n}, {"n": n})
    stream = queen.stream(f"p-{queue}").sources(queue).schema("n bigint")
    stream = stream.select("data.n").to(f"{queue}-out")
    options = {"checkpoint": checkpoint, "starting": "earliest", "max_messages_per_trigger": 4}
    running = stream.run(spark, every=_TEN_DAYS_S, **options)

    def shown() -> Any:
        return api.call("GET", f"/api/v1/pipelines/p-{queue}").json["progress"]

    try:
        waiting.until(lambda: (shown() or {}).get("inputRows") == 4, 100)
        halfway = shown()
        assert halfway["queryId"] == str(running.query.id)
    finally:
        running.stop()
    assert halfway["behindMessages"] == 8
    assert halfway["behindBytes"] > 0
    assert halfway["behindMs"] >= 0
    assert halfway["doneUntil"] is not None
    running = stream.run(spark, available_now=True, **options)
    assert running.wait(100)
    done = shown()
    assert not {"behindMessages", "behindBytes", "behindMs"} & done.keys()
    assert done["doneUntil"] > halfway["doneUntil"]
    status = CliRunner().invoke(app, ["pipeline", "status", f"p-{queue}", "--url", server.url])
    assert json.loads(status.output)["progress"]["behindMessages"] == 0
    assert api.call("GET", f"/api/v1/pipelines/p-{queue}").json["runs"] == 2
    # What it has published is on the map as its own.
    waiting.until(lambda: flows(api, queue).get((f"pipeline:p-{queue}", f"queue:{queue}-out")))


def flows(api: Api, queue: str) -> dict[tuple[str, str], float]:
    edges = api.call("GET", f"/api/v1/system/map?queue={queue}").json["edges"]
    return {(edge["source"], edge["target"]): edge["perSecond"] for edge in edges}


def test_nothing_keeps_a_run_that_is_over(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    """Plans are large, and a session may see many runs."""
    push(api, queue, 1)
    stream = queen.stream(f"p-{queue}").sources(queue).select("offset").to(f"out-{queue}")
    query = weakref.ref(run_to_end(stream, spark, tmp_path).query)

    def is_gone() -> bool:
        gc.collect()
        return query() is None

    waiting.until(is_gone)
