"""Which part of the numbers a request asks for: a time range and a filter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from queen.core.names import reason_against_name
from queen.errors import BadRequest
from queen.server.api.routing import Param
from queen.server.api.times import parse_time
from queen.server.protocol.http import Query, Request
from queen.service.scope import listed
from queen.service.stats.reads import QueueFilter
from queen.wire.answers import iso
from queen.wire.stats import status as wire

_LONGEST = timedelta(days=3660)

# Longest range in minutes, and the length of the periods it is shown in.
_PERIODS = ((60, 1), (6 * 60, 5), (24 * 60, 15), (7 * 24 * 60, 60))
_LONGEST_PERIOD = 360

RANGE_PARAMS = (
    Param("from", str, "Start of the time range, ISO-8601; by default an hour before its end"),
    Param("to", str, "End of the time range, ISO-8601; by default now"),
)
FILTER_PARAMS = (
    Param("queue", str, "Only this queue"),
    Param("namespace", str, "Only queues of this namespace"),
    Param("task", str, "Only queues of this task"),
)


class TimeRange(NamedTuple):
    """A half-open time range."""

    start: datetime
    end: datetime

    @property
    def minutes(self) -> int:
        """Return the length of the periods that the range is shown in."""
        length = (self.end - self.start).total_seconds() / 60
        for longest, period in _PERIODS:
            if length <= longest:
                return period
        return _LONGEST_PERIOD

    def on_wire(self) -> wire.TimeRange:
        return wire.TimeRange(iso(self.start), iso(self.end))

    def seconds_of(self, bucket: datetime, minutes: int, now: datetime) -> float:
        """Return how much of a period has passed: what its rates are divided by."""
        passed = (min(now, bucket + timedelta(minutes=minutes)) - bucket).total_seconds()
        return max(passed, 1.0)


def filter_of(request: Request, query: Query, *, queue: str = "") -> QueueFilter:
    names = []
    for kind in ("queue", "namespace", "task"):
        text = query.text(kind)
        reason = reason_against_name(kind, text) if text else None
        if reason:
            raise BadRequest(reason)
        names.append(text)
    return QueueFilter(queue or names[0], names[1], names[2], listed(request.caller.namespaces))


def time_range_of(
    query: Query, now: datetime, default: timedelta = timedelta(hours=1)
) -> TimeRange:
    end_text, start_text = query.text("to"), query.text("from")
    end = parse_time("to", end_text) if end_text else now
    try:
        start = parse_time("from", start_text) if start_text else end - default
    except OverflowError:
        start = datetime.min.replace(tzinfo=UTC)
    if start >= end:
        raise BadRequest("query parameter 'from' is not before 'to'")
    if end - start > _LONGEST:
        raise BadRequest(f"the time range is longer than {_LONGEST.days} days")
    return TimeRange(start, end)
