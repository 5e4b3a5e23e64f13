"""Metrics in the text format of Prometheus.

Everything is collected when it is asked for; no metric object is touched on a hot path.
Three kinds of numbers stand side by side:

    queen_cluster_*   counted by all servers since the database was made, from the database
    queen_queue_*     counted by the server that answers, so they carry its name
    the rest          what the server that answers uses, and what the statistics last said
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from queen.server.metrics import (
    pipeline_metrics,
    queue_metrics,
    resp_metrics,
    server_metrics,
    spool_metrics,
    stream_metrics,
)
from queen.server.metrics.queue_labels import QueueLabels
from queen.server.metrics.snapshot import Snapshot, read_snapshot
from queen.service.broker import Broker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._labels = QueueLabels(broker.limits.metrics_queues)

    async def text(self) -> bytes:
        """Return all metrics of this moment."""
        snapshot = await read_snapshot(self._broker)
        queue_counts = self._labels.rows(self._broker.activity.by_queue())
        registry = CollectorRegistry()
        registry.register(_Scrape(self._broker, queue_counts, snapshot))
        return generate_latest(registry)


class _Scrape(Collector):
    """The metrics of one scrape."""

    def __init__(
        self, broker: Broker, queue_counts: queue_metrics.QueueCounts, snapshot: Snapshot
    ) -> None:
        self._broker = broker
        self._queue_counts = queue_counts
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        broker, snapshot = self._broker, self._snapshot
        if snapshot.database_healthy:
            # Without the database these are unknown, and zero is a number.
            yield from queue_metrics.cluster_totals(snapshot)
            yield from queue_metrics.last_minute(snapshot)
            yield from stream_metrics.groups(snapshot)
            yield from queue_metrics.statistics(snapshot, broker.limits.metrics_queues)
            yield from pipeline_metrics.pipelines(snapshot)
        yield from stream_metrics.windows(broker)
        name = broker.activity.name
        server = (name.hostname, str(name.port), str(name.worker))
        yield from queue_metrics.counters(self._queue_counts, server)
        yield from queue_metrics.parked_polls(broker, self._queue_counts, server)
        yield from server_metrics.flushes(broker)
        yield from server_metrics.merges(broker)
        yield from server_metrics.process(broker)
        yield from server_metrics.database(broker, snapshot)
        yield from server_metrics.switches(broker)
        yield from server_metrics.memory(broker)
        yield from resp_metrics.resp(broker.activity.resp)
        yield from spool_metrics.spool(snapshot.spool)
