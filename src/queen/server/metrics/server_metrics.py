"""Metrics of the server that answers: its process, its connections, what it holds in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from queen.server.metrics.histogram import histogram
from queen.server.metrics.snapshot import Snapshot
from queen.service.broker import Broker


def flushes(broker: Broker) -> Iterator[Metric]:
    activity = broker.activity
    yield histogram(
        "queen_flush_duration_seconds",
        "Time PostgreSQL took to append a batch of pushes",
        activity.flush_seconds,
    )
    yield histogram(
        "queen_flush_batch_messages", "Messages in such a batch", activity.flush_messages
    )


def merges(broker: Broker) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "queen_segments_merged",
        "Small segments that this server has put into larger ones",
        broker.merger.rows_merged,
    )


def process(broker: Broker) -> Iterator[Metric]:
    vitals, activity = broker.vitals, broker.activity
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
    yield CounterMetricFamily("queen_http_requests", "HTTP requests of any kind", activity.requests)
    yield from _upsets(broker)


def _upsets(broker: Broker) -> Iterator[Metric]:
    """What should not happen in the process, and how often it did."""
    watchdog = broker.watchdog
    yield CounterMetricFamily(
        "queen_event_loop_stalls", "Times nothing moved for a second", watchdog.stalls
    )
    yield CounterMetricFamily(
        "queen_event_loop_stalled_seconds", "How long nothing moved then", watchdog.stalled_s
    )
    family = CounterMetricFamily(
        "queen_loop_failures", "Background loops that failed and began again", labels=("loop",)
    )
    for name, failures in broker.supervisor.failures().items():
        family.add_metric((name,), failures)
    yield family


def database(broker: Broker, snapshot: Snapshot) -> Iterator[Metric]:
    database = broker.database
    for name, about, value in (
        ("queen_db_pool_size", "Connections to PostgreSQL", database.pool_size),
        ("queen_db_pool_idle", "Those not in use", database.pool_idle),
        ("queen_db_pool_active", "Those in use", database.pool_size - database.pool_idle),
        ("queen_db_pool_limit", "The most there may be", database.pool_limit),
        ("queen_db_up", "Whether PostgreSQL answers", int(snapshot.database_healthy)),
        (
            "queen_db_oldest_snapshot_seconds",
            "How long the oldest snapshot is held open, by anybody this role may see",
            snapshot.oldest_snapshot_s,
        ),
    ):
        yield GaugeMetricFamily(name, about, value)
    yield CounterMetricFamily(
        "queen_db_errors", "Statements and connections that failed", database.failures
    )


def switches(broker: Broker) -> Iterator[Metric]:
    maintenance = broker.maintenance
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


def memory(broker: Broker) -> Iterator[Metric]:
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
