"""The options of a queue: their names, defaults and limits.

The names are those of the original broker, and so are the defaults where the original acts on
them. It stores some options and does nothing with them; here all of them are real, so those
have the default that changes nothing: messages do not expire, and one that exhausts its
retries is set aside. Only `retryDelay` keeps its second, although that now passes: without it
a message that fails at once would use up its retries within milliseconds. Ours are `dedup`,
`dedupWindowSeconds`, `sharedGroups`, `retryBackoff`, `retryMaxDelay`, and those of the breaker
and of limits.
Zero means off.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from queen.core.pacing.backoff import Backoff, BackoffKind
from queen.core.pacing.group_breaker import BreakerRule
from queen.core.pacing.limits import GroupLimits, Rate

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
    retry_backoff: Annotated[
        BackoffKind,
        Meta(description="Whether retryDelay doubles with each failure of a message."),
    ] = "fixed"
    retry_max_delay: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_SECONDS * 1000,
            description="Milliseconds that a retry waits at most, but not less than retryDelay.",
        ),
    ] = 3_600_000
    breaker: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Percent of failures among a group's last outcomes that pause it; 0: none.",
        ),
    ] = 0
    breaker_outcomes: Annotated[
        int, Meta(ge=1, le=1000, description="How many of the last outcomes the breaker looks at.")
    ] = 20
    breaker_pause: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_SECONDS * 1000,
            description="Milliseconds before one message is tried while the breaker is open.",
        ),
    ] = 10_000
    rate_limit: Annotated[
        int,
        Meta(ge=0, le=10**9, description="Messages a group is given in rateInterval; 0: any."),
    ] = 0
    rate_interval: Annotated[
        int,
        Meta(ge=1, le=24 * 3600 * 1000, description="Milliseconds that rates are about."),
    ] = 1000
    rate_burst: Annotated[
        int,
        Meta(ge=0, le=10**9, description="Messages a group may be given at once; 0: rateLimit."),
    ] = 0
    rate_limit_per_partition: Annotated[
        int,
        Meta(ge=0, le=10**9, description="The same as rateLimit, of each partition; 0: any."),
    ] = 0
    max_in_flight: Annotated[
        int,
        Meta(ge=0, le=10**9, description="Messages a group may hold on leases at once; 0: any."),
    ] = 0
    max_in_flight_per_partition: Annotated[
        int,
        Meta(ge=0, le=10**9, description="The same as maxInFlight, of each partition; 0: any."),
    ] = 0
    queue_rate_limit: Annotated[
        int,
        Meta(ge=0, le=10**9, description="Messages all groups are given in rateInterval; 0: any."),
    ] = 0
    queue_max_in_flight: Annotated[
        int,
        Meta(ge=0, le=10**9, description="Messages all groups may hold on leases; 0: any."),
    ] = 0
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
    shared_groups: Annotated[
        bool,
        Meta(description="Groups that are new share partitions; otherwise they read in order."),
    ] = False

    @property
    def expiry_seconds(self) -> int:
        """How old a message may get before it is of no use to anybody; 0 means it may."""
        limits = [limit for limit in (self.ttl, self.max_wait_time_seconds) if limit]
        return min(limits, default=0)

    @property
    def retry_ceiling(self) -> int | None:
        """How often a message may fail before it is dead; None when it is tried for ever."""
        return self.retry_limit if self.dlq_after_max_retries else None

    @property
    def backoff(self) -> Backoff:
        """How the tries of a message are spaced out."""
        longest_ms = max(self.retry_max_delay, self.retry_delay)
        return Backoff(self.retry_backoff, self.retry_delay, longest_ms)

    @property
    def breaker_rule(self) -> BreakerRule:
        return BreakerRule(self.breaker, self.breaker_outcomes, self.breaker_pause)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit to what groups are given."""
        return bool(
            self.rate_limit
            or self.max_in_flight
            or self.rate_limit_per_partition
            or self.max_in_flight_per_partition
            or self.queue_rate_limit
            or self.queue_max_in_flight
        )

    @property
    def limits_in_flight(self) -> bool:
        """Whether a lease that ends makes room for others."""
        return bool(self.max_in_flight or self.queue_max_in_flight)

    @property
    def limits(self) -> GroupLimits:
        """What groups may be given."""
        each, together = self.rate_limit_per_partition, self.queue_rate_limit
        return GroupLimits(
            Rate(self.rate_limit, self.rate_interval, self.rate_burst or self.rate_limit)
            if self.rate_limit
            else None,
            Rate(each, self.rate_interval, each) if each else None,
            self.max_in_flight or None,
            self.max_in_flight_per_partition or None,
            Rate(together, self.rate_interval, together) if together else None,
            self.queue_max_in_flight or None,
        )


OPTION_NAMES = QueueOptions.__struct_encode_fields__

OptionValue = int | bool | str


class OptionState(msgspec.Struct, rename="camel", omit_defaults=True):
    """One option of a queue: what it is, what it could be, and whether somebody has said so."""

    name: str
    value: OptionValue
    default: OptionValue
    # `default` follows the default of the server; `set` was named by somebody, and stays.
    origin: Literal["set", "default"]
    meaning: str
    type: Literal["integer", "boolean", "string"]
    minimum: int | None = None
    maximum: int | None = None
    choices: list[str] | None = None


_SCHEMAS: dict[str, Any] = msgspec.json.schema(QueueOptions)["$defs"]["QueueOptions"]["properties"]
# The lowest and highest value of each option that is a number.
_RANGES: dict[str, tuple[int, int]] = {
    name: (schema["minimum"], schema["maximum"])
    for name, schema in _SCHEMAS.items()
    if "minimum" in schema
}


# So much of a value that cannot be taken is repeated to who sent it.
_LONGEST_SHOWN = 80


def describe_options(named: dict[str, Any]) -> list[OptionState]:
    """Return all options of a queue whose configuration names these, in their usual order."""
    effective = msgspec.to_builtins(msgspec.convert(named, QueueOptions))
    return [
        OptionState(
            name=name,
            value=effective[name],
            default=schema["default"],
            origin="set" if name in named else "default",
            meaning=schema["description"],
            type=schema.get("type", "string"),
            minimum=schema.get("minimum"),
            maximum=schema.get("maximum"),
            choices=sorted(schema["enum"]) if "enum" in schema else None,
        )
        for name, schema in _SCHEMAS.items()
    ]


def reason_against_options(raw: dict[str, object]) -> str | None:
    """Return why a client's options cannot be taken, or None. A null means the default."""
    unknown = sorted(raw.keys() - set(OPTION_NAMES))
    if unknown:
        return f"unknown option {unknown[0]!r}; known are {', '.join(OPTION_NAMES)}"
    for name, value in named_options(raw).items():
        try:
            parse_options({name: value})
        except msgspec.ValidationError:
            return f"option {name!r} must be {_allowed(name, value)}, not {_short(value)}"
    return None


def _allowed(name: str, value: object) -> str:
    """Say what an option may be, to somebody who gave it this value."""
    if name in _RANGES:
        low, high = _RANGES[name]
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return f"{'' if is_whole else 'a whole number '}between {low} and {high}"
    choices = _SCHEMAS[name].get("enum")
    return f"one of {', '.join(sorted(choices))}" if choices else "true or false"


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def differing_options(options: QueueOptions) -> dict[str, Any]:
    """Return the options that are not what the default is."""
    given = msgspec.to_builtins(options)
    return {name: value for name, value in given.items() if value != _SCHEMAS[name]["default"]}


def named_options(raw: dict[str, object]) -> dict[str, object]:
    """Return the options that a client has named; a null names none."""
    return {name: value for name, value in raw.items() if value is not None}


def parse_options(raw: dict[str, object]) -> QueueOptions:
    """Return the options a client sent; wrong types raise `msgspec.ValidationError`."""
    return msgspec.convert(named_options(raw), QueueOptions)
