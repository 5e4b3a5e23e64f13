"""Sessions at their edges: cut by a backfill, asked for by `having`, without any grace."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import long
from tests.spark.history import (
    BEGIN,
    SCHEMA,
    Event,
    canonical,
    iso,
    live_results,
    made_up,
    messages,
    past_results,
    run_to_end,
    write,
)

GAP = timedelta(seconds=10)
GRACE = timedelta(seconds=7)


def _at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def _sessions(queen: SyncQueen, queue: str) -> Any:
    stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema(SCHEMA)
    stream = stream.event_time("data.ts").key("data.user").session(GAP).grace_period(GRACE)
    return stream.aggregate(n="count(*)").to(f"out-{uuid.uuid4().hex}")


def _closed_sessions(events: Iterable[Event], until: datetime) -> list[dict[str, Any]]:
    """The oracle: sessions of what was written and in time, that have ended by then."""
    times: dict[str, list[datetime]] = defaultdict(list)
    for event in events:
        if event.written < until and event.ts is not None and event.ts + GRACE > event.written:
            times[event.user].append(event.ts)
    rows = []
    for user, instants in times.items():
        session: list[datetime] = []
        for at in [*sorted(instants), None]:
            if session and (at is None or at > session[-1] + GAP):
                if session[-1] + GAP + GRACE <= until:
                    rows.append(_row(user, session))
                session = []
            session += [] if at is None else [at]
    return rows


def _row(user: str, session: list[datetime]) -> dict[str, Any]:
    return {
        "windowStart": iso(session[0]),
        "windowEnd": iso(session[-1] + GAP),
        "user": user,
        "n": len(session),
    }


def test_a_backfill_that_ends_within_a_session_does_not_give_a_part_of_it(
    queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api, dsn: str, queue: str
) -> None:
    events = [Event(queue, "ann", f"{n}", _at(5 * n), 1, _at(5 * n)) for n in range(5)]
    write(api, dsn, events)
    stream = _sessions(queen, queue)
    # The session ends 10 s after its last event, at 30 s, and is closed 7 s later.
    for seconds, count in ((17, 0), (22, 0), (36, 0), (38, 1)):
        rows = past_results(stream, spark, server, _at(seconds))
        assert len(rows) == count, seconds
    assert rows == canonical([_row("ann", [_at(5 * n) for n in range(5)])])


def test_backfills_of_sessions_to_any_instant_equal_the_oracle(
    queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api, dsn: str, queue: str
) -> None:
    events = made_up(400, [queue], seed=7)
    write(api, dsn, events)
    stream, chance = _sessions(queen, queue), random.Random(7)
    given = 0
    for _ in range(4):
        # While something happens: sessions are open then.
        until = chance.choice(events).written + timedelta(milliseconds=chance.randrange(9000))
        expected = canonical(_closed_sessions(events, until))
        assert past_results(stream, spark, server, until) == expected
        given += len(expected)
    assert given > 10


def test_having_chooses_among_sessions_by_their_window(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    dsn: str,
    queue: str,
    tmp_path: Path,
) -> None:
    seconds = [0, 4, 8, 100, 200, 205]
    write(api, dsn, [Event(queue, "ann", f"{n}", _at(n), 1, _at(n)) for n in seconds])
    stream = _sessions(queen, queue).having("window.end - window.start > interval 12 seconds")
    run_to_end(stream, spark, tmp_path)
    expected = [_row("ann", [_at(n) for n in many]) for many in ([0, 4, 8], [200, 205])]
    assert live_results(stream, api) == canonical(expected)
    assert past_results(stream, spark, server, _at(3600)) == canonical(expected)


@pytest.mark.parametrize("kind", ["of everything", "ranked by key", *long("ranked")])
def test_sessions_are_of_everything_and_ranked_without_being_merged(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    dsn: str,
    queue: str,
    kind: str,
    tmp_path: Path,
) -> None:
    """Those of two keys overlap: Spark would make one of them if it grouped by them again."""
    seconds = {"ann": [0, 4, 100], "bob": [6, 100]}
    some = [(user, at) for user, many in seconds.items() for at in many]
    some.sort(key=lambda pair: pair[1])
    write(api, dsn, [Event(queue, user, f"{at}", _at(at), 1, _at(at)) for user, at in some])
    stream = _sessions(queen, queue)
    rows = [_row("ann", [_at(0), _at(4)]), _row("bob", [_at(6)])]
    rows += [_row(user, [_at(100)]) for user in ("ann", "bob")]
    if kind == "of everything":
        stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema(SCHEMA)
        stream = stream.event_time("data.ts").session(GAP).grace_period(GRACE)
        stream = stream.aggregate(n="count(*)").to(f"out-{uuid.uuid4().hex}")
        rows = [_row("", [_at(0), _at(4), _at(6)]), _row("", [_at(100), _at(100)])]
        rows = [{name: row[name] for name in row if name != "user"} for row in rows]
    elif kind == "ranked":
        stream = stream.top(1, by="n")
        rows = [{**row, "rank": 1} for row in rows[:3]]
    else:
        stream = stream.top(1, by="n", per=["user"])
        rows = [{**row, "rank": 1} for row in rows]
    run_to_end(stream, spark, tmp_path)
    given = live_results(stream, api)
    assert given == canonical(rows)
    assert past_results(stream, spark, server, _at(3600)) == given


@pytest.mark.parametrize("kind", ["session", "join"])
def test_when_a_message_was_written_is_in_time_without_any_grace(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    dsn: str,
    queue: str,
    kind: str,
    tmp_path: Path,
) -> None:
    other = f"{queue}-other"
    write(api, dsn, [Event(queue, "ann", f"{n}", None, n, _at(n)) for n in (1, 3, 60)])
    write(api, dsn, [Event(other, "ann", f"{n}", None, n, _at(n)) for n in (2, 61)])
    stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema(SCHEMA)
    stream = stream.grace_period(0).to(f"out-{uuid.uuid4().hex}")
    if kind == "session":
        stream = stream.key("data.user").session(GAP).aggregate(n="count(*)")
    else:
        right = queen.stream("right").sources(other).schema(SCHEMA).named("o")
        stream = stream.named("m").join(right, on="data.user", within=1)
        stream = stream.select(left="m.data.amount", right="o.data.amount")
    running = run_to_end(stream, spark, tmp_path)
    assert running.progress.late_rows == 0
    rows = messages(api, stream.definition()["output"]["queue"])
    if kind == "session":
        assert sorted(row["n"] for row in rows) == [1, 2]
    else:
        assert canonical(rows) == canonical(
            [{"left": 1, "right": 2}, {"left": 3, "right": 2}, {"left": 60, "right": 61}]
        )
    assert past_results(stream, spark, server, _at(3600)) == canonical(rows)
