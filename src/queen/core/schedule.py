"""When a scheduled message is due.

A producer names an instant or a delay. A delay counts from the time the server takes the
request, by the database's clock, so producers whose clocks are wrong still mean the same.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

MAX_AHEAD = timedelta(days=3650)


class BadTime(ValueError):
    """The reason why a time cannot be taken."""


def due_at(
    deliver_at: str | None, delay_s: float | None, delay_ms: float | None, now: datetime
) -> datetime | None:
    """Return when a message is due; None means now.

    >>> due_at(None, 90, None, datetime(2026, 1, 1, tzinfo=UTC)).minute
    1
    >>> due_at("2020-01-01", None, None, datetime(2026, 1, 1, tzinfo=UTC))
    """
    given = [time for time in (deliver_at, delay_s, delay_ms) if time is not None]
    if len(given) > 1:
        raise BadTime("give one of deliverAt, delay and delayMs")
    if deliver_at is not None:
        at = _instant(deliver_at)
    elif delay_s is not None:
        at = now + _delay("delay", delay_s)
    elif delay_ms is not None:
        at = now + _delay("delayMs", delay_ms / 1000)
    else:
        return None
    if at > now + MAX_AHEAD:
        raise BadTime(f"deliverAt is more than {MAX_AHEAD.days} days ahead")
    return at if at > now else None


def _instant(text: str) -> datetime:
    """Return an instant from ISO-8601 text; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadTime(f"deliverAt is not an ISO-8601 time: {text[:40]!r}") from None


def _delay(name: str, seconds: float) -> timedelta:
    if seconds < 0:
        raise BadTime(f"{name} is negative")
    if seconds > MAX_AHEAD.total_seconds():
        raise BadTime(f"{name} is more than {MAX_AHEAD.days} days")
    return timedelta(seconds=seconds)
