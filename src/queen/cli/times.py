"""Times as people type them: 2026-03-01T12:00:00Z, or how long ago: 90s, 15m, 2h, 7d."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(option: str, text: str) -> datetime:
    """Return the instant that was meant; without a zone it is UTC."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-03-01T12:00:00Z, or 15m, 2h, 7d for that long ago",
            param_hint=option,
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def parse_duration(option: str, text: str) -> float:
    """Return the seconds that were meant: 90, 1.5, 90s, 15m, 2h, 7d."""
    given = _AGO.fullmatch(text if text[-1:].isalpha() else f"{text}s")
    if given is None:
        raise typer.BadParameter(
            f"{text!r} is no duration: write seconds, or 90s, 15m, 2h, 7d", param_hint=option
        )
    return timedelta(**{_UNITS[given[2]]: float(given[1])}).total_seconds()


def parse_optional(option: str, text: str | None) -> datetime | None:
    return None if text is None else parse_time(option, text)
