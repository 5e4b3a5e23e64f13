"""Metrics of streams and their windows."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from queen.server.metrics.histogram import histogram
from queen.server.metrics.snapshot import Snapshot
from queen.service.broker import Broker

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


def groups(snapshot: Snapshot) -> Iterator[Metric]:
    for name, about, field in _STREAM_GAUGES:
        family = GaugeMetricFamily(name, about, labels=("stream", "group"))
        for row in snapshot.streams:
            family.add_metric((row["stream"], row["group_name"]), row[field])
        yield family


def windows(broker: Broker) -> Iterator[Metric]:
    planner, settled = broker.planner, broker.work.settled
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
    yield histogram(
        "queen_stream_plan_duration_seconds",
        "Time it took to seal the sources of a stream and to close its windows",
        planner.seconds,
    )
