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
import re
from collections.abc import Iterable, Iterator, Mapping
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
from queen.service.merged.stretches import is_merged, table_of
from queen.storage.database import Database, Record

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
MAX_OFFSET = 1_000_000
_WALK_ROWS = 2000
# Read at a time, as it is stored; one segment at least.
_READ_BYTES = 2 * 1024 * 1024
_END = 2**62
# A search in payloads ends after so many messages, or so many stored bytes.
_MAX_SEARCHED = 10_000
_MAX_SEARCHED_BYTES = 32 * 1024 * 1024
_SEARCHED_TOGETHER = 32
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")

DEAD, COMPLETED, PROCESSING, PENDING = "dead_letter", "completed", "processing", "pending"


class GroupState(NamedTuple):
    """What one group has done with one message."""

    group: str
    status: str
    lease_until: datetime | None
    retry_count: int
    error: str | None
    # Who holds it, by name, and the how-manyth delivery of its batch that is.
    consumer: str | None = None
    attempt: int | None = None


@dataclass(slots=True)
class BrowsedMessage:
    """One message and what became of it. A list of them holds no segments, and of payloads
    what was asked for."""

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


class Look(NamedTuple):
    """What is to be told of each message, and which are left out."""

    # How much of its payload; none of it unless something is said.
    payload_bytes: int = 0
    # Only messages with this in their payload or transaction id, in lower case.
    text: str = ""
    # A message that does not open is an error, not an entry that says so.
    strict: bool = False
    # Who holds it; a long list does without.
    holders: bool = False


_WHOLE = Look(payload_bytes=_END, strict=True, holders=True)


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
        payload_bytes: int = 0,
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
        return await self._read(parts, Look(payload_bytes))

    async def containing(
        self,
        queue: Queue,
        text: str,
        *,
        partition: Partition | None = None,
        from_time: datetime = EARLIEST,
        to_time: datetime = LATEST,
        limit: int = 50,
        payload_bytes: int = 0,
    ) -> tuple[list[BrowsedMessage], int]:
        """Return the newest messages with a text in payload or transaction id, and how many were
        looked at: a search is given up after a bounded number of messages and of bytes."""
        look = Look(payload_bytes, text.lower())
        messages: list[BrowsedMessage] = []
        looked_at = size = 0
        last: Record | None = None
        while True:
            rows = await self._walk(queue, partition, from_time, to_time, last)
            for some in _batches(rows, _SEARCHED_TOGETHER):
                if len(messages) >= limit or looked_at >= _MAX_SEARCHED:
                    return messages[:limit], looked_at
                if size >= _MAX_SEARCHED_BYTES:
                    return messages[:limit], looked_at
                parts = [(row, row["first_offset"], row["end_offset"]) for row in some]
                messages += await self._read(parts, look)
                looked_at += sum(stop - start for _, start, stop in parts)
                size += sum(row["bytes"] for row in some)
            if len(rows) < _WALK_ROWS:
                break
            last = rows[-1]
        return messages[:limit], looked_at

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
        messages = await self._read_spans([(partition, offset, offset + 1)], _WHOLE)
        return messages[0] if messages else None

    async def _read(self, parts: list[tuple[Record, int, int]], look: Look) -> list[BrowsedMessage]:
        """Return the messages of parts of segments, reading some segments at a time."""
        partitions = await self._catalog.partitions(row["partition_id"] for row, _, _ in parts)
        messages: list[BrowsedMessage] = []
        some: list[tuple[Record, int, int]] = []
        size = 0
        for part in parts:
            row = part[0]
            if row["partition_id"] not in partitions:
                continue
            if some and size + row["bytes"] > _READ_BYTES:
                messages += await self._read_parts(some, partitions, look)
                some, size = [], 0
            some.append(part)
            size += row["bytes"]
        return messages + await self._read_parts(some, partitions, look) if some else messages

    async def _read_parts(
        self,
        parts: list[tuple[Record, int, int]],
        partitions: Mapping[int, Partition],
        look: Look,
    ) -> list[BrowsedMessage]:
        """Return the messages of parts in their order. Those of one segment, of which there are
        many when it was merged, are read together."""
        bounds: dict[tuple[int, int], tuple[int, int]] = {}
        for row, start, stop in parts:
            key = row["partition_id"], row["segment_base"]
            low, high = bounds.get(key, (start, stop))
            bounds[key] = min(low, start), max(high, stop)
        spans = [(partitions[key[0]], low, high) for key, (low, high) in bounds.items()]
        messages = await self._read_spans(spans, look)
        if len(spans) == len(parts):
            return messages
        by_place = {(message.partition.id, message.offset): message for message in messages}
        places = (
            (row["partition_id"], offset)
            for row, start, stop in parts
            for offset in range(stop - 1, start - 1, -1)
        )
        return [by_place[place] for place in places if place in by_place]

    async def _read_spans(
        self, spans: Iterable[tuple[Partition, int, int]], look: Look
    ) -> list[BrowsedMessage]:
        """Return the messages of spans of offsets, newest first in each."""
        partitions, starts, stops = zip(*spans, strict=True)
        ids = [partition.id for partition in partitions]
        rows = await self._database.fetch("read_spans", ids, list(starts), list(stops))
        by_id = {partition.id: partition for partition in partitions}
        groups = await self._read_groups(ids, list(starts), list(stops), holders=look.holders)
        messages = []
        for row in rows:
            at = row["span"] - 1
            low, high = max(starts[at], row["base_offset"]), min(stops[at], row["end_offset"])
            partition = by_id[row["partition_id"]]
            for message in self._decode(partition, row, low, high, look):
                if not message.column(DELETED):
                    only = message.column(ONLY_GROUP)
                    message.groups = groups.states(partition.id, message.offset, only)
                    messages.append(message)
            # A large segment takes its time; others have their turn before the next one.
            await asyncio.sleep(0)
        return messages

    def _decode(
        self, partition: Partition, row: Record, low: int, high: int, look: Look
    ) -> list[BrowsedMessage]:
        """Return messages of one segment, newest first. One that does not open hides no other."""
        offsets = range(high - 1, low - 1, -1)
        try:
            segment = self._encryption.decode_segment(row)
        except Unreadable as error:
            if look.strict:
                raise
            if look.text:
                return []
            times, why = _times(row, low, high), error.message
            return [
                BrowsedMessage(partition, offset, times[offset - low], "", b"", {}, [], why)
                for offset in offsets
            ]
        messages = []
        times = _times(row, low, high)
        for offset in offsets:
            index = offset - row["base_offset"]
            message = _message(partition, offset, times[offset - low], segment, index)
            if look.payload_bytes or look.text:
                payload = segment.payloads(index, index + 1)[0]
                if look.text and not _contains(message, payload, look.text):
                    continue
                message.payload = payload[: look.payload_bytes]
            messages.append(message)
        return messages

    async def _read_groups(
        self, ids: list[int], starts: list[int], stops: list[int], *, holders: bool
    ) -> _Standing:
        cursors = await self._database.fetch("browse_cursors", list(set(ids)), holders)
        dead_letters = await self._database.fetch("browse_dead_letters", ids, starts, stops)
        shares = any(row["handed"] is not None for row in cursors)
        spans = []
        if shares:
            spans = await self._database.fetch("browse_spans", ids, starts, stops, holders)
        return _Standing(cursors, dead_letters, spans)


def _batches(rows: list[Record], size: int) -> Iterator[list[Record]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _contains(message: BrowsedMessage, payload: bytes, text: str) -> bool:
    """Return whether a text in lower case is in a message, however the payload is escaped."""
    if text in message.transaction_id.lower():
        return True
    inside = payload.decode(errors="replace")
    if "\\u" in inside:
        inside = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), inside)
        # Characters beyond the first plane are escaped as two halves.
        inside = inside.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text in inside.lower()


def _times(row: Record, low: int, high: int) -> list[datetime]:
    """Return when the messages of offsets [low, high) of a row were written."""
    if is_merged(row):
        return table_of(row).times_at(low - row["base_offset"], high - row["base_offset"])
    return [row["created_at"]] * (high - low)


def _message(
    partition: Partition, offset: int, created_at: datetime, segment: Segment, index: int
) -> BrowsedMessage:
    return BrowsedMessage(
        partition,
        offset,
        created_at,
        segment.id_bytes(index, index + 1)[0].decode(),
        b"",
        {name: column[index] for name, column in segment.extras.items()},
        [],
    )


class _Standing:
    """Where the groups of some partitions stand."""

    def __init__(
        self, cursors: list[Record], dead_letters: list[Record], spans: list[Record]
    ) -> None:
        self._spans = spans
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
        if row["handed"] is not None and following <= offset < row["handed"]:
            return self._shared_state(row, offset)
        done = bits_from_bytes(row["acked"])
        if offset < following or (row["is_read"] and done >> (offset - following) & 1):
            return GroupState(name, COMPLETED, None, 0, None)
        if row["live"] and offset < row["batch_end"]:
            return _held(name, row)
        tries = row["attempts"] if offset == following else 0
        return GroupState(name, PENDING, None, tries, None)

    def _shared_state(self, row: Record, offset: int) -> GroupState:
        """Return the same for a message that a shared group has handed out."""
        for span in self._spans:
            at = offset - span["first_offset"]
            decided = bits_from_bytes(span["acked"]) | bits_from_bytes(span["failed"])
            if (
                (span["partition_id"], span["group_id"]) == (row["partition_id"], row["group_id"])
                and 0 <= at < span["end_offset"] - span["first_offset"]
                and not decided >> at & 1
            ):
                until, tries = span["lease_until"], span["attempts"]
                if until is None:
                    return GroupState(row["name"], PENDING, None, tries, None)
                return _held(row["name"], span)
        return GroupState(row["name"], COMPLETED, None, 0, None)


def _held(group: str, lease: Record) -> GroupState:
    """Return the state of a message that is in a live lease."""
    attempt = max(lease["attempts"], 1)
    until, consumer = lease["lease_until"], lease["consumer"]
    return GroupState(group, PROCESSING, until, attempt - 1, None, consumer, attempt)
