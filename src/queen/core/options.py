"""The options of a queue: their names, defaults and limits.

The names are those of the original broker, and so are the defaults where the original acts on
them. It stores some options and does nothing with them; here all of them are real, so those
have the default that changes nothing: messages do not expire, and one that exhausts its
retries is set aside. Only `retryDelay` keeps its second, although that now passes: without it
a message that fails at once would use up its retries within milliseconds. `dedup` and
`dedupWindowSeconds` are ours. Zero means off.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Dedup = Literal["window", "forever", "off"]

MAX_SECONDS = 10 * 365 * 24 * 3600
DEFAULT_DEDUP_WINDOW_SECONDS = 600


_Seconds = Annotated[int, Meta(ge=0, le=MAX_SECONDS)]


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All options of one queue; a missing one has its default."""

    lease_time: Annotated[
        int, Meta(ge=1, le=MAX_SECONDS, description="Seconds that a lease lasts.")
    ] = 300
    max_size: Annotated[
        int,
        Meta(ge=0, le=2**53, description="Messages the slowest group may have to read; 0: any."),
    ] = 0
    ttl: Annotated[
        _Seconds, Meta(description="Seconds after which a message is of no use; 0 is never.")
    ] = 0
    retry_limit: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Tries after the first before a message is dead.")
    ] = 3
    retry_delay: Annotated[
        int,
        Meta(ge=0, le=MAX_SECONDS * 1000, description="Milliseconds before a retry."),
    ] = 1000
    dead_letter_queue: Annotated[
        bool, Meta(description="Keep what exhausts its retries; otherwise it is dropped.")
    ] = True
    dlq_after_max_retries: Annotated[
        bool, Meta(description="Give up after the last retry; otherwise retry for ever.")
    ] = True
    priority: Annotated[
        int,
        Meta(ge=-(2**31), le=2**31 - 1, description="Pops over several queues: higher first."),
    ] = 0
    delayed_processing: Annotated[
        _Seconds, Meta(description="Seconds before a message can be popped.")
    ] = 0
    window_buffer: Annotated[
        _Seconds, Meta(description="Seconds without a push before a partition can be popped.")
    ] = 0
    retention_seconds: Annotated[
        _Seconds, Meta(description="Remove messages older than this, read or not; 0 is never.")
    ] = 0
    completed_retention_seconds: Annotated[
        _Seconds, Meta(description="Remove older messages that every living group has done.")
    ] = 0
    retention_enabled: Annotated[
        bool, Meta(description="Turns retentionSeconds and completedRetentionSeconds on.")
    ] = False
    encryption_enabled: Annotated[
        bool, Meta(description="Store encrypted; the server needs a key for it.")
    ] = False
    max_wait_time_seconds: Annotated[
        _Seconds, Meta(description="Seconds a message may wait to be popped; 0: any.")
    ] = 0
    dedup: Annotated[
        Dedup, Meta(description="For how long a repeated transaction id is known.")
    ] = "window"
    dedup_window_seconds: Annotated[
        int, Meta(ge=1, le=7 * 24 * 3600, description="How long that is for dedup window.")
    ] = DEFAULT_DEDUP_WINDOW_SECONDS

    @property
    def expiry_seconds(self) -> int:
        """How old a message may get before it is of no use to anybody; 0 means it may."""
        limits = [limit for limit in (self.ttl, self.max_wait_time_seconds) if limit]
        return min(limits, default=0)

    @property
    def retry_ceiling(self) -> int | None:
        """How often a message may fail before it is dead; None when it is tried for ever."""
        return self.retry_limit if self.dlq_after_max_retries else None


OPTION_NAMES = QueueOptions.__struct_encode_fields__


def _ranges() -> dict[str, tuple[int, int]]:
    """Return the lowest and highest value of each option that is a number."""
    properties = msgspec.json.schema(QueueOptions)["$defs"]["QueueOptions"]["properties"]
    return {
        name: (schema["minimum"], schema["maximum"])
        for name, schema in properties.items()
        if "minimum" in schema
    }


_RANGES = _ranges()


def reason_against_options(raw: dict[str, object]) -> str | None:
    """Return why a client's options cannot be taken, or None. A null means the default."""
    unknown = sorted(raw.keys() - set(OPTION_NAMES))
    if unknown:
        return f"unknown option {unknown[0]!r}; known are {', '.join(OPTION_NAMES)}"
    for name, (low, high) in _RANGES.items():
        value = raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and not low <= value <= high:
            return f"option {name!r} must be between {low} and {high}, not {value}"
    return None


def parse_options(raw: dict[str, object]) -> QueueOptions:
    """Return the options a client sent; wrong types raise `msgspec.ValidationError`."""
    given = {name: value for name, value in raw.items() if value is not None}
    return msgspec.convert(given, QueueOptions)
