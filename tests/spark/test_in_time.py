"""History that is pushed long after: a backfill that takes every message as in time.

The same events are in two queues. In one each was written the moment it happened. In the other
they were pushed today, in no order. A backfill in time of the second gives the rows that a
backfill of the first gives, and that is what a live run gives.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.errors import BadRequest
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import long
from tests.spark.history import (
    BEGIN,
    SCHEMA,
    Event,
    canonical,
    iso,
    made_up,
    messages,
    past_rows,
    run_to_end,
    write,
)

GRACE = timedelta(seconds=5)
KINDS = ["sliding", "session", "join", "dedup in windows", *long("tumbling", "daily", "dedup")]


class Twice(NamedTuple):
    """Queues with the same events: two as it was, two that were pushed today."""

    then: tuple[str, str]
    today: tuple[str, str]
    events: list[Event]


@pytest.fixture(scope="module")
def twice(server: ServerProcess, dsn: str) -> Iterator[Twice]:
    then = (f"then-{uuid.uuid4().hex}", f"then-{uuid.uuid4().hex}")
    today = (f"today-{uuid.uuid4().hex}", f"today-{uuid.uuid4().hex}")
    events = [
        event if event.ts is None else event._replace(written=event.ts)
        for event in made_up(300, list(then), seed=3)
    ]
    api = Api(server.url)
    write(api, dsn, events)
    shuffled = random.Random(3).sample(events, len(events))
    for event in shuffled:
        queue = today[then.index(event.queue)]
        item = {"queue": queue, "partition": event.user, "payload": event.payload}
        assert api.push({**item, "transactionId": uuid.uuid4().hex}).status == 201
    yield Twice(then, today, events)
    api.close()


def _pipeline(queen: SyncQueen, queues: tuple[str, str], kind: str) -> Any:
    def base(queue: str) -> Any:
        stream = queen.stream(f"p-{uuid.uuid4().hex}").sources(queue).schema(SCHEMA)
        return stream.event_time("data.ts").grace_period(GRACE)

    if kind == "join":
        other = queen.stream("o").sources(queues[1]).schema(SCHEMA).event_time("data.ts")
        stream = base(queues[0]).named("m").join(other, on="data.user", within=3, how="left")
        return stream.select(left="m.data.id", right="o.data.id").to("out")
    stream = base(queues[0])
    if kind == "dedup":
        return stream.dedup("data.id").select("data.id", "data.ts").to("out")
    if kind == "dedup in windows":
        stream = stream.dedup("data.user")
    cut = {
        "tumbling": stream.tumbling_time(30),
        "sliding": stream.sliding_time(30, 10),
        "session": stream.session(10),
        "daily": stream.daily().time_zone("Asia/Kolkata"),
        "dedup in windows": stream.tumbling_time(20),
    }[kind]
    aggregates = {"n": "count(*)", "total": "sum(data.amount)", "last": "max(createdAt)"}
    return cut.key("data.user").aggregate(**aggregates).to("out")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_pushed_today_counts_as_written_when_it_happened(
    twice: Twice, queen: SyncQueen, spark: SparkSession, server: ServerProcess, kind: str
) -> None:
    before = _pipeline(queen, twice.then, kind)
    loaded = _pipeline(queen, twice.today, kind)
    times = sorted(event.ts for event in twice.events if event.ts)
    middle = random.Random(kind).choice(times[len(times) // 3 :]) + GRACE
    for until in (middle, None):
        expected = past_rows(before, spark, server, None, until)
        assert canonical(past_rows(loaded, spark, server, None, until, in_time=True)) == canonical(
            expected
        )
    if kind != "daily":
        assert len(expected) > 20
    # Without it, all of that is late.
    assert len(past_rows(loaded, spark, server, None, None)) < len(expected) or not expected


@pytest.mark.parametrize("kind", ["sliding", "dedup", *long("session")])
def test_a_stretch_in_time_has_what_began_in_it(
    twice: Twice, queen: SyncQueen, spark: SparkSession, server: ServerProcess, kind: str
) -> None:
    stream = _pipeline(queen, twice.today, kind)
    times = sorted(event.ts for event in twice.events if event.ts)
    since, until = times[len(times) // 3] + timedelta(seconds=1), times[-len(times) // 3]
    begin, end = ("ts", "ts") if kind == "dedup" else ("windowStart", "windowEnd")
    whole = past_rows(stream, spark, server, None, until, in_time=True)
    expected = [row for row in whole if datetime.fromisoformat(row[begin]) >= since]
    assert 5 < len(expected) < len(whole)
    found = past_rows(stream, spark, server, since, until, in_time=True)
    assert canonical(found) == canonical(expected)
    if kind != "dedup":
        assert all(datetime.fromisoformat(row[end]) + GRACE <= until for row in found)


def test_the_client_gives_the_rows_as_a_dataframe(
    twice: Twice, queen: SyncQueen, spark: SparkSession, server: ServerProcess
) -> None:
    stream = _pipeline(queen, twice.today, "tumbling")
    rows = stream.backfill(spark, in_time=True)
    assert rows.columns == ["windowStart", "windowEnd", "user", "n", "total", "last"]
    assert rows.count() == len(past_rows(stream, spark, server, None, None, in_time=True))


def test_what_makes_no_sense_in_time_is_refused(
    twice: Twice, queen: SyncQueen, spark: SparkSession
) -> None:
    timeless = queen.stream("p").sources(twice.today[0]).select("data").to("out")
    with pytest.raises(BadRequest, match="nothing can be late"):
        timeless.backfill(spark, in_time=True)
    stream = _pipeline(queen, twice.today, "tumbling")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with pytest.raises(BadRequest, match="is not before the end"):
        stream.backfill(spark, in_time=True, since=noon, until=noon)


def test_history_and_a_live_run_from_a_boundary_give_each_window_once(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    dsn: str,
    queue: str,
    tmp_path: Path,
) -> None:
    instants = [BEGIN + timedelta(seconds=7 * number) for number in range(40)]
    boundary = BEGIN + timedelta(seconds=120)
    events = [Event(queue, "u", f"{n}", at, n, at) for n, at in enumerate(instants)]
    write(api, dsn, [event for event in events if event.written >= boundary])
    # A straggler, and then all that was before.
    write(api, dsn, [events[16]._replace(written=boundary + timedelta(seconds=1))])
    rest = [event for event in events if event.written < boundary and event.id != "16"]
    api.push(*({"queue": queue, "payload": event.payload} for event in rest))
    stream = queen.stream(f"p-{queue}").sources(queue).schema(SCHEMA).event_time("data.ts")
    stream = stream.tumbling_time(20).grace_period(GRACE).aggregate(n="count(*)").to(f"out-{queue}")
    past = stream.backfill(spark, in_time=True, until=boundary + GRACE)
    expected = canonical(past_rows(stream, spark, server, None, None, in_time=True))
    live = stream.where(f"data.ts >= '{boundary.isoformat()}'")
    run_to_end(live, spark, tmp_path, starting=boundary.isoformat())
    before = [
        {"windowStart": _at(row[0]), "windowEnd": _at(row[1]), "n": row[2]}
        for row in past.selectExpr(
            "unix_micros(windowStart)", "unix_micros(windowEnd)", "n"
        ).collect()
    ]
    assert len(before) == 6
    assert canonical([*before, *messages(api, f"out-{queue}")]) == expected


def _at(micros: int) -> str:
    return iso(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros))
