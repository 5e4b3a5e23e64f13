"""GET /api/v1/status/…: what a dashboard shows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from queen.core.ids import message_id, partition_uuid
from queen.core.options import QueueOptions
from queen.errors import BadRequest
from queen.server.api.history import Past, live_workers, past, throughput_point
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import (
    age_of,
    average,
    counts_of,
    group_summary,
    groups_of,
    iso_or_none,
    lag_of,
    partition_counts,
    partition_rows,
    rounded,
)
from queen.server.api.time_range import (
    FILTER_PARAMS,
    RANGE_PARAMS,
    Window,
    filter_of,
    window_of,
)
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.read.browse import COMPLETED, DEAD, MAX_OFFSET, PENDING, PROCESSING, Browsed
from queen.service.rows import Record
from queen.service.stats.reads import QueueFilter
from queen.wire import status as wire
from queen.wire.answers import iso
from queen.wire.paging import Pagination
from queen.wire.resources import MessageCounts

_TAG = "Status"
_INTERVALS = {"minute": 1, "hour": 60, "day": 24 * 60}
_MAX_POINTS = 100
_MAX_PARTITIONS = 1000
_MAX_QUEUES = 10_000
_TOP_QUEUES = 10
_STATUSES = ("failed", COMPLETED, PROCESSING, PENDING)

_options = msgspec.json.Decoder(QueueOptions)


class StatusRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        base = "/api/v1/status"
        one = f"{base}/queues/{{queue}}"
        return [
            Route("GET", base, Role.READ, self.status, _STATUS, scoped=True),
            Route("GET", f"{base}/queues", Role.READ, self.queues, _QUEUES, scoped=True),
            Route("GET", one, Role.READ, self.queue, _QUEUE, scoped=True),
            Route("GET", f"{one}/messages", Role.READ, self.messages, _MESSAGES, scoped=True),
            Route("GET", f"{base}/analytics", Role.READ, self.analytics, _ANALYTICS, scoped=True),
            Route("GET", f"{base}/buffers", Role.READ, self.buffers, _BUFFERS),
        ]

    async def _window(self, query: Query, hours: int = 1) -> tuple[Window, datetime]:
        now = await self._broker.clock.now()
        return window_of(query, now, timedelta(hours=hours)), now

    # ---- all queues ----

    async def status(self, request: Request) -> Response:
        query = Query(request.query)
        wanted = filter_of(request, query)
        window, now = await self._window(query)
        stamp = await self._broker.statistics.current()
        seen = await past(self._broker, window, wanted, now)
        row = await self._broker.numbers.sum_queues(wanted)
        points = [throughput_point(seen, bucket) for bucket in seen.buckets]
        answer = wire.Status(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            time_range=window.wire(),
            bucket_minutes=seen.minutes,
            point_count=len(points),
            throughput=points,
            queues=await self._active_queues(window, wanted),
            messages=_messages(counts_of(row), seen),
            leases=await self._leases(wanted, row),
            dead_letter_queue=await self._dead_letters(window, wanted, row),
            errors=wire.Errors(
                seen.database_errors, seen.sum("ack_failed"), seen.sum("dead_letters")
            ),
            workers=await live_workers(self._broker) if wanted.namespaces is None else [],
        )
        return Response(200, msgspec.json.encode(answer))

    async def _active_queues(self, window: Window, wanted: QueueFilter) -> list[wire.StatusQueue]:
        rows = await self._broker.numbers.active_queues(window, wanted)
        return [
            wire.StatusQueue(
                id=row["id"],
                name=row["name"],
                namespace=row["namespace"] or None,
                task=row["task"] or None,
                partitions=row["partitions"] or 0,
                total_consumed=row["consumed"],
            )
            for row in rows
        ]

    async def _leases(self, wanted: QueueFilter, row: Record) -> wire.Leases:
        groups = await groups_of(self._broker, wanted)
        return wire.Leases(
            active=sum(one["leased_partitions"] for one in groups),
            partitions_with_leases=row["leased_partitions"],
            total_batch_size=sum(one["leased"] for one in groups),
            total_acked=sum(one["done"] for one in groups),
        )

    async def _dead_letters(
        self, window: Window, wanted: QueueFilter, row: Record
    ) -> wire.DeadLetterSummary:
        numbers = self._broker.numbers
        return wire.DeadLetterSummary(
            total_messages=row["dead_letters"],
            affected_partitions=await numbers.affected_partitions(wanted, window),
            top_errors=await self._top_errors(window, wanted),
        )

    async def _top_errors(self, window: Window, wanted: QueueFilter) -> list[wire.ErrorCount]:
        rows = await self._broker.numbers.top_errors(wanted, window)
        return [wire.ErrorCount(row["error"], row["count"]) for row in rows]

    async def queues(self, request: Request) -> Response:
        query = Query(request.query)
        wanted, (limit, offset) = filter_of(request, query), page_of(query, 100, _MAX_QUEUES)
        window, _ = await self._window(query)
        stamp = await self._broker.statistics.current()
        rows = await self._broker.numbers.list_queues(wanted, limit, offset, by_priority=True)
        totals = await self._broker.numbers.sum_queues(wanted)
        answer = wire.QueueStatusList(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            queues=[
                wire.QueueStatusRow(
                    id=row["id"],
                    name=row["name"],
                    namespace=row["namespace"],
                    task=row["task"],
                    priority=_options.decode(row["options"]).priority,
                    created_at=iso(row["created_at"]),
                    partitions=row["partitions"] or 0,
                    messages=counts_of(row),
                    lag_seconds=lag_of(row, stamp),
                )
                for row in rows
            ],
            pagination=Pagination(limit, offset, totals["queues"]),
            time_range=window.wire(),
        )
        return Response(200, msgspec.json.encode(answer))

    # ---- one queue ----

    async def queue(self, request: Request) -> Response:
        query, name = Query(request.query), request.params[0]
        check_name("queue", name)
        limit, offset = page_of(query, _MAX_PARTITIONS)
        window, now = await self._window(query)
        stamp = await self._broker.statistics.current()
        wanted = filter_of(request, Query(""), queue=name)
        row = await self._broker.numbers.queue(wanted)
        partitions = await partition_rows(self._broker, row["id"], limit, offset)
        total = row["partitions"] or 0
        seen = await past(self._broker, window, wanted, now)
        batches = seen.sum("pop_requests") - seen.sum("pop_empty")
        answer = wire.QueueStatus(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            queue=_head(row),
            totals=_totals(counts_of(row), total, row["done"], batches),
            partitions=[_partition(one) for one in partitions],
            groups=[group_summary(one, stamp) for one in await groups_of(self._broker, wanted)],
            pagination=Pagination(limit, offset, total),
            time_range=window.wire(),
        )
        return Response(200, msgspec.json.encode(answer))

    async def messages(self, request: Request) -> Response:
        query, name = Query(request.query), request.params[0]
        check_name("queue", name)
        limit, offset = page_of(query, 50, furthest=MAX_OFFSET)
        status, partition_name = query.text("status"), query.text("partition")
        if status and status not in _STATUSES:
            raise BadRequest(f"status {status!r} is not known: {', '.join(_STATUSES)}")
        window, now = await self._window(query)
        row = await self._broker.numbers.queue(filter_of(request, Query(""), queue=name))
        found = await self._browse(name, partition_name, window, limit, offset)
        rows = [_message(one, now) for one in found]
        answer = wire.QueueMessages(
            messages=[one for one in rows if status in ("", one.status)],
            pagination=Pagination(limit, offset, row["retained"] or 0),
            queue=name,
            filters=wire.MessageFilters(status or None, partition_name or None),
            time_range=window.wire(),
        )
        return Response(200, msgspec.json.encode(answer))

    async def _browse(
        self, name: str, partition_name: str, window: Window, limit: int, offset: int
    ) -> list[Browsed]:
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
            from_time=window.start,
            to_time=window.end,
            limit=limit,
            offset=offset,
        )

    # ---- series ----

    async def analytics(self, request: Request) -> Response:
        query = Query(request.query)
        wanted = filter_of(request, query)
        interval = query.text("interval") or "hour"
        if interval not in _INTERVALS:
            raise BadRequest(f"interval {interval!r} is not known: {', '.join(_INTERVALS)}")
        window, now = await self._window(query, hours=24)
        stamp = await self._broker.statistics.current()
        seen = await past(self._broker, window, wanted, now, _INTERVALS[interval])
        row = await self._broker.numbers.sum_queues(wanted)
        counts = counts_of(row)
        points = [throughput_point(seen, bucket) for bucket in seen.buckets[:_MAX_POINTS]]
        span = window.wire()
        answer = wire.Analytics(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            time_range=wire.IntervalRange(span.start, span.end, interval),
            interval=interval,
            start=span.start,
            end=span.end,
            data_points=[wire.DataPoint(one.timestamp, one.ingested) for one in points],
            throughput=wire.ThroughputSeries(points, _series_totals(seen)),
            latency=_latency(seen),
            error_rates=_error_rates(seen),
            queue_depths=wire.DepthSeries([], wire.Depth(counts.pending, counts.processing)),
            top_queues=await self._top_queues(window, wanted),
            dead_letter_queue=await self._letter_series(window, wanted, seen, row),
        )
        return Response(200, msgspec.json.encode(answer))

    async def _top_queues(self, window: Window, wanted: QueueFilter) -> list[wire.TopQueue]:
        rows = await self._broker.numbers.active_queues(window, wanted)
        return [
            wire.TopQueue(row["name"], row["ingested"], row["processed"], row["pending"] or 0)
            for row in rows[:_TOP_QUEUES]
        ]

    async def _letter_series(
        self, window: Window, wanted: QueueFilter, seen: Past, row: Record
    ) -> wire.DeadLetterSeries:
        rows = await self._broker.numbers.dead_letter_series(seen.minutes, window, wanted)
        return wire.DeadLetterSeries(
            [wire.DeadLetterPoint(iso(one["bucket"]), one["letters"]) for one in rows],
            row["dead_letters"],
            await self._top_errors(window, wanted),
        )

    async def buffers(self, _request: Request) -> Response:
        """There is no file buffer yet, so nothing waits in it."""
        answer = wire.Buffers(0, 0, True, self._broker.activity.name.worker)
        return Response(200, msgspec.json.encode(answer))


def _messages(counts: MessageCounts, seen: Past) -> wire.StatusMessages:
    requests = seen.sum("push_requests")
    return wire.StatusMessages(
        **msgspec.structs.asdict(counts),
        requests=requests + seen.sum("pop_requests") + seen.sum("ack_requests"),
        batch_efficiency=average(seen.sum("push_messages"), requests),
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


def _message(one: Browsed, now: datetime) -> wire.MessageRow:
    status = "failed" if one.status == DEAD else one.status
    seconds = max((now - one.created_at).total_seconds(), 0.0)
    waiting = status in (PENDING, PROCESSING)
    return wire.MessageRow(
        id=message_id(one.partition.id, one.offset),
        transaction_id=one.transaction_id,
        trace_id=one.column("traceId"),
        partition=one.partition.name,
        partition_id=one.partition.uuid,
        offset=one.offset,
        created_at=iso(one.created_at),
        status=status,
        retry_count=one.retry_count,
        age=wire.Age(rounded(seconds), formatted_age(seconds)) if waiting else None,
    )


def formatted_age(seconds: float) -> str:
    """Return an age in its two largest units.

    >>> formatted_age(63)
    '1m 3s'
    """
    left, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def _series_totals(seen: Past) -> wire.SeriesTotals:
    length_s = (seen.window.end - seen.window.start).total_seconds()
    ingested, processed = seen.sum("push_messages"), seen.processed
    return wire.SeriesTotals(
        ingested=ingested,
        processed=processed,
        failed=seen.sum("dead_letters"),
        avg_ingested_per_second=rounded(ingested / length_s),
        avg_processed_per_second=rounded(processed / length_s),
    )


def _latency(seen: Past) -> wire.LatencySeries:
    points = [
        wire.LatencyPoint(
            iso(bucket),
            average(row["lag_sum_ms"], row["lag_count"]),
            row["lag_max_ms"],
            row["lag_count"],
        )
        for bucket, row in seen.activity.items()
        if row["lag_count"]
    ]
    if not points:
        return wire.LatencySeries([], None)
    count = seen.sum("lag_count")
    worst = max(one.max_ms for one in points)
    mean = average(seen.sum("lag_sum_ms"), count)
    return wire.LatencySeries(points[:_MAX_POINTS], wire.LatencyPoint("", mean, worst, count))


def _error_rates(seen: Past) -> wire.ErrorSeries:
    points = []
    for bucket, row in list(seen.activity.items())[:_MAX_POINTS]:
        failed, processed = row["ack_failed"], row["ack_ok"] + row["auto_acked"]
        rate = average(failed, failed + processed)
        points.append(wire.ErrorPoint(iso(bucket), failed, processed, rate))
    failed, processed = seen.sum("ack_failed"), seen.processed
    rate = failed / (failed + processed) if failed else 0.0
    overall = wire.ErrorRate(failed, processed, rounded(rate), f"{rate * 100:.2f}%")
    return wire.ErrorSeries(points, overall)


_STATUS = Doc(
    _TAG,
    "Throughput, queues, leases and dead letters of a time range",
    query=(*RANGE_PARAMS, *FILTER_PARAMS),
    answers={200: wire.Status},
)
_QUEUES = Doc(
    _TAG,
    "Queues with their counts, highest priority first",
    query=(*RANGE_PARAMS, *FILTER_PARAMS, *page_params(100, _MAX_QUEUES)),
    answers={200: wire.QueueStatusList},
)
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
_ANALYTICS = Doc(
    _TAG,
    "Throughput, latency and errors over time",
    query=(
        *RANGE_PARAMS,
        *FILTER_PARAMS,
        Param("interval", Literal["minute", "hour", "day"], "Length of a period", "hour"),
    ),
    answers={200: wire.Analytics},
)
_BUFFERS = Doc(_TAG, "The file buffer of the server that answers", answers={200: wire.Buffers})
