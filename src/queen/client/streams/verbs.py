"""What the verbs of a pipeline may be told, refused in the words of the verbs.

The broker refuses the same, by the names that its fields have on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from queen.errors import BadRequest

_LONGEST_MS = 366 * 24 * 3600 * 1000
_WINDOWS = {
    "tumbling": "tumbling_time",
    "sliding": "sliding_time",
    "session": "session",
    "calendar": "calendar",
}


class _Told(NamedTuple):
    """What a verb was told, and what it may be: some words, or a duration."""

    verb: str
    value: Any
    known: tuple[str, ...] = ()
    least_ms: int = 1


def check_verbs(fields: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for the first verb that was told what it does not know."""
    for told in _all_told(fields):
        if told.value is None:
            continue
        if told.known and told.value not in told.known:
            names = ", ".join(map(repr, told.known))
            raise BadRequest(f"{told.verb}: {told.value!r} is not known; it is one of {names}")
        if not told.known and not told.least_ms <= told.value <= _LONGEST_MS:
            least = "a millisecond" if told.least_ms else "0"
            raise BadRequest(
                f"{told.verb}: a duration is {least} to 366 days, in seconds or as a timedelta, "
                f"and not {told.value / 1000:g} s"
            )


def _all_told(fields: Mapping[str, Any]) -> Iterator[_Told]:
    yield _Told("on_error", fields.get("onError"), ("set_aside", "fail"))
    yield _Told("emit", fields.get("emit"), ("closed", "updates"))
    yield _Told("max_ahead", fields.get("aheadMs"))
    yield _Told("grace_period", fields.get("graceMs"), least_ms=0)
    files = fields.get("output", {}).get("format")
    yield _Told("to_files", files, ("parquet", "json", "csv", "orc"))
    for join in fields.get("joins", ()):
        yield _Told("join, how", join["how"], ("inner", "left", "full", "anti"))
        yield _Told("join, within", join["withinMs"])
    window = fields.get("window") or {}
    verb = _WINDOWS.get(window.get("type", ""), "")
    yield _Told(verb, window.get("unit"), ("day", "week", "month"))
    for name in ("sizeMs", "slideMs", "gapMs"):
        yield _Told(verb, window.get(name))
