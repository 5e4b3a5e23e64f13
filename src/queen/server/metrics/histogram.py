"""Histograms as Prometheus counts them: each bucket holds all that lie below its bound."""

from __future__ import annotations

from prometheus_client.metrics_core import HistogramMetricFamily

from queen.service.stats.activity import Histogram


def histogram(name: str, about: str, counted: Histogram) -> HistogramMetricFamily:
    buckets, below = [], 0
    for bound, count in zip((*counted.bounds, float("inf")), counted.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(below)))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=counted.total)
