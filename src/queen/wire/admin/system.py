"""/api/v1/system/…: servers, their settings, PostgreSQL, and the map of what flows where."""

from __future__ import annotations

from typing import Any

import msgspec


class ServerRow(msgspec.Struct, rename="camel"):
    """A process that serves: a server has one for each worker."""

    hostname: str
    port: int
    worker: int
    started_at: str
    seen_at: str
    # Of the last minute in which it reported; null before its first report.
    cpu_percent: float | None
    memory_bytes: int | None
    loop_lag_ms: float | None
    connections: int | None
    connections_free: int | None
    parked_polls: int | None
    requests_per_second: float | None
    database_errors: int | None


class ServerList(msgspec.Struct):
    servers: list[ServerRow]
    # The one that answers.
    hostname: str
    port: int
    worker: int
    version: str


class Setting(msgspec.Struct, rename="camel", frozen=True):
    """One option of a server, and where its value comes from."""

    name: str
    # A secret is not shown: only whether there is one.
    value: str
    # `default`, `environment`, or `command`.
    origin: str
    # The variable that sets it, or may.
    variable: str | None = None
    about: str = ""
    secret: bool = False


class SettingList(msgspec.Struct):
    settings: list[Setting]


class PostgresTotals(msgspec.Struct, rename="camel"):
    """Counters since `statsReset`: two readings and the time between them are a rate."""

    wal_bytes: int | None
    commits: int
    rollbacks: int
    blocks_hit: int
    blocks_read: int
    deadlocks: int
    temp_bytes: int
    stats_reset: str | None


class HeldTransaction(msgspec.Struct, rename="camel"):
    """A transaction that began a while ago; what it could still see cannot be cleaned up."""

    pid: int
    application: str
    state: str
    seconds: float
    # How long it has been in this state.
    state_seconds: float
    waits_for: str | None
    holds_back_vacuum: bool


class SlowStatement(msgspec.Struct, rename="camel"):
    """One statement over all its calls, as `pg_stat_statements` counts it."""

    statement: str
    calls: int
    mean_ms: float
    max_ms: float
    total_ms: float


class DeadTuples(msgspec.Struct, rename="camel"):
    table: str
    live: int
    dead: int
    last_vacuum: str | None
    bytes: int


class PostgresHealth(msgspec.Struct, rename="camel"):
    timestamp: str
    version: str
    started_at: str
    is_standby: bool
    size_bytes: int
    connections: int
    max_connections: int
    # Since the counters began.
    cache_hit_percent: float
    oldest_snapshot_seconds: float
    totals: PostgresTotals
    tables: list[DeadTuples]
    held: list[HeldTransaction]
    slow: list[SlowStatement]
    # Whether PostgreSQL keeps numbers about statements (`pg_stat_statements`).
    counts_statements: bool


class MapNode(msgspec.Struct, rename="camel"):
    id: str
    # `queue`, `pattern` of queues, `group`, `stream`, `pipeline`, or `query`: one of Spark that is
    # no pipeline.
    kind: str
    name: str
    # What is to be known about it: of a queue `pending`, `deadLetters`, `perSecond`; of a group
    # `queue`, `pending`, `paused`; of a pipeline `state`.
    detail: dict[str, Any] = {}


class MapEdge(msgspec.Struct, rename="camel"):
    source: str
    target: str
    # `reads`, `writes`, `late`, or `errors`.
    kind: str
    # Messages a second, over this minute and the one before; null when nobody counts them.
    per_second: float | None = None


class FlowMapAnswer(msgspec.Struct, rename="camel"):
    nodes: list[MapNode]
    edges: list[MapEdge]
    # There is more than is shown.
    more: bool


class StepRow(msgspec.Struct, rename="camel"):
    """A step of a message that was pushed alone."""

    name: str
    # Nanoseconds since 1970, by the clock of the server; of `written` by that of the database.
    at_ns: int
    # How long the server had been at work by then.
    cpu_ns: int


class StepList(msgspec.Struct, rename="camel"):
    steps: list[StepRow]
    # How far the clock of the database is ahead of that of the server.
    database_ahead_ns: int
