"""When cron comes due, against a clock that is looked at every minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.core.tasks.cron import (
    BadCron,
    Cron,
    latest_ticks,
    next_ticks,
    parse_cron,
    parse_zone,
    ticks_after,
)

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
# Where clocks are put forward and back by an hour, by half of one, at midnight, and where a whole
# day was left out.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"]
EXPRESSIONS = [
    "30 2 * * *",
    "0 3 * * *",
    "*/20 * * * *",
    "15,45 1-3 * * *",
    "0 */2 * * *",
    "0 0 * * *",
    "30 1 * * SUN",
    "59 23 29 2 *",
    "0 12 1 * MON",
]


def names(cron: Cron, local: datetime) -> bool:
    """Whether an expression names what a clock shows."""
    return local.minute in cron.minutes and local.hour in cron.hours and cron.falls_on(local.date())


def looked_at(cron: Cron, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield when an expression comes due, by looking at the clock every minute.

    Nothing here asks when clocks are changed: it is seen from what they show.
    """
    (_, furthest), *minutes = shown_by_clock(zone, start, end)
    for at, local in minutes:
        if cron.is_hourly:
            if names(cron, local):
                yield at
        elif local > furthest:
            shown = furthest + MINUTE
            while shown <= local:
                if names(cron, shown):
                    yield at
                    break
                shown += MINUTE
        # The second time something is shown, it is no news.
        furthest = max(furthest, local)


@lru_cache(maxsize=64)
def shown_by_clock(
    zone: ZoneInfo, start: datetime, end: datetime
) -> list[tuple[datetime, datetime]]:
    """Return what the clock of a zone shows at each minute, and at the one before."""
    minutes = [start + n * MINUTE for n in range(-1, (end - start) // MINUTE)]
    return [(at, at.astimezone(zone).replace(tzinfo=None, fold=0)) for at in minutes]


def changes(zone: ZoneInfo, first: int, last: int) -> Iterator[datetime]:
    """Yield the days before clocks are changed, found by looking each day."""
    day = datetime(first, 1, 1, tzinfo=UTC)
    while day.year < last:
        if day.astimezone(zone).utcoffset() != (day + DAY).astimezone(zone).utcoffset():
            yield day
        day += DAY


def between(cron: Cron, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    return list(takewhile(lambda tick: tick < end, ticks_after(cron, zone, start - MINUTE)))


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_cron_is_right_whenever_clocks_are_changed(name: str, text: str) -> None:
    """Over several years, the two days around every change."""
    zone, cron = parse_zone(name), parse_cron(text)
    days = list(changes(zone, 2024, 2029))
    assert len(days) == 10
    for day in days:
        start, end = day - DAY / 4, day + 1.5 * DAY
        assert between(cron, zone, start, end) == list(looked_at(cron, zone, start, end)), day


@pytest.mark.parametrize("name", ZONES)
def test_a_time_of_day_comes_due_once_on_each_day(name: str) -> None:
    zone = parse_zone(name)
    start = datetime(2024, 1, 1, tzinfo=zone)
    days = [start.date() + timedelta(n) for n in range(2 * 365)]
    for text in ("30 2 * * *", "0 0 * * *"):
        ticks = next_ticks(parse_cron(text), zone, start.astimezone(UTC) - MINUTE, len(days))
        assert [tick.astimezone(zone).date() for tick in ticks] == days


def test_a_day_that_a_zone_has_left_out_comes_due_when_the_next_one_begins() -> None:
    apia = parse_zone("Pacific/Apia")
    ticks = next_ticks(parse_cron("0 9 * * *"), apia, datetime(2011, 12, 28, tzinfo=UTC), 4)
    shown = [f"{tick.astimezone(apia):%d %H:%M}" for tick in ticks]
    assert shown == ["28 09:00", "29 09:00", "31 00:00", "31 09:00"]


fields = st.tuples(
    st.sampled_from(["*", "0", "*/7", "5-50/9", "30,31"]),
    st.sampled_from(["*", "2", "*/3", "1-4", "0,23", "*/1"]),
    st.sampled_from(["*", "1", "25-31", "*/2"]),
    st.sampled_from(["*", "MAR,OCT,NOV", "4-12"]),
    st.sampled_from(["*", "SUN", "1-5", "7", "*/2"]),
)


@settings(max_examples=25)
@given(fields, st.sampled_from(ZONES), st.integers(0, 365 * 6))
def test_any_expression_is_right_on_any_day(words: tuple[str, ...], name: str, number: int) -> None:
    zone, cron = parse_zone(name), parse_cron(" ".join(words))
    start = datetime(2023, 1, 1, 12, tzinfo=UTC) + timedelta(days=number)
    end = start + DAY
    assert between(cron, zone, start, end) == list(looked_at(cron, zone, start, end))


@pytest.mark.parametrize(
    ("text", "ago"),
    [("* * * * *", 2000), ("*/7 * * * *", 9000), ("0 3 * * *", 300 * 1440), ("0 0 1 1 *", 9 * DAY)],
)
def test_however_long_ago_it_was_the_latest_ticks_are_those_of_a_walk(
    text: str, ago: int | timedelta
) -> None:
    berlin, now = parse_zone("Europe/Berlin"), datetime(2027, 1, 2, 12, 0, 30, tzinfo=UTC)
    ago = ago if isinstance(ago, timedelta) else ago * MINUTE
    cron = parse_cron(text)
    walked = between(cron, berlin, now - ago, now)
    for limit in (1, 2, 5):
        due, following = latest_ticks(cron, berlin, walked[0], now, limit)
        assert due == walked[-limit:]
        assert following == next(ticks_after(cron, berlin, now))
        # Years make no difference.
        years_ago = next(ticks_after(cron, berlin, datetime(2020, 1, 1, tzinfo=UTC)))
        if len(walked) >= limit:
            assert latest_ticks(cron, berlin, years_ago, now, limit) == (due, following)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "*-5 * * * *",
        "1,,2 * * * *",
        "a * * * *",
        "* * * FOO *",
        "-1 * * * *",
        "1.5 * * * *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "@reboot",
        "* " * 200,
        "٣ * * * *",
        "*/99 * * * * #",
    ],
)
def test_what_is_no_expression_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(BadCron, match=r"\w"):
        parse_cron(text)


@pytest.mark.parametrize("name", ["", "Nowhere/City", "../etc/passwd", "/UTC", "Europe", "x" * 500])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(BadCron, match="no time zone"):
        parse_zone(name)


def test_names_and_shorthands_mean_what_they_say() -> None:
    assert parse_cron("0 0 * jan-mar Sun") == parse_cron("0 0 * 1-3 7") == parse_cron("0 0 * 1-3 0")
    assert parse_cron("@daily") == parse_cron("0 0 * * *")
    assert parse_cron("5/20 * * * *").minutes == (5, 25, 45)
