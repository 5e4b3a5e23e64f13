"""Consumer groups on the wire."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_OFFSET = 2**62


class GroupEntry(msgspec.Struct):
    """One group in one queue."""

    name: str
    topics: list[str]
    queueName: str
    # Consumers that hold a lease, and those that wait at the server that answers.
    members: int
    partitionsWithLag: int
    # Messages that were not read yet, and the age of the oldest of them.
    totalLag: int
    maxTimeLag: float
    # How many seconds ago that was counted.
    statsAge: float
    # Stable; Lagging: behind by more than five minutes; Dead: has never read anything.
    state: str
    paused: bool
    # Many consumers hold messages of one partition at once; otherwise they are read in order.
    shared: bool
    activeLeases: int
    subscriptionMode: str
    # Where the group starts in partitions it has not read; null is the beginning. A group that
    # reads by time (mode `time`) has read everything before it, in all partitions.
    subscriptionTimestamp: str | None
    subscriptionCreatedAt: str
    # When it last asked for messages, to within a minute.
    lastUsedAt: str
    # Since when its breaker holds it back, because nearly everything failed; null: it does not.
    breakerOpenSince: str | None


class GroupPartition(msgspec.Struct):
    """Where a group stands in one partition."""

    partition: str
    partitionId: str
    workerId: str | None
    lastConsumedAt: str | None
    # Messages behind the group: done, or skipped by where it started.
    totalConsumed: int
    # The offset it reads next.
    position: int
    head: int
    offsetLag: int
    timeLagSeconds: float
    leaseActive: bool
    leaseExpiresAt: str | None
    # How often what comes next was delivered without success.
    attempts: int


class GroupInQueue(msgspec.Struct):
    partitions: list[GroupPartition]
    # There are more partitions; ask with an offset behind these.
    hasMore: bool
    # All partitions together, as in the list of groups.
    members: int
    partitionsWithLag: int
    totalLag: int
    maxTimeLag: float
    activeLeases: int
    statsAge: float
    paused: bool
    shared: bool
    subscriptionMode: str
    subscriptionTimestamp: str | None
    # As in the list of groups.
    breakerOpenSince: str | None


class LaggingPartition(msgspec.Struct):
    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    offset_lag: int
    time_lag_seconds: float
    lag_hours: float
    oldest_unconsumed_at: str
    last_consumed_at: str | None
    # How many seconds ago that was counted.
    stats_age: float


class GroupDeleted(msgspec.Struct, omit_defaults=True):
    success: bool
    consumerGroup: str
    deletedPartitions: int
    metadataDeleted: bool
    existed: bool
    queueName: str | None = None


class SubscriptionRequest(msgspec.Struct):
    subscriptionTimestamp: str | None = None


class SubscriptionChanged(msgspec.Struct):
    success: bool
    consumerGroup: str
    newTimestamp: str
    rowsUpdated: int


class GroupPaused(msgspec.Struct):
    success: bool
    consumerGroup: str
    queues: list[str]
    paused: bool


class GroupShared(msgspec.Struct):
    success: bool
    consumerGroup: str
    queues: list[str]
    shared: bool


class SeekRequest(msgspec.Struct):
    """One of the first four; `offset` for a single partition only."""

    toEnd: bool | None = None
    toBeginning: bool | None = None
    timestamp: str | None = None
    offset: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | None = None
    dryRun: bool | None = None


class QueueSeek(msgspec.Struct):
    success: bool
    consumerGroup: str
    queueName: str
    seekToEnd: bool
    # The instant the group was moved to; null for the beginning.
    targetTimestamp: str | None
    partitionsUpdated: int
    # Messages that are delivered although they were done, and that are not although they were
    # not done.
    messagesAgain: int
    messagesSkipped: int
    dryRun: bool


class PartitionSeek(msgspec.Struct):
    success: bool
    consumerGroup: str
    queueName: str
    partitionName: str
    updated: bool
    # When the last message behind the group was written; null at the beginning.
    cursorMovedTo: str | None
    # The offset that is read next.
    offset: int
    seekToEnd: bool
    targetTimestamp: str | None
    partitionsUpdated: int
    messagesAgain: int
    messagesSkipped: int
    dryRun: bool
