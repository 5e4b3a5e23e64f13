"""What the analytics and metrics routes answer."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.wire.stats.status import TimeRange, Worker


class Sampled(msgspec.Struct):
    avg: float
    min: float
    max: float
    last: float


class Cpu(msgspec.Struct):
    """Percent times a hundred, despite the names, which are the original's."""

    user_us: Sampled
    system_us: Sampled


class Memory(msgspec.Struct):
    rss_bytes: Sampled
    virtual_bytes: Sampled


class Pool(msgspec.Struct):
    pool_size: Sampled
    pool_idle: Sampled
    pool_active: Sampled


class SystemSample(msgspec.Struct):
    cpu: Cpu
    memory: Memory
    database: Pool
    event_loop: dict[str, Sampled]
    polls: dict[str, Sampled]
    uptime_seconds: float


class SystemPoint(msgspec.Struct, rename="camel"):
    timestamp: str
    sample_count: int
    metrics: SystemSample


class Replica(msgspec.Struct, rename="camel"):
    hostname: str
    port: int
    worker_id: int
    time_series: list[SystemPoint]


class SystemMetrics(msgspec.Struct, rename="camel"):
    time_range: TimeRange
    bucket_minutes: int
    replicas: list[Replica]
    replica_count: int


class WorkerPoint(msgspec.Struct, rename="camel"):
    timestamp: str
    push_messages: int = 0
    pop_messages: int = 0
    ack_messages: int = 0
    push_requests: int = 0
    pop_requests: int = 0
    ack_requests: int = 0
    # HTTP requests of any kind.
    jobs_done: int = 0
    push_per_second: float = 0
    pop_per_second: float = 0
    ack_per_second: float = 0
    avg_event_loop_lag_ms: float = 0
    max_event_loop_lag_ms: float = 0
    # Connections of the pool that could be used at once.
    avg_free_slots: float = 0
    min_free_slots: int = 0
    db_connections: float = 0
    # Appends that wait for a flush.
    avg_job_queue_size: float = 0
    max_job_queue_size: int = 0
    # Parked polls.
    backoff_size: float = 0
    avg_lag_ms: float = 0
    max_lag_ms: int = 0
    lag_count: int = 0
    db_errors: int = 0
    ack_success: int = 0
    ack_failed: int = 0
    dlq_count: int = 0


class QueueLag(msgspec.Struct, rename="camel"):
    queue_name: str
    pop_count: int
    avg_lag_ms: float
    max_lag_ms: int


class QueueLagPoint(QueueLag, rename="camel"):
    bucket_time: str


class WorkerSummary(msgspec.Struct, rename="camel"):
    total_push_messages: int
    total_pop_messages: int
    total_ack_messages: int
    total_push_requests: int
    total_pop_requests: int
    total_ack_requests: int
    total_ack_failed: int
    total_dlq: int
    total_db_errors: int
    pending_messages: int


class WorkerMetrics(msgspec.Struct, rename="camel"):
    time_range: TimeRange
    bucket_minutes: int
    point_count: int
    time_series: list[WorkerPoint]
    workers: list[Worker]
    queues: list[QueueLag]
    summary: WorkerSummary


class QueueOpsPoint(msgspec.Struct, rename="camel"):
    bucket: str
    queue_name: str
    push_requests: int
    push_messages: int
    pop_messages: int
    pop_empty: int
    ack_requests: int
    ack_success: int
    ack_failed: int
    transactions: int
    partitions_created: int
    partitions_deleted: int
    partition_count: int
    avg_lag_ms: float
    max_lag_ms: int
    push_per_second: float
    pop_per_second: float
    ack_per_second: float
    empty_per_second: float
    parked_count: int


class QueueOps(msgspec.Struct, rename="camel"):
    time_range: TimeRange
    bucket_minutes: int
    series: list[QueueOpsPoint]
    queues: list[str]


class ParkedPoint(msgspec.Struct, rename="camel"):
    bucket: str
    queue_name: str
    hostname: str
    worker_id: int
    parked_count: int


class ReplicaName(msgspec.Struct, rename="camel"):
    hostname: str
    worker_id: int


class ParkedReplicas(msgspec.Struct, rename="camel"):
    time_range: TimeRange
    bucket_minutes: int
    series: list[ParkedPoint]
    replicas: list[ReplicaName]


class RetentionCounts(msgspec.Struct, rename="camel"):
    retention_msgs: int = 0
    completed_retention_msgs: int = 0
    eviction_msgs: int = 0
    ttl_msgs: int = 0
    partition_cleanup_msgs: int = 0
    total_msgs: int = 0
    event_count: int = 0


class RetentionPoint(RetentionCounts, rename="camel", kw_only=True):
    bucket: str


class Retention(msgspec.Struct, rename="camel"):
    time_range: TimeRange
    bucket_minutes: int
    series: list[RetentionPoint]
    totals: RetentionCounts


class PostgresStats(msgspec.Struct, rename="camel"):
    """What PostgreSQL says of itself. Texts of queries are left out: they may hold data."""

    timestamp: str
    database: dict[str, Any]
    database_cache: dict[str, Any]
    table_cache: list[dict[str, Any]]
    index_cache: list[dict[str, Any]]
    cache_summary: dict[str, Any]
    dead_tuples: list[dict[str, Any]]
    hot_updates: list[dict[str, Any]]
    active_queries: list[dict[str, Any]]
    autovacuum_status: list[dict[str, Any]]
    buffer_config: list[dict[str, Any]]
    buffer_usage: list[dict[str, Any]]
    table_sizes: list[dict[str, Any]]


class Counted(msgspec.Struct):
    """`rate` is for each second since the server started."""

    total: int
    rate: float


class PoolNow(msgspec.Struct, rename="camel"):
    pool_size: int
    idle_connections: int
    waiting_requests: int


class MemoryNow(msgspec.Struct, rename="camel"):
    """Bytes. What a Python process has no number for is 0."""

    rss: int
    heap_total: int
    heap_used: int
    external: int
    array_buffers: int


class CpuNow(msgspec.Struct):
    """Microseconds since the process started."""

    user: int
    system: int


class Metrics(msgspec.Struct):
    uptime: float
    requests: Counted
    messages: Counted
    database: PoolNow
    memory: MemoryNow
    cpu: CpuNow


class SharedState(msgspec.Struct, rename="camel"):
    """What this server remembers of the database, and who else is there."""

    enabled: bool
    running: bool
    server_id: str
    peers: list[Worker]
    queues: int
    partitions: int
    groups: int
    dedup_hashes: int
    dedup_window_seconds: float
    segment_cache_bytes: int
