"""Windows, joins, sessions and dedup equal a simple program over the same events.

The events have every fault there is: late, repeated, from clocks an hour ahead, after idle
gaps. The simple program knows only the rule: a message is late when it was written at or after
the end plus the grace. Micro-batches are cut at random; a backfill has no cuts at all.

`QUEEN_ORACLE_EVENTS=100000 QUEEN_ORACLE_CUTS=20` is the large form; it takes a while.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.history import (
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

EVENTS = int(os.environ.get("QUEEN_ORACLE_EVENTS", "1200"))
# Live runs of each kind, each cut in its own way.
RUNS = int(os.environ.get("QUEEN_ORACLE_CUTS", "1"))
GRACE = timedelta(seconds=5)
pytestmark = pytest.mark.timeout(600 if EVENTS <= 10_000 else 7200)


class Past(NamedTuple):
    left: str
    right: str
    events: list[Event]

    def of(self, *queues: str) -> list[Event]:
        return [one for one in self.events if one.queue in queues]


@pytest.fixture(scope="module")
def past(server: ServerProcess, dsn: str) -> Iterator[Past]:
    left, right = (f"past-{uuid.uuid4().hex[:8]}-{side}" for side in "lr")
    events = made_up(EVENTS, [left, right], seed=EVENTS)
    api = Api(server.url)
    write(api, dsn, events)
    yield Past(left, right, events)
    api.close()


def _windows(at: datetime, size_s: int, slide_s: int) -> list[tuple[datetime, datetime]]:
    newest = int(at.timestamp()) // slide_s * slide_s
    starts = range(newest, int(at.timestamp()) - size_s, -slide_s)
    zone = at.tzinfo
    found = [datetime.fromtimestamp(start, zone) for start in starts]
    return [(one, one + timedelta(seconds=size_s)) for one in found if one <= at]


def _run_live(
    pipeline: Any, spark: SparkSession, api: Api, folder: Path, seed: int
) -> tuple[list[str], list[Any]]:
    """Run to the end of what there is, in batches of a random size; results and late rows."""
    limit = max(20, random.Random(seed).randrange(EVENTS // 12, EVENTS // 4))
    running = run_to_end(pipeline, spark, folder, max_messages_per_trigger=limit)
    assert running.progress.dropped_rows == 0
    assert running.progress.batches >= 4
    late = messages(api, pipeline.definition()["lateTo"])
    assert running.progress.late_rows == len(late)
    return live_results(pipeline, api), late


def _check(
    pipeline: Any,
    results: list[dict[str, Any]],
    late: list[Event],
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    tmp_path: Path,
) -> None:
    """A live run, however it was cut, and a backfill both say what the oracle says."""
    wanted = canonical(results)
    assert len(wanted) > 20
    for number in range(RUNS):
        own = uuid.uuid4().hex
        named = pipeline.to(f"out-{own}").late_to(f"late-{own}")
        named.name = f"p-{own}"
        got, aside = _run_live(named, spark, api, tmp_path / own, number)
        assert got == wanted
        ids = sorted(row["data"]["id"] for row in aside)
        assert ids == sorted(one.id for one in late)
    assert past_results(named, spark, server) == wanted


def _sums(
    events: list[Event], size_s: int, slide_s: int
) -> tuple[list[dict[str, Any]], list[Event]]:
    """The oracle of windowed sums: no stream, no state, only the rule."""
    sums: dict[tuple[datetime, datetime, str], list[int]] = defaultdict(list)
    late = []
    for event in events:
        if event.ts is None:
            late.append(event)
            continue
        for start, end in _windows(event.ts, size_s, slide_s):
            if end + GRACE <= event.written:
                late.append(event)
            else:
                sums[start, end, event.user].append(event.amount)
    rows = [
        {
            "windowStart": iso(start),
            "windowEnd": iso(end),
            "user": user,
            "total": sum(amounts),
            "n": len(amounts),
        }
        for (start, end, user), amounts in sums.items()
    ]
    return rows, late


def _base(queen: SyncQueen, *queues: str) -> Any:
    stream = queen.stream("to-be-named").sources(*queues).schema(SCHEMA)
    return stream.event_time("data.ts").grace_period(GRACE)


def test_tumbling_windows_equal_the_oracle(
    past: Past, queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api,
    tmp_path: Path,
) -> None:  # fmt: skip
    pipeline = _base(queen, past.left, past.right).key("data.user").tumbling_time(30)
    pipeline = pipeline.aggregate(total="sum(data.amount)", n="count(*)")
    results, late = _sums(past.events, 30, 30)
    assert len(late) > EVENTS // 200
    _check(pipeline, results, late, spark, server, api, tmp_path)


def test_sliding_windows_equal_the_oracle(
    past: Past, queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api,
    tmp_path: Path,
) -> None:  # fmt: skip
    pipeline = _base(queen, past.left).key("data.user").sliding_time(30, 10)
    pipeline = pipeline.aggregate(total="sum(data.amount)", n="count(*)")
    results, late = _sums(past.of(past.left), 30, 10)
    _check(pipeline, results, late, spark, server, api, tmp_path)


def test_a_join_equals_the_oracle(
    past: Past, queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api,
    tmp_path: Path,
) -> None:  # fmt: skip
    other = _base(queen, past.right).named("other")
    pipeline = _base(queen, past.left).named("one").join(other, on="data.user", within=2)
    pipeline = pipeline.select(one="one.data.id", other="other.data.id")
    late = [one for one in past.events if one.ts is None or one.ts + GRACE <= one.written]
    timely = [one for one in past.events if one.ts is not None and one.ts + GRACE > one.written]
    by_user = defaultdict(list)
    for event in timely:
        if event.queue == past.right:
            by_user[event.user].append(event)
    results = [
        {"one": one.id, "other": other.id}
        for one in timely
        if one.queue == past.left and one.ts is not None
        for other in by_user[one.user]
        if other.ts is not None and abs(other.ts - one.ts) <= timedelta(seconds=2)
    ]
    _check(pipeline, results, late, spark, server, api, tmp_path)


def test_dedup_equals_the_oracle(
    past: Past, queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api,
    tmp_path: Path,
) -> None:  # fmt: skip
    pipeline = _base(queen, past.left).dedup("data.id").select("data.id")
    events = past.of(past.left)
    late = [one for one in events if one.ts is None or one.ts + GRACE <= one.written]
    kept = {one.id for one in events} - {one.id for one in late}
    # A repeat that is late says nothing against the first one that was not.
    kept |= {one.id for one in events if one.ts is not None and one.ts + GRACE > one.written}
    assert len(events) - len(late) > len(kept)
    results = [{"id": one} for one in kept]
    _check(pipeline, results, late, spark, server, api, tmp_path)


def test_sessions_equal_the_oracle(
    past: Past, queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api,
    tmp_path: Path,
) -> None:  # fmt: skip
    gap = timedelta(seconds=3)
    pipeline = _base(queen, past.left).key("data.user").session(gap).aggregate(n="count(*)")
    events = past.of(past.left)
    late = [one for one in events if one.ts is None or one.ts + GRACE <= one.written]
    times: dict[str, list[datetime]] = defaultdict(list)
    for event in events:
        if event.ts is not None and event.ts + GRACE > event.written:
            times[event.user].append(event.ts)
    results = []
    for user, all_of_user in times.items():
        session: list[datetime] = []
        for at in [*sorted(all_of_user), None]:
            # Exactly the gap apart is still together: Spark's rule.
            if session and (at is None or at > session[-1] + gap):
                results.append(
                    {
                        "windowStart": iso(session[0]),
                        "windowEnd": iso(session[-1] + gap),
                        "user": user,
                        "n": len(session),
                    }
                )
                session = []
            session += [] if at is None else [at]
    _check(pipeline, results, late, spark, server, api, tmp_path)
