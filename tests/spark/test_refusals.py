"""What Spark refuses: live and as history, with the same words, by the verb that it is about."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.errors import BadRequest
from queen.spark.pipelines.backfill import backfill, deliver
from queen.spark.pipelines.run import Options, checked_definition
from tests.api import Api
from tests.conftest import ServerProcess

SCHEMA = "user string, n int, ts timestamp"
_TOTAL = {"total": "sum(data.n)"}


def _stream(queen: SyncQueen) -> Any:
    # Of a queue that is not there: whatever is refused has been before anything is read.
    own = uuid.uuid4().hex
    return queen.stream(f"p-{own}").sources(f"q-{own}").schema(SCHEMA).to(f"out-{own}")


def _joined(stream: Any, on: dict[str, str]) -> Any:
    return stream.named("m").join("other", on=on, within=5).select(user="m.data.user")


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (
            lambda s: s.tumbling_time(1).aggregate(n="count(distinct data.n)"),
            r"aggregate n 'count\(distinct data.n\)': Distinct aggregations are not supported",
        ),
        (
            lambda s: s.select(r="row_number() over (order by data.n)"),
            "select r .*: .*Window function is not supported in ROW_NUMBER",
        ),
        (
            lambda s: s.tumbling_time(1).aggregate(**_TOTAL).select(r="rank() over (order by 1)"),
            "select r .*: .*Window function is not supported in RANK",
        ),
        (
            lambda s: s.select(age="current_timestamp() - data.ts"),
            "column age: interval day to second has no form in JSON",
        ),
        (lambda s: s.where("data.nn > 1"), "where 'data.nn > 1': .*FIELD_NOT_FOUND.* `nn`"),
        (lambda s: s.where("data.n"), "where 'data.n': "),
        (lambda s: s.event_time("ts"), "event_time 'ts': .*UNRESOLVED_COLUMN"),
        (lambda s: s.select(n="data.n +"), r"select n 'data.n \+': .*PARSE_SYNTAX_ERROR"),
        (
            lambda s: s.tumbling_time(1).key(user="data.usr").aggregate(n="count(*)"),
            "key user 'data.usr': ",
        ),
        (
            lambda s: s.tumbling_time(1).aggregate(n="count(*)", total="data.n"),
            "aggregate total 'data.n': .*MISSING_AGGREGATION",
        ),
        (
            lambda s: s.tumbling_time(1).aggregate(**_TOTAL).having("totl > 1"),
            "having 'totl > 1': .*UNRESOLVED_COLUMN",
        ),
        (
            lambda s: s.tumbling_time(1).aggregate(**_TOTAL).top(1, by="totl"),
            "top, by 'totl': ",
        ),
        (
            lambda s: s.tumbling_time(1).aggregate(**_TOTAL).select(n="data.n"),
            "select n 'data.n': ",
        ),
        (lambda s: _joined(s, {"data.usr": "id"}), "join, on 'data.usr': "),
        (lambda s: _joined(s, {"data.user": "idd"}), "join, on 'idd': "),
        (lambda s: s.schema("n number"), "schema: "),
    ],
)
def test_live_and_history_are_refused_alike(
    queen: SyncQueen, spark: SparkSession, tmp_path: Path, tell: Any, reason: str
) -> None:
    stream = tell(_stream(queen))
    with pytest.raises(BadRequest, match=reason) as live:
        stream.run(spark, checkpoint=str(tmp_path))
    with pytest.raises(BadRequest) as past:
        stream.backfill(spark)
    assert str(past.value) == str(live.value)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"select": {"user": "data.user", "User": "data.n"}}, "select: two results .* 'User'"),
        (
            {"keys": {"N": "data.n"}, "aggregates": {"n": "count(*)"}},
            "aggregates: two results are called 'n'",
        ),
        ({"aggregates": {"windowend": "count(*)"}}, "aggregates: .* called 'windowend'"),
    ],
)
def test_two_results_of_one_name_are_refused(
    queen: SyncQueen, named: dict[str, Any], reason: str
) -> None:
    stream = _stream(queen)
    if "aggregates" in named:
        stream = stream.tumbling_time(1)
    with pytest.raises(BadRequest, match=reason):
        checked_definition({**stream.definition(), **named})


def test_a_backfill_has_a_beginning_before_its_end(queen: SyncQueen, spark: SparkSession) -> None:
    now = datetime.now(UTC)
    with pytest.raises(BadRequest, match=r"since: .* is not before the end"):
        _stream(queen).backfill(spark, since=now, until=now - timedelta(hours=1))


def test_files_of_a_backfill_go_to_a_new_folder(
    queen: SyncQueen,
    spark: SparkSession,
    api: Api,
    server: ServerProcess,
    queue: str,
    tmp_path: Path,
) -> None:
    api.push({"queue": queue, "payload": {"user": "ann", "n": 1}})
    stream = queen.stream(f"p-{queue}").sources(queue).schema(SCHEMA).select("data.n").to("out")
    definition, options = checked_definition(stream.definition()), Options(url=server.url)
    compiled = backfill(definition, spark, options, None, None)
    with pytest.raises(BadRequest, match="is there already: give a folder that is not"):
        deliver(definition, compiled, options, None, str(tmp_path))
    assert deliver(definition, compiled, options, None, str(tmp_path / "new")) == 1
