"""Windows that are given before they close: to a table, where the last value stays."""

from __future__ import annotations

import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.errors import BadRequest, Conflict
from queen.spark.pipelines.explain import explain_definition
from queen.spark.pipelines.run import checked_definition
from tests.api import Api
from tests.long import LONG
from tests.spark.history import made_up, messages, write

SCHEMA = "user string, id string, ts timestamp, amount bigint"
GRACE = timedelta(seconds=5)
COLUMNS = '"windowStart", "user", n, total, ids'


@pytest.fixture
def table() -> str:
    return f"updates_{uuid.uuid4().hex[:12]}"


def _rows(dsn: str, table: str, columns: str = COLUMNS) -> list[Any]:
    with psycopg.connect(dsn) as database:
        return database.execute(f"select {columns} from {table} order by 1, 2").fetchall()


def _users(queen: SyncQueen, queue: str) -> Any:
    stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema(SCHEMA)
    return stream.event_time("data.ts").key("data.user").grace_period(GRACE)


def _per_user(queen: SyncQueen, queue: str, table: str) -> Any:
    return _by_user(_users(queen, queue), table)


def _by_user(stream: Any, table: str = "t") -> Any:
    return stream.to_table(table, keys=["windowStart", "user"])


def _run(stream: Any, spark: SparkSession, dsn: str, folder: Path, **options: Any) -> Any:
    given = {"available_now": True, "starting": "earliest", "table_url": dsn, **options}
    running = stream.run(spark, checkpoint=str(folder), **given)
    assert running.wait()
    return running


@pytest.mark.parametrize("slide_s", [10, pytest.param(30, marks=LONG)])
def test_in_the_end_the_table_has_what_closed_windows_give(
    queen: SyncQueen,
    spark: SparkSession,
    api: Api,
    dsn: str,
    queue: str,
    table: str,
    tmp_path: Path,
    slide_s: int,
) -> None:
    events = made_up(400, [queue], seed=slide_s)
    write(api, dsn, events)
    sums: dict[tuple[datetime, str], list[int]] = defaultdict(list)
    late = 0
    for event in events:
        late += event.ts is None
        newest = 0 if event.ts is None else int(event.ts.timestamp()) // slide_s * slide_s
        for number in range(0 if event.ts is None else 30 // slide_s):
            start = datetime.fromtimestamp(newest - number * slide_s, UTC)
            if start + timedelta(seconds=30) + GRACE <= event.written:
                late += 1
            else:
                sums[start, event.user].append(event.amount)
    expected = [
        (start, user, len(amounts), sum(amounts), len(set(amounts)))
        for (start, user), amounts in sorted(sums.items())
    ]
    late_to = f"late-{table}"
    stream = _per_user(queen, queue, table).late_to(late_to).sliding_time(30, slide_s)
    stream = stream.aggregate(n="count(*)", total="sum(data.amount)").distinct(ids="data.amount")
    running = _run(stream.emit("updates"), spark, dsn, tmp_path / "a", max_messages_per_trigger=90)
    assert _rows(dsn, table) == expected
    assert len(messages(api, late_to)) == late > 0
    # Windows were given more than once.
    assert running.progress.output_rows > len(expected)
    assert running.progress.dropped_rows == 0
    assert running.progress.state_rows == 0


def test_a_window_is_there_before_it_closes_and_changes(
    queen: SyncQueen,
    spark: SparkSession,
    api: Api,
    dsn: str,
    queue: str,
    table: str,
    tmp_path: Path,
) -> None:
    month = _per_user(queen, queue, table).calendar("month").distinct(n="data.id")
    month = month.grace_period(3600)
    stream, found, at = month.emit("updates"), [], datetime.now(UTC).isoformat()
    for number in range(3):
        for user in ("ann", "bob")[: 2 - number % 2]:
            api.push({"queue": queue, "payload": {"user": user, "id": f"{number}", "ts": at}})
        _run(stream, spark, dsn, tmp_path)
        found.append(dict(_rows(dsn, table, '"user", n')))
    assert found[0] == {"ann": 1, "bob": 1}
    assert found[1] == {"ann": 2, "bob": 1}
    assert found[2] == {"ann": 3, "bob": 2}
    with pytest.raises(Conflict, match="emit"):
        month.run(spark, checkpoint=str(tmp_path), replace=True, table_url=dsn)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.to("out").tumbling_time(30), "nothing to take back"),
        (lambda s: s.to_table("t").tumbling_time(30), "nothing to take back"),
        (lambda s: _by_user(s).session(5), "sessions"),
        (lambda s: _by_user(s).tumbling_time(30).dedup("data.id"), "several steps"),
        (lambda s: _by_user(s).tumbling_time(30).top(1, by="n"), "several steps"),
        (lambda s: _by_user(s).tumbling_time(30).having("n > 1"), "no longer holds"),
        (lambda s: s.to_table("t", keys="user").tumbling_time(30), "must name a window"),
        (lambda s: s.to_table("t", keys="windowStart").tumbling_time(30), "and all keys"),
        (lambda s: _by_user(s).tumbling_time(30).select("user", "n"), "and all keys"),
    ],
)
def test_what_cannot_be_given_early_is_refused_in_a_sentence(
    queen: SyncQueen, queue: str, change: Any, reason: str
) -> None:
    stream = _users(queen, queue).aggregate(n="count(*)").emit("updates")
    named = stream.select("n", who="user", begin="windowStart").to_table("t", keys=["who", "begin"])
    for fine in (_by_user(stream).tumbling_time(30), named.tumbling_time(30)):
        said = explain_definition(checked_definition(fine.definition()))
        assert said[-1].endswith("whenever a window has changed")
    with pytest.raises(BadRequest, match=f"emit: .*{reason}"):
        checked_definition(change(stream).definition())
