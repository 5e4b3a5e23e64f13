"""What an overview shows first, and what search finds, as they stand on the wire."""

from __future__ import annotations

from typing import Literal

import msgspec


class StuckPartition(msgspec.Struct, rename="camel"):
    """A partition in which a group has had something to read for long."""

    queue: str
    partition: str
    partition_id: str
    consumer_group: str
    pending: int
    # When the oldest message was written that the group has not done.
    oldest_unread_at: str
    lag_seconds: float
    # How often what is next was handed out.
    attempts: int
    # Until when somebody holds it; null when nobody does.
    lease_expires_at: str | None
    # Who does, as far as it has said its name.
    consumer: str | None


class RetentionRisk(msgspec.Struct, rename="camel"):
    """A group that may lose messages to retention before it has read them."""

    queue: str
    consumer_group: str
    pending: int
    # When the oldest of them is removed, unless it is read before.
    removed_at: str


class OpenBreaker(msgspec.Struct, rename="camel"):
    """A group that its breaker holds back, because nearly everything failed."""

    queue: str
    consumer_group: str
    opened_at: str
    # When a single message is tried, or could have been since.
    probe_at: str


class ProblemList(msgspec.Struct, rename="camel"):
    stats_age: float
    # The worst first, at most 50.
    stuck: list[StuckPartition]
    # The soonest first, at most 50.
    retention: list[RetentionRisk]
    # The first that opened first, at most 50.
    breakers: list[OpenBreaker]


class SearchResult(msgspec.Struct):
    kind: Literal["queue", "group", "stream", "pipeline", "partition"]
    name: str
    # The queue of a partition, one of the queues of a group; empty for others.
    queue: str


class SearchAnswer(msgspec.Struct):
    results: list[SearchResult]
