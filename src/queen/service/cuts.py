"""Cuts: whole queues read by sealed time.

A cut is an instant before which some queues are complete and will never change. Whoever
reads [T1, T2) between two cuts gets every message exactly once, from any count of partitions,
and gets the same again whenever the range is asked for.

A range is planned into slices of about equal bytes, found by the index on time, so the count of
partitions does not matter. How far a group has read is one instant for each queue, its
`starts_at`: everything that knows where a group stands (lag, retention, seek) already asks
for that where there is no cursor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from queen.errors import Conflict, NotFound
from queen.service.catalog import Partition, Queue
from queen.storage.database import Database, Record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Point(NamedTuple):
    """A place in the order of time."""

    at: datetime
    partition_id: int
    offset: int


class TimeRange(NamedTuple):
    """Segments of a queue in order of time, [start, end)."""

    queue: Queue
    start: Point
    end: Point


class OffsetRange(NamedTuple):
    """Segments of one partition that hold something of [low, high)."""

    partition: Partition
    low: int
    high: int


class Slice(NamedTuple):
    ranges: list[TimeRange | OffsetRange]
    messages: int
    bytes: int


class Plan(NamedTuple):
    until: datetime
    messages: int
    bytes: int
    slices: list[Slice]


class Cuts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def cut(
        self, queues: Sequence[Queue], since: datetime | None, group: str | None
    ) -> tuple[datetime, dict[int, Record]]:
        """Seal queues at one instant; return it, and what there is to know of each by id."""
        ids = [queue.id for queue in queues]
        at: datetime | None = await self._database.fetchval("cut", ids, since)
        rows = await self._database.fetch("cut_queues", ids, group)
        found = {row["id"]: row for row in rows}
        if at is None or len(found) < len(ids):
            raise NotFound("a queue was deleted at the same moment")
        return at, found

    async def progress(
        self, group: str, moves: Mapping[int, int], done_until: datetime | None
    ) -> dict[int, Record]:
        """Note that a group has done everything before an instant; return where it stands.

        Losing this is harmless, it is said again: but it costs one row, so it is not spared.
        """
        ids = sorted(moves)
        rows = await self._database.fetch(
            "record_progress", ids, group, done_until, [moves[one] for one in ids]
        )
        if len(rows) < len(ids):
            raise Conflict(
                f"group {group!r} is one of consumers, which have cursors: "
                "choose another name for the query, or delete the group"
            )
        return {row["queue_id"]: row for row in rows}

    async def admit(
        self,
        sources: Mapping[Queue, datetime],
        until: datetime,
        max_messages: int | None,
        max_bytes: int | None,
    ) -> datetime:
        """Return the latest instant before which there is no more than the limits allow."""
        if max_messages is None and max_bytes is None:
            return until
        ids, times = [queue.id for queue in sources], list(sources.values())
        at: datetime = await self._database.fetchval(
            "admit", ids, times, until, max_messages, max_bytes
        )
        return at

    async def lost(self, sources: Mapping[Queue, datetime]) -> list[str]:
        """Return the queues of which retention has removed something that is asked for."""
        ids, times = [queue.id for queue in sources], list(sources.values())
        return [row["name"] for row in await self._database.fetch("lost_queues", ids, times)]

    async def plan(self, sources: Mapping[Queue, datetime], until: datetime, slices: int) -> Plan:
        """Cut what was written to queues before an instant into slices."""
        ids, times = [queue.id for queue in sources], list(sources.values())
        rows = await self._database.fetch("plan_queues", ids, times, until, slices)
        queues = {queue.id: queue for queue in sources}
        end = Point(until, 0, 0)
        ranges: list[TimeRange | OffsetRange] = []
        for row, after in zip_longest(rows, rows[1:]):
            stop = end
            if after is not None and after["queue_id"] == row["queue_id"]:
                stop = _point(after)
            ranges.append(TimeRange(queues[row["queue_id"]], _point(row), stop))
        return _planned(rows, ranges, until)

    async def plan_partitions(
        self,
        partitions: Mapping[Partition, datetime],
        until: datetime,
        offsets: tuple[int, int],
        slices: int,
    ) -> Plan:
        """Cut a part of some partitions into slices."""
        ids, times = [one.id for one in partitions], list(partitions.values())
        rows = await self._database.fetch("plan_partitions", ids, times, until, *offsets, slices)
        by_id = {one.id: one for one in partitions}
        ranges: list[TimeRange | OffsetRange] = []
        for row, after in zip_longest(rows, rows[1:]):
            high = row["high"]
            if after is not None and after["partition_id"] == row["partition_id"]:
                high = after["base_offset"]
            ranges.append(OffsetRange(by_id[row["partition_id"]], row["base_offset"], high))
        return _planned(rows, ranges, until)


def _planned(rows: list[Record], ranges: list[TimeRange | OffsetRange], until: datetime) -> Plan:
    """Return ranges by slice; each row knows what lies before it, the next one where it ends."""
    if not rows:
        return Plan(until, 0, 0, [])
    messages, size = rows[0]["all_messages"], rows[0]["all_bytes"]
    found: dict[int, Slice] = {}
    ends = [(row["messages_before"], row["bytes_before"]) for row in rows[1:]] + [(messages, size)]
    for row, one, (messages_end, bytes_end) in zip(rows, ranges, ends, strict=True):
        so_far = found.get(row["slice"], Slice([], 0, 0))
        found[row["slice"]] = Slice(
            [*so_far.ranges, one],
            so_far.messages + messages_end - row["messages_before"],
            so_far.bytes + bytes_end - row["bytes_before"],
        )
    return Plan(until, messages, size, list(found.values()))


def _point(row: Record) -> Point:
    return Point(row["created_at"], row["partition_id"], row["base_offset"])


def microseconds(at: datetime) -> int:
    """Return an instant as a number.

    >>> microseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000
    """
    return (at - _EPOCH) // _MICROSECOND


def instant_at(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
