"""Results that depend on messages alone: not on a session, nor on anybody's Unicode."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from queen import SyncQueen
from queen.core.names import reason_against_name
from queen.errors import BadRequest, Conflict, NotFound, PipelineFailed
from queen.spark.launch.settings import TIME_ZONE, pipeline_settings
from queen.spark.pipelines.backfill import backfill, plain_rows
from queen.spark.pipelines.run import Options, checked_definition
from queen.spark.sink.partition_names import partition_name
from queen.spark.windows.event_time import timed, windowed
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import IS_LONG
from tests.spark.history import messages

NEW_YORK = "America/New_York"
# Assigned by nobody yet.
NEWER = "\U0001fffd"


@pytest.fixture
def in_new_york(spark: SparkSession) -> Iterator[SparkSession]:
    """A session as somebody may have it: with another zone, and other rules."""
    foreign = {
        TIME_ZONE: NEW_YORK,
        "spark.sql.ansi.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    before = {name: spark.conf.get(name) for name in foreign}
    for name, value in foreign.items():
        spark.conf.set(name, value)
    yield spark
    assert {name: spark.conf.get(name) for name in foreign} == foreign
    for name, old in before.items():
        spark.conf.set(name, str(old))


def _stream(queen: SyncQueen, queue: str, partition: str | None = None) -> Any:
    stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema("s string, x double")
    return stream.to(f"out-{uuid.uuid4().hex}", partition=partition)


def _run(stream: Any, spark: SparkSession, api: Api, folder: Path) -> list[Any]:
    options = {"checkpoint": str(folder), "available_now": True, "starting": "earliest"}
    assert stream.run(spark, **options).wait()
    return messages(api, stream.definition()["output"]["queue"])


@pytest.mark.parametrize(
    ("zone", "instant"),
    [("UTC", "2026-07-01T12:00:00.000000Z"), (NEW_YORK, "2026-07-01T16:00:00.000000Z")],
)
def test_the_zone_is_that_of_the_definition_in_every_session(
    queen: SyncQueen,
    in_new_york: SparkSession,
    server: ServerProcess,
    api: Api,
    queue: str,
    zone: str,
    instant: str,
    tmp_path: Path,
) -> None:
    api.push({"queue": queue, "payload": {"s": "2026-07-01 12:00:00", "x": 1}})
    stream = _stream(queen, queue).time_zone(zone).select(at="to_timestamp(data.s)")
    assert _run(stream, in_new_york, api, tmp_path) == [{"at": instant}]
    in_new_york.conf.set(TIME_ZONE, "Asia/Tokyo")
    definition = checked_definition(stream.definition())
    rows = plain_rows(backfill(definition, in_new_york, Options(url=server.url), None, None))
    assert list(rows) == [{"at": instant}]
    in_new_york.conf.set(TIME_ZONE, NEW_YORK)


def test_the_rules_of_expressions_are_not_those_of_a_session(
    queen: SyncQueen, in_new_york: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    """Where an error is null in the session it is an error all the same."""
    for text in ("7", "seven"):
        api.push({"queue": queue, "payload": {"s": text, "x": 1}})
    stream = _stream(queen, queue).select(n="cast(data.s as int)")
    assert _run(stream, in_new_york, api, tmp_path) == [{"n": 7}]


def test_a_pipeline_runs_in_a_thread_that_spark_has_not_seen(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    """A writer looks for its sink in the session of its thread, and a new thread has none."""
    api.push({"queue": queue, "payload": {"s": "a", "x": 1}})
    stream = _stream(queen, queue).select(s="data.s")
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(_run, stream, spark, api, tmp_path).result()
    assert rows == [{"s": "a"}]


@pytest.mark.parametrize(
    ("day", "hours", "is_in_time"),
    [("2024-03-30T12:00:00Z", 23.5, True), ("2024-10-26T12:00:00Z", 24.5, False)],
)
def test_a_day_has_24_hours_when_clocks_are_changed(
    spark: SparkSession, day: str, hours: float, is_in_time: bool
) -> None:
    """The next local day is 23 hours later in spring, and 25 in autumn."""
    then, apart = datetime.fromisoformat(day), timedelta(hours=hours)
    with pipeline_settings(spark, "Europe/Berlin"):
        late = spark.createDataFrame([(then + apart, then)], "createdAt timestamp, ts timestamp")
        ahead = spark.createDataFrame([(then, then + apart)], "createdAt timestamp, ts timestamp")
        cut = [
            timed(late, grace=86_400, time="ts"),
            timed(ahead, ahead=86_400, time="ts"),
            windowed(late, 1, grace=86_400, time="ts"),
        ]
        counts = [(some.rows.count(), some.late.count()) for some in cut]
    assert counts == [(1, 0) if is_in_time else (0, 1)] * 3


def test_a_zone_that_nobody_knows_is_refused(queen: SyncQueen, api: Api, queue: str) -> None:
    stream = _stream(queen, queue).select(s="data.s")
    with pytest.raises(BadRequest, match="time_zone: 'Europe/Atlantis'"):
        stream.time_zone("Europe/Atlantis")
    # By those too who say it without the verb.
    body = {"definition": {**stream.definition(), "timeZone": "Europe/Atlantis"}}
    answer = api.call("POST", "/api/v1/pipelines", body)
    assert answer.status == 400
    assert answer.json["error"].startswith("timeZone: 'Europe/Atlantis' is not known")


def test_late_messages_need_a_queue_of_their_own(queen: SyncQueen, queue: str) -> None:
    stream = _stream(queen, queue).tumbling_time(1).aggregate(n="count(*)")
    queue_of_results = stream.definition()["output"]["queue"]
    with pytest.raises(BadRequest, match="lateTo"):
        stream.late_to(queue_of_results).define()


def test_what_is_passed_on_is_what_came(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    payloads = ['{"s":"a","x":1.50,"more":[1e4,{"b":null}]}', '{"x":1E1}', '{"s":null,"x":-0.0}']
    for text in payloads:
        body = f'{{"items":[{{"queue":"{queue}","partition":"p","payload":{text}}}]}}'
        assert api.call("POST", "/api/v1/push", body.encode()).status == 201
    passed = _stream(queen, queue)
    assert _run(passed, spark, api, tmp_path / "1") is not None
    late_to = f"late-{uuid.uuid4().hex}"
    late = _stream(queen, queue).event_time("timestamp '2020-01-01 00:00:00'").late_to(late_to)
    _run(late.tumbling_time(1).aggregate(n="count(*)"), spark, api, tmp_path / "2")
    for target in (passed.definition()["output"]["queue"], late_to):
        path = f"/api/v1/pop/queue/{target}?consumerGroup=g&batch=10&autoAck=true"
        answer = api.call("GET", path)
        # A late one is the field `data` of what is told of it.
        assert all(f'"data":{text}'.encode() in answer.raw for text in payloads), answer.raw


def test_names_are_judged_alike_by_spark_and_the_broker(spark: SparkSession) -> None:
    """All characters there are; a text of Spark's cannot hold half a pair.

    Beyond the first plane most of them are like their neighbours, and some of them will do.
    """
    step = 1 if IS_LONG else 13
    points = [*range(1, 0xD800), *range(0xE000, 0x20000), *range(0x20000, sys.maxunicode + 1, step)]
    texts = spark.createDataFrame([(chr(at),) for at in points], "text string")
    hashed = texts.where(partition_name(f.col("text")) != f.col("text")).collect()
    assert {ord(row.text) for row in hashed} == {
        at for at in points if reason_against_name("partition", chr(at))
    }


def test_a_key_that_is_newer_than_unicode_names_its_partition(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    for key in (NEWER, "zero\u200bwidth", "ann"):
        api.push({"queue": queue, "payload": {"s": key, "x": 1}})
    stream = _stream(queen, queue, partition="data.s").select(s="data.s")
    _run(stream, spark, api, tmp_path)
    queue_of_results = stream.definition()["output"]["queue"]
    popped = queen.queue(queue_of_results).group("g").partitions(10).pop(batch=10, auto_ack=True)
    places = {message.data["s"]: message.partition for message in popped}
    assert places[NEWER] == NEWER
    assert places["ann"] == "ann"
    assert len(places["zero\u200bwidth"]) == 64


def test_a_clock_that_is_years_ahead_is_set_aside_and_not_kept(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    queue: str,
    tmp_path: Path,
) -> None:
    soon = datetime.now(UTC) + timedelta(hours=2)
    for at in ("9999-12-31 00:00:00", f"{soon:%Y-%m-%d %H:%M:%S}"):
        api.push({"queue": queue, "payload": {"s": at, "x": 1}})
    late_to = f"late-{uuid.uuid4().hex}"
    stream = _stream(queen, queue).event_time("to_timestamp(data.s)").late_to(late_to)
    stream = stream.tumbling_time(60).aggregate(n="count(*)")
    options = {"checkpoint": str(tmp_path), "available_now": True, "starting": "earliest"}
    running = stream.run(spark, **options)
    assert running.wait()
    assert running.progress.late_rows == 1
    assert running.progress.state_rows == 1
    (aside,) = messages(api, late_to)
    assert aside["data"]["s"].startswith("9999")


def test_a_definition_is_stored_when_spark_has_nothing_against_it(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    api.push({"queue": queue, "payload": {"s": "a", "x": 1}})
    stream = _stream(queen, queue)
    options = {"checkpoint": str(tmp_path), "available_now": True, "starting": "earliest"}
    with pytest.raises(BadRequest, match="No such struct field"):
        stream.select(s="data.y").run(spark, **options)
    with pytest.raises(NotFound):
        queen.request("GET", f"/api/v1/pipelines/{stream.name}")
    assert stream.select(s="data.s").run(spark, **options).wait()
    other = stream.select(s="upper(data.s)")
    again = {**options, "checkpoint": str(tmp_path / "again")}
    with pytest.raises(Conflict, match="replace=True"):
        other.run(spark, **again)
    assert other.run(spark, replace=True, **again).wait()
    assert other.define(replace=True)["changed"] is False


def test_a_field_that_is_new_and_unused_needs_no_new_checkpoint(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    api.push({"queue": queue, "payload": {"s": "a", "x": 1}})
    stream = _stream(queen, queue).tumbling_time(1).aggregate(n="count(*)", total="sum(data.x)")
    options = {"checkpoint": str(tmp_path), "available_now": True, "starting": "earliest"}
    assert stream.run(spark, **options).wait()
    grown = stream.schema("s string, x double, more string")
    assert grown.run(spark, replace=True, **options).wait()
    with pytest.raises(Conflict, match="schema"):
        stream.schema("s string, x string").run(spark, replace=True, **options)


def test_a_run_that_fails_at_once_leaves_the_note_of_its_checkpoint(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    api.push({"queue": queue, "payload": {"s": "a", "x": 1}})
    stream = _stream(queen, queue).key("data.s").tumbling_time(1).aggregate(n="count(*)")
    options = {"checkpoint": str(tmp_path), "available_now": True, "starting": "earliest"}
    assert stream.run(spark, **options).wait()
    note = (tmp_path / "queen.json").read_bytes()
    api.push({"queue": queue, "payload": {"s": "a", "x": 1}})
    # The state has a key of another type than this one wants.
    changed = stream.aggregate(n="avg(data.x)").key(more="data.x")
    running = changed.run(spark, replace=True, accept_changes=True, **options)
    with pytest.raises(PipelineFailed):
        running.wait()
    assert (tmp_path / "queen.json").read_bytes() == note


def test_a_session_of_spark_connect_is_refused_in_one_sentence(
    queen: SyncQueen, queue: str
) -> None:
    remote: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(BadRequest, match="do not work through Spark Connect"):
        _stream(queen, queue).select(s="data.s").run(remote)
    with pytest.raises(BadRequest, match="do not work through Spark Connect"):
        queen.consumer("any", "group").process_frames(lambda window, frame: None, remote)
