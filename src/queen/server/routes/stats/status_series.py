"""GET /api/v1/status/analytics and /status/buffers: numbers over time, and what waits in files."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from queen.errors import BadRequest
from queen.server.api.history import Past, read_past, throughput_point
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import (
    age_of,
    average,
    counts_of,
    error_counts,
    iso_or_none,
    rounded,
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
from queen.wire.stats import status as wire

_TAG = "Status"
_INTERVALS = {"minute": 1, "hour": 60, "day": 24 * 60}
_DEFAULT_RANGE = timedelta(hours=24)
_MAX_POINTS = 100
_TOP_QUEUES = 10


class StatusSeriesRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        base = "/api/v1/status"
        return [
            Route(
                "GET",
                f"{base}/analytics",
                Role.READ,
                self.analytics,
                _ANALYTICS,
                scoped=True,
                shared=True,
            ),
            Route("GET", f"{base}/buffers", Role.READ, self.buffers, _BUFFERS),
        ]

    async def analytics(self, request: Request) -> Response:
        query = Query(request.query)
        queue_filter = filter_of(request, query)
        interval = query.text("interval") or "hour"
        if interval not in _INTERVALS:
            raise BadRequest(f"interval {interval!r} is not known: {', '.join(_INTERVALS)}")
        now = await self._broker.clock.now()
        time_range = time_range_of(query, now, _DEFAULT_RANGE)
        stamp = await self._broker.statistics.current()
        past = await read_past(self._broker, time_range, queue_filter, now, _INTERVALS[interval])
        row = await self._broker.numbers.sum_queues(queue_filter)
        counts = counts_of(row)
        points = [throughput_point(past, bucket) for bucket in past.buckets[:_MAX_POINTS]]
        shown = time_range.on_wire()
        answer = wire.Analytics(
            stats_age=age_of(stamp),
            stats_at=iso_or_none(stamp.at),
            time_range=wire.IntervalRange(shown.start, shown.end, interval),
            interval=interval,
            start=shown.start,
            end=shown.end,
            data_points=[wire.DataPoint(point.timestamp, point.ingested) for point in points],
            throughput=wire.ThroughputSeries(points, _series_totals(past)),
            latency=_latency(past),
            error_rates=_error_rates(past),
            queue_depths=wire.DepthSeries([], wire.Depth(counts.pending, counts.processing)),
            top_queues=await self._top_queues(time_range, queue_filter),
            dead_letter_queue=await self._dead_letter_series(time_range, queue_filter, past, row),
        )
        return Response(200, msgspec.json.encode(answer))

    async def _top_queues(
        self, time_range: TimeRange, queue_filter: QueueFilter
    ) -> list[wire.TopQueue]:
        rows = await self._broker.numbers.active_queues(time_range, queue_filter)
        return [
            wire.TopQueue(row["name"], row["ingested"], row["processed"], row["pending"] or 0)
            for row in rows[:_TOP_QUEUES]
        ]

    async def _dead_letter_series(
        self, time_range: TimeRange, queue_filter: QueueFilter, past: Past, totals: Record
    ) -> wire.DeadLetterSeries:
        errors = await self._broker.numbers.top_errors(queue_filter, time_range)
        # As they were counted when they died: there may be a million letters to count again.
        died = [
            wire.DeadLetterPoint(iso(bucket), row["dead_letters"])
            for bucket, row in past.activity.items()
            if row["dead_letters"]
        ]
        return wire.DeadLetterSeries(died, totals["dead_letters"], error_counts(errors))

    async def buffers(self, _request: Request) -> Response:
        numbers = await self._broker.spool_desk.numbers()
        answer = wire.Buffers(
            numbers.records,
            numbers.quarantined,
            not numbers.is_database_away,
            self._broker.activity.name.worker,
        )
        return Response(200, msgspec.json.encode(answer))


def _series_totals(past: Past) -> wire.SeriesTotals:
    length_s = (past.time_range.end - past.time_range.start).total_seconds()
    ingested, processed = past.sum("push_messages"), past.processed
    return wire.SeriesTotals(
        ingested=ingested,
        processed=processed,
        failed=past.sum("dead_letters"),
        avg_ingested_per_second=rounded(ingested / length_s),
        avg_processed_per_second=rounded(processed / length_s),
    )


def _latency(past: Past) -> wire.LatencySeries:
    points = [
        wire.LatencyPoint(
            iso(bucket),
            average(row["lag_sum_ms"], row["lag_count"]),
            row["lag_max_ms"],
            row["lag_count"],
        )
        for bucket, row in past.activity.items()
        if row["lag_count"]
    ]
    if not points:
        return wire.LatencySeries([], None)
    count = past.sum("lag_count")
    worst = max(point.max_ms for point in points)
    mean = average(past.sum("lag_sum_ms"), count)
    return wire.LatencySeries(points[:_MAX_POINTS], wire.LatencyPoint("", mean, worst, count))


def _error_rates(past: Past) -> wire.ErrorSeries:
    points = []
    for bucket, row in list(past.activity.items())[:_MAX_POINTS]:
        failed, processed = row["ack_failed"], row["ack_ok"] + row["auto_acked"]
        rate = average(failed, failed + processed)
        points.append(wire.ErrorPoint(iso(bucket), failed, processed, rate))
    failed, processed = past.sum("ack_failed"), past.processed
    rate = failed / (failed + processed) if failed else 0.0
    overall = wire.ErrorRate(failed, processed, rounded(rate), f"{rate * 100:.2f}%")
    return wire.ErrorSeries(points, overall)


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
