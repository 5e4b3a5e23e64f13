"""GET /api/v1/resources/…: what there is, and how much of it.

Counts of queues and groups come from the statistics, true at the instant the answer states.
A page of partitions is counted while it is read.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from queen.core.options import describe_options
from queen.errors import BadRequest
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import (
    age_of,
    counts_of,
    group_summary,
    iso_or_none,
    lag_of,
    partition_detail,
    read_groups,
    read_partitions,
    rounded,
    spread_of,
)
from queen.server.api.time_range import FILTER_PARAMS, TimeRange, filter_of
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.stats.reads import QueueFilter
from queen.service.stats.statistics import Stamp
from queen.wire.answers import iso
from queen.wire.paging import Pagination
from queen.wire.stats import resources as wire

_TAG = "Resources"
_MAX_PARTITIONS = 1000
_MAX_QUEUES = 10_000


class ResourceRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        base = "/api/v1/resources"
        return [
            Route(
                "GET", f"{base}/queues", Role.READ, self.queues, _QUEUES, scoped=True, shared=True
            ),
            Route("GET", f"{base}/queues/{{queue}}", Role.READ, self.queue, _QUEUE, scoped=True),
            Route(
                "GET", f"{base}/namespaces", Role.READ, self.namespaces, _NAMESPACES, scoped=True
            ),
            Route("GET", f"{base}/tasks", Role.READ, self.tasks, _TASKS, scoped=True),
            Route(
                "GET",
                f"{base}/overview",
                Role.READ,
                self.overview,
                _OVERVIEW,
                scoped=True,
                shared=True,
            ),
            Route(
                "GET", f"{base}/partitions", Role.READ, self.partitions, _PARTITIONS, scoped=True
            ),
            Route("POST", "/api/v1/stats/refresh", Role.ADMIN, self.refresh, _REFRESH),
        ]

    async def queues(self, request: Request) -> Response:
        query = Query(request.query)
        queue_filter = filter_of(request, query)
        limit, offset = page_of(query, _MAX_QUEUES, _MAX_QUEUES)
        stamp = await self._broker.statistics.current()
        rows = await self._broker.numbers.list_queues(queue_filter, limit, offset)
        answer = wire.QueueList(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            bytes_at=iso_or_none(stamp.bytes_at),
            queues=[_summary(row, stamp) for row in rows],
            total=rows[0]["total"] if rows else 0,
        )
        return Response(200, msgspec.json.encode(answer))

    async def queue(self, request: Request) -> Response:
        query, name = Query(request.query), request.params[0]
        check_name("queue", name)
        limit, offset = page_of(query, _MAX_PARTITIONS)
        stamp = await self._broker.statistics.current()
        queue_filter = filter_of(request, Query(""), queue=name)
        row = await self._broker.numbers.queue(queue_filter)
        partitions = await read_partitions(self._broker, row["id"], limit, offset)
        answer = wire.QueueDetail(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            id=row["id"],
            name=name,
            namespace=row["namespace"],
            task=row["task"],
            created_at=iso(row["created_at"]),
            partitions=[partition_detail(partition, name) for partition in partitions],
            totals=counts_of(row),
            groups=[
                group_summary(group, stamp)
                for group in await read_groups(self._broker, queue_filter)
            ],
            stored_bytes=row["stored_bytes"] or 0,
            options=describe_options(msgspec.json.decode(row["options"])),
            pagination=Pagination(limit, offset, row["partitions"] or 0),
        )
        return Response(200, msgspec.json.encode(answer))

    async def partitions(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, _MAX_PARTITIONS)
        queue_filter = filter_of(request, query)
        if not queue_filter.queue:
            raise BadRequest("query parameter 'queue' is missing")
        await self._broker.statistics.current()
        row = await self._broker.numbers.queue(queue_filter)
        partitions = await read_partitions(self._broker, row["id"], limit, offset)
        answer = wire.PartitionList(
            partitions=[
                partition_detail(partition, queue_filter.queue) for partition in partitions
            ],
            pagination=Pagination(limit, offset, row["partitions"] or 0),
        )
        return Response(200, msgspec.json.encode(answer))

    async def namespaces(self, request: Request) -> Response:
        rows, stamp = await self._labels(request, self._broker.numbers.list_namespaces)
        answer = wire.NamespaceList(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            namespaces=[
                wire.NamespaceSummary(
                    row["label"], row["queues"], row["partitions"], _label_counts(row)
                )
                for row in rows
            ],
        )
        return Response(200, msgspec.json.encode(answer))

    async def tasks(self, request: Request) -> Response:
        rows, stamp = await self._labels(request, self._broker.numbers.list_tasks)
        answer = wire.TaskList(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            tasks=[
                wire.TaskSummary(row["label"], row["queues"], row["partitions"], _label_counts(row))
                for row in rows
            ],
        )
        return Response(200, msgspec.json.encode(answer))

    async def _labels(
        self, request: Request, read: Callable[[list[str] | None], Awaitable[list[Record]]]
    ) -> tuple[list[Record], Stamp]:
        allowed = filter_of(request, Query("")).namespaces
        stamp = await self._broker.statistics.current()
        return await read(allowed), stamp

    async def overview(self, request: Request) -> Response:
        queue_filter = filter_of(request, Query(""))
        stamp = await self._broker.statistics.current()
        row = await self._broker.numbers.sum_queues(queue_filter)
        groups = await self._broker.numbers.sum_groups(queue_filter, stamp.at)
        answer = wire.Overview(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            queues=row["queues"],
            partitions=row["partitions"],
            namespaces=row["namespaces"],
            tasks=row["tasks"],
            messages=counts_of(row),
            lag=wire.Lag(time=spread_of(groups, "lag"), offset=spread_of(groups, "pending")),
            throughput=await self._rates(queue_filter),
            stored_bytes=row["stored_bytes"],
            timestamp=iso(await self._broker.clock.now()),
        )
        return Response(200, msgspec.json.encode(answer))

    async def _rates(self, queue_filter: QueueFilter) -> wire.Rates:
        await self._broker.report.settle()
        now = await self._broker.clock.now()
        start = now.replace(second=0, microsecond=0) - timedelta(minutes=1)
        time_range = TimeRange(start, now)
        rows = await self._broker.numbers.activity_series(1, time_range, queue_filter)
        elapsed_s = (now - start).total_seconds()
        processed = sum(row["ack_ok"] + row["auto_acked"] for row in rows)
        return wire.Rates(
            rounded(sum(row["push_messages"] for row in rows) / elapsed_s),
            rounded(processed / elapsed_s),
        )

    async def refresh(self, _request: Request) -> Response:
        started = time.perf_counter()
        done = await self._broker.statistics.refresh()
        took_ms = (time.perf_counter() - started) * 1000
        stamp = await self._broker.statistics.stamp()
        answer = wire.Refreshed(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            skipped=not done,
            reason=None if done else "another_instance_running",
            took_ms=rounded(took_ms),
        )
        return Response(200, msgspec.json.encode(answer))


def _summary(row: Record, stamp: Stamp) -> wire.QueueSummary:
    return wire.QueueSummary(
        id=row["id"],
        name=row["name"],
        namespace=row["namespace"] or None,
        task=row["task"] or None,
        created_at=iso(row["created_at"]),
        partitions=row["partitions"] or 0,
        messages=counts_of(row),
        groups=row["groups"],
        stored_bytes=row["stored_bytes"] or 0,
        lag_seconds=lag_of(row, stamp),
    )


def _label_counts(row: Record) -> wire.LabelCounts:
    leased = min(row["leased"], row["outstanding"])
    return wire.LabelCounts(row["retained"], row["outstanding"] - leased, leased)


_QUEUES = Doc(
    _TAG,
    "List queues with their counts, newest first",
    query=(*FILTER_PARAMS, *page_params(_MAX_QUEUES, _MAX_QUEUES)),
    answers={200: wire.QueueList},
)
_QUEUE = Doc(
    _TAG,
    "One queue, its options, its groups, and a page of its partitions",
    query=page_params(_MAX_PARTITIONS),
    answers={200: wire.QueueDetail},
)
_PARTITIONS = Doc(
    _TAG,
    "A page of the partitions of a queue",
    query=(
        Param("queue", str, "The queue.", example="orders", required=True),
        *page_params(_MAX_PARTITIONS),
    ),
    answers={200: wire.PartitionList},
)
_NAMESPACES = Doc(_TAG, "Counts by namespace", answers={200: wire.NamespaceList})
_TASKS = Doc(_TAG, "Counts by task", answers={200: wire.TaskList})
_OVERVIEW = Doc(_TAG, "Counts of everything", answers={200: wire.Overview})
_REFRESH = Doc(
    _TAG,
    "Count everything now",
    "With many partitions the numbers that other routes answer are counted now and then. This "
    "counts them at once, and takes as long as that takes.",
    answers={200: wire.Refreshed},
)
