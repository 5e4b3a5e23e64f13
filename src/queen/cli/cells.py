"""Values as people read them: numbers with commas, ages in place of instants."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from queen.cli.terminal.group_names import shown_name
from queen.cli.terminal.printable import printable

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def cell(value: Any) -> str:
    """Return a value as a person reads it.

    >>> cell(1234567), cell(None), cell(0.5), cell(["a", "b"])
    ('1,234,567', '-', '0.5', 'a, b')
    """
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, str):
        return printable(shown_name(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(cell(item) for item in value)
    return _as_json(value)


def _as_json(value: Any) -> str:
    """Return a structure with blanks in it, so that it can be wrapped between its parts."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return printable(json.dumps(_decoded(value), ensure_ascii=False, default=_decoded))


def _decoded(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    return value if isinstance(value, dict | list) else str(value)


def as_duration(seconds: Any) -> str:
    """Return a time span in its largest unit.

    >>> as_duration(200), as_duration(0), as_duration(90_000), as_duration(None)
    ('3m', '0s', '1d', '-')
    """
    if seconds is None:
        return "-"
    left = max(float(seconds), 0.0)
    for unit, size in _UNITS:
        if left >= size:
            return f"{int(left // size)}{unit}"
    return "0s"


def as_age(at: Any, now: datetime | None = None) -> str:
    """Return how long ago an instant was, or how long it is until then.

    >>> then = datetime(2026, 3, 1, 12, tzinfo=UTC)
    >>> as_age("2026-03-01T11:57:00.000Z", then), as_age("2026-03-01T14:00:00Z", then)
    ('3m', 'in 2h')
    """
    instant = _instant(at)
    if instant is None:
        return cell(at)
    seconds = ((now or datetime.now(UTC)) - instant).total_seconds()
    return f"in {as_duration(-seconds)}" if seconds <= -1 else as_duration(seconds)


def as_time(at: Any, now: datetime | None = None) -> str:
    """Return the time of day of an instant, in UTC; of another day with its date.

    >>> then = datetime(2026, 3, 1, 12, tzinfo=UTC)
    >>> as_time("2026-03-01T11:57:00.000Z", then), as_time("2026-02-01T14:00:00Z", then)
    ('11:57:00', '02-01 14:00')
    """
    instant = _instant(at)
    if instant is None:
        return cell(at)
    utc = instant.astimezone(UTC)
    is_today = utc.date() == (now or datetime.now(UTC)).date()
    return utc.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M")


def is_instant(value: Any) -> bool:
    """Return whether a value is an instant, as the wire writes them.

    >>> is_instant("2026-03-01T11:57:00.123Z"), is_instant("2026-03-01"), is_instant("soon")
    (True, False, False)
    """
    if isinstance(value, datetime):
        return True
    return isinstance(value, str) and _INSTANT.fullmatch(value) is not None


def _instant(at: Any) -> datetime | None:
    try:
        instant = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    except ValueError:
        return None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def as_bytes(count: Any) -> str:
    """Return a size in the unit that fits it.

    >>> as_bytes(512), as_bytes(123_456_789), as_bytes(None)
    ('512 B', '123.5 MB', '-')
    """
    if count is None:
        return "-"
    size = float(count)
    for unit in _SIZES:
        if abs(size) < 1000 or unit == _SIZES[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
