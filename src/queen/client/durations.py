"""Durations as users give them: seconds, or a `timedelta`."""

from __future__ import annotations

import math
from datetime import timedelta

from queen.errors import BadRequest

Seconds = float | timedelta


def seconds_of(duration: Seconds) -> float:
    """Return a duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def told_ms(verb: str, duration: Seconds, *, least_ms: int = 1) -> int:
    """Return a duration that a verb was told, in whole milliseconds, or raise `BadRequest`.

    >>> told_ms("session", 1.5), told_ms("session", timedelta(minutes=1))
    (1500, 60000)
    """
    seconds = _seconds_or_nan(duration)
    if math.isfinite(seconds) and round(seconds * 1000) >= least_ms:
        return round(seconds * 1000)
    least = "a millisecond" if least_ms else "0"
    raise BadRequest(
        f"{verb}: a duration is {least} or more, as a number of seconds or a timedelta, and not "
        f"{duration!r}"
    )


def _seconds_or_nan(duration: Seconds) -> float:
    # A text has a unit, or might as well; which one is not guessed.
    if isinstance(duration, str | bytes | bool):
        return math.nan
    try:
        return seconds_of(duration)
    except (TypeError, ValueError, OverflowError):
        return math.nan
