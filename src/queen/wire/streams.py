"""The bodies of the stream routes.

`define` and the verbs keep the mixture of snake_case and camelCase that the original's clients
send; lists are in camelCase like every other list.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from queen.core.streams import StreamDefinition, WindowType
from queen.wire.parts import Headers
from queen.wire.requests import PushItem
from queen.wire.sinks import CommitSink

_Name = Annotated[str, Meta(min_length=1)]


class DefineRequest(msgspec.Struct):
    name: _Name
    namespace: str | None = None
    source_queue_names: list[_Name] = []
    partitioned: bool = False
    window_type: WindowType = "tumbling"
    window_duration_ms: int | None = None
    window_slide_ms: int | None = None
    window_gap_ms: int | None = None
    window_size_count: int | None = None
    window_slide_count: int | None = None
    window_grace_period_ms: int = 30_000
    window_lease_timeout_ms: int = 60_000
    retry_limit: int = 3
    retry_delay_ms: int = 1000
    max_in_flight: int = 1
    emit_empty: bool = False
    # Cut all windows again when the change asks for it.
    recut: bool = False

    def definition(self) -> StreamDefinition:
        """Return what is stored of it, or raise what is out of bounds."""
        names = StreamDefinition.__struct_fields__
        kept = {name: getattr(self, name) for name in names}
        encoded = StreamDefinition.__struct_encode_fields__
        by_wire = dict(zip(encoded, kept.values(), strict=True))
        return msgspec.convert(by_wire, StreamDefinition)


class DefineAnswer(msgspec.Struct):
    success: bool
    stream_id: str
    name: str
    created: bool
    changed: bool


class PollRequest(msgspec.Struct):
    streamName: _Name
    consumerGroup: _Name
    timeout: Annotated[int, Meta(ge=0, le=300_000)] = 30_000
    consumer: Annotated[str, Meta(max_length=255)] | None = None
    subscriptionMode: str | None = None
    subscriptionFrom: str | None = None
    maxInlineBytes: Annotated[int, Meta(ge=0, le=64 * 1024 * 1024)] = 4 * 1024 * 1024


class Range(msgspec.Struct, rename={"from_": "from"}):
    queue: str
    partition: str
    partitionId: str
    from_: int
    to: int


class WindowMessage(msgspec.Struct):
    id: str
    transactionId: str
    traceId: str | None
    data: Any
    created_at: str
    queue: str
    partition: str
    offset: int
    headers: Headers | UnsetType = UNSET


class Window(msgspec.Struct):
    id: str
    leaseId: str
    stream: str
    consumerGroup: str
    key: str
    start: str
    end: str
    attempt: int
    leaseTimeoutMs: int
    leaseExpiresAt: str
    count: int
    bytes: int
    # Messages that retention removed before they were read.
    lost: int
    ranges: list[Range]
    # "ref" when there are too many to be sent along.
    messages: list[WindowMessage] | str


class PollAnswer(msgspec.Struct):
    window: Window


class MessagesPage(msgspec.Struct):
    messages: list[WindowMessage]
    next: str | None


class StagedResults(CommitSink, kw_only=True):
    """A batch of a sink: what many tasks have staged, and one ack publishes."""

    query: _Name


class AckRequest(msgspec.Struct):
    leaseId: _Name
    windowId: str | None = None
    success: bool = True
    error: Annotated[str, Meta(max_length=10_000)] | None = None
    # With success false: nobody is at fault, it comes again at once and nothing is counted.
    release: bool = False
    # With success false: no retry would mend it, it is dead now.
    giveUp: bool = False
    # Items as for a push; stored together with the ack or not at all.
    push: list[PushItem] = []
    # Instead: a batch that was staged under /api/v1/sink; published together with the ack.
    sink: StagedResults | None = None


class AckAnswer(msgspec.Struct):
    success: bool
    acked: bool
    pushed: list[dict[str, Any]]


class RenewRequest(msgspec.Struct):
    leaseId: _Name
    extend_ms: Annotated[int, Meta(ge=1, le=24 * 3600 * 1000)] = 30_000


class RenewAnswer(msgspec.Struct):
    success: bool
    lease_expires_at: str


class SeekRequest(msgspec.Struct):
    streamName: _Name
    consumerGroup: _Name
    timestamp: _Name


class SeekAnswer(msgspec.Struct):
    success: bool


class WindowRanges(msgspec.Struct, rename="camel"):
    """Where the messages of a window lie."""

    id: str
    key: str
    start: str
    end: str
    messages: int
    bytes: int
    ranges: list[Range]


class WindowRangesPage(msgspec.Struct):
    windows: list[WindowRanges]
    # What `after` of the next page is; null on the last.
    next: str | None


class StreamRow(msgspec.Struct, rename="camel"):
    id: str
    name: str
    namespace: str
    source_queues: list[str]
    partitioned: bool
    window_type: WindowType
    window_duration_ms: int | None
    window_slide_ms: int | None
    window_gap_ms: int | None
    window_size_count: int | None
    window_slide_count: int | None
    window_grace_period_ms: int
    window_lease_timeout_ms: int
    retry_limit: int
    retry_delay_ms: int
    max_in_flight: int
    emit_empty: bool
    created_at: str
    updated_at: str
    planned_until: str | None
    active_leases: int
    consumer_groups: int


class StreamList(msgspec.Struct):
    streams: list[StreamRow]


class StreamStats(msgspec.Struct, rename="camel"):
    total_streams: int
    partitioned_streams: int
    active_leases: int
    total_consumer_groups: int
    active_consumers: int
    total_windows_processed: int
    windows_last_hour: int
    avg_lease_time: float
    dead_windows: int


class StreamConsumer(msgspec.Struct, rename="camel"):
    consumer_group: str
    last_acked_window_end: str | None
    total_windows_consumed: int
    last_consumed_at: str | None
    # Windows that are planned and not finished.
    waiting: int
    leased: int
    retrying: int
    dead: int
    behind_seconds: float
    paused: bool
    created_at: str


class StreamConsumers(msgspec.Struct):
    consumers: list[StreamConsumer]


class WindowRow(msgspec.Struct, rename="camel"):
    id: str
    key: str
    start: str
    end: str
    messages: int
    bytes: int
    # What follows is about the group that was asked for.
    state: str | None = None
    attempts: int | None = None
    consumer: str | None = None
    lease_expires_at: str | None = None
    retry_at: str | None = None
    error: str | None = None


class TimelineWindow(msgspec.Struct, rename="camel"):
    id: str
    start: str
    end: str
    messages: int
    bytes: int
    # planned, waiting, ready, leased, retrying, done, dead, or before: the group began later.
    state: str
    attempts: int
    consumer: str | None
    lease_expires_at: str | None
    retry_at: str | None
    # When it was last leased, and when it was done or given up.
    leased_at: str | None
    settled_at: str | None
    error: str | None


class TimelineKey(msgspec.Struct, rename="camel"):
    key: str
    # The oldest first.
    windows: list[TimelineWindow]


class OpenWindow(msgspec.Struct, rename="camel"):
    """A window that is not closed: of one key, or (null) of any."""

    key: str | None
    start: str
    # Null when only messages can close it.
    end: str | None
    # When it is handed out; null when that depends on what arrives.
    ready_at: str | None


class Timeline(msgspec.Struct, rename="camel"):
    stream: str
    group: str | None
    now: str
    # Up to here windows are closed and planned.
    planned_until: str | None
    keys: list[TimelineKey]
    open: list[OpenWindow]


class WindowList(msgspec.Struct):
    windows: list[WindowRow]


class DeadWindow(msgspec.Struct, rename="camel"):
    id: str
    consumer_group: str
    key: str
    start: str
    end: str
    messages: int
    attempts: int
    error: str | None
    failed_at: str
    ranges: list[Range]


class DeadWindows(msgspec.Struct):
    windows: list[DeadWindow]
    total: int


class RetryRequest(msgspec.Struct):
    consumerGroup: _Name
    windowId: str | None = None


class RetryAnswer(msgspec.Struct):
    retried: int


class ExplainedKey(msgspec.Struct, rename="camel"):
    key: str
    state: str
    why: str
    start: str | None = None
    end: str | None = None
    messages: int | None = None
    attempts: int | None = None
    consumer: str | None = None
    lease_expires_at: str | None = None
    retry_at: str | None = None
    error: str | None = None


class Explanation(msgspec.Struct, rename="camel"):
    stream: str
    now: str
    planned_until: str | None
    # The end of the window that is open now, and when it is handed out.
    next_window_end: str | None
    ready_at: str | None
    why: str
    keys: list[ExplainedKey]


class GroupDeleted(msgspec.Struct):
    success: bool
    existed: bool


class StreamDeleted(msgspec.Struct):
    success: bool
    message: str


class Paused(msgspec.Struct):
    success: bool
    paused: bool
