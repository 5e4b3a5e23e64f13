"""What the status routes answer."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.core.options import QueueOptions
from queen.wire.paging import Pagination
from queen.wire.stats.resources import GroupSummary, MessageCounts, Stated


class TimeRange(msgspec.Struct, rename={"start": "from", "end": "to"}):
    start: str
    end: str


class IntervalRange(msgspec.Struct, rename={"start": "from", "end": "to"}):
    start: str
    end: str
    interval: str


class ThroughputPoint(msgspec.Struct, rename="camel"):
    """One period. Rates of a period that is not over are over its part that is."""

    timestamp: str
    ingested: int = 0
    processed: int = 0
    ingested_per_second: float = 0
    processed_per_second: float = 0
    failed: int = 0
    pop_messages: int = 0
    pop_per_second: float = 0
    avg_lag_ms: float = 0
    max_lag_ms: int = 0
    avg_event_loop_lag_ms: float = 0
    max_event_loop_lag_ms: float = 0
    min_free_slots: int = 0
    db_errors: int = 0
    ack_failed: int = 0
    dlq_count: int = 0
    queen_cpu_user_pct: float = 0
    queen_cpu_sys_pct: float = 0
    queen_rss_mb: float = 0
    db_pool_active: float = 0
    db_pool_idle: float = 0
    db_pool_size: float = 0


class StatusQueue(msgspec.Struct, rename="camel"):
    id: int
    name: str
    namespace: str | None
    task: str | None
    partitions: int
    total_consumed: int


class StatusMessages(MessageCounts, rename="camel"):
    requests: int = 0
    # Messages for each push request.
    batch_efficiency: float = 0


class Leases(msgspec.Struct, rename="camel"):
    active: int
    partitions_with_leases: int
    total_batch_size: int
    total_acked: int


class ErrorCount(msgspec.Struct):
    error: str
    count: int


class DeadLetterSummary(msgspec.Struct, rename="camel"):
    """`affectedPartitions` and `topErrors` are of the last thousand in the time range."""

    total_messages: int
    affected_partitions: int
    top_errors: list[ErrorCount]


class Errors(msgspec.Struct, rename="camel"):
    db_errors: int
    ack_failed: int
    dlq_messages: int


class Worker(msgspec.Struct, rename="camel"):
    hostname: str
    port: int
    worker_id: int
    started_at: str
    last_seen: str


class Status(Stated, rename="camel"):
    time_range: TimeRange
    bucket_minutes: int
    point_count: int
    throughput: list[ThroughputPoint]
    queues: list[StatusQueue]
    messages: StatusMessages
    leases: Leases
    dead_letter_queue: DeadLetterSummary
    errors: Errors
    workers: list[Worker]


class QueueStatusRow(msgspec.Struct, rename="camel"):
    id: int
    name: str
    namespace: str
    task: str
    priority: int
    created_at: str
    partitions: int
    messages: MessageCounts
    lag_seconds: float


class QueueStatusList(Stated, rename="camel"):
    queues: list[QueueStatusRow]
    pagination: Pagination
    time_range: TimeRange


class QueueConfig(msgspec.Struct, rename="camel"):
    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int
    max_queue_size: int
    dead_letter_queue: bool


class QueueHead(msgspec.Struct, rename="camel"):
    id: int
    name: str
    namespace: str
    task: str
    priority: int
    # Some of the options, as the original names them.
    config: QueueConfig
    # All of them.
    options: QueueOptions
    created_at: str


class QueueTotals(msgspec.Struct, rename="camel"):
    """The counts of the whole queue, nested as the original did first and flat as it did later."""

    messages: MessageCounts
    partitions: int
    consumed: int
    batches: int
    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    dead_letter: int


class PartitionCursor(msgspec.Struct, rename="camel"):
    """The furthest group: how many messages it has done."""

    total_consumed: int
    batches_consumed: int
    last_consumed_at: str


class PartitionStatus(msgspec.Struct, rename="camel"):
    id: str
    name: str
    created_at: str
    messages: MessageCounts
    stats: MessageCounts
    cursor: PartitionCursor
    last_activity: str | None
    oldest_message: str | None
    newest_message: str | None


class QueueStatus(Stated, rename="camel"):
    queue: QueueHead
    totals: QueueTotals
    partitions: list[PartitionStatus]
    groups: list[GroupSummary]
    pagination: Pagination
    time_range: TimeRange


class Age(msgspec.Struct):
    seconds: float
    formatted: str


class MessageRow(msgspec.Struct, rename="camel", omit_defaults=False):
    id: str
    transaction_id: str
    trace_id: str | None
    partition: str
    partition_id: str
    offset: int
    created_at: str
    # failed (set aside for good), completed, processing or pending.
    status: str
    retry_count: int
    # Of messages that are not done.
    age: Age | None


class MessageFilters(msgspec.Struct):
    status: str | None
    partition: str | None


class QueueMessages(msgspec.Struct, rename="camel"):
    messages: list[MessageRow]
    pagination: Pagination
    queue: str
    filters: MessageFilters
    time_range: TimeRange


class SeriesTotals(msgspec.Struct, rename="camel"):
    ingested: int
    processed: int
    failed: int
    avg_ingested_per_second: float
    avg_processed_per_second: float


class ThroughputSeries(msgspec.Struct, rename="camel"):
    time_series: list[ThroughputPoint]
    totals: SeriesTotals


class LatencyPoint(msgspec.Struct, rename="camel"):
    """How long messages had waited when they were popped."""

    timestamp: str
    avg_ms: float
    max_ms: int
    count: int


class LatencySeries(msgspec.Struct, rename="camel"):
    time_series: list[LatencyPoint]
    overall: LatencyPoint | None


class ErrorPoint(msgspec.Struct, rename="camel"):
    timestamp: str
    failed: int
    processed: int
    rate: float


class ErrorRate(msgspec.Struct, rename="camel"):
    failed: int
    processed: int
    rate: float
    rate_percent: str


class ErrorSeries(msgspec.Struct, rename="camel"):
    time_series: list[ErrorPoint]
    overall: ErrorRate


class Depth(msgspec.Struct):
    pending: int
    processing: int


class DepthSeries(msgspec.Struct, rename="camel"):
    """Depth is counted, not recorded: the series stays empty."""

    time_series: list[Any]
    current: Depth


class TopQueue(msgspec.Struct, rename="camel"):
    name: str
    ingested: int
    processed: int
    pending: int


class DeadLetterPoint(msgspec.Struct):
    timestamp: str
    count: int


class DeadLetterSeries(msgspec.Struct, rename="camel"):
    time_series: list[DeadLetterPoint]
    total: int
    top_errors: list[ErrorCount]


class DataPoint(msgspec.Struct):
    timestamp: str
    messages: int


class Analytics(
    Stated,
    rename={
        "start": "from",
        "end": "to",
        "stats_age": "statsAge",
        "stats_at": "statsAt",
        "time_range": "timeRange",
        "data_points": "dataPoints",
        "error_rates": "errorRates",
        "queue_depths": "queueDepths",
        "top_queues": "topQueues",
        "dead_letter_queue": "deadLetterQueue",
    },
):
    time_range: IntervalRange
    interval: str
    start: str
    end: str
    data_points: list[DataPoint]
    throughput: ThroughputSeries
    latency: LatencySeries
    error_rates: ErrorSeries
    queue_depths: DepthSeries
    top_queues: list[TopQueue]
    dead_letter_queue: DeadLetterSeries


class Buffers(msgspec.Struct, rename="camel"):
    """The file buffer of the server that answered."""

    pending: int
    failed: int
    db_healthy: bool
    worker: int
