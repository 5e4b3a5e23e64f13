"""Metrics in the text format of Prometheus.

Everything is collected when it is asked for; no metric object is touched on a hot path.
Three kinds of numbers stand side by side:

    queen_cluster_*   counted by all servers since the database was made, from the database
    queen_queue_*     counted by the server that answers, so they carry its name
    the rest          what the server that answers uses, and what the statistics last said

A queue has a series of its own only if it is among the busiest; the others add up in one
whose queue is `other`. A queue that has got its own series keeps it, and what it did before
stays in `other`: no counter ever goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from queen.errors import QueenError
from queen.server.api.stats_rows import average, lag_of
from queen.service.admin.pipelines import is_alive, progress_of
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.stats.activity import FIELDS, Counters, Histogram
from queen.service.stats.reads import ALL_QUEUES
from queen.service.stats.statistics import Stamp
from queen.wire.pipelines import Progress

OTHER = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SERVER = ("hostname", "port", "worker")

# Field of the counters, name of the metric without prefix and unit, and what it counts.
_COUNTED = (
    ("push_requests", "push_requests", "Push requests answered"),
    ("push_messages", "push_messages", "Messages stored"),
    ("push_duplicates", "push_duplicates", "Messages pushed again and not stored"),
    ("push_bytes", "push_bytes", "Bytes of segments stored, as compressed"),
    ("pop_requests", "pop_requests", "Pops answered, with or without messages"),
    ("pop_messages", "pop_messages", "Messages delivered"),
    ("pop_empty", "pop_empty", "Pops answered without messages"),
    ("auto_acked", "auto_acked_messages", "Messages committed as they were delivered"),
    ("ack_requests", "ack_requests", "Acknowledgments decided, one for each lease and partition"),
    ("ack_ok", "ack_messages", "Messages acknowledged as completed"),
    ("ack_failed", "ack_failed_messages", "Messages given back, dead, or refused"),
    ("dead_letters", "dead_letter_messages", "Messages set aside for good"),
    ("transactions", "transactions", "Transactions committed"),
    ("partitions_created", "partitions_created", "Partitions created"),
    ("lag_sum_ms", "pop_wait_milliseconds", "Time that delivered messages had waited, added up"),
)

# Name, what it is, and the labels beside the queue.
_GROUP_GAUGES = (
    ("queen_group_pending_messages", "Messages the group has not done", "pending"),
    ("queen_group_leased_messages", "Messages the group has on a lease", "leased"),
    ("queen_group_partitions_behind", "Partitions with such messages", "partitions_behind"),
)
_QUEUE_GAUGES = (
    ("queen_queue_partitions", "Partitions of the queue", "partitions"),
    ("queen_queue_retained_messages", "Messages stored now", "retained"),
    ("queen_queue_outstanding_messages", "Messages some group has not done", "outstanding"),
    ("queen_queue_stored_bytes", "Bytes of segments stored now", "stored_bytes"),
    ("queen_dlq_depth", "Messages set aside for good and still kept", "dead_letters"),
)


def _behind_s(progress: Progress) -> float:
    """Return how far the watermark of a run is behind the clock."""
    if progress.watermark is None:
        return 0.0
    return max(0.0, time.time() - progress.watermark.timestamp())


_PIPELINE_METRICS: tuple[
    tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Callable[[Progress], float]], ...
] = (
    (
        CounterMetricFamily,
        "queen_pipeline_input_rows",
        "Messages read since the run began",
        lambda progress: progress.input_rows,
    ),
    (
        CounterMetricFamily,
        "queen_pipeline_output_rows",
        "Rows written since the run began",
        lambda progress: progress.output_rows,
    ),
    (
        CounterMetricFamily,
        "queen_pipeline_late_rows",
        "Messages that came too late since the run began",
        lambda progress: progress.late_rows,
    ),
    (
        CounterMetricFamily,
        "queen_pipeline_batches",
        "Micro-batches since the run began",
        lambda progress: progress.batches,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_input_rows_per_second",
        "Messages a second that arrived for the last micro-batch",
        lambda progress: progress.input_rows_per_second,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_processed_rows_per_second",
        "Messages a second that the last micro-batch has processed",
        lambda progress: progress.processed_rows_per_second,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_batch_seconds",
        "How long the last micro-batch took",
        lambda progress: progress.batch_ms / 1000,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_state_rows",
        "Rows that the pipeline keeps for what has not closed",
        lambda progress: progress.state_rows,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_watermark_age_seconds",
        "How far the watermark is behind the clock; 0 when there is none",
        _behind_s,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_failed",
        "Whether the last run ended with an error",
        lambda progress: int(progress.state == "failed"),
    ),
)


_STREAM_GAUGES = (
    ("queen_stream_windows_waiting", "Windows a group has not finished", "unfinished"),
    ("queen_stream_windows_leased", "Those that a consumer has on a lease", "leased"),
    ("queen_stream_windows_retrying", "Those that failed and pause", "retrying"),
    ("queen_stream_windows_dead", "Windows set aside for good", "dead"),
    (
        "queen_stream_behind_seconds",
        "Time since the oldest window ended that the group has not finished; 0 when idle",
        "behind_s",
    ),
)
# What settling a window comes to.
_SETTLED = ("done", "retry", "dead")


class Snapshot(NamedTuple):
    """What a scrape has asked the database."""

    queues: list[Record]
    groups: list[Record]
    # Groups of streams.
    streams: list[Record]
    # What all servers did with the busiest queues in the last full minute.
    minute: list[Record]
    totals: dict[str, int]
    pipelines: list[Record]
    stamp: Stamp
    # How old the oldest snapshot is that somebody holds open.
    oldest_snapshot_s: float
    database_healthy: bool


class _Labelled:
    """Which queues have series of their own, and since where."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._since: dict[str, tuple[int, ...]] = {}
        self._gone = [0] * len(FIELDS)
        self._last: dict[str, tuple[int, ...]] = {}

    def rows(self, counters: Iterable[Counters]) -> dict[str, tuple[int, ...]]:
        """Return the counts of each queue that has its own series, and of `other`."""
        values = {one.name: one.values() for one in counters}
        self._keep_gone(values)
        busiest = sorted(values, key=lambda name: -sum(values[name][:8]))
        for name in busiest:
            if len(self._since) >= self._most:
                break
            # A queue that comes before the first scrape brings all it has done.
            self._since.setdefault(name, self._last.get(name, (0,) * len(FIELDS)))
        self._last = values
        rows, other = {}, list(self._gone)
        for name, counted in values.items():
            since = self._since.get(name)
            if since is not None:
                rows[name] = tuple(now - was for now, was in zip(counted, since, strict=True))
            for at, count in enumerate(since if since is not None else counted):
                other[at] += count
        rows[OTHER] = tuple(other)
        return rows

    def _keep_gone(self, values: dict[str, tuple[int, ...]]) -> None:
        """A queue that was deleted leaves its part of `other` behind."""
        for name in self._last.keys() - values.keys():
            part = self._since.pop(name, None)
            for at, count in enumerate(self._last[name] if part is None else part):
                self._gone[at] += count


class _Scrape(Collector):
    """The metrics of one scrape."""

    def __init__(self, broker: Broker, rows: dict[str, tuple[int, ...]], seen: Snapshot) -> None:
        self._broker = broker
        self._rows = rows
        self._seen = seen
        name = broker.activity.name
        self._server = (name.hostname, str(name.port), str(name.worker))

    def collect(self) -> Iterator[Metric]:
        if self._seen.database_healthy:
            # Without the database these are unknown, and zero is a number.
            yield from self._cluster()
            yield from self._last_minute()
            yield from self._streams()
            yield from self._statistics()
            yield from self._pipelines()
        yield from self._windows()
        yield from self._counters()
        yield from self._parked()
        yield from self._histograms()
        yield from self._process()
        yield from self._database()
        yield from self._switches()
        yield from self._memory()

    def _cluster(self) -> Iterator[Metric]:
        for field, name, about in _COUNTED:
            yield CounterMetricFamily(
                f"queen_cluster_{name}", f"{about}, by all servers", self._seen.totals[field]
            )

    def _counters(self) -> Iterator[Metric]:
        for field, name, about in _COUNTED:
            family = CounterMetricFamily(f"queen_queue_{name}", about, labels=("queue", *_SERVER))
            at = FIELDS.index(field)
            for queue, counted in self._rows.items():
                family.add_metric((queue, *self._server), counted[at])
            yield family

    def _last_minute(self) -> Iterator[Metric]:
        for kind, about, field in (
            ("push", "Messages stored", "push_messages"),
            ("pop", "Messages delivered", "pop_messages"),
            ("ack", "Messages acknowledged as completed", "ack_ok"),
        ):
            family = GaugeMetricFamily(
                f"queen_queue_{kind}_per_minute",
                f"{about} in the last full minute, by all servers",
                labels=("queue",),
            )
            for row in self._seen.minute:
                family.add_metric((row["queue"],), row[field])
            yield family
        lag = GaugeMetricFamily(
            "queen_queue_pop_lag_milliseconds",
            "How long messages delivered in the last full minute had waited, on average",
            labels=("queue",),
        )
        for row in self._seen.minute:
            lag.add_metric((row["queue"],), average(row["lag_sum_ms"], row["lag_count"]))
        yield lag

    def _statistics(self) -> Iterator[Metric]:
        seen, most = self._seen, self._broker.limits.metrics_queues
        for name, about, field in _QUEUE_GAUGES:
            family = GaugeMetricFamily(name, about, labels=("queue",))
            for row in seen.queues[:most]:
                family.add_metric((row["name"],), row[field] or 0)
            rest = seen.queues[most:]
            if rest:
                family.add_metric((OTHER,), sum(row[field] or 0 for row in rest))
            yield family
        for name, about, field in _GROUP_GAUGES:
            family = GaugeMetricFamily(name, about, labels=("queue", "group"))
            for row in seen.groups:
                family.add_metric((row["queue"], row["group_name"]), row[field])
            yield family
        lag = GaugeMetricFamily(
            "queen_group_lag_seconds",
            "Time since the oldest message was written that the group has not done; 0 when idle",
            labels=("queue", "group"),
        )
        for row in seen.groups:
            lag.add_metric((row["queue"], row["group_name"]), lag_of(row, seen.stamp))
        yield lag
        yield GaugeMetricFamily(
            "queen_statistics_age_seconds", "How old the counts are", seen.stamp.age_s
        )

    def _pipelines(self) -> Iterator[Metric]:
        reports = [
            (row["name"], progress, is_alive(progress, row["silent_s"]))
            for row in self._seen.pipelines
            if (progress := progress_of(row)) is not None
        ]
        up = GaugeMetricFamily(
            "queen_pipeline_up", "Whether a run of the pipeline reports", labels=("pipeline",)
        )
        for name, _, alive in reports:
            up.add_metric((name,), int(alive))
        yield up
        for kind, metric, about, value in _PIPELINE_METRICS:
            family = kind(metric, about, labels=("pipeline",))
            for name, progress, _ in reports:
                family.add_metric((name,), value(progress))
            yield family

    def _streams(self) -> Iterator[Metric]:
        for name, about, field in _STREAM_GAUGES:
            family = GaugeMetricFamily(name, about, labels=("stream", "group"))
            for row in self._seen.streams:
                family.add_metric((row["stream"], row["group_name"]), row[field])
            yield family

    def _windows(self) -> Iterator[Metric]:
        planner, settled = self._broker.planner, self._broker.work.settled
        yield CounterMetricFamily(
            "queen_stream_windows_planned", "Windows this server has closed", planner.windows
        )
        family = CounterMetricFamily(
            "queen_stream_windows_settled",
            "Windows settled at this server",
            labels=("outcome",),
        )
        for outcome in _SETTLED:
            family.add_metric((outcome,), settled[outcome])
        yield family
        yield _histogram(
            "queen_stream_plan_duration_seconds",
            "Time it took to seal the sources of a stream and to close its windows",
            planner.seconds,
        )

    def _parked(self) -> Iterator[Metric]:
        broker = self._broker
        yield GaugeMetricFamily(
            "queen_parked_polls", "Long polls that wait", broker.popper.parked_count
        )
        family = GaugeMetricFamily(
            "queen_queue_parked_consumers",
            "Long polls that wait for a queue",
            labels=("queue", *_SERVER),
        )
        parked: dict[str, int] = {}
        for name, count in broker.popper.parked_by_name().items():
            label = name if name in self._rows else OTHER
            parked[label] = parked.get(label, 0) + count
        for name, count in parked.items():
            family.add_metric((name, *self._server), count)
        yield family

    def _histograms(self) -> Iterator[Metric]:
        activity = self._broker.activity
        yield _histogram(
            "queen_flush_duration_seconds",
            "Time PostgreSQL took to append a batch of pushes",
            activity.flush_seconds,
        )
        yield _histogram(
            "queen_flush_batch_messages", "Messages in such a batch", activity.flush_messages
        )

    def _process(self) -> Iterator[Metric]:
        vitals, activity = self._broker.vitals, self._broker.activity
        rss, virtual = vitals.memory()
        user_s, system_s = vitals.cpu_seconds()
        for name, about, value in (
            ("queen_process_resident_memory_bytes", "Memory in use", rss),
            ("queen_process_virtual_memory_bytes", "Address space in use", virtual),
            ("queen_uptime_seconds", "Time since the start", time.monotonic() - activity.started),
            ("queen_event_loop_lag_seconds", "How late a timer last rang", vitals.lag_s),
        ):
            yield GaugeMetricFamily(name, about, value)
        for name, about, seconds in (
            ("queen_cpu_user_microseconds", "CPU time of the process", user_s),
            ("queen_cpu_system_microseconds", "CPU time of the kernel for it", system_s),
        ):
            yield CounterMetricFamily(name, about, int(seconds * 1_000_000))
        yield CounterMetricFamily(
            "queen_http_requests", "HTTP requests of any kind", activity.requests
        )
        yield from self._upsets()

    def _upsets(self) -> Iterator[Metric]:
        """What should not happen in the process, and how often it did."""
        watchdog = self._broker.watchdog
        yield CounterMetricFamily(
            "queen_event_loop_stalls", "Times nothing moved for a second", watchdog.stalls
        )
        yield CounterMetricFamily(
            "queen_event_loop_stalled_seconds", "How long nothing moved then", watchdog.stalled_s
        )
        family = CounterMetricFamily(
            "queen_loop_failures", "Background loops that failed and began again", labels=("loop",)
        )
        for name, failures in self._broker.supervisor.failures().items():
            family.add_metric((name,), failures)
        yield family

    def _database(self) -> Iterator[Metric]:
        database = self._broker.database
        for name, about, value in (
            ("queen_db_pool_size", "Connections to PostgreSQL", database.pool_size),
            ("queen_db_pool_idle", "Those not in use", database.pool_idle),
            ("queen_db_pool_active", "Those in use", database.pool_size - database.pool_idle),
            ("queen_db_pool_limit", "The most there may be", database.pool_limit),
            ("queen_db_up", "Whether PostgreSQL answers", int(self._seen.database_healthy)),
            (
                "queen_db_oldest_snapshot_seconds",
                "How long the oldest snapshot is held open, by anybody this role may see",
                self._seen.oldest_snapshot_s,
            ),
        ):
            yield GaugeMetricFamily(name, about, value)
        yield CounterMetricFamily(
            "queen_db_errors", "Statements and connections that failed", database.failures
        )

    def _switches(self) -> Iterator[Metric]:
        maintenance = self._broker.maintenance
        for name, about, value in (
            (
                "queen_maintenance_mode_enabled",
                "Whether pushes are held back",
                maintenance.pushes_are_held,
            ),
            (
                "queen_pop_maintenance_mode_enabled",
                "Whether pops are held back",
                maintenance.pops_are_held,
            ),
        ):
            yield GaugeMetricFamily(name, about, int(value))

    def _memory(self) -> Iterator[Metric]:
        broker = self._broker
        recent = broker.dedup.recent
        for name, about, value in (
            ("queen_dedup_hashes", "Transaction ids remembered for dedup", len(recent)),
            (
                "queen_dedup_window_held_seconds",
                "How far back all of them are remembered",
                recent.held_seconds(),
            ),
            ("queen_segment_cache_bytes", "Segments kept in memory", broker.cache.size_bytes),
            ("queen_waiting_pushes", "Appends that wait for a flush", broker.pusher.waiting),
        ):
            yield GaugeMetricFamily(name, about, value)


def _histogram(name: str, about: str, counted: Histogram) -> HistogramMetricFamily:
    buckets, below = [], 0
    for bound, count in zip((*counted.bounds, float("inf")), counted.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(below)))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=counted.total)


class Exporter:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._labelled = _Labelled(broker.limits.metrics_queues)

    async def text(self) -> bytes:
        """Return all metrics of this moment."""
        seen = await self._snapshot()
        rows = self._labelled.rows(self._broker.activity.by_queue())
        registry = CollectorRegistry()
        registry.register(_Scrape(self._broker, rows, seen))
        return generate_latest(registry)

    async def _snapshot(self) -> Snapshot:
        broker, most = self._broker, self._broker.limits.metrics_queues
        nothing = dict.fromkeys(FIELDS, 0)
        try:
            await broker.report.settle()
            stamp = await broker.statistics.current()
            numbers = broker.numbers
            rows = await numbers.cluster_totals()
            totals = {
                FIELDS[row["at"] - 1]: row["total"] for row in rows if row["at"] <= len(FIELDS)
            }
            queues = await numbers.busiest_queues()
            groups = await numbers.list_groups(ALL_QUEUES, max(most, 1))
            streams = await numbers.stream_gauges(max(most, 1))
            end = (await broker.clock.now()).replace(second=0, microsecond=0)
            minute = await numbers.queue_series(
                1, (end - timedelta(minutes=1), end), ALL_QUEUES, max(most, 1)
            )
            pipelines = await broker.pipelines.page(None, max(most, 1), 0)
            snapshot_s = await numbers.oldest_snapshot_s()
        except QueenError:
            # A scrape must tell that the database is down, not fail because of it.
            return Snapshot([], [], [], [], nothing, [], Stamp(None, 0.0, None), 0.0, False)
        totals = {**nothing, **totals}
        asked = queues, groups, streams, minute, totals, pipelines, stamp, snapshot_s
        return Snapshot(*asked, True)
