"""Metrics of the RESP port of the server that answers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from queen.service.stats.resp_counts import RespCounts


def resp(counts: RespCounts) -> Iterator[Metric]:
    for name, about, value in (
        ("queen_resp_connections", "Clients of the RESP port", counts.connections),
        ("queen_resp_blocked_clients", "Those that wait for entries", counts.waiting),
    ):
        yield GaugeMetricFamily(name, about, value)
    for name, about, value in (
        ("queen_resp_connections_accepted", "Clients it has taken", counts.accepted),
        ("queen_resp_connections_refused", "Clients that were too many", counts.refused),
        (
            "queen_resp_clients_evicted",
            "Clients hung up on for what they held or left unread",
            counts.evicted,
        ),
        ("queen_resp_commands", "Commands of any kind", counts.commands),
        ("queen_resp_errors", "Commands that were answered with an error", counts.failures),
        ("queen_resp_read_bytes", "Bytes that came in", counts.bytes_read),
        ("queen_resp_written_bytes", "Bytes that went out", counts.bytes_written),
    ):
        yield CounterMetricFamily(name, about, value)
