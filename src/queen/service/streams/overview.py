"""Streams for people: lists, how far groups are, and why a window is where it is."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from queen.core.streams import StreamDefinition
from queen.service.streams.definitions import Stream
from queen.storage.database import Database, Record

# Keys that one explanation lists.
_EXPLAINED = 100


class Reason(NamedTuple):
    """Why a key is where it is."""

    key: str
    state: str
    why: str
    row: Record


class Overview:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def streams(
        self, namespaces: list[str] | None, limit: int, offset: int, name: str = ""
    ) -> list[Record]:
        return await self._database.fetch("streams_page", namespaces, name, limit, offset)

    async def stats(self, namespaces: list[str] | None) -> Record:
        return await self._database.fetchrow("stream_stats", namespaces)

    async def consumers(self, stream: Stream, limit: int, offset: int) -> list[Record]:
        return await self._database.fetch("stream_consumers", stream.id, limit, offset)

    async def windows(
        self, stream: Stream, key: str | None, limit: int, offset: int
    ) -> list[Record]:
        return await self._database.fetch("stream_windows", stream.id, key, limit, offset)

    async def group_windows(
        self, group_id: int, key: str | None, state: str | None, limit: int, offset: int
    ) -> list[Record]:
        return await self._database.fetch("group_windows", group_id, key, state, limit, offset)

    async def timeline(
        self, stream: Stream, group_id: int | None, key: str | None, keys: int, windows: int
    ) -> tuple[list[Record], list[Record]]:
        """Return the last windows of the keys that matter most, and what is open of sessions."""
        rows = await self._database.fetch(
            "stream_timeline", stream.id, group_id, key, keys, windows
        )
        return rows, await self._database.fetch("explained_open", stream.id, key, _EXPLAINED)

    async def dead(
        self, stream: Stream, group: str, limit: int, offset: int
    ) -> tuple[list[Record], int]:
        rows = await self._database.fetch("dead_windows", stream.id, group, limit, offset)
        total: int = await self._database.fetchval("count_dead_windows", stream.id, group)
        return rows, total

    async def ranges(
        self,
        stream: Stream,
        since: datetime,
        until: datetime,
        after_end: datetime,
        after_id: int,
        group_id: int | None,
        limit: int,
    ) -> list[Record]:
        """Return whole windows between two times, with a group those that it has finished."""
        return await self._database.fetch(
            "window_ranges", stream.id, since, until, after_end, after_id, group_id, limit
        )

    async def pause_group(self, stream: Stream, group: str, paused: bool) -> bool:
        """Stop handing out windows to a group, or go on; false when there is none."""
        paused_id = await self._database.findval("pause_stream_group", stream.id, group, paused)
        return paused_id is not None

    async def delete_group(self, stream: Stream, group: str) -> bool:
        """Forget what a group has done; false when there is none."""
        deleted_id = await self._database.findval("delete_stream_group", stream.id, group)
        return deleted_id is not None

    async def explain(self, stream: Stream, group_id: int | None, key: str | None) -> list[Reason]:
        """Return why each unfinished key of a group, or each open one, is not further."""
        reasons: list[Reason] = []
        if group_id is not None:
            rows = await self._database.fetch("explained_work", group_id, key, _EXPLAINED)
            reasons += [_reason_for_work(row) for row in rows]
            dead = await self._database.fetch("explained_dead", group_id, key, _EXPLAINED)
            reasons += [
                Reason(row["key"], "dead", f"given up after {row['attempts']} tries", row)
                for row in dead
            ]
        rows = await self._database.fetch("explained_open", stream.id, key, _EXPLAINED)
        return reasons + [_reason_for_open(row, stream.definition) for row in rows]


def _reason_for_work(row: Record) -> Reason:
    if row["state"] == 0:
        why = "waits until earlier windows of its key are done"
        return Reason(row["key"], "waiting", why, row)
    if row["lease_id"] is not None and row["is_held"]:
        holder = row["consumer"] or "a consumer without a name"
        return Reason(row["key"], "leased", f"held by {holder}", row)
    if row["is_held"]:
        why = f"failed {row['attempts']} times and waits before the next try"
        return Reason(row["key"], "retrying", why, row)
    why = "ready: nobody has asked for it yet"
    if row["attempts"]:
        why = "ready again: its last consumer did not come back in time"
    return Reason(row["key"], "ready", why, row)


def _reason_for_open(row: Record, definition: StreamDefinition) -> Reason:
    if definition.window_type == "count":
        why = f"waits for {definition.window_size_count} messages"
    else:
        why = "open until nothing has arrived for the gap of a session"
    return Reason(row["key"], "open", why, row)


def next_end(stream: Stream, now: datetime) -> datetime | None:
    """Return where the window ends that is open now; sessions and counts have no such time."""
    definition = stream.definition
    if not definition.is_timed:
        return None
    epoch = now.fromtimestamp(0, now.tzinfo)
    return now - (now - epoch) % definition.slide + definition.slide
