"""Pipelines from definitions: what they compute, where it goes, and when they are refused."""

from __future__ import annotations

import fcntl
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queen import SyncQueen
from queen.errors import BadRequest, Conflict, PipelineFailed
from queen.spark import pipeline, windowed
from queen.spark.pipelines import checkpoint_lock
from queen.spark.pipelines.run import Options, start_pipeline, store
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.history import BEGIN, Event, messages, write
from tests.spark.test_batch import push
from tests.waiting import until

SCHEMA = "user string, id string, ts timestamp, amount bigint"


@pytest.fixture
def out() -> str:
    return f"out-{uuid.uuid4().hex[:12]}"


def _at(seconds: float) -> Any:
    return BEGIN + timedelta(seconds=seconds)


@pytest.fixture
def orders(api: Api, dsn: str, queue: str) -> str:
    """Two minutes of orders, all in time."""
    events = [
        Event(queue, user, f"{user}-{number}", _at(second), amount, _at(second))
        for number, (second, user, amount) in enumerate(
            [(1, "ann", 5), (2, "bob", 7), (3, "ann", 1), (20, "cid", 7), (61, "ann", 2)]
        )
    ]
    write(api, dsn, events)
    return queue


def _minutes(queen: SyncQueen, orders: str, out: str) -> Any:
    stream = queen.stream(f"p-{out}").sources(orders).schema(SCHEMA).event_time("data.ts")
    return stream.tumbling_time(60).grace_period(10)


def _per_minute(queen: SyncQueen, orders: str, out: str) -> Any:
    return _minutes(queen, orders, out).to(out)


def _finish(stream: Any, spark: SparkSession, folder: Path, **options: Any) -> Any:
    """Run a pipeline over what there is."""
    given = {"checkpoint": str(folder), "available_now": True, "starting": "earliest", **options}
    running = stream.run(spark, **given)
    assert running.wait()
    return running


def _minute(number: int) -> dict[str, str]:
    start, end = _at(60 * number), _at(60 * number + 60)
    return {
        "windowStart": start.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
        "windowEnd": end.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
    }


def test_the_top_of_each_window_is_ranked(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, out: str, tmp_path: Path
) -> None:
    stream = _per_minute(queen, orders, out).key("data.user").aggregate(total="sum(data.amount)")
    _finish(stream.top(2, by="total"), spark, tmp_path)
    rows = sorted(messages(api, out), key=lambda row: (row["windowStart"], row["rank"]))
    # Bob and Cid have the same; names decide.
    assert rows == [
        {**_minute(0), "rank": 1, "user": "bob", "total": 7},
        {**_minute(0), "rank": 2, "user": "cid", "total": 7},
        {**_minute(1), "rank": 1, "user": "ann", "total": 2},
    ]


def test_distinct_values_are_counted_exactly_beside_aggregates(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, out: str, tmp_path: Path
) -> None:
    stream = _per_minute(queen, orders, out).distinct(users="data.user")
    stream = stream.aggregate(n="count(*)", most="max(data.amount)").where("data.amount > 1")
    stream = stream.having("n > 1").select("users", "n", "most", since="windowStart")
    running = _finish(stream, spark, tmp_path)
    (row,) = messages(api, out)
    assert row == {"users": 3, "n": 3, "most": 7, "since": _minute(0)["windowStart"]}
    shown = queen.request("GET", f"/api/v1/pipelines/p-{out}")
    assert (shown["state"], shown["progress"]["outputRows"]) == ("stopped", 1)
    assert shown["progress"]["inputRows"] == running.progress.input_rows == 5


def test_results_go_to_a_table_once(
    queen: SyncQueen,
    spark: SparkSession,
    api: Api,
    dsn: str,
    orders: str,
    out: str,
    tmp_path: Path,
) -> None:
    table = out.replace("-", "_")
    stream = _minutes(queen, orders, out).key("data.user").aggregate(total="sum(data.amount)")
    stream = stream.to_table(table, keys=["windowStart", "user"]).late_to(f"late-{out}")
    late = Event(orders, "ann", "late", _at(2), 100, _at(500))
    write(api, dsn, [late])
    with pytest.raises(BadRequest, match="--table-url"):
        _finish(stream, spark, tmp_path / "none")
    running = _finish(stream, spark, tmp_path / "a", table_url=dsn)
    # A new checkpoint computes everything again; rows with the same keys are replaced.
    _finish(stream, spark, tmp_path / "b", table_url=dsn)
    with psycopg.connect(dsn) as database:
        rows = database.execute(f'select "user", total from {table} order by 1, 2').fetchall()
    assert rows == [("ann", 2), ("ann", 6), ("bob", 7), ("cid", 7)]
    assert [row["data"]["id"] for row in messages(api, f"late-{out}")] == ["late", "late"]
    assert running.progress.late_rows == 1


def test_results_go_to_files_once(
    queen: SyncQueen, spark: SparkSession, orders: str, out: str, tmp_path: Path
) -> None:
    stream = queen.stream(f"p-{out}").sources(orders).schema(SCHEMA).where("data.user = 'ann'")
    stream = stream.select("data.id", "data.amount").to_files(str(tmp_path / "files"))
    for _ in range(2):
        _finish(stream, spark, tmp_path / "checkpoint")
    found = spark.read.parquet(str(tmp_path / "files"))
    assert sorted(row["amount"] for row in found.select("amount").collect()) == [1, 2, 5]


def test_a_changed_definition_on_an_old_checkpoint_is_refused_in_words(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, out: str, tmp_path: Path
) -> None:
    stream = _per_minute(queen, orders, out).aggregate(total="sum(data.amount)")
    _finish(stream, spark, tmp_path)
    changed = stream.aggregate(total="max(data.amount)")
    with pytest.raises(Conflict, match="replace=True"):
        changed.run(spark, checkpoint=str(tmp_path / "another"))
    changed.define(recut=True)
    with pytest.raises(Conflict) as refused:
        changed.run(spark, checkpoint=str(tmp_path))
    assert "aggregates.total: sum(data.amount) -> max(data.amount)" in str(refused.value)
    assert "--checkpoint" in str(refused.value)
    other = _per_minute(queen, orders, f"{out}-2").aggregate(total="sum(data.amount)")
    with pytest.raises(Conflict, match="belongs to pipeline"):
        other.run(spark, checkpoint=str(tmp_path))
    # What only chooses rows may change: the state means the same as before.
    narrower = stream.where("data.amount > 0")
    narrower.define(recut=True)
    _finish(narrower, spark, tmp_path)
    assert len(messages(api, out)) == 2


def test_what_spark_has_against_a_definition_is_said_plainly(
    queen: SyncQueen, spark: SparkSession, orders: str, out: str, tmp_path: Path
) -> None:
    stream = queen.stream(f"p-{out}").sources(orders).tumbling_time(60).to(out)
    with pytest.raises(BadRequest, match="schema") as refused:
        stream.aggregate(total="sum(data.amount)").run(spark, checkpoint=str(tmp_path))
    assert "\n" not in str(refused.value)
    with pytest.raises(BadRequest, match="window"):
        queen.stream("p").sources(orders).aggregate(n="count(*)").to(out).run(spark)


@pipeline(reads={"placeholder": SCHEMA}, writes="placeholder-out", markers=True)
def big_orders(events: DataFrame) -> DataFrame:
    """A pipeline of a user who only knows Spark."""
    rows, _ = windowed(events, 60, time="data.ts", grace=10)
    return rows.groupBy("window").agg(f.max("data.amount").alias("most"))


def test_a_function_is_a_pipeline(
    server: ServerProcess, spark: SparkSession, api: Api, orders: str, out: str, tmp_path: Path
) -> None:
    reads = pipeline(reads={orders: SCHEMA}, writes=out, name=f"p-{out}", markers=True)
    function = reads(big_orders.make)
    options = Options(
        url=server.url, checkpoint=str(tmp_path), available_now=True, starting="earliest"
    )
    store(function.definition, options)
    assert start_pipeline(function.definition, spark, options, function).wait()
    rows = messages(api, out)
    assert sorted(row["most"] for row in rows) == [2, 7]
    changed = reads(lambda events: events)
    with pytest.raises(Conflict, match="code"):
        start_pipeline(changed.definition, spark, options, changed)


def test_a_stop_that_the_broker_was_asked_for_ends_a_run(
    queen: SyncQueen, spark: SparkSession, orders: str, out: str, tmp_path: Path
) -> None:
    stream = queen.stream(f"p-{out}").sources(orders).schema(SCHEMA).select("data.id").to(out)
    running = stream.run(spark, checkpoint=str(tmp_path), every=0.1)
    path = f"/api/v1/pipelines/p-{out}"
    running.query.processAllAvailable()
    while queen.request("GET", path)["state"] not in ("starting", "running"):
        assert not running.wait(0.1)
    assert queen.request("POST", f"{path}/stop", {})["running"]
    assert running.wait(60)
    assert not running.query.isActive
    assert queen.request("GET", path)["state"] == "stopped"


@pytest.mark.parametrize("how", ["stop", "delete", "both"])
def test_a_run_that_nobody_waits_for_is_stopped_too(
    queen: SyncQueen, spark: SparkSession, orders: str, out: str, tmp_path: Path, how: str
) -> None:
    stream = queen.stream(f"p-{out}").sources(orders).schema(SCHEMA).select("data.id").to(out)
    running = stream.run(spark, checkpoint=str(tmp_path), every=0.1)
    path = f"/api/v1/pipelines/p-{out}"
    running.query.processAllAvailable()
    if how == "delete":
        queen.request("DELETE", path)
    else:
        queen.request("POST", f"{path}/stop", {})
    if how == "both":
        running.stop()
    # Spark's own wait, which knows nothing of our wish to stop.
    assert running.query.awaitTermination(30)
    # The end is there for everybody who comes later.
    running.stop()
    assert running.wait(0.1)
    assert not [one for one in threading.enumerate() if one.name == f"queen-p-{out}"]
    if how != "delete":
        assert queen.request("GET", path)["state"] == "stopped"


@pytest.mark.parametrize(
    ("value", "state", "error"),
    [("data.id", "stopped", None), ("raise_error('as asked')", "failed", "as asked")],
)
def test_an_end_is_told_when_nobody_waits(
    queen: SyncQueen,
    spark: SparkSession,
    orders: str,
    out: str,
    tmp_path: Path,
    value: str,
    state: str,
    error: str | None,
) -> None:
    stream = queen.stream(f"p-{out}").sources(orders).schema(SCHEMA).select(value=value).to(out)
    stream = stream.on_error("fail")
    stream.run(spark, checkpoint=str(tmp_path), available_now=True, starting="earliest")

    def ended() -> Any:
        found = queen.request("GET", f"/api/v1/pipelines/p-{out}")
        return found if found["state"] == state else None

    shown = until(ended, look_s=0.1)
    assert (error or "") in str(shown["progress"].get("error"))


def test_a_queue_may_have_a_comma_in_its_name(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, out: str, tmp_path: Path
) -> None:
    push(api, queue, {"n": 1})
    push(api, f" {queue},b", {"n": 2})
    stream = queen.stream(f"p-{out}").sources(f" {queue},b").schema("n int").select("data.n")
    _finish(stream.to(out), spark, tmp_path)
    assert messages(api, out) == [{"n": 2}]


def test_a_run_that_fails_says_why(
    queen: SyncQueen, spark: SparkSession, orders: str, out: str, tmp_path: Path
) -> None:
    stream = queen.stream(f"p-{out}").sources(orders).schema(SCHEMA)
    stream = stream.select(n="cast(data.id as int)").on_error("fail").to(out)
    with pytest.raises(PipelineFailed, match="n cannot be computed"):
        _finish(stream, spark, tmp_path)
    shown = queen.request("GET", f"/api/v1/pipelines/p-{out}")
    assert shown["state"] == "failed"
    assert "n cannot be computed" in shown["progress"]["error"]


def test_a_key_that_names_no_partition_stops_nothing(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, out: str, tmp_path: Path
) -> None:
    users = [None, "", "x" * 300, "two\nlines", "ann"]
    payloads = [{"user": user, "amount": 1} for user in users]
    assert api.push(*({"queue": queue, "payload": one} for one in payloads)).status == 201
    stream = queen.stream(f"p-{out}").sources(queue).schema("user string, amount bigint")
    stream = stream.key("data.user").tumbling_time(1).grace_period(0)
    stream = stream.aggregate(n="count(*)").to(out)
    running = stream.run(spark, checkpoint=str(tmp_path), starting="earliest")
    found: list[Any] = []
    while len(found) < len(users):
        assert running.query.isActive
        found += queen.queue(out).group("g").pop(batch=10, wait_s=1, auto_ack=True)
    running.stop()
    places = {one.data["user"]: one.partition for one in found}
    assert places[None] == places[""] == "Default"
    assert places["ann"] == "ann"
    assert len(places["x" * 300]) == len(places["two\nlines"]) == 64


def test_fields_may_have_any_name(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, out: str, tmp_path: Path
) -> None:
    payloads: list[Any] = [{"user-id": "a", "queue": 1}, {"queue": []}]
    api.push(*({"queue": queue, "payload": one} for one in payloads))
    fields = "`queue` bigint, `user-id` string"
    stream = queen.stream(f"p-{out}").sources(queue).schema(fields)
    _finish(stream.where("partition = 'Default'").to(out), spark, tmp_path / "1")
    # The other is not what the schema says, and set aside.
    assert messages(api, out) == [{"queue": 1, "user-id": "a"}]
    dedup = stream.dedup("data.queue").tumbling_time(1).aggregate(n="count(*)")
    dedup = dedup.to(f"{out}-2")
    dedup.name = f"p-{out}-2"
    progress = _finish(dedup, spark, tmp_path / "2").progress
    assert (progress.input_rows, progress.failed_rows) == (2, 1)


def test_a_checkpoint_has_one_run_at_a_time(
    queen: SyncQueen,
    spark: SparkSession,
    api: Api,
    orders: str,
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_lock, "_PATIENCE_S", 0.3)
    stream = _per_minute(queen, orders, out).aggregate(n="count(*)")
    first = stream.run(spark, checkpoint=str(tmp_path), starting="earliest")
    with pytest.raises(Conflict, match="another run works in the checkpoint"):
        _finish(stream, spark, tmp_path)
    first.stop()
    # Another process; the JVM is one too.
    with (tmp_path / "queen.lock").open("w") as other:
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(Conflict, match="another run works in the checkpoint"):
            _finish(stream, spark, tmp_path)
    _finish(stream, spark, tmp_path)
    assert sorted(row["n"] for row in messages(api, out)) == [1, 4]
