"""Metrics of the spool: what waits in files beside the server that answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from queen.service.spooling.desk import SpoolNumbers


def spool(numbers: SpoolNumbers) -> Iterator[Metric]:
    oldest_s = 0.0
    if numbers.oldest_at_ms is not None:
        oldest_s = max(0.0, time.time() - numbers.oldest_at_ms / 1000)
    for name, about, value in (
        ("queen_breaker_open", "Whether PostgreSQL is away", numbers.is_database_away),
        ("queen_spool_enabled", "Whether there is a spool", numbers.is_there),
        ("queen_spool_records", "Pushes that wait in the spool, by partition", numbers.records),
        ("queen_spool_bytes", "Bytes of its files", numbers.bytes),
        ("queen_spool_oldest_seconds", "How long the oldest has waited", oldest_s),
        ("queen_spool_waiting_records", "Those that their queues refuse now", numbers.waiting),
        ("queen_spool_quarantined_records", "Those that can never be stored", numbers.quarantined),
        ("queen_spool_damaged_ranges", "Ranges that the disk did not keep", numbers.damaged),
        ("queen_spool_last_batch_records", "Records drained last", numbers.last_batch_records),
    ):
        yield GaugeMetricFamily(name, about, float(value))
    for name, about, value in (
        ("queen_breaker_openings", "How often PostgreSQL went away", numbers.outages),
        ("queen_spool_buffered_messages", "Messages that asked for it", numbers.buffered_messages),
        ("queen_spool_failover_messages", "Messages that had to", numbers.failover_messages),
        ("queen_spool_drained_messages", "Messages stored from it", numbers.drained_messages),
        ("queen_spool_batches", "Batches stored from it", numbers.batches),
    ):
        yield CounterMetricFamily(name, about, value)
