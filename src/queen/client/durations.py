"""Durations as users give them: seconds, or a `timedelta`."""

from __future__ import annotations

from datetime import timedelta

Seconds = float | timedelta


def seconds_of(duration: Seconds) -> float:
    """Return a duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def ms_of(duration: Seconds) -> int:
    """Return a duration in whole milliseconds.

    >>> ms_of(1.5), ms_of(timedelta(minutes=1))
    (1500, 60000)
    """
    return round(seconds_of(duration) * 1000)
