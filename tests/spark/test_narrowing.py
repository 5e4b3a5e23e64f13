"""Pipelines make only the columns that they need, and give the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queen.spark.pipelines import reading
from queen.spark.pipelines import run as running
from queen.spark.pipelines.backfill import backfill, plain_rows
from queen.spark.pipelines.checkpoint import new_note
from queen.spark.pipelines.compiler import CompiledPipeline, sets_aside
from queen.spark.pipelines.run import Options, checked_definition
from queen.spark.pipelines.writing import written
from queen.wire.pipelines import Definition
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import LONG
from tests.spark.history import messages
from tests.spark.test_batch import push
from tests.waiting import spend

Json = dict[str, Any]

SCHEMA = "user string, amount bigint, ts timestamp"
TUMBLING = {"window": {"type": "tumbling", "sizeMs": 1000}, "aggregates": {"n": "count(*)"}}
ALL = {
    *("queue", "partition", "offset", "id", "transactionId", "traceId", "createdAt"),
    *("data", "_corrupt"),
}


def definition(queue: str, **fields: Any) -> Definition:
    side = {
        "name": "events",
        "queues": [queue],
        "schema": SCHEMA,
        **fields.pop("side", {}),
    }
    given = {"name": f"{queue}-p", "reads": [side], "output": {"queue": f"{queue}-out"}}
    return checked_definition({**given, **fields})


def columns_of(rows: Any) -> set[str]:
    """The columns that the source makes, for any of the branches."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    outputs = [leaves.apply(at).output() for at in range(leaves.size())]
    return {output.apply(at).name() for output in outputs for at in range(output.size())}


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        # Whether a payload fits is asked of each.
        (TUMBLING, {"createdAt", "sealed", "data", "_corrupt"}),
        (
            {**TUMBLING, "side": {"schema": None}, "keys": {"p": "partition"}},
            {"createdAt", "partition", "sealed"},
        ),
        (
            {**TUMBLING, "side": {"eventTime": "data.ts"}},
            {"createdAt", "data", "_corrupt", "sealed"},
        ),
        ({**TUMBLING, "side": {"schema": None}}, {"createdAt", "sealed"}),
        (
            {**TUMBLING, "lateTo": "late"},
            (ALL | {"_raw", "sealed"}) - {"traceId"},
        ),
        # Of a message only its bytes are passed on, and where it was.
        ({}, {"partition", "_raw", "data", "_corrupt"}),
        # On this an expression may fail, and then it is told of which message.
        ({"side": {"where": ["data.amount > 1"]}}, (ALL | {"_raw"}) - {"traceId"}),
        ({"select": {"x": "int(partition)"}}, ALL - {"traceId"}),
        ({"select": {"user": "data.user"}}, {"partition", "data", "_corrupt"}),
        ({"select": {"bad": "_corrupt"}}, {"partition", "data", "_corrupt"}),
        (
            {"select": {"x": "1"}, "output": {"files": "results"}},
            {"partition", "data", "_corrupt"},
        ),
        # Nobody selects what is computed of `data`, but Spark has to know what it is.
        (
            {**TUMBLING, "distinct": {"users": "data.user"}, "select": {"n": "n"}},
            {"createdAt", "data", "_corrupt", "sealed"},
        ),
        # A file has all columns of a message.
        ({"output": {"files": "results"}}, ALL),
        # State holds whole messages: it must be as it was.
        ({**TUMBLING, "dedup": ["data.user"]}, ALL | {"sealed"}),
    ],
)
def test_only_what_is_needed_is_made(spark: SparkSession, fields: Json, columns: set[str]) -> None:
    defined = definition("orders", **fields)
    note = new_note(defined, aside=sets_aside(defined, reading.nothing(spark, defined)))
    compiled = running._compile_live(defined, spark, Options(), None, note)
    assert columns_of(written(defined, compiled)) == columns


def compile_wide(_: Any, read: Any, make: Any, result: Any) -> CompiledPipeline:
    compiled: CompiledPipeline = make(read(None))
    return compiled


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let pipelines make all columns, until the test says otherwise."""
    for module in ("run", "backfill"):
        monkeypatch.setattr(f"queen.spark.pipelines.{module}.compile_narrow", compile_wide)
    return monkeypatch


def filled(api: Api, queue: str) -> None:
    at = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    good = [{"user": f"u{n % 3}", "amount": n, "ts": at} for n in range(7)]
    bad = [{"user": "u1", "amount": "much"}, 5, "text", None, {"user": 7}]
    for partition in ("a", "b"):
        push(api, queue, *good, *bad, partition=partition)


def _no_grace(fields: Json) -> Json:
    return {"graceMs": 0} if "window" in fields else {}


def test_a_backfill_gives_the_same(
    api: Api, spark: SparkSession, server: ServerProcess, queue: str, wide: pytest.MonkeyPatch
) -> None:
    filled(api, queue)
    spend(1.1)
    several: list[Json] = [
        {**TUMBLING, "keys": {"p": "partition"}},
        {"select": {"amount": "data.amount", "is_bad": "_corrupt is not null"}},
        {"select": {"partition": "partition"}},
        {"side": {"where": ["data.amount > 3"]}},
        {},
    ]

    def given() -> list[list[str]]:
        return [
            sorted(
                json.dumps(row, sort_keys=True)
                for row in plain_rows(
                    backfill(
                        definition(queue, **fields, **_no_grace(fields)),
                        spark,
                        Options(url=server.url),
                        None,
                        None,
                    )
                )
            )
            for fields in several
        ]

    before = given()
    wide.undo()
    assert given() == before
    assert all(before)


@LONG
def test_a_checkpoint_with_all_columns_is_gone_on_with(
    api: Api,
    spark: SparkSession,
    server: ServerProcess,
    queue: str,
    checkpoint: str,
    wide: pytest.MonkeyPatch,
) -> None:
    """Open windows that were counted with all columns are closed with few."""
    kinds: dict[str, Json] = {
        "tumbling": {**TUMBLING, "keys": {"p": "partition"}, "lateTo": f"{queue}-late"},
        "session": {
            "window": {"type": "session", "gapMs": 500},
            "aggregates": {"n": "count(*)", "total": "sum(data.amount)"},
            "keys": {"user": "data.user"},
        },
    }
    defined = {
        kind: definition(
            queue,
            **fields,
            name=f"{queue}-{kind}",
            graceMs=0,
            side={"eventTime": "data.ts"},
            output={"queue": f"{queue}-{kind}"},
        )
        for kind, fields in kinds.items()
    }

    def run(kind: str) -> Any:
        live = running.run_definition(
            defined[kind],
            spark,
            url=server.url,
            checkpoint=f"{checkpoint}-{kind}",
            available_now=True,
        )
        assert live.wait(100)
        return live.progress

    # Their time is yet to come, so that the first run leaves them open.
    ahead = datetime.now(UTC) + timedelta(seconds=25)
    for n in range(6):
        payload = {"user": "anna", "amount": n, "ts": ahead.isoformat()}
        push(api, queue, payload, partition=f"p{n % 2}")
    for kind in kinds:
        assert run(kind).state_rows > 0
    wide.undo()
    spend(max((ahead - datetime.now(UTC)).total_seconds(), 0) + 2)
    push(api, queue, {"user": "ben", "amount": 1, "ts": None})
    for kind in kinds:
        run(kind)
    counts = sorted((row["p"], row["n"]) for row in messages(api, f"{queue}-tumbling"))
    assert counts == [("p0", 3), ("p1", 3)]
    (session,) = messages(api, f"{queue}-session")
    assert (session["user"], session["n"], session["total"]) == ("anna", 6, 15)
    (late,) = messages(api, f"{queue}-late")
    assert late["data"]["user"] == "ben"
