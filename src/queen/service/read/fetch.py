"""Fetch: stored segments as they are, in bulk.

The bytes of a segment are never decoded here: a row becomes a frame by a header in front. Only for
readers who know joined frames are small segments put together, many in one frame.
Pages are bounded in rows and in bytes, and the next one is read when somebody asks for it, so
memory stays flat however much is asked for and however slowly it is taken.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import NamedTuple

from queen.core.frame import Frame, Stretch, pack_frame
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.instants import instant_at, microseconds
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.joined_pages import joined_frames
from queen.service.merged.laid_pages import laid_frames
from queen.service.merged.pages import Part, Place, page_by_offset, page_by_time, unfolded
from queen.service.merged.stretches import Row, is_merged
from queen.service.read.sealed_reads import OffsetRange, Point, TimeRange
from queen.storage.database import Database, Record
from queen.wire.frames.joined_frame import (
    PLAIN,
    Accepted,
    FrameJoiner,
    LoneMessages,
    is_small,
)

_PAGE_ROWS = 256
_SLICE_ROWS = 2000
# Of one page, as it is stored; the first segment of a page is read whatever its size.
_PAGE_BYTES = 2 * 1024 * 1024
_END = 2**62
# Lone messages are put together so many at a time, unless one is larger than that.
_BLOCK_ROWS = 250
_LONE_BYTES = 1024
_COLUMNS = itemgetter("partition_id", "base_offset", "end_offset", "created_at", "codec", "body")
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class _Page(NamedTuple):
    """Rows as they are stored; or parts of rows, where some are merged."""

    rows: list[Record]
    parts: list[Part] | None

    def partition_ids(self) -> set[int]:
        rows = self.rows if self.parts is None else [part.row for part in self.parts]
        return {row["partition_id"] for row in rows}

    def clear(self) -> None:
        self.rows.clear()
        if self.parts is not None:
            self.parts.clear()


_Pages = AsyncGenerator[_Page, None]


class Fetcher:
    def __init__(self, database: Database, catalog: Catalog, encryption: SegmentEncryption) -> None:
        self._database = database
        self._encryption = encryption
        self._catalog = catalog

    async def partition(
        self,
        partition: Partition,
        *,
        from_offset: int = 0,
        to_offset: int | None = None,
        from_time: datetime | None = None,
        to_time: datetime | None = None,
        accepted: Accepted = PLAIN,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of one partition in order, whole segments that touch the range."""
        start = from_offset
        if from_time is not None:
            first: int = await self._database.fetchval("offset_at", partition.id, from_time)
            start = max(start, first)
        start = await self._find_start(partition, start)
        stop = _END if to_offset is None else to_offset

        limit = _SLICE_ROWS if accepted.joined else _PAGE_ROWS
        reader = self._reader_by_offset(partition, start, stop, limit, to_time or _LATEST)
        async for frames in self._pages(reader, accepted):
            yield frames

    async def queue(
        self,
        queue: Queue,
        *,
        from_time: datetime | None = None,
        to_time: datetime | None = None,
        accepted: Accepted = PLAIN,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a queue, in order of time if wanted; each partition in its own."""
        first, rows = from_time or _EARLIEST, _SLICE_ROWS if accepted.joined else _PAGE_ROWS
        part = TimeRange(queue, Point(first, -1, 0), Point(to_time or _LATEST, -1, 0))
        async for frames in self._pages(self._reader_by_time(part, rows), accepted):
            yield frames

    async def ranges(
        self, ranges: Sequence[TimeRange | OffsetRange], *, accepted: Accepted = PLAIN
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of ranges, one after the other."""
        for part in ranges:
            if isinstance(part, OffsetRange):
                low = await self._find_start(part.partition, part.low)
                reader = self._reader_by_offset(part.partition, low, part.high, _SLICE_ROWS)
            else:
                reader = self._reader_by_time(part, _SLICE_ROWS)
            async for frames in self._pages(reader, accepted):
                yield frames

    async def _find_start(self, partition: Partition, offset: int) -> int:
        """Return where what was stored together with an offset begins."""
        return await self._database.findval("segment_start", partition.id, offset) or 0

    def _reader_by_time(self, part: TimeRange, limit: int) -> _Pages:
        async def read() -> _Pages:
            after: Point | None = part.start._replace(offset=part.start.offset - 1)
            until = _place(part.end)
            while after is not None:
                rows = await self._database.fetch(
                    "fetch_queue", part.queue.id, *after, *part.end, limit, _PAGE_BYTES
                )
                if not rows:
                    return
                if not any(map(is_merged, rows)):
                    after = _point_of(rows[-1])
                    yield _Page(rows, None)
                    continue
                page = page_by_time(rows, _place(after), until, is_last=rows[0]["is_last"])
                after = page.end and Point(instant_at(page.end.at_us), *page.end[1:])
                yield _Page([], page.parts)

        return read()

    def _reader_by_offset(
        self,
        partition: Partition,
        low: int,
        stop: int,
        limit: int,
        to_time: datetime = _LATEST,
    ) -> _Pages:
        async def read() -> _Pages:
            start = low
            while start < stop:
                rows = await self._database.fetch(
                    "fetch_partition", partition.id, start, stop, to_time, limit, _PAGE_BYTES
                )
                if not rows:
                    return
                page = _Page(rows, None)
                if any(map(is_merged, rows)):
                    page = _Page([], page_by_offset(rows, start, stop, to_time))
                start = rows[-1]["end_offset"]
                yield page

        return read()

    async def _pages(self, pages: _Pages, accepted: Accepted) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(pages):
            async for page in pages:
                frames = await self._frames(page, accepted)
                # What is sent slowly is held once.
                page.clear()
                if frames:
                    yield frames
                del frames

    async def _frames(self, page: _Page, accepted: Accepted) -> bytes:
        partitions = await self._catalog.partitions(page.partition_ids())
        rows: Sequence[Row] = page.rows
        if page.parts is not None:
            parts = [part for part in page.parts if part.row["partition_id"] in partitions]
            frames = self._frames_of_parts(parts, partitions, accepted)
            if frames is not None:
                return b"".join(frames)
            rows = unfolded(parts, self._encryption)
        rows = [row for row in rows if row["partition_id"] in partitions]
        if accepted.joined and len(rows) > 1:
            return b"".join(self._joined_frames(partitions, rows))
        return b"".join([self._frame(partitions[row["partition_id"]], row) for row in rows])

    def _frames_of_parts(
        self, parts: Sequence[Part], partitions: Mapping[int, Partition], accepted: Accepted
    ) -> list[bytes] | None:
        """Return parts as frames; None when each of their stretches has to go by itself."""
        frames = None
        if parts and accepted.any_order:
            frames = laid_frames(parts, partitions, self._encryption)
        if parts and frames is None and accepted.joined:
            frames = joined_frames(parts, partitions, self._encryption)
        return frames

    def _joined_frames(
        self, partitions: Mapping[int, Partition], rows: Sequence[Row]
    ) -> Iterator[bytes]:
        """Yield the frames of a page in its order, small segments of it put together."""
        # A page is of one queue.
        joiner = FrameJoiner(partitions[rows[0]["partition_id"]].queue.name)
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = rows[first : first + _BLOCK_ROWS]
            if not _join_lone(joiner, partitions, block):
                yield from self._join_each(joiner, partitions, block)
            if joiner.is_full:
                yield from joiner.frames()
        yield from joiner.frames()

    def _join_each(
        self, joiner: FrameJoiner, partitions: Mapping[int, Partition], rows: Sequence[Row]
    ) -> Iterator[bytes]:
        for row in rows:
            partition = partitions[row["partition_id"]]
            codec, body = self._encryption.decrypt_row(row)
            try:
                is_joined = is_small(codec, body)
                if is_joined:
                    joiner.add(_stretch(partition, row), codec, body)
            except Exception:  # Whatever zstd and struct say of it: it goes out as it is.
                is_joined = False
            if not is_joined:
                yield from joiner.frames()
                yield self._frame(partition, row)
            elif joiner.is_full:
                yield from joiner.frames()

    def _frame(self, partition: Partition, row: Row) -> bytes:
        codec, body, raw_bytes = self._encryption.decrypt_sized(row)
        return pack_frame(
            Frame(
                partition.queue.name,
                partition.name,
                row["end_offset"] - row["base_offset"],
                codec,
                raw_bytes,
                body,
                row["base_offset"],
                microseconds(row["created_at"]),
                partition.id,
            )
        )


def _join_lone(
    joiner: FrameJoiner, partitions: Mapping[int, Partition], rows: Sequence[Row]
) -> bool:
    """Put a block of lone messages to the others; false when there is anything else in it."""
    numbers, bases, ends, times, codecs, bodies = zip(*map(_COLUMNS, rows), strict=True)
    are_lone = list(ends) == [base + 1 for base in bases] and not any(codecs)
    if not are_lone or max(map(len, bodies)) > _LONE_BYTES:
        return False
    names = {number: partitions[number].name for number in set(numbers)}
    times_us = list(map(microseconds, times))
    try:
        return joiner.add_lone(LoneMessages(names, numbers, bases, times_us, bodies))
    except struct.error:
        # One of them is cut off.
        return False


def _stretch(partition: Partition, row: Row) -> Stretch:
    base, at_us = row["base_offset"], microseconds(row["created_at"])
    return Stretch(partition.name, partition.id, base, at_us, row["end_offset"] - base)


def _point_of(row: Record) -> Point:
    return Point(row["created_at"], row["partition_id"], row["base_offset"])


def _place(point: Point) -> Place:
    return Place(microseconds(point.at), *point[1:])
