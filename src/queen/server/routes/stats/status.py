"""GET /api/v1/status and /status/queues: all queues, as a dashboard shows them."""

from __future__ import annotations

import msgspec

from queen.core.options import QueueOptions
from queen.server.api.history import Past, live_workers, read_past, throughput_point
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Route
from queen.server.api.stats_rows import (
    age_of,
    average,
    counts_of,
    error_counts,
    iso_or_none,
    lag_of,
)
from queen.server.api.time_range import (
    FILTER_PARAMS,
    RANGE_PARAMS,
    TimeRange,
    filter_of,
    time_range_of,
)
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.stats.reads import QueueFilter
from queen.wire.answers import iso
from queen.wire.paging import Pagination
from queen.wire.stats import status as wire
from queen.wire.stats.resources import MessageCounts

_TAG = "Status"
_MAX_QUEUES = 10_000

_options = msgspec.json.Decoder(QueueOptions)


class StatusRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        base = "/api/v1/status"
        return [
            Route("GET", base, Role.READ, self.status, _STATUS, scoped=True, shared=True),
            Route(
                "GET",
                f"{base}/queues",
                Role.READ,
                self.queues,
                _QUEUES,
                scoped=True,
                shared=True,
            ),
        ]

    async def status(self, request: Request) -> Response:
        query = Query(request.query)
        queue_filter = filter_of(request, query)
        now = await self._broker.clock.now()
        time_range = time_range_of(query, now)
        stamp = await self._broker.statistics.current()
        past = await read_past(self._broker, time_range, queue_filter, now)
        row = await self._broker.numbers.sum_queues(queue_filter)
        points = [throughput_point(past, bucket) for bucket in past.buckets]
        answer = wire.Status(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            time_range=time_range.on_wire(),
            bucket_minutes=past.minutes,
            point_count=len(points),
            throughput=points,
            queues=await self._active_queues(time_range, queue_filter),
            messages=_messages(counts_of(row), past),
            leases=await self._leases(queue_filter, row),
            dead_letter_queue=await self._dead_letters(time_range, queue_filter, row),
            errors=wire.Errors(
                past.database_errors, past.sum("ack_failed"), past.sum("dead_letters")
            ),
            workers=await live_workers(self._broker) if queue_filter.namespaces is None else [],
        )
        return Response(200, msgspec.json.encode(answer))

    async def _active_queues(
        self, time_range: TimeRange, queue_filter: QueueFilter
    ) -> list[wire.StatusQueue]:
        rows = await self._broker.numbers.active_queues(time_range, queue_filter)
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

    async def _leases(self, queue_filter: QueueFilter, row: Record) -> wire.Leases:
        groups = await self._broker.numbers.sum_groups(queue_filter, None)
        return wire.Leases(
            active=groups["leased_partitions"],
            partitions_with_leases=row["leased_partitions"],
            total_batch_size=groups["leased"],
            total_acked=groups["done"],
        )

    async def _dead_letters(
        self, time_range: TimeRange, queue_filter: QueueFilter, row: Record
    ) -> wire.DeadLetterSummary:
        errors = await self._broker.numbers.top_errors(queue_filter, time_range)
        return wire.DeadLetterSummary(
            total_messages=row["dead_letters"],
            affected_partitions=errors[0]["partitions"] if errors else 0,
            top_errors=error_counts(errors),
        )

    async def queues(self, request: Request) -> Response:
        query = Query(request.query)
        queue_filter, (limit, offset) = filter_of(request, query), page_of(query, 100, _MAX_QUEUES)
        time_range = time_range_of(query, await self._broker.clock.now())
        stamp = await self._broker.statistics.current()
        rows = await self._broker.numbers.list_queues(queue_filter, limit, offset, by_priority=True)
        totals = await self._broker.numbers.sum_queues(queue_filter)
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
            time_range=time_range.on_wire(),
        )
        return Response(200, msgspec.json.encode(answer))


def _messages(counts: MessageCounts, past: Past) -> wire.StatusMessages:
    requests = past.sum("push_requests")
    return wire.StatusMessages(
        **msgspec.structs.asdict(counts),
        requests=requests + past.sum("pop_requests") + past.sum("ack_requests"),
        batch_efficiency=average(past.sum("push_messages"), requests),
    )


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
