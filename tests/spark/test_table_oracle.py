"""Tables hold what a simple program says: values of every type, and of each key the last.

Messages come at random, with nulls everywhere, in runs that are cut at random.
`QUEEN_ORACLE_EVENTS` says how many, `QUEEN_ORACLE_CUTS` how many histories are made up.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.spark.pipelines.backfill import backfill, plain_rows
from queen.spark.pipelines.run import Options, checked_definition
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.history import canonical

RUNS = int(os.environ.get("QUEEN_ORACLE_CUTS", "1"))
MESSAGES = int(os.environ.get("QUEEN_ORACLE_EVENTS", "120"))
SCHEMA = (
    "user string, n bigint, x double, d decimal(20,5), b boolean, day date, at timestamp, "
    "list array<string>, nested struct<a: int, at: timestamp, s: string>"
)
COLUMNS = ("user", "n", "x", "d", "b", "day", "at", "list", "nested")
USERS = ["ann", "bob", "ä✓𝄞", "", 'a"b\\c\t\n', "null", "\\N"]


def _payload(chance: random.Random) -> dict[str, Any]:
    at = datetime(1900, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(2**53))
    values: dict[str, Any] = {
        "n": chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randrange(10**6)]),
        "x": chance.choice([0.1, -1e300, 5e-324, chance.random()]),
        "d": chance.choice([0, 12.5, -99999.5]),
        "b": chance.random() < 0.5,
        "day": at.date().isoformat(),
        "at": _iso(at),
        "list": [chance.choice([*USERS, None]) for _ in range(chance.randrange(3))],
        "nested": {"a": None, "at": _iso(at), "s": chance.choice([*USERS, None])},
    }
    given = {name: value for name, value in values.items() if chance.random() < 0.8}
    return {"user": chance.choice(USERS), **given}


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _row(payload: dict[str, Any]) -> tuple[Any, ...]:
    """What a table has of a message."""
    values = {**dict.fromkeys(COLUMNS), **payload}
    if values["d"] is not None:
        values["d"] = Decimal(str(values["d"])).quantize(Decimal("0.00001"))
    if values["day"] is not None:
        values["day"] = date.fromisoformat(values["day"])
    if values["at"] is not None:
        values["at"] = datetime.fromisoformat(values["at"])
    return tuple(values[name] for name in COLUMNS)


def _table(dsn: str, name: str) -> list[tuple[Any, ...]]:
    columns = ", ".join(f'"{column}"' for column in COLUMNS)
    with psycopg.connect(dsn, options="-c timezone=UTC") as database:
        return database.execute(f"select {columns} from {name}").fetchall()


@pytest.mark.parametrize("seed", range(RUNS))
def test_tables_have_every_value_once_and_of_each_key_the_last(
    api: Api, queen: SyncQueen, spark: SparkSession, server: ServerProcess, dsn: str, queue: str,
    tmp_path: Path, seed: int,
) -> None:  # fmt: skip
    chance = random.Random(seed)
    base = queue.replace("-", "_")
    columns = [f"data.{name}" for name in COLUMNS]
    streams = {
        kind: queen.stream(f"{kind}-{queue}").sources(queue).schema(SCHEMA).select(*columns)
        .to_table(f"{base}_{kind}", keys=["user"] if kind == "last" else [])
        for kind in ("last", "every")
    }  # fmt: skip
    payloads: list[dict[str, Any]] = []
    for _ in range(2):
        for _ in range(MESSAGES // 2):
            payload = _payload(chance)
            payloads.append(payload)
            partition = f"p{USERS.index(payload['user'])}"
            api.push({"queue": queue, "partition": partition, "payload": payload})
        limit = chance.randrange(MESSAGES // 8, MESSAGES // 3)
        for kind, stream in streams.items():
            running = stream.run(
                spark,
                checkpoint=str(tmp_path / kind),
                available_now=True,
                starting="earliest",
                table_url=dsn,
                max_messages_per_trigger=limit,
            )
            assert running.wait()
            assert running.progress.batches >= 2
        every = map(_row, payloads)
        last = {payload["user"]: _row(payload) for payload in payloads}
        assert canonical(_table(dsn, f"{base}_every")) == canonical(every)
        assert canonical(_table(dsn, f"{base}_last")) == canonical(last.values())
    definition = checked_definition(streams["every"].definition())
    history = backfill(definition, spark, Options(url=server.url), None, None)
    assert canonical(_comparable(row) for row in plain_rows(history)) == canonical(
        _comparable({**dict.fromkeys(COLUMNS), **payload}) for payload in payloads
    )


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A decimal has the zeros of its type."""
    return {**row, "d": None if row["d"] is None else float(row["d"])}
