"""Cron: at which instants an expression of five fields comes due, in a named time zone.

    minute 0-59 · hour 0-23 · day of the month 1-31 · month 1-12 or JAN-DEC · weekday 0-7 or SUN-SAT

A field is `*`, a number, a range `a-b`, a step `*/n` or `a-b/n`, or a list of those; 0 and 7 are
Sunday. When day of the month and weekday both say something, either is enough, as cron has always
had it. `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` stand for the obvious ones.

Clocks are put forward and back. An expression whose hour is `*` counts hours as they pass: it
comes due in both hours of the night that has an hour twice, and not in the one that is left out.
Any other names times of day, and each of them comes due once on its day:

    a time that does not exist   when the clock has been put forward, at the end of the gap
    a time that exists twice     the first time
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

MAX_EXPRESSION_CHARACTERS = 200
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ITEM = re.compile(r"(\*|[0-9]{1,2}|[A-Z]{3})(?:-([0-9]{1,2}|[A-Z]{3}))?(?:/([0-9]{1,2}))?")
_ZONE = re.compile(r"[A-Za-z0-9_+\-]+(?:/[A-Za-z0-9_+\-]+)*")


class BadCron(ValueError):
    """The reason why an expression or a zone cannot be taken."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()

    def parse(self, text: str) -> frozenset[int]:
        """Return the numbers that a field stands for."""
        numbers: set[int] = set()
        for item in text.split(","):
            numbers.update(self._parse_item(item))
        return frozenset(numbers)

    def _parse_item(self, item: str) -> range:
        match = _ITEM.fullmatch(item)
        if match is None:
            raise BadCron(f"{self.name}: {item!r} is no number, range or step")
        first, last, step = match.groups()
        if first == "*":
            if last is not None:
                raise BadCron(f"{self.name}: {item!r} is no range")
            start, stop = self.low, self.high
        else:
            start = self._number(first)
            # `5/10` has always meant: from 5 on.
            stop = self._number(last) if last is not None else self.high if step else start
        if start > stop:
            raise BadCron(f"{self.name}: {item!r} ends before it begins")
        if step is not None and int(step) == 0:
            raise BadCron(f"{self.name}: a step of 0")
        return range(start, stop + 1, int(step or 1))

    def _number(self, text: str) -> int:
        if text in self.words:
            return self.words.index(text) + self.low
        if not text.isdigit() or not self.low <= int(text) <= self.high:
            raise BadCron(f"{self.name}: {text!r} is not between {self.low} and {self.high}")
        return int(text)


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression, understood."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    # As Python counts them: Monday is 0.
    weekdays: frozenset[int]
    # Its hour is `*`: it counts hours, and not times of day.
    is_hourly: bool
    # Day of the month and weekday both say something.
    is_either: bool

    def falls_on(self, day: date) -> bool:
        """Whether an expression names any time of a day."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.weekday() in self.weekdays
        return by_day or by_weekday if self.is_either else by_day and by_weekday


@lru_cache(maxsize=1000)
def parse_cron(text: str) -> Cron:
    """Return an expression, or raise `BadCron`.

    >>> parse_cron("0 9-17/4 * * MON-FRI").hours
    (9, 13, 17)
    """
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise BadCron(f"cron is longer than {MAX_EXPRESSION_CHARACTERS} characters")
    words = _SHORTHANDS.get(text.strip().lower(), text).upper().split()
    if len(words) != len(_FIELDS):
        raise BadCron(f"cron has {len(words)} fields, not 5: minute hour day month weekday")
    minutes, hours, days, months, weekdays = (
        field.parse(word) for field, word in zip(_FIELDS, words, strict=True)
    )
    cron = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset((day - 1) % 7 for day in weekdays),
        is_hourly=words[1] == "*",
        is_either=not words[2].startswith("*") and not words[4].startswith("*"),
    )
    if not any(cron.falls_on(date(2024, 1, 1) + timedelta(n)) for n in range(4 * 366)):
        raise BadCron(f"{text!r} never comes due: there is no such day")
    return cron


def parse_zone(name: str) -> ZoneInfo:
    """Return a zone by its name, as `Europe/Berlin`, or raise `BadCron`."""
    try:
        if len(name) > 100 or not _ZONE.fullmatch(name):
            raise ValueError
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadCron(f"there is no time zone {name[:100]!r}") from None


def ticks_after(cron: Cron, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the instants, in UTC, at which an expression comes due after one.

    >>> berlin = parse_zone("Europe/Berlin")
    >>> next(ticks_after(parse_cron("30 2 * * *"), berlin, datetime(2026, 3, 28, 12, tzinfo=UTC)))
    datetime.datetime(2026, 3, 29, 1, 0, tzinfo=datetime.timezone.utc)
    """
    # What belongs to a day may come due on the next: a whole day can be missing from a zone.
    day, last = after.astimezone(zone).date() - timedelta(1), after
    while day.year < date.max.year:
        ticks = _ticks_of_day(cron, zone, day) if cron.falls_on(day) else ()
        for tick in ticks[bisect_right(ticks, last) :]:
            yield tick
            last = tick
        day += timedelta(1)


def latest_ticks(
    cron: Cron, zone: ZoneInfo, first: datetime, now: datetime, limit: int
) -> tuple[list[datetime], datetime]:
    """Return the last ticks from `first`, which is one, up to now, and the one that follows.

    However long ago the first was, not many more are looked at than are wanted.
    """
    span = timedelta(hours=1)
    while True:
        start = max(first - timedelta(seconds=1), now - span)
        due: list[datetime] = []
        for tick in ticks_after(cron, zone, start):
            if tick > now:
                break
            due.append(tick)
        if len(due) >= limit or start < first:
            return due[-limit:], tick
        span *= 4


def next_ticks(cron: Cron, zone: ZoneInfo, after: datetime, count: int) -> list[datetime]:
    """Return the next instants at which an expression comes due."""
    return list(islice(ticks_after(cron, zone, after), count))


# The next tick of a schedule is asked again on the same day.
@lru_cache(maxsize=256)
def _ticks_of_day(cron: Cron, zone: ZoneInfo, day: date) -> tuple[datetime, ...]:
    """Return when an expression comes due on a day of a zone's calendar, in order."""
    ticks: set[datetime] = set()
    midnight = datetime.combine(day, time())
    offset = _steady_offset(zone, midnight)
    for hour in cron.hours:
        for minute in cron.minutes:
            local = midnight.replace(hour=hour, minute=minute)
            if offset is not None:
                ticks.add((local - offset).replace(tzinfo=UTC))
                continue
            instants = _instants_of(local, zone)
            if cron.is_hourly:
                ticks.update(instants)
            else:
                ticks.add(instants[0] if instants else _end_of_gap(local, zone))
    return tuple(sorted(ticks))


def _steady_offset(zone: ZoneInfo, midnight: datetime) -> timedelta | None:
    """Return the offset of a day on which no clock is put forward or back, or None."""
    hours = [midnight.replace(hour=hour, fold=fold) for hour in range(24) for fold in (0, 1)]
    hours.append(midnight + timedelta(1))
    offsets = {zone.utcoffset(hour) for hour in hours}
    return offsets.pop() if len(offsets) == 1 else None


def _instants_of(local: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return when the clock of a zone shows a time: once, twice, or never."""
    instants = []
    for fold in (0, 1):
        instant = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        is_shown = instant.astimezone(zone).replace(tzinfo=None, fold=0) == local
        if is_shown and instant not in instants:
            instants.append(instant)
    return instants


def _end_of_gap(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which the clock shows more than a time that does not exist."""
    # Of such a time the two readings lie on either side of the change.
    before, after = sorted(local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // 2
        if middle.astimezone(zone).replace(tzinfo=None, fold=0) > local:
            after = middle
        else:
            before = middle
    return after.replace(microsecond=0)
