"""What the resource routes answer: queues, partitions, labels, and all of them together."""

from __future__ import annotations

import msgspec

from queen.core.options import OptionState
from queen.wire.paging import Pagination


class MessageCounts(msgspec.Struct, rename="camel"):
    """Messages of a queue or partition; `pending`, `processing` and `completed` add up to it.

    A message is pending until every group has done it, and processing while some group has it
    on a lease. `failed` and `deadLetter` count those set aside for good, by any group.
    """

    # What retention has left.
    total: int = 0
    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    dead_letter: int = 0
    # Everything that was ever written to the partitions there are.
    written: int = 0


def message_counts(
    *, retained: int, outstanding: int, leased: int, dead_letters: int, written: int
) -> MessageCounts:
    leased = min(leased, outstanding)
    return MessageCounts(
        total=retained,
        pending=outstanding - leased,
        processing=leased,
        completed=retained - outstanding,
        failed=dead_letters,
        dead_letter=dead_letters,
        written=written,
    )


class Stated(msgspec.Struct, rename="camel"):
    """Numbers that were true at an instant."""

    # How old they are in seconds; 0 when they were counted for this answer.
    stats_age: float
    stats_at: str | None


class QueueSummary(msgspec.Struct, rename="camel"):
    id: int
    name: str
    namespace: str | None
    task: str | None
    created_at: str
    partitions: int
    messages: MessageCounts
    groups: int
    stored_bytes: int
    # How long the oldest message has waited that some group has not done.
    lag_seconds: float


class QueueList(Stated, rename="camel"):
    queues: list[QueueSummary]
    total: int
    # When the bytes were counted, which happens less often.
    bytes_at: str | None


class PartitionDetail(msgspec.Struct, rename="camel"):
    id: str
    name: str
    queue: str
    created_at: str
    stats: MessageCounts
    messages: MessageCounts
    oldest_message: str | None
    newest_message: str | None
    last_activity: str | None


class GroupSummary(msgspec.Struct, rename="camel"):
    name: str
    pending: int
    processing: int
    partitions_behind: int
    leased_partitions: int
    dead_letter: int
    lag_seconds: float


class QueueDetail(Stated, rename="camel"):
    id: int
    name: str
    namespace: str
    task: str
    created_at: str
    partitions: list[PartitionDetail]
    # For all partitions, not only those listed.
    totals: MessageCounts
    groups: list[GroupSummary]
    stored_bytes: int
    # All of them, whether set or not.
    options: list[OptionState]
    pagination: Pagination


class PartitionList(msgspec.Struct, rename="camel"):
    partitions: list[PartitionDetail]
    pagination: Pagination


class LabelCounts(msgspec.Struct, rename="camel"):
    total: int
    pending: int
    processing: int


class NamespaceSummary(msgspec.Struct, rename="camel"):
    namespace: str
    queues: int
    partitions: int
    messages: LabelCounts


class TaskSummary(msgspec.Struct, rename="camel"):
    task: str
    queues: int
    partitions: int
    messages: LabelCounts


class NamespaceList(Stated, rename="camel"):
    namespaces: list[NamespaceSummary]


class TaskList(Stated, rename="camel"):
    tasks: list[TaskSummary]


class Spread(msgspec.Struct):
    avg: float = 0
    median: float = 0
    min: float = 0
    max: float = 0


class Lag(msgspec.Struct):
    """Over all groups: seconds that the oldest unread message has waited, and messages."""

    time: Spread
    offset: Spread


class Rates(msgspec.Struct, rename="camel"):
    ingested_per_second: float
    processed_per_second: float


class Overview(Stated, rename="camel"):
    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: MessageCounts
    lag: Lag
    # Over the last full minute and the current one.
    throughput: Rates
    stored_bytes: int
    timestamp: str


class Refreshed(Stated, rename="camel"):
    """What a refresh has done; `skipped` when another server was at it."""

    skipped: bool
    reason: str | None
    took_ms: float
