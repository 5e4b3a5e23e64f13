"""The past in periods: rows of activity and vitals joined into points."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from queen.server.api.stats_rows import average, rounded
from queen.server.api.time_range import TimeRange
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.stats.reads import QueueFilter
from queen.service.stats.vitals import GAUGES
from queen.wire.answers import iso
from queen.wire.stats.status import ThroughputPoint, Worker

_GAUGE_AT = {name: at for at, name in enumerate(GAUGES, 1)}
_MEGABYTE = 1024 * 1024


class Gauge:
    """One gauge over one period, all servers together."""

    __slots__ = ("high", "low", "samples", "total")

    def __init__(self) -> None:
        self.samples, self.total, self.low, self.high = 0, 0.0, float("inf"), 0.0

    def add(self, row: Record) -> None:
        self.samples += row["samples"]
        self.total += row["total"]
        self.low = min(self.low, row["low"])
        self.high = max(self.high, row["high"])

    @property
    def avg(self) -> float:
        return average(self.total, self.samples)


class Moment:
    """What all servers together used in one period."""

    def __init__(self) -> None:
        self.gauges: defaultdict[str, Gauge] = defaultdict(Gauge)
        self.requests = 0
        self.database_errors = 0

    def add(self, row: Record) -> None:
        # A gauge of a newer server that this one does not know is passed over.
        if row["at"] > len(GAUGES):
            return
        self.gauges[GAUGES[row["at"] - 1]].add(row)
        if row["at"] == 1:
            self.requests += row["requests"]
            self.database_errors += row["database_errors"]

    def avg(self, gauge: str) -> float:
        return self.gauges[gauge].avg

    def high(self, gauge: str) -> float:
        return rounded(self.gauges[gauge].high)

    def low(self, gauge: str) -> float:
        values = self.gauges[gauge]
        return values.low if values.samples else 0.0


class Past:
    """Activity and vitals of a time range."""

    def __init__(
        self,
        time_range: TimeRange,
        minutes: int,
        now: datetime,
        activity: list[Record],
        moments: dict[datetime, Moment],
    ) -> None:
        self.time_range = time_range
        self.minutes = minutes
        self.now = now
        self.activity = {row["bucket"]: row for row in activity}
        self.moments = moments

    @property
    def buckets(self) -> list[datetime]:
        """The periods in which something is known, newest first."""
        return sorted(self.activity.keys() | self.moments.keys(), reverse=True)

    def moment(self, bucket: datetime) -> Moment:
        return self.moments.get(bucket) or Moment()

    def seconds(self, bucket: datetime) -> float:
        return self.time_range.seconds_of(bucket, self.minutes, self.now)

    def sum(self, field: str) -> int:
        return sum(row[field] for row in self.activity.values())

    @property
    def processed(self) -> int:
        return self.sum("ack_ok") + self.sum("auto_acked")

    @property
    def database_errors(self) -> int:
        return sum(moment.database_errors for moment in self.moments.values())


async def read_past(
    broker: Broker,
    time_range: TimeRange,
    queue_filter: QueueFilter,
    now: datetime,
    minutes: int | None = None,
) -> Past:
    period = minutes or time_range.minutes
    await broker.report.settle()
    activity = await broker.numbers.activity_series(period, time_range, queue_filter)
    moments: defaultdict[datetime, Moment] = defaultdict(Moment)
    # Servers belong to no namespace: their vitals are for those who may see all of them.
    if queue_filter.namespaces is None:
        for row in await broker.numbers.vitals_series(period, time_range):
            moments[row["bucket"]].add(row)
    return Past(time_range, period, now, activity, dict(moments))


def throughput_point(past: Past, bucket: datetime) -> ThroughputPoint:
    point = ThroughputPoint(iso(bucket))
    seconds = past.seconds(bucket)
    row = past.activity.get(bucket)
    if row is not None:
        point.ingested = row["push_messages"]
        point.processed = row["ack_ok"] + row["auto_acked"]
        point.failed = row["dead_letters"]
        point.pop_messages = row["pop_messages"]
        point.avg_lag_ms = average(row["lag_sum_ms"], row["lag_count"])
        point.max_lag_ms = row["lag_max_ms"]
        point.ack_failed = row["ack_failed"]
        point.dlq_count = row["dead_letters"]
    point.ingested_per_second = rounded(point.ingested / seconds)
    point.processed_per_second = rounded(point.processed / seconds)
    point.pop_per_second = rounded(point.pop_messages / seconds)
    _add_vitals(point, past.moment(bucket))
    return point


def _add_vitals(point: ThroughputPoint, moment: Moment) -> None:
    point.avg_event_loop_lag_ms = moment.avg("loop_lag_ms")
    point.max_event_loop_lag_ms = moment.high("loop_lag_ms")
    point.min_free_slots = int(moment.low("pool_free"))
    point.db_errors = moment.database_errors
    point.queen_cpu_user_pct = moment.avg("cpu_user_pct")
    point.queen_cpu_sys_pct = moment.avg("cpu_system_pct")
    point.queen_rss_mb = rounded(moment.avg("rss_bytes") / _MEGABYTE)
    point.db_pool_active = moment.avg("pool_active")
    point.db_pool_idle = moment.avg("pool_idle")
    point.db_pool_size = moment.avg("pool_size")


async def live_workers(broker: Broker) -> list[Worker]:
    return [
        Worker(
            hostname=row["hostname"],
            port=row["port"],
            worker_id=row["worker"],
            started_at=iso(row["started_at"]),
            last_seen=iso(row["seen_at"]),
        )
        for row in await broker.numbers.live_servers()
    ]
