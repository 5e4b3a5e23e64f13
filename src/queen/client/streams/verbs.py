"""What the verbs of a pipeline may be told, refused in the words of the verbs.

The broker refuses the same, by the names that its fields have on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from queen.errors import BadRequest
from queen.wire.pipelines import MOST_OF_TOP, is_zone

_LONGEST_MS = 366 * 24 * 3600 * 1000
_WINDOWS = {
    "tumbling": "tumbling_time",
    "sliding": "sliding_time",
    "session": "session",
    "calendar": "calendar",
}
# Fields of leased windows, and the verbs that set them.
_LEASED = {
    "window_lease_timeout_ms": "lease_timeout",
    "retry_limit": "retry_limit",
    "retry_delay_ms": "retry_delay",
    "max_in_flight": "max_in_flight",
    "emit_empty": "emit_empty",
}
_TARGETS = {"queue": "the queue", "table": "the table", "files": "the folder"}


class _Told(NamedTuple):
    """What a verb was told, and what it may be: some words, or a duration."""

    verb: str
    value: Any
    known: tuple[str, ...] = ()


def check_verbs(fields: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for the first verb that was told what it does not know."""
    for told in _all_told(fields):
        if told.value is None:
            continue
        if told.known and told.value not in told.known:
            names = ", ".join(map(repr, told.known))
            raise BadRequest(f"{told.verb}: {told.value!r} is not known; it is one of {names}")
        if not told.known and told.value > _LONGEST_MS:
            raise BadRequest(
                f"{told.verb}: a duration is at most 366 days, and not {told.value / 1000:g} s"
            )


def _all_told(fields: Mapping[str, Any]) -> Iterator[_Told]:
    yield _Told("on_error", fields.get("onError"), ("set_aside", "fail"))
    yield _Told("emit", fields.get("emit"), ("closed", "updates"))
    yield _Told("max_ahead", fields.get("aheadMs"))
    yield _Told("grace_period", fields.get("graceMs"))
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


def check_leased(stream: Mapping[str, Any], window: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for a verb that a pipeline would pass over."""
    for field, verb in _LEASED.items():
        told = stream.get(field)
        # False is what `emit_empty` is anyway.
        if told is not None and told is not False:
            raise BadRequest(
                f"{verb}: it is of windows that consumers lease, and means nothing to a pipeline; "
                "leave it out"
            )
    if window.get("window_type") == "count":
        raise BadRequest(
            "count: a pipeline cuts time and not numbers of messages; use tumbling_time, "
            "sliding_time, session or calendar"
        )


def check_windows(windows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `BadRequest` when time is to be cut in two ways."""
    first = next(iter(windows), None)
    other = next((window for window in windows if window != first), None)
    if first is not None and other is not None:
        verbs = [_WINDOWS.get(kind, kind) for kind in (_kind_of(first), _kind_of(other))]
        raise BadRequest(
            f"{verbs[1]}: windows are cut by {verbs[0]} already; a pipeline has one kind of window"
        )


def _kind_of(window: Mapping[str, Any]) -> str:
    return str(window["window_type"])


def check_output(verb: str, before: Mapping[str, Any] | None, output: Mapping[str, Any]) -> None:
    """Raise `BadRequest` when results go somewhere else already."""
    if before is None or before == output:
        return
    target = next(target for target in _TARGETS if before.get(target))
    raise BadRequest(
        f"{verb}: results go to {_TARGETS[target]} {before[target]!r} already; a pipeline has one "
        "output"
    )


def told_expressions(verb: str, *expressions: Any) -> list[str]:
    """Return expressions that a verb was told, or raise `BadRequest`."""
    for expression in expressions:
        if not isinstance(expression, str) or not expression.strip():
            raise BadRequest(f"{verb}: {expression!r} is no expression; write Spark SQL, as a text")
    return list(expressions)


def told_name(verb: str, name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise BadRequest(f"{verb}: {name!r} is no text that says anything")
    return name


def told_names(verb: str, names: Any) -> list[str]:
    """Return names that a verb was told; a single text is one name, and not its letters."""
    given = [names] if isinstance(names, str) else names
    if not isinstance(given, Sequence) or not all(isinstance(name, str) and name for name in given):
        raise BadRequest(f"{verb}: {names!r} is not a list of names")
    return list(given)


def told_count(verb: str, count: Any) -> int:
    is_count = isinstance(count, int) and not isinstance(count, bool)
    if not is_count or not 1 <= count <= MOST_OF_TOP:
        raise BadRequest(f"{verb}: {count!r} is not a whole number from 1 to {MOST_OF_TOP}")
    return int(count)


def told_zone(verb: str, name: Any) -> str:
    if not isinstance(name, str) or not is_zone(name):
        raise BadRequest(f"{verb}: {name!r} is not known; one is like 'Europe/Berlin'")
    return name


def told_pairs(verb: str, on: Any) -> list[list[str]]:
    """Return what two sides are joined by: pairs of ours and theirs."""
    if isinstance(on, str):
        on = [on]
    if isinstance(on, Mapping):
        pairs = [[ours, theirs] for ours, theirs in on.items()]
    elif isinstance(on, Sequence):
        pairs = [[expression, expression] for expression in on]
    else:
        pairs = []
    if not pairs:
        raise BadRequest(
            f"{verb}: {on!r} is neither an expression for both sides, nor several, nor a mapping "
            "from ours to theirs"
        )
    for pair in pairs:
        told_expressions(verb, *pair)
    return pairs
