"""GET /api/v1/status/queues/:queue: one queue and its messages, as a dashboard shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from queen.core.ids import message_id, partition_uuid
from queen.core.options import QueueOptions
from queen.errors import BadRequest
from queen.server.api.history import read_past
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import (
    age_of,
    counts_of,
    group_summary,
    iso_or_none,
    partition_counts,
    read_groups,
    read_partitions,
    rounded,
)
from queen.server.api.time_range import RANGE_PARAMS, TimeRange, filter_of, time_range_of
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.read.browse import (
    COMPLETED,
    DEAD,
    MAX_OFFSET,
    PENDING,
    PROCESSING,
    BrowsedMessage,
)
from queen.service.rows import Record
from queen.wire.answers import iso
from queen.wire.paging import Pagination
from queen.wire.stats import status as wire
from queen.wire.stats.resources import MessageCounts

_TAG = "Status"
_MAX_PARTITIONS = 1000
_STATUSES = ("failed", COMPLETED, PROCESSING, PENDING)

_options = msgspec.json.Decoder(QueueOptions)


class QueueStatusRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        queue = "/api/v1/status/queues/{queue}"
        return [
            Route("GET", queue, Role.READ, self.queue, _QUEUE, scoped=True),
            Route("GET", f"{queue}/messages", Role.READ, self.messages, _MESSAGES, scoped=True),
        ]

    async def queue(self, request: Request) -> Response:
        query, name = Query(request.query), request.params[0]
        check_name("queue", name)
        limit, offset = page_of(query, _MAX_PARTITIONS)
        now = await self._broker.clock.now()
        time_range = time_range_of(query, now)
        stamp = await self._broker.statistics.current()
        queue_filter = filter_of(request, Query(""), queue=name)
        row = await self._broker.numbers.queue(queue_filter)
        partitions = await read_partitions(self._broker, row["id"], limit, offset)
        total = row["partitions"] or 0
        past = await read_past(self._broker, time_range, queue_filter, now)
        batches = past.sum("pop_requests") - past.sum("pop_empty")
        answer = wire.QueueStatus(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            queue=_head(row),
            totals=_totals(counts_of(row), total, row["done"], batches),
            partitions=[_partition(partition) for partition in partitions],
            groups=[
                group_summary(group, stamp)
                for group in await read_groups(self._broker, queue_filter)
            ],
            pagination=Pagination(limit, offset, total),
            time_range=time_range.on_wire(),
        )
        return Response(200, msgspec.json.encode(answer))

    async def messages(self, request: Request) -> Response:
        query, name = Query(request.query), request.params[0]
        check_name("queue", name)
        limit, offset = page_of(query, 50, furthest=MAX_OFFSET)
        status, partition_name = query.text("status"), query.text("partition")
        if status and status not in _STATUSES:
            raise BadRequest(f"status {status!r} is not known: {', '.join(_STATUSES)}")
        now = await self._broker.clock.now()
        time_range = time_range_of(query, now)
        row = await self._broker.numbers.queue(filter_of(request, Query(""), queue=name))
        browsed = await self._browse(name, partition_name, time_range, limit, offset)
        rows = [_message(message, now) for message in browsed]
        answer = wire.QueueMessages(
            messages=[message for message in rows if status in ("", message.status)],
            pagination=Pagination(limit, offset, row["retained"] or 0),
            queue=name,
            filters=wire.MessageFilters(status or None, partition_name or None),
            time_range=time_range.on_wire(),
        )
        return Response(200, msgspec.json.encode(answer))

    async def _browse(
        self, name: str, partition_name: str, time_range: TimeRange, limit: int, offset: int
    ) -> list[BrowsedMessage]:
        queue = await self._broker.catalog.queue(name)
        if queue is None:
            return []
        partition = None
        if partition_name:
            check_name("partition", partition_name)
            partition = await self._broker.catalog.partition(queue, partition_name)
            if partition is None:
                return []
        return await self._broker.browser.newest(
            queue,
            partition=partition,
            from_time=time_range.start,
            to_time=time_range.end,
            limit=limit,
            offset=offset,
        )


def _head(row: Record) -> wire.QueueHead:
    options = _options.decode(row["options"])
    return wire.QueueHead(
        id=row["id"],
        name=row["name"],
        namespace=row["namespace"],
        task=row["task"],
        priority=options.priority,
        config=wire.QueueConfig(
            lease_time=options.lease_time,
            retry_limit=options.retry_limit,
            retry_delay=options.retry_delay,
            ttl=options.ttl,
            max_queue_size=options.max_size,
            dead_letter_queue=options.dead_letter_queue,
        ),
        options=options,
        created_at=iso(row["created_at"]),
    )


def _totals(
    counts: MessageCounts, partitions: int, consumed: int, batches: int
) -> wire.QueueTotals:
    return wire.QueueTotals(
        messages=counts,
        partitions=partitions,
        consumed=consumed,
        batches=batches,
        total=counts.total,
        pending=counts.pending,
        processing=counts.processing,
        completed=counts.completed,
        failed=counts.failed,
        dead_letter=counts.dead_letter,
    )


def _partition(row: Record) -> wire.PartitionStatus:
    counts = partition_counts(row)
    return wire.PartitionStatus(
        id=partition_uuid(row["id"]),
        name=row["name"],
        created_at=iso(row["created_at"]),
        messages=counts,
        stats=counts,
        cursor=wire.PartitionCursor(row["done"], 0, ""),
        last_activity=iso_or_none(row["active_at"]),
        oldest_message=iso_or_none(row["oldest_at"]),
        newest_message=iso_or_none(row["newest_at"]),
    )


def _message(message: BrowsedMessage, now: datetime) -> wire.MessageRow:
    status = "failed" if message.status == DEAD else message.status
    seconds = max((now - message.created_at).total_seconds(), 0.0)
    waiting = status in (PENDING, PROCESSING)
    return wire.MessageRow(
        id=message_id(message.partition.id, message.offset),
        transaction_id=message.transaction_id,
        trace_id=message.column("traceId"),
        partition=message.partition.name,
        partition_id=message.partition.uuid,
        offset=message.offset,
        created_at=iso(message.created_at),
        status=status,
        retry_count=message.retry_count,
        age=wire.Age(rounded(seconds), format_age(seconds)) if waiting else None,
    )


def format_age(seconds: float) -> str:
    """Return an age in its two largest units.

    >>> format_age(63)
    '1m 3s'
    """
    left, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


_QUEUE = Doc(
    _TAG,
    "One queue: its options, counts, groups and a page of its partitions",
    query=(*RANGE_PARAMS, *page_params(_MAX_PARTITIONS)),
    answers={200: wire.QueueStatus},
)
_MESSAGES = Doc(
    _TAG,
    "A page of the messages of a queue, newest first",
    "The status filter is applied to the page, not to the queue.",
    query=(
        *RANGE_PARAMS,
        Param("partition", str, "Only this partition"),
        Param("status", Literal["failed", "completed", "processing", "pending"], "Only these"),
        *page_params(50, furthest=MAX_OFFSET),
    ),
    answers={200: wire.QueueMessages},
)
