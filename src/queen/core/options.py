"""The options of a queue: their names, defaults and limits.

The names are those of the original broker, and so are the defaults where the original acts on
them. It stores some options and does nothing with them; here all of them are real, so those
have the default that changes nothing: messages do not expire, and one that exhausts its
retries is set aside. `dedup` and `dedupWindowSeconds` are ours. Zero means off.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Dedup = Literal["window", "forever", "off"]

MAX_SECONDS = 10 * 365 * 24 * 3600
DEFAULT_DEDUP_WINDOW_SECONDS = 600


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All options of one queue; a missing one has its default."""

    lease_time: int = 300
    max_size: int = 0
    ttl: int = 0
    retry_limit: int = 3
    retry_delay: int = 1000
    dead_letter_queue: bool = True
    dlq_after_max_retries: bool = True
    priority: int = 0
    delayed_processing: int = 0
    window_buffer: int = 0
    retention_seconds: int = 0
    completed_retention_seconds: int = 0
    retention_enabled: bool = False
    encryption_enabled: bool = False
    max_wait_time_seconds: int = 0
    dedup: Dedup = "window"
    dedup_window_seconds: int = DEFAULT_DEDUP_WINDOW_SECONDS

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

_RANGES = {
    "leaseTime": (1, MAX_SECONDS),
    "maxSize": (0, 2**53),
    "ttl": (0, MAX_SECONDS),
    "retryLimit": (0, 1_000_000),
    "retryDelay": (0, MAX_SECONDS * 1000),
    "priority": (-(2**31), 2**31 - 1),
    "delayedProcessing": (0, MAX_SECONDS),
    "windowBuffer": (0, MAX_SECONDS),
    "retentionSeconds": (0, MAX_SECONDS),
    "completedRetentionSeconds": (0, MAX_SECONDS),
    "maxWaitTimeSeconds": (0, MAX_SECONDS),
    "dedupWindowSeconds": (1, 7 * 24 * 3600),
}


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
