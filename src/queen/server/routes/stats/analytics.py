"""GET /api/v1/analytics/…: what servers, queues and the database did over time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from queen.server.api.history import Past, live_workers, past
from queen.server.api.paging import limit_param
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import average, rounded
from queen.server.api.time_range import (
    FILTER_PARAMS,
    RANGE_PARAMS,
    Window,
    filter_of,
    window_of,
)
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.stats.reads import QueueFilter
from queen.service.stats.vitals import GAUGES
from queen.wire import analytics as wire
from queen.wire.answers import iso

_TAG = "Analytics"
_BASE = "/api/v1/analytics"
_MAX_QUEUES = 1000


class AnalyticsRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{_BASE}/system-metrics", Role.READ, self.system, _SYSTEM),
            Route("GET", f"{_BASE}/worker-metrics", Role.READ, self.workers, _WORKERS),
            Route("GET", f"{_BASE}/queue-lag", Role.READ, self.queue_lag, _LAG, scoped=True),
            Route("GET", f"{_BASE}/queue-ops", Role.READ, self.queue_ops, _OPS, scoped=True),
            Route(
                "GET",
                f"{_BASE}/queue-parked-replicas",
                Role.READ,
                self.parked,
                _PARKED,
                scoped=True,
            ),
            Route("GET", f"{_BASE}/retention", Role.READ, self.retention, _RETENTION, scoped=True),
            Route("GET", f"{_BASE}/postgres-stats", Role.READ, self.postgres, _POSTGRES),
        ]

    async def _asked(self, request: Request) -> tuple[Query, Window, QueueFilter, datetime]:
        query = Query(request.query)
        wanted = filter_of(request, query)
        now = await self._broker.clock.now()
        return query, window_of(query, now), wanted, now

    async def system(self, request: Request) -> Response:
        query, window, _, _ = await self._asked(request)
        worker = query.number("workerId", -1, 0, 2**31 - 1)
        hostname = query.text("hostname")
        await self._broker.report.settle()
        rows = await self._broker.numbers.vitals_series(window.minutes, window, hostname, worker)
        replicas = _replicas(rows)
        answer = wire.SystemMetrics(window.wire(), window.minutes, replicas, len(replicas))
        return Response(200, msgspec.json.encode(answer))

    async def workers(self, request: Request) -> Response:
        _, window, wanted, now = await self._asked(request)
        await self._broker.statistics.current()
        seen = await past(self._broker, window, wanted, now)
        numbers = self._broker.numbers
        row = await numbers.sum_queues(wanted)
        queues = await numbers.queue_series(
            2**20, window, wanted, self._broker.limits.metrics_queues or 1
        )
        points = [_worker_point(seen, bucket) for bucket in seen.buckets]
        answer = wire.WorkerMetrics(
            time_range=window.wire(),
            bucket_minutes=seen.minutes,
            point_count=len(points),
            time_series=points,
            workers=await live_workers(self._broker),
            queues=[wire.QueueLag(*_lag(one)) for one in queues],
            summary=_summary(seen, row["outstanding"]),
        )
        return Response(200, msgspec.json.encode(answer))

    async def _queue_series(
        self, query: Query, window: Window, wanted: QueueFilter
    ) -> list[Record]:
        await self._broker.report.settle()
        count = query.number("limit", 100, 1, _MAX_QUEUES)
        return await self._broker.numbers.queue_series(window.minutes, window, wanted, count)

    async def queue_lag(self, request: Request) -> Response:
        query, window, wanted, _ = await self._asked(request)
        rows = await self._queue_series(query, window, wanted)
        answer = [
            wire.QueueLagPoint(*_lag(row), iso(row["bucket"])) for row in rows if row["lag_count"]
        ]
        return Response(200, msgspec.json.encode(answer))

    async def queue_ops(self, request: Request) -> Response:
        query, window, wanted, now = await self._asked(request)
        await self._broker.statistics.current()
        rows = await self._queue_series(query, window, wanted)
        minutes = window.minutes
        answer = wire.QueueOps(
            time_range=window.wire(),
            bucket_minutes=minutes,
            series=[
                _ops_point(row, window.seconds_of(row["bucket"], minutes, now)) for row in rows
            ],
            queues=sorted({row["queue"] for row in rows}),
        )
        return Response(200, msgspec.json.encode(answer))

    async def parked(self, request: Request) -> Response:
        _, window, wanted, _ = await self._asked(request)
        await self._broker.report.flush()
        rows = await self._broker.numbers.parked_series(window.minutes, window, wanted)
        points = [
            wire.ParkedPoint(
                iso(row["bucket"]), row["queue"], row["hostname"], row["worker"], row["parked"]
            )
            for row in rows
        ]
        replicas = sorted({(row["hostname"], row["worker"]) for row in rows})
        answer = wire.ParkedReplicas(
            window.wire(), window.minutes, points, [wire.ReplicaName(*one) for one in replicas]
        )
        return Response(200, msgspec.json.encode(answer))

    async def retention(self, request: Request) -> Response:
        _, window, wanted, _ = await self._asked(request)
        rows = await self._broker.numbers.retention_series(window.minutes, window, wanted)
        points: dict[datetime, wire.RetentionPoint] = {}
        totals = wire.RetentionCounts()
        for row in rows:
            bucket = row["bucket"]
            point = points.setdefault(bucket, wire.RetentionPoint(bucket=iso(bucket)))
            _add_removed(point, row)
            _add_removed(totals, row)
        answer = wire.Retention(window.wire(), window.minutes, list(points.values()), totals)
        return Response(200, msgspec.json.encode(answer))

    async def postgres(self, _request: Request) -> Response:
        async def rows(name: str) -> list[dict[str, Any]]:
            return [_plain(row) for row in await self._broker.numbers.postgres(name)]

        (database,) = await rows("pg_database")
        (cache,) = await rows("pg_database_cache")
        (summary,) = await rows("pg_cache_summary")
        answer = wire.PostgresStats(
            timestamp=iso(await self._broker.clock.now()),
            database=database,
            database_cache=cache,
            table_cache=await rows("pg_table_cache"),
            index_cache=await rows("pg_index_cache"),
            cache_summary=summary,
            dead_tuples=await rows("pg_dead_tuples"),
            hot_updates=await rows("pg_hot_updates"),
            active_queries=await rows("pg_active_queries"),
            autovacuum_status=await rows("pg_autovacuum"),
            buffer_config=await rows("pg_buffer_config"),
            buffer_usage=await rows("pg_buffer_usage"),
            table_sizes=await rows("pg_table_sizes"),
        )
        return Response(200, msgspec.json.encode(answer))


def _plain(row: Record) -> dict[str, Any]:
    """Return a row of a system view with times as text; exact numbers become floats."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        head, *rest = name.split("_")
        key = head + "".join(part.capitalize() for part in rest)
        plain[key] = iso(value) if isinstance(value, datetime) else value
    return plain


def _replicas(rows: list[Record]) -> list[wire.Replica]:
    replicas: dict[tuple[str, int, int], dict[datetime, dict[str, Record]]] = {}
    for row in rows:
        if row["at"] <= len(GAUGES):
            key = (row["hostname"], row["port"], row["worker"])
            point = replicas.setdefault(key, {}).setdefault(row["bucket"], {})
            point[GAUGES[row["at"] - 1]] = row
    return [
        wire.Replica(*key, [_system_point(bucket, found) for bucket, found in points.items()])
        for key, points in replicas.items()
    ]


def _system_point(bucket: datetime, found: dict[str, Record]) -> wire.SystemPoint:
    def sampled(name: str, scale: float = 1.0) -> wire.Sampled:
        row = found.get(name)
        if row is None:
            return wire.Sampled(0, 0, 0, 0)
        mean = scale * row["total"] / max(row["samples"], 1)
        return wire.Sampled(*map(rounded, (mean, *(scale * row[k] for k in _LIMITS))))

    first = next(iter(found.values()))
    return wire.SystemPoint(
        iso(bucket),
        first["samples"],
        wire.SystemSample(
            cpu=wire.Cpu(sampled("cpu_user_pct", 100), sampled("cpu_system_pct", 100)),
            memory=wire.Memory(sampled("rss_bytes"), sampled("virtual_bytes")),
            database=wire.Pool(sampled("pool_size"), sampled("pool_idle"), sampled("pool_active")),
            event_loop={"lag_ms": sampled("loop_lag_ms")},
            polls={"parked": sampled("parked_polls")},
            uptime_seconds=rounded(max(float(first["uptime_s"]), 0.0)),
        ),
    )


_LIMITS = ("low", "high", "last")


def _worker_point(seen: Past, bucket: datetime) -> wire.WorkerPoint:
    point = wire.WorkerPoint(iso(bucket))
    row, seconds, moment = seen.activity.get(bucket), seen.seconds(bucket), seen.moment(bucket)
    if row is not None:
        point.push_messages = row["push_messages"]
        point.pop_messages = row["pop_messages"]
        point.ack_messages = row["ack_ok"] + row["ack_failed"]
        point.push_requests = row["push_requests"]
        point.pop_requests = row["pop_requests"]
        point.ack_requests = row["ack_requests"]
        point.avg_lag_ms = average(row["lag_sum_ms"], row["lag_count"])
        point.max_lag_ms, point.lag_count = row["lag_max_ms"], row["lag_count"]
        point.ack_success, point.ack_failed = row["ack_ok"], row["ack_failed"]
        point.dlq_count = row["dead_letters"]
    point.push_per_second = rounded(point.push_messages / seconds)
    point.pop_per_second = rounded(point.pop_messages / seconds)
    point.ack_per_second = rounded(point.ack_messages / seconds)
    point.jobs_done, point.db_errors = moment.requests, moment.database_errors
    point.avg_event_loop_lag_ms = moment.avg("loop_lag_ms")
    point.max_event_loop_lag_ms = moment.high("loop_lag_ms")
    point.avg_free_slots = moment.avg("pool_free")
    point.min_free_slots = int(moment.low("pool_free"))
    point.db_connections = moment.avg("pool_size")
    point.avg_job_queue_size = moment.avg("waiting_pushes")
    point.max_job_queue_size = int(moment.high("waiting_pushes"))
    point.backoff_size = moment.avg("parked_polls")
    return point


def _summary(seen: Past, pending: int) -> wire.WorkerSummary:
    return wire.WorkerSummary(
        total_push_messages=seen.sum("push_messages"),
        total_pop_messages=seen.sum("pop_messages"),
        total_ack_messages=seen.sum("ack_ok") + seen.sum("ack_failed"),
        total_push_requests=seen.sum("push_requests"),
        total_pop_requests=seen.sum("pop_requests"),
        total_ack_requests=seen.sum("ack_requests"),
        total_ack_failed=seen.sum("ack_failed"),
        total_dlq=seen.sum("dead_letters"),
        total_db_errors=seen.database_errors,
        pending_messages=pending,
    )


def _lag(row: Record) -> tuple[str, int, float, int]:
    mean = average(row["lag_sum_ms"], row["lag_count"])
    return row["queue"], row["pop_messages"], mean, row["lag_max_ms"]


def _ops_point(row: Record, seconds: float) -> wire.QueueOpsPoint:
    return wire.QueueOpsPoint(
        bucket=iso(row["bucket"]),
        queue_name=row["queue"],
        push_requests=row["push_requests"],
        push_messages=row["push_messages"],
        pop_messages=row["pop_messages"],
        pop_empty=row["pop_empty"],
        ack_requests=row["ack_requests"],
        ack_success=row["ack_ok"],
        ack_failed=row["ack_failed"],
        transactions=row["transactions"],
        partitions_created=row["partitions_created"],
        partitions_deleted=row["partitions_deleted"],
        partition_count=row["partitions"] or 0,
        avg_lag_ms=average(row["lag_sum_ms"], row["lag_count"]),
        max_lag_ms=row["lag_max_ms"],
        push_per_second=rounded(row["push_messages"] / seconds),
        pop_per_second=rounded(row["pop_messages"] / seconds),
        ack_per_second=rounded((row["ack_ok"] + row["ack_failed"]) / seconds),
        empty_per_second=rounded(row["pop_empty"] / seconds),
        parked_count=row["parked"],
    )


_REMOVED = {
    "retention": "retention_msgs",
    "completed_retention": "completed_retention_msgs",
    "max_wait_time_eviction": "eviction_msgs",
    "ttl": "ttl_msgs",
    "partition_cleanup": "partition_cleanup_msgs",
}


def _add_removed(counts: wire.RetentionCounts, row: Record) -> None:
    name = _REMOVED.get(row["kind"])
    if name is not None:
        setattr(counts, name, getattr(counts, name) + row["messages"])
    counts.total_msgs += row["messages"]
    counts.event_count += row["events"]


_ASKED = (*RANGE_PARAMS, *FILTER_PARAMS)
_BUSIEST = (limit_param(100, _MAX_QUEUES),)
_SYSTEM = Doc(
    _TAG,
    "CPU, memory and connections of every server",
    query=(
        *RANGE_PARAMS,
        Param("hostname", str, "Only servers on this host"),
        Param("workerId", Annotated[int, Meta(ge=0)], "Only this worker"),
    ),
    answers={200: wire.SystemMetrics},
)
_WORKERS = Doc(
    _TAG, "What all servers did together", query=_ASKED, answers={200: wire.WorkerMetrics}
)
_LAG = Doc(
    _TAG,
    "How long messages waited before they were popped, by queue",
    query=(*_ASKED, *_BUSIEST),
    answers={200: list[wire.QueueLagPoint]},
)
_OPS = Doc(
    _TAG,
    "What was done with each of the busiest queues",
    query=(*_ASKED, *_BUSIEST),
    answers={200: wire.QueueOps},
)
_PARKED = Doc(_TAG, "Polls parked at each server", query=_ASKED, answers={200: wire.ParkedReplicas})
_RETENTION = Doc(_TAG, "What the clean-up has removed", query=_ASKED, answers={200: wire.Retention})
_POSTGRES = Doc(_TAG, "What PostgreSQL says of itself", answers={200: wire.PostgresStats})
