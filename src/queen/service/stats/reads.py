"""Numbers that are stored, read for those who show them.

Every method is one statement and has its name; the SQL says what the columns are.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from queen.errors import NotFound
from queen.service.rows import Record
from queen.storage.database import Database

# A half-open time range.
Range = tuple[datetime, datetime]

# Views of PostgreSQL about itself.
POSTGRES_VIEWS = (
    "pg_active_queries",
    "pg_autovacuum",
    "pg_buffer_config",
    "pg_buffer_usage",
    "pg_cache_summary",
    "pg_database",
    "pg_database_cache",
    "pg_dead_tuples",
    "pg_hot_updates",
    "pg_index_cache",
    "pg_table_cache",
    "pg_table_sizes",
)


class QueueFilter(NamedTuple):
    """Which queues: empty texts match all, None is every namespace. In the order of the SQL."""

    queue: str
    namespace: str
    task: str
    namespaces: list[str] | None

    def allows(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


ALL_QUEUES = QueueFilter("", "", "", None)


class StoredNumbers:
    def __init__(self, database: Database) -> None:
        self._fetch = database.fetch
        self._fetchrow = database.fetchrow
        self._fetchval = database.fetchval

    # ---- what there is ----

    async def list_queues(
        self, queue_filter: QueueFilter, limit: int, offset: int, *, by_priority: bool = False
    ) -> list[Record]:
        return await self._fetch("list_queues", *queue_filter, limit, offset, by_priority)

    async def queue(self, queue_filter: QueueFilter) -> Record:
        """Return the only queue that a filter names, with its counts."""
        rows = await self.list_queues(queue_filter, 1, 0)
        if not rows:
            raise NotFound(f"Queue {queue_filter.queue!r} not found")
        return rows[0]

    async def sum_queues(self, queue_filter: QueueFilter) -> Record:
        return await self._fetchrow("sum_queues", *queue_filter)

    async def list_groups(self, queue_filter: QueueFilter, limit: int) -> list[Record]:
        return await self._fetch("list_groups", *queue_filter, limit)

    async def sum_groups(self, queue_filter: QueueFilter, at: datetime | None) -> Record:
        """Return the counts of all groups together, and how they lagged at an instant."""
        return await self._fetchrow("sum_groups", *queue_filter, at)

    async def partition_page(self, queue_id: int, limit: int, offset: int) -> list[Record]:
        return await self._fetch("partition_page", queue_id, limit, offset)

    async def list_namespaces(self, namespaces: list[str] | None) -> list[Record]:
        return await self._fetch("list_namespaces", namespaces)

    async def list_tasks(self, namespaces: list[str] | None) -> list[Record]:
        return await self._fetch("list_tasks", namespaces)

    async def busiest_queues(self) -> list[Record]:
        return await self._fetch("busiest_queues")

    async def stream_gauges(self, limit: int) -> list[Record]:
        return await self._fetch("stream_gauges", limit)

    # ---- what happened ----

    async def cluster_totals(self) -> list[Record]:
        return await self._fetch("cluster_totals")

    async def active_queues(self, within: Range, queue_filter: QueueFilter) -> list[Record]:
        return await self._fetch("active_queues", *within, *queue_filter)

    async def activity_series(
        self, minutes: int, within: Range, queue_filter: QueueFilter
    ) -> list[Record]:
        return await self._fetch("activity_series", minutes, *within, *queue_filter)

    async def queue_series(
        self, minutes: int, within: Range, queue_filter: QueueFilter, queues: int
    ) -> list[Record]:
        return await self._fetch("queue_series", minutes, *within, *queue_filter, queues)

    async def parked_series(
        self, minutes: int, within: Range, queue_filter: QueueFilter
    ) -> list[Record]:
        return await self._fetch("parked_series", minutes, *within, *queue_filter)

    async def retention_series(
        self, minutes: int, within: Range, queue_filter: QueueFilter
    ) -> list[Record]:
        return await self._fetch("retention_series", minutes, *within, *queue_filter)

    # ---- dead letters ----

    async def top_errors(self, queue_filter: QueueFilter, within: Range) -> list[Record]:
        return await self._fetch("top_errors", *queue_filter, *within)

    # ---- servers and PostgreSQL ----

    async def live_servers(self) -> list[Record]:
        return await self._fetch("live_servers")

    async def vitals_series(
        self, minutes: int, within: Range, hostname: str = "", worker: int = -1
    ) -> list[Record]:
        return await self._fetch("vitals_series", minutes, *within, hostname, worker)

    async def oldest_snapshot_s(self) -> float:
        return await self._fetchval("oldest_snapshot_s") or 0.0

    async def postgres(self, view: str) -> list[Record]:
        """Return what PostgreSQL says of itself, in one of `POSTGRES_VIEWS`."""
        assert view in POSTGRES_VIEWS
        return await self._fetch(view)
