"""GET /api/v1/analytics/…: what servers, queues and the database did over time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from queen.server.api.history import Past, live_workers, read_past
from queen.server.api.paging import limit_param
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import average, rounded
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
from queen.service.stats.vitals import GAUGES
from queen.wire.answers import iso
from queen.wire.stats import analytics as wire

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

    async def _parse_request(
        self, request: Request
    ) -> tuple[Query, TimeRange, QueueFilter, datetime]:
        query = Query(request.query)
        queue_filter = filter_of(request, query)
        now = await self._broker.clock.now()
        return query, time_range_of(query, now), queue_filter, now

    async def system(self, request: Request) -> Response:
        query, time_range, _, _ = await self._parse_request(request)
        worker = query.number("workerId", -1, 0, 2**31 - 1)
        hostname = query.text("hostname")
        await self._broker.report.settle()
        rows = await self._broker.numbers.vitals_series(
            time_range.minutes, time_range, hostname, worker
        )
        replicas = _replicas(rows)
        answer = wire.SystemMetrics(
            time_range.on_wire(), time_range.minutes, replicas, len(replicas)
        )
        return Response(200, msgspec.json.encode(answer))

    async def workers(self, request: Request) -> Response:
        _, time_range, queue_filter, now = await self._parse_request(request)
        await self._broker.statistics.current()
        past = await read_past(self._broker, time_range, queue_filter, now)
        numbers = self._broker.numbers
        row = await numbers.sum_queues(queue_filter)
        queues = await numbers.queue_series(
            2**20, time_range, queue_filter, self._broker.limits.metrics_queues or 1
        )
        points = [_worker_point(past, bucket) for bucket in past.buckets]
        answer = wire.WorkerMetrics(
            time_range=time_range.on_wire(),
            bucket_minutes=past.minutes,
            point_count=len(points),
            time_series=points,
            workers=await live_workers(self._broker),
            queues=[wire.QueueLag(*_lag(queue)) for queue in queues],
            summary=_summary(past, row["outstanding"]),
        )
        return Response(200, msgspec.json.encode(answer))

    async def _queue_series(
        self, query: Query, time_range: TimeRange, queue_filter: QueueFilter
    ) -> list[Record]:
        await self._broker.report.settle()
        count = query.number("limit", 100, 1, _MAX_QUEUES)
        return await self._broker.numbers.queue_series(
            time_range.minutes, time_range, queue_filter, count
        )

    async def queue_lag(self, request: Request) -> Response:
        query, time_range, queue_filter, _ = await self._parse_request(request)
        rows = await self._queue_series(query, time_range, queue_filter)
        answer = [
            wire.QueueLagPoint(*_lag(row), iso(row["bucket"])) for row in rows if row["lag_count"]
        ]
        return Response(200, msgspec.json.encode(answer))

    async def queue_ops(self, request: Request) -> Response:
        query, time_range, queue_filter, now = await self._parse_request(request)
        await self._broker.statistics.current()
        rows = await self._queue_series(query, time_range, queue_filter)
        minutes = time_range.minutes
        answer = wire.QueueOps(
            time_range=time_range.on_wire(),
            bucket_minutes=minutes,
            series=[
                _ops_point(row, time_range.seconds_of(row["bucket"], minutes, now)) for row in rows
            ],
            queues=sorted({row["queue"] for row in rows}),
        )
        return Response(200, msgspec.json.encode(answer))

    async def parked(self, request: Request) -> Response:
        _, time_range, queue_filter, _ = await self._parse_request(request)
        await self._broker.report.flush()
        rows = await self._broker.numbers.parked_series(
            time_range.minutes, time_range, queue_filter
        )
        points = [
            wire.ParkedPoint(
                iso(row["bucket"]), row["queue"], row["hostname"], row["worker"], row["parked"]
            )
            for row in rows
        ]
        replicas = sorted({(row["hostname"], row["worker"]) for row in rows})
        answer = wire.ParkedReplicas(
            time_range.on_wire(),
            time_range.minutes,
            points,
            [wire.ReplicaName(*replica) for replica in replicas],
        )
        return Response(200, msgspec.json.encode(answer))

    async def retention(self, request: Request) -> Response:
        _, time_range, queue_filter, _ = await self._parse_request(request)
        rows = await self._broker.numbers.retention_series(
            time_range.minutes, time_range, queue_filter
        )
        points: dict[datetime, wire.RetentionPoint] = {}
        totals = wire.RetentionCounts()
        for row in rows:
            bucket = row["bucket"]
            point = points.setdefault(bucket, wire.RetentionPoint(bucket=iso(bucket)))
            _add_removed(point, row)
            _add_removed(totals, row)
        answer = wire.Retention(
            time_range.on_wire(), time_range.minutes, list(points.values()), totals
        )
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
        wire.Replica(*key, [_system_point(bucket, gauges) for bucket, gauges in points.items()])
        for key, points in replicas.items()
    ]


def _system_point(bucket: datetime, gauges: dict[str, Record]) -> wire.SystemPoint:
    def sample(name: str, scale: float = 1.0) -> wire.Sampled:
        row = gauges.get(name)
        if row is None:
            return wire.Sampled(0, 0, 0, 0)
        mean = scale * row["total"] / max(row["samples"], 1)
        return wire.Sampled(*map(rounded, (mean, *(scale * row[k] for k in _LIMITS))))

    first = next(iter(gauges.values()))
    return wire.SystemPoint(
        iso(bucket),
        first["samples"],
        wire.SystemSample(
            cpu=wire.Cpu(sample("cpu_user_pct", 100), sample("cpu_system_pct", 100)),
            memory=wire.Memory(sample("rss_bytes"), sample("virtual_bytes")),
            database=wire.Pool(sample("pool_size"), sample("pool_idle"), sample("pool_active")),
            event_loop={"lag_ms": sample("loop_lag_ms")},
            polls={"parked": sample("parked_polls")},
            uptime_seconds=rounded(max(float(first["uptime_s"]), 0.0)),
        ),
    )


_LIMITS = ("low", "high", "last")


def _worker_point(past: Past, bucket: datetime) -> wire.WorkerPoint:
    point = wire.WorkerPoint(iso(bucket))
    row, seconds, moment = past.activity.get(bucket), past.seconds(bucket), past.moment(bucket)
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


def _summary(past: Past, pending: int) -> wire.WorkerSummary:
    return wire.WorkerSummary(
        total_push_messages=past.sum("push_messages"),
        total_pop_messages=past.sum("pop_messages"),
        total_ack_messages=past.sum("ack_ok") + past.sum("ack_failed"),
        total_push_requests=past.sum("push_requests"),
        total_pop_requests=past.sum("pop_requests"),
        total_ack_requests=past.sum("ack_requests"),
        total_ack_failed=past.sum("ack_failed"),
        total_dlq=past.sum("dead_letters"),
        total_db_errors=past.database_errors,
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


_RANGE_AND_FILTER = (*RANGE_PARAMS, *FILTER_PARAMS)
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
    _TAG,
    "What all servers did together",
    query=_RANGE_AND_FILTER,
    answers={200: wire.WorkerMetrics},
)
_LAG = Doc(
    _TAG,
    "How long messages waited before they were popped, by queue",
    query=(*_RANGE_AND_FILTER, *_BUSIEST),
    answers={200: list[wire.QueueLagPoint]},
)
_OPS = Doc(
    _TAG,
    "What was done with each of the busiest queues",
    query=(*_RANGE_AND_FILTER, *_BUSIEST),
    answers={200: wire.QueueOps},
)
_PARKED = Doc(
    _TAG, "Polls parked at each server", query=_RANGE_AND_FILTER, answers={200: wire.ParkedReplicas}
)
_RETENTION = Doc(
    _TAG, "What the clean-up has removed", query=_RANGE_AND_FILTER, answers={200: wire.Retention}
)
_POSTGRES = Doc(_TAG, "What PostgreSQL says of itself", answers={200: wire.PostgresStats})
