"""A message on which an expression fails is set aside, and the others go on."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.errors import BadRequest, PipelineFailed
from queen.spark.pipelines.backfill import backfill, backfill_definition, deliver, plain_rows
from queen.spark.pipelines.run import Options, checked_definition
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import long
from tests.spark.history import BEGIN, canonical, messages, move, past_rows

SCHEMA = "user string, ms bigint, amount string"
# A time that no calendar has, and a text that is no number.
BAD_TIME = {"user": "ann", "ms": 2**63 - 1, "amount": "1"}
BAD_AMOUNT = {"user": "bob", "ms": 1_000, "amount": "much"}
# A text where the schema has a number.
UNFIT = {"user": "eve", "ms": "soon", "amount": "2"}
GOOD = [{"user": user, "ms": ms, "amount": "2"} for user, ms in (("ann", 1000), ("bob", 2000))]


@pytest.fixture
def orders(api: Api, queue: str) -> str:
    for payload in (GOOD[0], BAD_TIME, BAD_AMOUNT, GOOD[1]):
        api.push({"queue": queue, "partition": payload["user"], "payload": payload})
    return queue


def _stream(queen: SyncQueen, queue: str) -> Any:
    stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema(SCHEMA)
    return stream.to(f"out-{uuid.uuid4().hex}")


def _run(stream: Any, spark: SparkSession, folder: Path) -> Any:
    options = {"checkpoint": str(folder), "available_now": True, "starting": "earliest"}
    running = stream.run(spark, **options)
    assert running.wait()
    return running


def _letters(queen: SyncQueen, queue: str, group: str) -> dict[str, str]:
    """Dead letters of a group: the user of each, and the reason."""
    answer = queen.request("GET", f"/api/v1/dlq?queue={queue}&consumerGroup={group}")
    return {letter["data"]["user"]: letter["errorMessage"] for letter in answer["messages"]}


def test_they_are_dead_letters_of_the_pipeline(
    queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api, orders: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    stream = _stream(queen, orders).select(
        at="timestamp_millis(data.ms)", amount="cast(data.amount as int)"
    )
    running = _run(stream, spark, tmp_path / "1")
    rows = messages(api, stream.definition()["output"]["queue"])
    assert [row["amount"] for row in rows] == [2, 2]
    assert running.progress.failed_rows == 2
    assert (running.progress.input_rows, running.progress.output_rows) == (4, 2)
    assert _letters(queen, orders, stream.name) == {
        "ann": "select at cannot be computed: timestamp_millis(data.ms)",
        "bob": "select amount cannot be computed: cast(data.amount as int)",
    }
    shown = queen.request("GET", f"/api/v1/pipelines/{stream.name}")
    assert shown["progress"]["failedRows"] == 2
    # A batch that is repeated sets nothing aside twice, and a backfill gives the same rows.
    _run(stream, spark, tmp_path / "2")
    assert len(_letters(queen, orders, stream.name)) == 2
    definition = checked_definition(stream.definition())
    history = plain_rows(backfill(definition, spark, Options(url=server.url), None, None))
    assert canonical(history) == canonical(rows)


def test_one_that_is_sent_back_is_tried_again_by_its_pipeline_alone(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    stream = _stream(queen, orders).select(amount="cast(data.amount as int)")
    other = _stream(queen, orders).select(user="data.user")
    for pipeline in (stream, other):
        _run(pipeline, spark, tmp_path / pipeline.name)
    body = {"queue": orders, "consumerGroup": stream.name}
    assert queen.request("POST", "/api/v1/dlq/retry", body)["retried"] == 1
    assert _letters(queen, orders, stream.name) == {}
    again = [_run(pipeline, spark, tmp_path / pipeline.name) for pipeline in (stream, other)]
    assert [running.progress.failed_rows for running in again] == [1, 0]
    assert [running.progress.output_rows for running in again] == [0, 0]
    assert list(_letters(queen, orders, stream.name)) == ["bob"]


def test_they_go_to_a_queue_with_where_they_were_and_why(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    errors = f"errors-{uuid.uuid4().hex}"
    stream = _stream(queen, orders).event_time("timestamp_millis(data.ms)").errors_to(errors)
    stream = stream.key("data.user").tumbling_time(60).late_to(f"late-{errors}")
    stream = stream.aggregate(n="count(*)", total="sum(cast(data.amount as int))")
    running = _run(stream, spark, tmp_path)
    aside = {row["data"]["user"]: row for row in messages(api, errors)}
    assert aside["ann"]["error"] == "eventTime cannot be computed: timestamp_millis(data.ms)"
    assert aside["bob"]["error"].startswith("aggregate total cannot be computed")
    assert aside["ann"]["data"] == BAD_TIME
    assert (aside["ann"]["queue"], aside["ann"]["partition"]) == (orders, "ann")
    assert (aside["ann"]["offset"], aside["bob"]["offset"]) == (1, 0)
    # Of 1970, and so late; what has failed is that and nothing else.
    assert len(messages(api, f"late-{errors}")) == 2
    assert (running.progress.failed_rows, running.progress.late_rows) == (2, 2)


def test_what_is_left_out_by_where_cannot_fail(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    stream = _stream(queen, orders).where("data.amount <> 'much'", "data.ms < 100000")
    stream = stream.select(amount="cast(data.amount as int)", at="timestamp_millis(data.ms)")
    running = _run(stream, spark, tmp_path)
    assert len(messages(api, stream.definition()["output"]["queue"])) == 2
    assert running.progress.failed_rows == 0


def test_what_several_expressions_have_in_common_fails_in_none_of_them(
    queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api, orders: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Spark computes first, once and outside of all trials, what it finds in several places."""
    common = "cast(data.amount as int)"
    stream = _stream(queen, orders).where(f"{common} >= 2", f"{common} < 9")
    stream = stream.select(amount=f"{common} + 1")
    running = _run(stream, spark, tmp_path)
    rows = messages(api, stream.definition()["output"]["queue"])
    assert [row["amount"] for row in rows] == [3, 3]
    assert running.progress.failed_rows == 1
    assert list(_letters(queen, orders, stream.name)) == ["bob"]
    assert canonical(past_rows(stream, spark, server)) == canonical(rows)
    # What is asked of the results is asked of the messages, for all that Spark cares.
    history = backfill_definition(stream.definition(), spark, url=server.url)
    assert history.where("amount > 2 and amount < 9").count() == 2


@pytest.mark.parametrize("is_joined", [True, False])
def test_nor_does_it_fail_a_backfill(
    queen: SyncQueen, spark: SparkSession, server: ServerProcess, dsn: str, orders: str,
    is_joined: bool,
) -> None:  # fmt: skip
    with psycopg.connect(dsn, autocommit=True) as database:
        move(database, {orders}, BEGIN)
    common = "cast(data.amount as int)"
    stream = _stream(queen, orders).where(f"{common} >= 2").dedup("1").sliding_time(4, 1)
    if is_joined:
        stream = stream.named("m").join(orders, on={common: "offset"}, within=5, how="left")
        stream = stream.aggregate(total="sum(cast(m.data.amount as int))")
    else:
        stream = stream.key(rest=f"{common} % 3").aggregate(total=f"sum({common})")
    assert [row["total"] for row in past_rows(stream, spark, server)] == [2] * 4


@pytest.fixture
def unfit(api: Api, queue: str) -> str:
    """A queue with two payloads that fit `SCHEMA`, and one that does not."""
    for payload in (GOOD[0], UNFIT, GOOD[1]):
        api.push({"queue": queue, "partition": payload["user"], "payload": payload})
    return queue


@pytest.mark.parametrize("verbs", ["select", "late_to", *long("tumbling", "message")])
def test_a_payload_that_is_not_what_the_schema_says_is_a_dead_letter(
    queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api, unfit: str,
    tmp_path: Path, verbs: str,
) -> None:  # fmt: skip
    stream = {
        "select": lambda: _stream(queen, unfit).select(user="data.user"),
        "tumbling": lambda: _stream(queen, unfit).tumbling_time(1).aggregate(n="count(*)"),
        "late_to": lambda: _stream(queen, unfit)
        .event_time("timestamp_millis(data.ms)").tumbling_time(1)
        .late_to(f"late-{unfit}").aggregate(n="count(*)"),
        "message": lambda: _stream(queen, unfit),
    }[verbs]()  # fmt: skip
    running = _run(stream, spark, tmp_path / "1")
    assert running.progress.failed_rows == 1
    reason = "the payload is not what the schema says: struct<user:string,ms:bigint,amount:string>"
    assert _letters(queen, unfit, stream.name) == {"eve": reason}
    rows = messages(api, stream.definition()["output"]["queue"])
    late = messages(api, f"late-{unfit}") if verbs == "late_to" else []
    assert "eve" not in [row.get("user") for row in rows]
    assert "eve" not in [row["data"]["user"] for row in late]
    # A batch that is repeated sets nothing aside twice, and a backfill gives the same rows.
    _run(stream, spark, tmp_path / "2")
    assert len(_letters(queen, unfit, stream.name)) == 1
    definition = checked_definition(stream.definition())
    history = plain_rows(backfill(definition, spark, Options(url=server.url), None, None))
    if verbs == "select":
        assert (
            canonical(history) == canonical(rows) == canonical([{"user": "ann"}, {"user": "bob"}])
        )


def test_payloads_that_do_not_fit_go_where_errors_go(
    queen: SyncQueen, spark: SparkSession, api: Api, unfit: str, tmp_path: Path
) -> None:
    stream = _stream(queen, unfit).select(user="data.user").errors_to(f"errors-{unfit}")
    running = _run(stream, spark, tmp_path)
    (row,) = messages(api, f"errors-{unfit}")
    assert row["data"] == UNFIT
    assert row["error"].startswith("the payload is not what the schema says")
    assert (running.progress.failed_rows, running.progress.output_rows) == (1, 2)


def test_a_payload_that_does_not_fit_is_named_by_a_pipeline_that_is_to_fail(
    queen: SyncQueen, spark: SparkSession, unfit: str, tmp_path: Path
) -> None:
    stream = _stream(queen, unfit).select(user="data.user").on_error("fail")
    named = "offset 0 of partition eve of queue .*: the payload is not what the schema says"
    with pytest.raises(PipelineFailed, match=named):
        _run(stream, spark, tmp_path)


def test_whoever_asks_for_payloads_that_do_not_fit_gets_them(
    queen: SyncQueen, spark: SparkSession, api: Api, unfit: str, tmp_path: Path
) -> None:
    stream = _stream(queen, unfit).select(user="data.user", other="_corrupt")
    running = _run(stream, spark, tmp_path)
    rows = messages(api, stream.definition()["output"]["queue"])
    assert sorted(json.loads(row["other"] or "{}").get("user", "") for row in rows) == [
        "",
        "",
        "eve",
    ]
    assert running.progress.failed_rows == 0
    assert _letters(queen, unfit, stream.name) == {}


def test_a_side_of_a_join_fails_by_itself(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    other = f"{orders}-other"
    api.push({"queue": other, "payload": {"user": "2", "ms": 1, "amount": "x"}})
    right = queen.stream("right").sources(other).schema(SCHEMA).named("o")
    stream = _stream(queen, orders).named("m").grace_period(60)
    stream = stream.join(right, on={"cast(data.amount as int)": "data.user"}, within=3600)
    running = _run(stream.select(user="m.data.user"), spark, tmp_path)
    rows = messages(api, stream.definition()["output"]["queue"])
    assert sorted(row["user"] for row in rows) == ["ann", "bob"]
    assert running.progress.failed_rows == 1
    assert list(_letters(queen, orders, stream.name)) == ["bob"]


@pytest.mark.parametrize("is_set_aside", [True, False])
def test_what_a_table_does_not_store_can_be_set_aside(
    queen: SyncQueen,
    spark: SparkSession,
    api: Api,
    dsn: str,
    queue: str,
    tmp_path: Path,
    is_set_aside: bool,
) -> None:
    for ms in (1000, 253402300800000):
        api.push({"queue": queue, "payload": {"ms": ms}})
    table, at = f"t_{uuid.uuid4().hex}", "timestamp_millis(data.ms)"
    if is_set_aside:
        at = f"if(data.ms < 253402300800000, {at}, raise_error('too late'))"
    stream = queen.stream(f"p-{queue}").sources(queue).schema("ms bigint").select(at=at)
    options = {"available_now": True, "starting": "earliest", "table_url": dsn}
    running = stream.to_table(table).run(spark, checkpoint=str(tmp_path), **options)
    if not is_set_aside:
        with pytest.raises(PipelineFailed, match=f"failed: table '{table}', column 'at': .*9999"):
            running.wait()
        return
    assert running.wait()
    assert running.progress.failed_rows == 1
    with psycopg.connect(dsn) as database:
        assert database.execute(f"select count(*) from {table}").fetchall() == [(1,)]


def test_files_have_what_could_be_computed(
    queen: SyncQueen, spark: SparkSession, orders: str, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(orders).schema(SCHEMA)
    stream = stream.select(amount="cast(data.amount as int)").to_files(str(folder))
    running = _run(stream, spark, tmp_path / "checkpoint")
    assert spark.read.parquet(f"{folder}/*/*").count() == 3
    assert running.progress.failed_rows == 1
    assert list(_letters(queen, orders, stream.name)) == ["bob"]


def test_a_pipeline_that_is_to_fail_names_the_message(
    queen: SyncQueen, spark: SparkSession, orders: str, tmp_path: Path
) -> None:
    stream = _stream(queen, orders).select(n="cast(data.amount as int)").on_error("fail")
    named = "offset 0 of partition bob of queue .*: select n cannot be computed"
    options = {"checkpoint": str(tmp_path), "starting": "earliest"}
    running = stream.run(spark, **options)
    with pytest.raises(PipelineFailed, match=named):
        running.wait()
    # Whoever asks later is told too.
    running.stop()
    with pytest.raises(PipelineFailed, match=named):
        running.wait()


def test_a_checkpoint_from_before_has_no_place_for_them_and_names_the_message(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    """A query keeps the sources that it began with, so there is no branch to set aside in."""
    api.push({"queue": queue, "payload": GOOD[0]})
    stream = _stream(queen, queue).select(n="cast(data.amount as int)")
    _run(stream.on_error("fail"), spark, tmp_path)
    api.push({"queue": queue, "payload": BAD_AMOUNT})
    stream.define(replace=True)
    with pytest.raises(PipelineFailed, match="n cannot be computed"):
        _run(stream, spark, tmp_path)
    _run(stream, spark, tmp_path / "new")
    assert list(_letters(queen, queue, stream.name)) == ["bob"]


def test_a_checkpoint_from_before_that_keeps_late_messages_sets_aside_with_them(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path
) -> None:
    api.push({"queue": queue, "payload": GOOD[0]})
    stream = _stream(queen, queue).late_to(f"late-{queue}").tumbling_time(1)
    stream = stream.aggregate(total="sum(cast(data.amount as int))")
    _run(stream, spark, tmp_path)
    note = tmp_path / "queen.json"
    fields = json.loads(note.read_bytes())
    assert fields.pop("has_aside") is True
    note.write_bytes(json.dumps(fields).encode())
    api.push({"queue": queue, "payload": BAD_AMOUNT})
    assert _run(stream, spark, tmp_path).progress.failed_rows == 1
    assert list(_letters(queen, queue, stream.name)) == ["bob"]


def test_what_gives_many_rows_is_not_tried_itself(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    letters = "explode(transform(split(data.user, ''), letter -> upper(letter)))"
    stream = _stream(queen, orders).select(letter=letters)
    running = _run(stream, spark, tmp_path)
    assert running.progress.failed_rows == 0
    assert running.progress.output_rows == 12


def test_what_is_exploded_may_fail(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    numbers = "explode(cast(split(data.amount, ',') as array<int>))"
    stream = _stream(queen, orders).where("data.ms < 100000").select(n=numbers, user="data.user")
    running = _run(stream, spark, tmp_path)
    assert (running.progress.failed_rows, running.progress.output_rows) == (1, 2)
    assert list(_letters(queen, orders, stream.name)) == ["bob"]


def test_what_spark_makes_of_a_text_by_itself_may_fail(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    """A column that is a text is cast where a number, a time or a truth is wanted."""
    stream = _stream(queen, orders).tumbling_time(1)
    summed = stream.aggregate(total="sum(data.amount)", all="count_if(data.amount = '2')")
    running = _run(summed, spark, tmp_path / "1")
    assert running.progress.failed_rows == 1
    assert (running.progress.input_rows, list(_letters(queen, orders, stream.name))) == (4, ["bob"])
    timed = _stream(queen, orders).event_time("data.amount").dedup("data.user")
    running = _run(timed.select(user="data.user"), spark, tmp_path / "2")
    assert running.progress.failed_rows == 4
    assert "cast(data.amount as timestamp)" in _letters(queen, orders, timed.name)["ann"]


def test_texts_that_are_joined_with_numbers_may_fail(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    right = queen.stream("right").sources(orders).schema(SCHEMA).named("o")
    stream = _stream(queen, orders).named("m").grace_period(60)
    joined = stream.join(right, on={"data.amount": "data.ms"}, within=3600, how="left")
    running = _run(joined.select(user="m.data.user"), spark, tmp_path)
    assert running.progress.failed_rows == 1
    assert list(_letters(queen, orders, stream.name)) == ["bob"]


def test_what_a_filter_leaves_out_of_an_aggregate_cannot_fail(
    queen: SyncQueen, spark: SparkSession, api: Api, orders: str, tmp_path: Path
) -> None:
    total = "sum(cast(data.amount as int)) filter (where data.amount <> 'much')"
    stream = _stream(queen, orders).where("data.user = 'bob'").calendar("month")
    stream = stream.aggregate(total=total, n="count(*)")
    progress = _run(stream, spark, tmp_path).progress
    assert (progress.input_rows, progress.failed_rows) == (4, 0)


@pytest.mark.parametrize("window", ["session", "join", *long("tumbling_time", "daily")])
def test_times_at_the_ends_of_time_are_set_aside(
    queen: SyncQueen, spark: SparkSession, api: Api, queue: str, tmp_path: Path, window: str
) -> None:
    schema, time = "user string, us bigint", "timestamp_micros(data.us)"
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    # The last moment of the calendar, which stands for never, is a day ahead and more.
    last_us = 253_402_300_799_999_999
    for user, us in (("ann", now_us), ("eva", last_us), ("max", 2**63 - 1), ("min", -(2**63))):
        api.push({"queue": queue, "partition": user, "payload": {"user": user, "us": us}})
    stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema(schema).event_time(time)
    stream = stream.grace_period(60).to(f"out-{queue}").late_to(f"late-{queue}")
    if window == "join":
        other = queen.stream("right").sources(queue).schema(schema).event_time(time).named("o")
        stream = stream.named("m").join(other, on="data.user", within=5, how="left")
        stream = stream.select(user="m.data.user")
    else:
        arguments = () if window == "daily" else (5,)
        stream = getattr(stream, window)(*arguments).aggregate(n="count(*)")
    running = _run(stream, spark, tmp_path)
    assert sorted(_letters(queen, queue, stream.name)) == ["max", "min"]
    assert {row["data"]["user"] for row in messages(api, f"late-{queue}")} == {"eva"}
    assert running.progress.failed_rows == (4 if window == "join" else 2)
    # In time nothing is ahead, and a window that has not come yet is not closed.
    stream.backfill(spark, in_time=True).collect()


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"every": -1}, "every: -1 is not a number of seconds"),
        ({"every": "x"}, "every: 'x'"),
        ({"max_messages_per_trigger": 0}, "max_messages_per_trigger: 0 is not"),
        ({"checkpoint": "/proc/nope"}, "checkpoint: '/proc/nope' is no folder that can be made"),
        ({"checkpoint": "/etc/hosts/x"}, "checkpoint: '/etc/hosts/x' is no folder"),
    ],
)
def test_a_run_that_cannot_be_meant_is_refused(
    queen: SyncQueen, spark: SparkSession, queue: str, option: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadRequest, match=reason):
        _stream(queen, queue).select(s="data.user").run(spark, **option)


def test_a_backfill_never_feeds_what_it_reads(
    queen: SyncQueen, spark: SparkSession, server: ServerProcess, orders: str
) -> None:
    definition = checked_definition(_stream(queen, orders).select(s="data.user").definition())
    compiled = backfill(definition, spark, Options(url=server.url), None, None)
    with pytest.raises(BadRequest, match="another queue"):
        deliver(definition, compiled, Options(url=server.url), orders, None)


def test_two_keys_have_two_names(queen: SyncQueen, queue: str) -> None:
    with pytest.raises(BadRequest, match="key: two are called 'user'"):
        _stream(queen, queue).key("data.user", user="data.ms")


@pytest.mark.parametrize(
    ("verbs", "reason"),
    [
        ({"on_error": "ignore"}, "on_error: .* 'set_aside', 'fail'"),
        ({"on_error": "fail", "errors_to": "aside"}, "nothing is set aside"),
        (
            {"dedup": "data.user", "event_time": "data.ts", "late_to": "a", "errors_to": "a"},
            "another queue",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    queen: SyncQueen, queue: str, verbs: dict[str, str], reason: str
) -> None:
    stream = _stream(queen, queue).select(s="data.user")
    for verb, argument in verbs.items():
        stream = getattr(stream, verb)(argument)
    with pytest.raises(BadRequest, match=reason):
        stream.define()
