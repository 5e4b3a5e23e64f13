"""Metrics of pipelines, as their runs report them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from queen.server.metrics.snapshot import Snapshot
from queen.service.admin.pipelines import is_alive, progress_of
from queen.wire.pipelines import Progress


def _age_s(at: datetime | None) -> float:
    """Return how far an instant is behind the clock."""
    return 0.0 if at is None else max(0.0, time.time() - at.timestamp())


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
        "queen_pipeline_failed_rows",
        "Messages that could not be computed with and were set aside since the run began",
        lambda progress: progress.failed_rows,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_behind_messages",
        "Messages that the last micro-batch has left for the next",
        lambda progress: progress.behind_messages,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_behind_bytes",
        "Stored bytes that the last micro-batch has left for the next",
        lambda progress: progress.behind_bytes,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_behind_seconds",
        "How far the last micro-batch was behind what was sealed when it was planned",
        lambda progress: progress.behind_ms / 1000,
    ),
    (
        GaugeMetricFamily,
        "queen_pipeline_done_age_seconds",
        "How far what has been read is behind the clock; without windows it grows when idle, too",
        lambda progress: _age_s(progress.done_until),
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
        lambda progress: _age_s(progress.watermark),
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
