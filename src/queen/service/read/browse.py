"""Browse: messages as an operator looks at them, newest first, with what became of each.

Reading moves no cursor and takes no lease. A page is found by walking the segments of a queue
back in time, counting messages, and decoding only the segments that the page touches.

What became of a message is told for each group by its cursor:

    dead_letter   set aside for good
    completed     before the cursor, or done out of turn
    processing    inside a live lease
    pending       none of these

and for all groups together as the original tells it: queue mode decides where it is used;
without it a message is completed when every group has done it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from queen.core.cursor import bits_from_bytes
from queen.core.frame import Segment
from queen.core.names import QUEUE_MODE_GROUP
from queen.core.visibility import DELETED, ONLY_GROUP
from queen.errors import Unreadable
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database, Record

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
MAX_OFFSET = 1_000_000
_WALK_ROWS = 2000
# Read at a time, as it is stored; one segment at least.
_READ_BYTES = 2 * 1024 * 1024
_END = 2**62

DEAD, COMPLETED, PROCESSING, PENDING = "dead_letter", "completed", "processing", "pending"


class GroupState(NamedTuple):
    """What one group has done with one message."""

    group: str
    status: str
    lease_until: datetime | None
    retry_count: int
    error: str | None


@dataclass(slots=True)
class BrowsedMessage:
    """One message and what became of it. A list of them holds no payloads and no segments."""

    partition: Partition
    offset: int
    created_at: datetime
    transaction_id: str
    payload: bytes
    # Its values of the rare columns.
    extras: dict[str, Any]
    groups: list[GroupState]
    # Why nothing but its place and time is known.
    unreadable: str | None = None

    def column(self, name: str) -> Any:
        return self.extras.get(name)

    @property
    def queue_status(self) -> str:
        """What queue mode has done with it."""
        own = [state.status for state in self.groups if state.group == QUEUE_MODE_GROUP]
        return own[0] if own else PENDING

    @property
    def status(self) -> str:
        statuses = {state.status for state in self.groups}
        if DEAD in statuses:
            return DEAD
        if any(state.group == QUEUE_MODE_GROUP for state in self.groups):
            return self.queue_status
        if statuses == {COMPLETED}:
            return COMPLETED
        return PROCESSING if PROCESSING in statuses else PENDING

    @property
    def consumed_by(self) -> int:
        """How many groups have done it, queue mode not counted."""
        done = {COMPLETED, DEAD}
        bus = [state for state in self.groups if state.group != QUEUE_MODE_GROUP]
        return sum(state.status in done for state in bus)

    @property
    def bus_groups(self) -> int:
        return sum(state.group != QUEUE_MODE_GROUP for state in self.groups)

    @property
    def lease_until(self) -> datetime | None:
        ends = [state.lease_until for state in self.groups if state.lease_until is not None]
        return max(ends, default=None)

    @property
    def retry_count(self) -> int:
        return max((state.retry_count for state in self.groups), default=0)


class Browser:
    def __init__(self, database: Database, catalog: Catalog, encryption: SegmentEncryption) -> None:
        self._database = database
        self._catalog = catalog
        self._encryption = encryption

    async def newest(
        self,
        queue: Queue,
        *,
        partition: Partition | None = None,
        from_time: datetime = EARLIEST,
        to_time: datetime = LATEST,
        limit: int = 50,
        offset: int = 0,
    ) -> list[BrowsedMessage]:
        """Return a page of a queue's messages, newest first; those retention took are gone."""
        parts: list[tuple[Record, int, int]] = []
        skip, left = offset, limit
        last: Record | None = None
        while left:
            rows = await self._walk(queue, partition, from_time, to_time, last)
            for row in rows:
                count = row["end_offset"] - row["first_offset"]
                if skip < count and left:
                    stop = row["end_offset"] - skip
                    start = max(row["first_offset"], stop - left)
                    parts.append((row, start, stop))
                    left -= stop - start
                skip = max(0, skip - count)
            if len(rows) < _WALK_ROWS:
                break
            last = rows[-1]
        return await self._read(parts)

    async def _walk(
        self,
        queue: Queue,
        partition: Partition | None,
        from_time: datetime,
        to_time: datetime,
        last: Record | None,
    ) -> list[Record]:
        """Return where the next segments lie behind the last one of the page before."""
        if partition is not None:
            before = _END if last is None else last["base_offset"]
            return await self._database.fetch(
                "browse_partition", partition.id, before, from_time, to_time, _WALK_ROWS
            )
        at = (to_time, _END, _END)
        if last is not None:
            at = (last["created_at"], last["partition_id"], last["base_offset"])
        return await self._database.fetch("browse_queue", queue.id, from_time, *at, _WALK_ROWS)

    async def at(self, partition: Partition, offset: int) -> BrowsedMessage | None:
        """Return one message, None when it is not, or no longer, there."""
        messages = await self._read_spans([(partition, offset, offset + 1)], with_payloads=True)
        return messages[0] if messages else None

    async def _read(self, parts: list[tuple[Record, int, int]]) -> list[BrowsedMessage]:
        """Return the messages of parts of segments, reading some segments at a time."""
        partitions = await self._catalog.partitions(row["partition_id"] for row, _, _ in parts)
        messages: list[BrowsedMessage] = []
        spans: list[tuple[Partition, int, int]] = []
        size = 0
        for row, start, stop in parts:
            if row["partition_id"] not in partitions:
                continue
            if spans and size + row["bytes"] > _READ_BYTES:
                messages += await self._read_spans(spans)
                spans, size = [], 0
            spans.append((partitions[row["partition_id"]], start, stop))
            size += row["bytes"]
        return messages + await self._read_spans(spans) if spans else messages

    async def _read_spans(
        self, spans: Iterable[tuple[Partition, int, int]], *, with_payloads: bool = False
    ) -> list[BrowsedMessage]:
        """Return the messages of spans of offsets, newest first in each."""
        partitions, starts, stops = zip(*spans, strict=True)
        ids = [partition.id for partition in partitions]
        rows = await self._database.fetch("read_spans", ids, list(starts), list(stops))
        by_id = {partition.id: partition for partition in partitions}
        groups = await self._read_groups(ids, list(starts), list(stops))
        messages = []
        for row in rows:
            at = row["span"] - 1
            low, high = max(starts[at], row["base_offset"]), min(stops[at], row["end_offset"])
            partition = by_id[row["partition_id"]]
            for message in self._decode(partition, row, low, high, with_payloads):
                if not message.column(DELETED):
                    only = message.column(ONLY_GROUP)
                    message.groups = groups.states(partition.id, message.offset, only)
                    messages.append(message)
            # A large segment takes its time; others have their turn before the next one.
            await asyncio.sleep(0)
        return messages

    def _decode(
        self, partition: Partition, row: Record, low: int, high: int, with_payloads: bool
    ) -> list[BrowsedMessage]:
        """Return messages of one segment, newest first. One that does not open hides no other."""
        offsets = range(high - 1, low - 1, -1)
        try:
            segment = self._encryption.decode_segment(row)
        except Unreadable as error:
            if with_payloads:
                raise
            at, why = row["created_at"], error.message
            return [
                BrowsedMessage(partition, offset, at, "", b"", {}, [], why) for offset in offsets
            ]
        messages = []
        for offset in offsets:
            index = offset - row["base_offset"]
            message = _message(partition, row, segment, index)
            if with_payloads:
                message.payload = segment.payloads(index, index + 1)[0]
            messages.append(message)
        return messages

    async def _read_groups(self, ids: list[int], starts: list[int], stops: list[int]) -> _Standing:
        cursors = await self._database.fetch("browse_cursors", list(set(ids)))
        dead_letters = await self._database.fetch("browse_dead_letters", ids, starts, stops)
        return _Standing(cursors, dead_letters)


def _message(partition: Partition, row: Record, segment: Segment, index: int) -> BrowsedMessage:
    return BrowsedMessage(
        partition,
        row["base_offset"] + index,
        row["created_at"],
        segment.id_bytes(index, index + 1)[0].decode(),
        b"",
        {name: column[index] for name, column in segment.extras.items()},
        [],
    )


class _Standing:
    """Where the groups of some partitions stand."""

    def __init__(self, cursors: list[Record], dead_letters: list[Record]) -> None:
        self._cursors: dict[int, list[Record]] = {}
        for row in cursors:
            self._cursors.setdefault(row["partition_id"], []).append(row)
        self._dead_letters = {
            (row["partition_id"], row["group_id"], row["message_offset"]): row
            for row in dead_letters
        }

    def states(self, partition_id: int, offset: int, only: str | None) -> list[GroupState]:
        """Return what each group has done with a message that it is shown."""
        rows = self._cursors.get(partition_id, ())
        return [self._state(row, offset) for row in rows if only in (None, row["name"])]

    def _state(self, row: Record, offset: int) -> GroupState:
        dead = self._dead_letters.get((row["partition_id"], row["group_id"], offset))
        name, following = row["name"], row["next_offset"]
        if dead is not None:
            return GroupState(name, DEAD, None, dead["attempts"], dead["error"])
        done = bits_from_bytes(row["acked"])
        if offset < following or (row["is_read"] and done >> (offset - following) & 1):
            return GroupState(name, COMPLETED, None, 0, None)
        if row["live"] and offset < row["batch_end"]:
            tries = max(row["attempts"] - 1, 0)
            return GroupState(name, PROCESSING, row["lease_until"], tries, None)
        tries = row["attempts"] if offset == following else 0
        return GroupState(name, PENDING, None, tries, None)
