"""Consumer groups: pause, move, subscribe, delete.

The database is changed first; then the feeds of this server and of all others are told,
because what they believe of the group is void or who waits can be served.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from queen.errors import Conflict, NotFound
from queen.service.catalog import Partition
from queen.service.events import Events
from queen.service.shared.kinds import Kinds
from queen.storage.database import Database, Record

# What asyncpg takes for PostgreSQL's -infinity and infinity.
BEGINNING = datetime.min.replace(tzinfo=UTC)
END = datetime.max.replace(tzinfo=UTC)
_MAX_QUEUES = 100_000


class SeekTarget(NamedTuple):
    """Where a seek goes: to an offset, or to the first message written at or after an instant."""

    at: datetime
    offset: int | None = None


class SeekResult(NamedTuple):
    """What a seek did, or would do."""

    partitions: int
    again: int
    skipped: int
    # Where the group reads next; only for a seek of one partition.
    offset: int
    # The instant that was really taken; None for the beginning and for an offset.
    at: datetime | None


class Groups:
    def __init__(self, database: Database, kinds: Kinds, events: Events) -> None:
        self._database = database
        self._kinds = kinds
        self._events = events
        # Grows with everything that changes what a group has not read.
        self.version = 0

    async def page(
        self,
        group: str | None,
        queue: str | None,
        limit: int,
        offset: int,
        among: list[str] | None = None,
    ) -> list[Record]:
        """Return groups by name, one row for each queue they read; `among` some namespaces."""
        return await self._database.fetch("groups_page", group, queue, limit, offset, among)

    async def find(
        self, group: str, queue: str | None = None, among: list[str] | None = None
    ) -> list[Record]:
        """Return a group in all its queues, or in one; raises when there is no such group."""
        rows = await self.page(group, queue, _MAX_QUEUES, 0, among)
        if not rows:
            where = f" of queue {queue!r}" if queue is not None else ""
            raise NotFound(f"Consumer group {group!r}{where} not found")
        return rows

    async def pause(self, rows: list[Record], paused: bool) -> None:
        """Give a group nothing from now on, or serve it again, whether it was paused by somebody
        or by its breaker."""
        await self._database.execute("pause_groups", [row["id"] for row in rows], paused)
        if not paused:
            await self._database.execute("close_breakers", [row["id"] for row in rows])
            self._look_again(rows)

    async def share(self, rows: list[Record], shared: bool) -> None:
        """Let a group be shared, or read in order."""
        if any(row["reads_by_time"] for row in rows):
            raise Conflict(
                f"group {rows[0]['name']!r} is that of a query, which reads all partitions up to "
                "one time"
            )
        await self._kinds.set([row["id"] for row in rows], shared=shared)

    async def subscribe(self, rows: list[Record], starts_at: datetime) -> None:
        """Change where a group starts in partitions that it has not read yet."""
        await self._database.execute("subscribe_groups", [row["id"] for row in rows], starts_at)
        self.version += 1
        self._look_again(rows)

    async def delete(self, rows: list[Record], *, metadata: bool) -> int:
        """Delete the progress of a group, and its subscription; return from how many
        partitions. Its dead letters stay."""
        deleted = 0
        for row in rows:
            deleted += await self._database.fetchval("delete_group", row["id"], metadata) or 0
            self._events.group_deleted(row["queue_id"], row["id"])
        self.version += 1
        return deleted

    async def seek(
        self, group: Record, partition: Partition | None, target: SeekTarget, *, dry: bool
    ) -> SeekResult:
        """Move a group in one partition, or (None) in all of its queue, and end its leases."""
        at = target.at
        if group["reads_by_time"] and partition is not None:
            raise Conflict(
                f"group {group['name']!r} is that of a query, which reads all partitions up to one "
                "time: move it in all of the queue"
            )
        if not dry and target.offset is None and at != BEGINNING:
            # Nothing that is before the target may come up behind our back.
            sealed_until: datetime | None = await self._database.fetchval("seal", group["queue_id"])
            at = min(at, sealed_until or at)
        partition_id = partition.id if partition is not None else None
        rows = await self._database.fetch("seek", group["id"], partition_id, at, target.offset, dry)
        if not rows:
            raise NotFound(f"Consumer group {group['name']!r} was deleted")
        if not dry:
            self.version += 1
            self._events.group_moved(group["queue_id"], group["id"])
        (row,) = rows
        taken = None if target.offset is not None or at in (BEGINNING, END) else at
        moved = (row["partitions"], row["again"], row["skipped"], row["new_offset"] or 0)
        return SeekResult(*moved, taken)

    async def written_at(self, partition: Partition, offset: int) -> datetime | None:
        at: datetime | None = await self._database.findval("written_at", partition.id, offset)
        return at

    def _look_again(self, rows: list[Record]) -> None:
        for row in rows:
            self._events.group_resumed(row["queue_id"], row["id"])
