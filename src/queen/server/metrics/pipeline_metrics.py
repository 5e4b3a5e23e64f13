"""Metrics of pipelines, as their runs report them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from queen.server.metrics.snapshot import Snapshot
from queen.service.admin.pipelines import is_alive, progress_of
from queen.wire.pipelines import Progress


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


def pipelines(snapshot: Snapshot) -> Iterator[Metric]:
    reports = [
        (row["name"], progress, is_alive(progress, row["silent_s"]))
        for row in snapshot.pipelines
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
