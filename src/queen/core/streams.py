"""What a stream is: which windows it cuts, and how they are handed out.

The names on the wire are those of the original broker's `define`; those it did not have
(`window_gap_ms`, `retry_limit` and the ones after it) are ours. In the database the same
definition is kept in camelCase, as the options of a queue are.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

GLOBAL_KEY = "__GLOBAL__"

WindowType = Literal["tumbling", "sliding", "session", "count"]

_MAX_MS = 10 * 365 * 24 * 3600 * 1000
_MAX_COPIES = 10_000
_MAX_COUNT = 10_000_000

_Positive = Annotated[int, Meta(ge=1, le=_MAX_MS)]
_Count = Annotated[int, Meta(ge=1, le=_MAX_COUNT)]

# A change of one of these cuts other windows than those that were delivered.
CUTTING = (
    "partitioned",
    "window_type",
    "window_duration_ms",
    "window_slide_ms",
    "window_gap_ms",
    "window_size_count",
    "window_slide_count",
    "emit_empty",
)


class StreamDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a stream is cut and handed out; a missing field has its default."""

    partitioned: bool = False
    window_type: WindowType = "tumbling"
    window_duration_ms: _Positive | None = None
    window_slide_ms: _Positive | None = None
    window_gap_ms: _Positive | None = None
    window_size_count: _Count | None = None
    window_slide_count: _Count | None = None
    window_grace_period_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] = 30_000
    window_lease_timeout_ms: _Positive = 60_000
    retry_limit: Annotated[int, Meta(ge=0, le=1_000_000)] = 3
    retry_delay_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] = 1000
    max_in_flight: Annotated[int, Meta(ge=1, le=10_000)] = 1
    emit_empty: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether boundaries are multiples of a duration, whatever arrives."""
        return self.window_type in ("tumbling", "sliding")

    @property
    def size(self) -> timedelta:
        return timedelta(milliseconds=self.window_duration_ms or 0)

    @property
    def slide(self) -> timedelta:
        return timedelta(milliseconds=self.window_slide_ms or self.window_duration_ms or 0)

    @property
    def gap(self) -> timedelta:
        return timedelta(milliseconds=self.window_gap_ms or 0)

    @property
    def grace(self) -> timedelta:
        return timedelta(milliseconds=self.window_grace_period_ms)

    @property
    def slide_count(self) -> int:
        return self.window_slide_count or self.window_size_count or 0


def complete(definition: StreamDefinition) -> StreamDefinition:
    """Return a definition with only what its kind of window has, or raise what is missing."""
    kept = _FIELDS[definition.window_type]
    blank = {name: None for name in _ALL_FIELDS if name not in kept}
    full = msgspec.structs.replace(definition, **blank)
    if full.window_type == "tumbling":
        full = msgspec.structs.replace(full, window_duration_ms=full.window_duration_ms or 60_000)
    for name in _NEEDED[full.window_type]:
        if getattr(full, name) is None:
            raise ValueError(f"{name} is needed for {full.window_type} windows")
    _check_slides(full)
    if full.emit_empty and not full.is_timed:
        raise ValueError(f"emit_empty means nothing for {full.window_type} windows")
    return full


def _check_slides(definition: StreamDefinition) -> None:
    if definition.window_slide_ms is not None and definition.window_duration_ms is not None:
        if definition.window_duration_ms % definition.window_slide_ms:
            raise ValueError("window_duration_ms must be a multiple of window_slide_ms")
        if definition.window_duration_ms // definition.window_slide_ms > _MAX_COPIES:
            raise ValueError(f"a message would be in more than {_MAX_COPIES} windows")
    if definition.window_slide_count is not None and definition.window_size_count is not None:
        if definition.window_slide_count > definition.window_size_count:
            raise ValueError("window_slide_count must not be above window_size_count")
        if definition.window_size_count // definition.window_slide_count > _MAX_COPIES:
            raise ValueError(f"a message would be in more than {_MAX_COPIES} windows")


_ALL_FIELDS = (
    "window_duration_ms",
    "window_slide_ms",
    "window_gap_ms",
    "window_size_count",
    "window_slide_count",
)
_NEEDED: dict[str, tuple[str, ...]] = {
    "tumbling": (),
    "sliding": ("window_duration_ms", "window_slide_ms"),
    "session": ("window_gap_ms",),
    "count": ("window_size_count",),
}
_FIELDS: dict[str, tuple[str, ...]] = {
    **_NEEDED,
    "tumbling": ("window_duration_ms",),
    "count": ("window_size_count", "window_slide_count"),
}


def differences(
    old: StreamDefinition, new: StreamDefinition, old_sources: list[str], new_sources: list[str]
) -> list[str]:
    """Say what of a change would cut other windows."""
    changes = [
        f"{name}: {_as_json(getattr(old, name))} -> {_as_json(getattr(new, name))}"
        for name in CUTTING
        if getattr(old, name) != getattr(new, name)
    ]
    if sorted(old_sources) != sorted(new_sources):
        changes.append(
            f"source_queue_names: {_as_json(old_sources)} -> {_as_json(sorted(new_sources))}"
        )
    return changes


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
