"""Windows of days, weeks and months in a zone: as long as the calendar says.

The oracle is plain Python with zoneinfo. It knows that a day begins when its date does, and the
rule of lateness: a message is late when it was written at or after the end plus the grace.
"""

from __future__ import annotations

import math
import random
import uuid
from collections import defaultdict
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.errors import BadRequest
from queen.spark import windowed
from queen.spark.pipelines.explain import explain_definition
from queen.spark.pipelines.run import checked_definition
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import LONG
from tests.spark.history import (
    SCHEMA,
    Event,
    canonical,
    iso,
    live_results,
    messages,
    past_results,
    run_to_end,
    write,
)

GRACE = timedelta(hours=1)
STEP = timedelta(hours=4)
# Both changes of clocks, and one by half an hour.
PLACES = [
    ("America/New_York", [date(2025, 11, 2), date(2026, 3, 8)]),
    pytest.param("Europe/Berlin", [date(2025, 10, 26), date(2026, 3, 29)], marks=LONG),
    pytest.param("Australia/Lord_Howe", [date(2025, 10, 5), date(2026, 4, 5)], marks=LONG),
]
# There clocks skip midnight, go back over it, leave a day out, or are half an hour off.
STRANGE = ["Asia/Beirut", "America/St_Johns", "Pacific/Apia", "Asia/Kolkata", "America/Havana"]


def _begin(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _following(day: date, unit: str) -> date:
    if unit == "month":
        return (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    return day + timedelta(days=7 if unit == "week" else 1)


def _window(at: datetime, zone: ZoneInfo, unit: str = "day") -> tuple[datetime, datetime]:
    """The one period that has begun, and has not ended."""
    first = at.astimezone(zone).date() - timedelta(days=1)
    if unit == "week":
        first -= timedelta(days=first.weekday())
    if unit == "month":
        first = first.replace(day=1)
    while _begin(_following(first, unit), zone) <= at:
        first = _following(first, unit)
    return _begin(first, zone), _begin(_following(first, unit), zone)


def _events(queue: str, zone: ZoneInfo, day: date, count: int = 80) -> list[Event]:
    """Events of some days around one, some of them late; and at the very bounds of days."""
    chance, begin = random.Random(f"{zone}{day}"), _begin(day - timedelta(days=2), zone)
    instants = [begin + timedelta(seconds=chance.randrange(5 * 86_400)) for _ in range(count)]
    bounds = [_begin(day + timedelta(days=number), zone) for number in range(-1, 3)]
    instants += [at + timedelta(milliseconds=ms) for at in bounds for ms in (-1, 0, 1)]
    events = []
    for number, ts in enumerate(sorted(instants)):
        delay_s = chance.choice([0, 0, 60, 7200, 40_000])
        # Many at once, for each instant of writing costs a request.
        written = begin + -(-(ts - begin + timedelta(seconds=delay_s)) // STEP) * STEP
        events.append(Event(queue, f"u{number % 3}", f"{day}-{number}", ts, number, written))
    return events


def _daily(queen: SyncQueen, queue: str, zone: ZoneInfo, **aggregates: str) -> Any:
    own = uuid.uuid4().hex
    stream = queen.stream(f"p-{own}").sources(queue).schema(SCHEMA).event_time("data.ts")
    stream = stream.key("data.user").daily().time_zone(str(zone)).grace_period(GRACE)
    return stream.aggregate(n="count(*)", **aggregates).to(f"out-{own}")


def _sums(events: list[Event], zone: ZoneInfo) -> tuple[list[dict[str, Any]], list[Event]]:
    sums: dict[tuple[datetime, datetime, str], list[int]] = defaultdict(list)
    late = []
    for event in events:
        assert event.ts is not None
        start, end = _window(event.ts, zone)
        if end + GRACE <= event.written:
            late.append(event)
        else:
            sums[start, end, event.user].append(event.amount)
    rows = [
        {
            "windowStart": iso(start),
            "windowEnd": iso(end),
            "user": user,
            "n": len(amounts),
            "total": sum(amounts),
        }
        for (start, end, user), amounts in sums.items()
    ]
    return rows, late


@pytest.mark.parametrize(("name", "days"), PLACES)
def test_days_in_a_zone_equal_the_oracle_live_and_as_a_backfill(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    dsn: str,
    queue: str,
    tmp_path: Path,
    name: str,
    days: list[date],
) -> None:
    zone = ZoneInfo(name)
    events = [event for day in days for event in _events(queue, zone, day)]
    write(api, dsn, events)
    rows, late = _sums(events, zone)
    assert late
    lengths = {
        datetime.fromisoformat(row["windowEnd"]) - datetime.fromisoformat(row["windowStart"])
        for row in rows
    }
    assert len(lengths) == 3
    late_to = f"late-{uuid.uuid4().hex}"
    stream = _daily(queen, queue, zone, total="sum(data.amount)").late_to(late_to)
    running = run_to_end(stream, spark, tmp_path, max_messages_per_trigger=80)
    assert running.progress.dropped_rows == 0
    # The windows have closed: nothing waits in the state.
    assert running.progress.state_rows == 0
    assert live_results(stream, api) == canonical(rows)
    aside = messages(api, late_to)
    assert sorted(row["data"]["id"] for row in aside) == sorted(event.id for event in late)
    windows = {event.id: _window(event.ts, zone) for event in late if event.ts}
    for row in aside:
        start, end = windows[row["data"]["id"]]
        assert row["window"] == {"start": iso(start), "end": iso(end)}
    assert past_results(stream, spark, server) == canonical(rows)
    until = _begin(days[1], zone) + GRACE
    for instant in (until, until - timedelta(milliseconds=1)):
        closed = [event for event in events if event.written < instant]
        ended = [
            row
            for row in _sums(closed, zone)[0]
            if datetime.fromisoformat(row["windowEnd"]) + GRACE <= instant
        ]
        assert past_results(stream, spark, server, until=instant) == canonical(ended)


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_every_instant_is_in_the_period_that_the_calendar_says(
    spark: SparkSession, unit: str
) -> None:
    chance = random.Random(unit)
    wrong = []
    for name in STRANGE if unit == "day" else STRANGE[:2]:
        zone = ZoneInfo(name)
        begin = datetime(2009, 12, 1, tzinfo=UTC)
        instants = [begin + timedelta(seconds=chance.randrange(780 * 86_400)) for _ in range(100)]
        # The half hours around each midnight of the years in which clocks do what is strange.
        midnights = [begin + timedelta(days=number) for number in range(780)]
        shift = zone.utcoffset(datetime(2010, 7, 1)) or timedelta()
        instants += [at - shift + timedelta(minutes=30 * n) for at in midnights for n in (-1, 0, 1)]
        rows = spark.createDataFrame(
            [(at, at) for at in instants], "createdAt timestamp, ts timestamp"
        )
        cut, _ = windowed(rows, unit, time="ts", zone=name)
        bounds = cut.selectExpr(
            "unix_micros(ts)", "unix_micros(window.start)", "unix_micros(window.end)"
        )
        found = bounds.collect()
        # What was written before its window ends is not late.
        assert len(found) == len(instants), name
        for row in found:
            at, start, end = (datetime.fromtimestamp(micros / 1e6, UTC) for micros in row)
            if (start, end) != _window(at, zone, unit):
                wrong.append((name, at, start, end))
    assert wrong == []
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_what_is_chosen_of_days_equals_the_oracle(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    dsn: str,
    queue: str,
    tmp_path: Path,
) -> None:
    """Equal messages count once in each day; of its users, the two with the most pages."""
    zone = ZoneInfo("America/New_York")
    events = [
        event._replace(amount=event.amount % 20)
        for event in _events(queue, zone, date(2026, 3, 8))
        if event.ts and event.written < _window(event.ts, zone)[1] + GRACE
    ]
    write(api, dsn, events)
    pages: dict[tuple[datetime, datetime], dict[str, set[int]]] = {}
    for event in events:
        assert event.ts is not None
        users = pages.setdefault(_window(event.ts, zone), defaultdict(set))
        users[event.user].add(event.amount)
    expected = []
    for (start, end), users in pages.items():
        many = sorted((-len(amounts), user) for user, amounts in users.items() if len(amounts) > 2)
        for rank, (count, user) in enumerate(many[:2], 1):
            bounds = {"windowStart": iso(start), "windowEnd": iso(end)}
            expected.append({**bounds, "rank": rank, "user": user, "n": -count, "pages": -count})
    assert len(expected) > 6
    stream = _daily(queen, queue, zone).dedup("data.amount").distinct(pages="data.amount")
    stream = stream.having("pages > 2").top(2, by="pages")
    run_to_end(stream, spark, tmp_path, max_messages_per_trigger=40)
    assert live_results(stream, api) == canonical(expected)
    assert past_results(stream, spark, server) == canonical(expected)


def test_days_of_what_was_joined_equal_the_oracle(
    queen: SyncQueen,
    spark: SparkSession,
    server: ServerProcess,
    api: Api,
    dsn: str,
    queue: str,
    tmp_path: Path,
) -> None:
    zone, other = ZoneInfo("Asia/Kolkata"), f"{queue}-other"
    left = [
        event._replace(written=event.ts)
        for event in _events(queue, zone, date(2026, 1, 1), 20)
        if event.ts
    ]
    right = [event._replace(queue=other) for event in left[::2]]
    write(api, dsn, [*left, *right])
    counts: dict[tuple[datetime, datetime], int] = defaultdict(int)
    for one in left:
        for two in right:
            if one.ts and two.ts and abs(one.ts - two.ts) <= timedelta(seconds=1):
                counts[_window(one.ts, zone)] += one.user == two.user
    expected = [
        {"windowStart": iso(start), "windowEnd": iso(end), "pairs": count}
        for (start, end), count in counts.items()
        if count
    ]
    assert len(expected) > 3
    second = queen.stream("b").sources(other).schema(SCHEMA).event_time("data.ts")
    own = uuid.uuid4().hex
    stream = queen.stream(f"p-{own}").sources(queue).schema(SCHEMA).event_time("data.ts")
    stream = stream.named("a").join(second, on="data.user", within=1).calendar("day")
    stream = stream.time_zone(str(zone)).aggregate(pairs="count(*)").to(f"out-{own}")
    running = run_to_end(stream, spark, tmp_path)
    assert running.progress.dropped_rows == 0
    assert live_results(stream, api) == canonical(expected)
    assert past_results(stream, spark, server) == canonical(expected)


def test_a_query_of_ones_own_closes_days(
    spark: SparkSession, server: ServerProcess, api: Api, dsn: str, queue: str, tmp_path: Path
) -> None:
    zone = ZoneInfo("America/New_York")
    days = [datetime(2026, 3, day, 12, tzinfo=UTC) for day in (7, 8, 9)]
    write(api, dsn, [Event(queue, "u", f"{at}", at, 1, at) for at in days])
    reader = spark.readStream.format("queen").option("url", server.url).option("queue", queue)
    reader = reader.option("markers", "true").option("startingTime", "earliest")
    rows, _ = windowed(
        reader.schema("createdAt timestamp, sealed timestamp").load(), "day", zone=str(zone)
    )
    counts = rows.groupBy("window").count().selectExpr("window.start", "window.end", "count")
    folder, target = str(tmp_path / "checkpoint"), str(tmp_path / "rows")
    query = counts.writeStream.format("json").option("checkpointLocation", folder)
    query.trigger(availableNow=True).start(target).awaitTermination()
    found = spark.read.schema("start timestamp, end timestamp, count int").json(target)
    expected = [(*(iso(bound) for bound in _window(at, zone)), 1) for at in days]
    text = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
    columns = [f'date_format({name}, "{text}")' for name in ("start", "end")]
    assert sorted(map(tuple, found.selectExpr(*columns, "count").collect())) == expected


def test_what_the_calendar_does_not_have_is_refused(
    queen: SyncQueen, spark: SparkSession, queue: str
) -> None:
    stream = queen.stream("p").sources(queue).aggregate(n="count(*)").to("out")
    with pytest.raises(BadRequest, match=r"calendar: 'fortnight' .*'day', 'week', 'month'"):
        stream.calendar("fortnight").define()
    odd = {**stream.definition(), "window": {"type": "tumbling", "sizeMs": 1000, "unit": "day"}}
    with pytest.raises(BadRequest, match="only calendar windows"):
        checked_definition(odd)
    rows = spark.createDataFrame([], "createdAt timestamp")
    with pytest.raises(ValueError, match="day, week, month"):
        windowed(rows, "fortnight")
    with pytest.raises(ValueError, match="no slide"):
        windowed(rows, "day", slide=60)
    with pytest.raises(ValueError, match="windowed, zone: 'Mars/X' is not known"):
        windowed(rows, "day", zone="Mars/X")
    for size in (math.nan, math.inf, None, -1):
        with pytest.raises(ValueError, match=f"a duration is 0 or more.* not {size}"):
            windowed(rows, size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a window is longer than 0.*: 0"):
        windowed(rows, 0)
    weekly = checked_definition(stream.calendar("week").time_zone("Asia/Kolkata").definition())
    assert "cuts windows of one week, from Monday, in Asia/Kolkata" in explain_definition(weekly)
