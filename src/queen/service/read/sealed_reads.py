"""Sealed reads: whole queues read by sealed time.

A cut is an instant before which some queues are complete and will never change. Whoever
reads [T1, T2) between two cuts gets every message exactly once, from any count of partitions,
and gets the same again whenever the range is asked for.

A range is planned into slices of about equal bytes, found by the index on time, so the count of
partitions does not matter. It is walked in pages, each a short statement, and of a page some
marks are kept at which a slice may begin: enough of them, however long the range.

A pattern of queues is cut at one instant as well, which holds for the queues that match it later:
they begin behind it (`queen.cut_matching`).

How far a group has read is one instant for each queue, its `starts_at`: everything that knows
where a group stands (lag, retention, seek) already asks for that where there is no cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from queen.core.names import like_of
from queen.errors import BadRequest, Conflict, NotFound
from queen.service.catalog import Partition, Queue
from queen.service.scope import Viewer, listed
from queen.storage.database import Database, Record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# How many segments one statement looks at, and how many marks it answers at most, about.
PAGE_ROWS = 50_000
_PAGE_MARKS = 1000
# Above this every second mark is dropped. A few for each slice of the finest plan are left.
_MAX_MARKS = 50_000
# Of queues that match a pattern.
MAX_QUEUES = 1000
# What a segment weighs beside its bytes.
_SEGMENT_BYTES = 256


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


class Held(NamedTuple):
    """What a plan holds of a queue or of a partition."""

    messages: int = 0
    bytes: int = 0

    def plus(self, messages: int, size: int) -> Held:
        return Held(self.messages + messages, self.bytes + size)


class Plan(NamedTuple):
    until: datetime
    messages: int
    bytes: int
    slices: list[Slice]
    # By the id of the queue, or of the partition.
    held: dict[int, Held]


class Mark(NamedTuple):
    """Where a slice may begin in a queue or a partition, and what the plan holds before it."""

    source: int
    at: Point
    messages: int
    bytes: int
    weight: int


class Walk:
    """What a range holds, page by page."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.held: dict[int, Held] = {}
        self.messages = self.bytes = self._weight = 0

    def add(self, source: int, page: list[tuple[Point, Record]]) -> None:
        """Add the marks of a page of a source."""
        for at, row in page:
            weight = row["bytes_before"] + _SEGMENT_BYTES * row["before"]
            messages = self.messages + row["messages_before"]
            size = self.bytes + row["bytes_before"]
            self.marks.append(Mark(source, at, messages, size, self._weight + weight))
        (_, last) = page[-1]
        self.messages += last["all_messages"]
        self.bytes += last["all_bytes"]
        held = self.held.get(source, Held())
        self.held[source] = held.plus(last["all_messages"], last["all_bytes"])
        self._weight += last["all_bytes"] + _SEGMENT_BYTES * last["looked"]
        if len(self.marks) > _MAX_MARKS:
            self._thin_out()

    def _thin_out(self) -> None:
        """Keep every second mark, and the first of each source."""
        before = [None, *(mark.source for mark in self.marks)]
        self.marks = [
            mark
            for number, mark in enumerate(self.marks)
            if number % 2 == 0 or before[number] != mark.source
        ]

    def edges(self, slices: int) -> list[tuple[int, Mark]]:
        """Return where slices begin, or go on in the next source, with their numbers."""
        edges: list[tuple[int, Mark]] = []
        for mark in self.marks:
            number = mark.weight * slices // self._weight
            if not edges or edges[-1][0] != number or edges[-1][1].source != mark.source:
                edges.append((number, mark))
        return edges


class SealedReads:
    def __init__(self, database: Database, page_rows: int = PAGE_ROWS) -> None:
        self._database = database
        self._page_rows = page_rows

    async def cut(
        self, queues: Sequence[Queue], since: datetime | None, group: str | None
    ) -> tuple[datetime, dict[int, Record]]:
        """Seal queues at one instant; return it, and what there is to know of each by id."""
        ids = [queue.id for queue in queues]
        at: datetime | None = await self._database.fetchval("cut", ids, since)
        rows = await self._database.fetch("cut_queues", ids, group)
        by_id = {row["id"]: row for row in rows}
        if at is None or len(by_id) < len(ids):
            raise NotFound("a queue was deleted at the same moment")
        return at, by_id

    async def cut_matching(
        self, viewer: Viewer, pattern: str, since: datetime | None, group: str | None
    ) -> tuple[datetime, list[Record]]:
        """Seal the queues that match, now or later, and that the viewer may see."""
        namespaces = listed(viewer.namespaces)
        row = await self._database.fetchrow(
            "cut_matching", like_of(pattern), namespaces, since, MAX_QUEUES
        )
        if len(row["queues"]) > MAX_QUEUES:
            raise BadRequest(
                f"{len(row['queues'])} queues match {pattern!r}: at most {MAX_QUEUES} can be read "
                "as one"
            )
        rows = await self._database.fetch("cut_queues", row["queues"], group)
        return row["sealed"], sorted(rows, key=lambda cut: cut["name"])

    async def progress(
        self,
        group: str,
        moves: Mapping[int, int],
        done_until: datetime | None,
        *,
        may_be_gone: bool = False,
    ) -> dict[int, Record]:
        """Note that a group has done everything before an instant; return where it stands.

        Losing this is harmless, it is said again: but it costs one row, so it is not spared.
        """
        ids = sorted(moves)
        rows = await self._database.fetch(
            "record_progress", ids, group, done_until, [moves[queue_id] for queue_id in ids]
        )
        missing = set(ids) - {row["queue_id"] for row in rows}
        if missing and may_be_gone:
            missing &= {row["id"] for row in await self._database.fetch("cut_queues", ids, group)}
        if missing:
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
        if not sources or (max_messages is None and max_bytes is None):
            return until
        ids, times = [queue.id for queue in sources], list(sources.values())
        at: datetime = await self._database.fetchval(
            "latest_instant_within", ids, times, until, max_messages, max_bytes
        )
        return at

    async def lost(self, sources: Mapping[Queue, datetime]) -> list[str]:
        """Return the queues of which retention has removed something that is asked for."""
        ids, times = [queue.id for queue in sources], list(sources.values())
        return [row["name"] for row in await self._database.fetch("lost_queues", ids, times)]

    async def plan(self, sources: Mapping[Queue, datetime], until: datetime, slices: int) -> Plan:
        """Cut what was written to queues before an instant into slices."""
        walk = Walk()
        for queue, since in (await self._written(sources, until)).items():
            after: Point | None = Point(since, -1, -1)
            while after is not None:
                after = await self._add_page(walk, queue, after, until)
        queues, end = {queue.id: queue for queue in sources}, Point(until, 0, 0)
        edges = walk.edges(slices)
        ranges: list[TimeRange | OffsetRange] = [
            TimeRange(queues[mark.source], mark.at, _end(mark, after, end))
            for (_, mark), after in _with_next(edges)
        ]
        return _build_plan(walk, edges, ranges, until)

    async def _written(
        self, sources: Mapping[Queue, datetime], until: datetime
    ) -> Mapping[Queue, datetime]:
        """Leave out queues without anything to plan: of many, most are idle."""
        if len(sources) < 2:
            return sources
        ids, times = [queue.id for queue in sources], list(sources.values())
        rows = await self._database.fetch("written_queues", ids, times, until)
        written = {row["id"] for row in rows}
        return {queue: since for queue, since in sources.items() if queue.id in written}

    async def _add_page(
        self, walk: Walk, queue: Queue, after: Point, until: datetime
    ) -> Point | None:
        """Add what lies behind a point; return where that ends, None at the end of the queue."""
        rows = await self._database.fetch(
            "plan_page", queue.id, *after, until, self._page_rows, _PAGE_MARKS
        )
        if not rows:
            return None
        walk.add(queue.id, [(_point(row), row) for row in rows])
        (row, *_) = rows
        end = Point(row["end_at"], row["end_partition"], row["end_base"])
        return end if row["is_full"] else None

    async def plan_partitions(
        self,
        partitions: Mapping[Partition, datetime],
        until: datetime,
        offsets: tuple[int, int],
        slices: int,
    ) -> Plan:
        """Cut a part of some partitions into slices."""
        ids, times = [partition.id for partition in partitions], list(partitions.values())
        by_id = {partition.id: partition for partition in partitions}
        walk, highs = Walk(), {}
        for row in await self._database.fetch("plan_bounds", ids, times, until, *offsets):
            highs[row["partition_id"]] = row["high"]
            low: int | None = row["low"]
            while low is not None:
                low = await self._add_offsets(walk, row["partition_id"], low, row["high"])
        edges = walk.edges(slices)
        ranges: list[TimeRange | OffsetRange] = []
        for (_, mark), later in _with_next(edges):
            end = Point(until, mark.source, highs[mark.source])
            high = _end(mark, later, end).offset
            ranges.append(OffsetRange(by_id[mark.source], mark.at.offset, high))
        return _build_plan(walk, edges, ranges, until)

    async def _add_offsets(self, walk: Walk, partition_id: int, low: int, high: int) -> int | None:
        """Add what lies behind an offset; return where that ends, None at the end."""
        rows = await self._database.fetch(
            "plan_offsets_page", partition_id, low, high, self._page_rows, _PAGE_MARKS
        )
        if not rows:
            return None
        page = [(Point(_EPOCH, partition_id, row["base_offset"]), row) for row in rows]
        walk.add(partition_id, page)
        read_to: int = rows[-1]["read_to"]
        return read_to if rows[-1]["is_full"] and read_to < high else None


def _with_next(
    edges: list[tuple[int, Mark]],
) -> Iterable[tuple[tuple[int, Mark], tuple[int, Mark] | None]]:
    return zip(edges, [*edges[1:], None], strict=False)


def _end(mark: Mark, after: tuple[int, Mark] | None, end: Point) -> Point:
    """Return where a range ends: at the next edge of its source, or with the source."""
    return after[1].at if after is not None and after[1].source == mark.source else end


def _build_plan(
    walk: Walk,
    edges: list[tuple[int, Mark]],
    ranges: list[TimeRange | OffsetRange],
    until: datetime,
) -> Plan:
    """Return ranges by slice; each edge knows what lies before it, the next one where it ends."""
    slices: dict[int, Slice] = {}
    ends = [(mark.messages, mark.bytes) for _, mark in edges[1:]] + [(walk.messages, walk.bytes)]
    for (number, mark), part, (messages_end, bytes_end) in zip(edges, ranges, ends, strict=False):
        so_far = slices.get(number, Slice([], 0, 0))
        slices[number] = Slice(
            [*so_far.ranges, part],
            so_far.messages + messages_end - mark.messages,
            so_far.bytes + bytes_end - mark.bytes,
        )
    return Plan(until, walk.messages, walk.bytes, list(slices.values()), walk.held)


def _point(row: Record) -> Point:
    return Point(row["created_at"], row["partition_id"], row["base_offset"])
