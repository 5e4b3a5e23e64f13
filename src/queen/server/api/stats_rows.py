"""From rows of numbers to what the wire says of them."""

from __future__ import annotations

from datetime import datetime

from queen.core.ids import partition_uuid
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.stats.reads import QueueFilter
from queen.service.stats.statistics import Stamp
from queen.wire.answers import iso
from queen.wire.stats.resources import (
    GroupSummary,
    MessageCounts,
    PartitionDetail,
    Spread,
    message_counts,
)
from queen.wire.stats.status import ErrorCount

_MAX_GROUPS = 10_000


def iso_or_none(at: datetime | None) -> str | None:
    return iso(at) if at is not None else None


def rounded(value: float) -> float:
    return round(value, 3)


def age_of(stamp: Stamp) -> float:
    return rounded(stamp.age_s)


def counts_of(row: Record) -> MessageCounts:
    """Return the counts of a queue, a partition or a sum; a queue not counted yet has none."""
    return message_counts(
        retained=row["retained"] or 0,
        outstanding=row["outstanding"] or 0,
        leased=row["leased"] or 0,
        dead_letters=row["dead_letters"] or 0,
        written=row["written"] or 0,
    )


def lag_of(row: Record, stamp: Stamp) -> float:
    """Return for how many seconds the oldest unread message had waited when it was counted."""
    oldest = row["oldest_unread_at"]
    if oldest is None or stamp.at is None:
        return 0.0
    return rounded(max((stamp.at - oldest).total_seconds(), 0.0))


async def read_groups(broker: Broker, queue_filter: QueueFilter) -> list[Record]:
    return await broker.numbers.list_groups(queue_filter, _MAX_GROUPS)


def group_summary(row: Record, stamp: Stamp) -> GroupSummary:
    return GroupSummary(
        name=row["group_name"],
        pending=row["pending"],
        processing=row["leased"],
        partitions_behind=row["partitions_behind"],
        leased_partitions=row["leased_partitions"],
        dead_letter=row["dead_letters"],
        lag_seconds=lag_of(row, stamp),
    )


def error_counts(rows: list[Record]) -> list[ErrorCount]:
    return [ErrorCount(row["error"], row["count"]) for row in rows]


async def read_partitions(broker: Broker, queue_id: int, limit: int, offset: int) -> list[Record]:
    """Return a page of a queue's partitions, counted now."""
    return await broker.numbers.partition_page(queue_id, limit, offset)


def partition_counts(row: Record) -> MessageCounts:
    return message_counts(
        retained=row["head"] - row["tail"],
        outstanding=row["outstanding"],
        leased=row["leased"],
        dead_letters=row["dead_letters"],
        written=row["head"],
    )


def partition_detail(row: Record, queue: str) -> PartitionDetail:
    counts = partition_counts(row)
    return PartitionDetail(
        id=partition_uuid(row["id"]),
        name=row["name"],
        queue=queue,
        created_at=iso(row["created_at"]),
        stats=counts,
        messages=counts,
        oldest_message=iso_or_none(row["oldest_at"]),
        newest_message=iso_or_none(row["newest_at"]),
        last_activity=iso_or_none(row["active_at"]),
    )


def spread_of(row: Record, what: str) -> Spread:
    """Return how a number of all groups is spread; nothing where there are none."""
    if row[f"{what}_avg"] is None:
        return Spread()
    return Spread(
        avg=rounded(row[f"{what}_avg"]),
        median=rounded(row[f"{what}_median"]),
        min=rounded(row[f"{what}_min"]),
        max=rounded(row[f"{what}_max"]),
    )


def average(total: float, count: float) -> float:
    return rounded(total / count) if count else 0.0
