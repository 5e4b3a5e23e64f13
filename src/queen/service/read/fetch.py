"""Fetch: stored segments as they are, in bulk.

The bytes of a segment are never decoded here: a row becomes a frame by a header in front. Only for
readers who know joined frames are small segments put together, many in one frame.
Pages are bounded in rows and in bytes, and the next one is read when somebody asks for it, so
memory stays flat however much is asked for and however slowly it is taken.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from queen.core.frame import Frame, Stretch, pack_frame, raw_size
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.read.sealed_reads import OffsetRange, Point, TimeRange, microseconds
from queen.storage.database import Database, Record
from queen.wire.frames.joined_frame import FrameJoiner, LoneMessages, is_small

_PAGE_ROWS = 256
_SLICE_ROWS = 2000
# Of one page, as it is stored; the first segment of a page is read whatever its size.
_PAGE_BYTES = 2 * 1024 * 1024
_END = 2**62
# Lone messages are put together so many at a time, unless one is larger than that.
_BLOCK_ROWS = 250
_LONE_BYTES = 1024
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)

_Page = list[Record]


class _End(NamedTuple):
    """Where a page ended."""

    point: Point
    end_offset: int


# Given where a page ended, or None, reads the next one.
_NextPage = Callable[[_End | None], Coroutine[Any, Any, _Page]]


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
        joined: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of one partition in order, whole segments that touch the range."""
        start = from_offset
        if from_time is not None:
            first: int = await self._database.fetchval("offset_at", partition.id, from_time)
            start = max(start, first)
        start = await self._database.findval("segment_start", partition.id, start) or 0
        stop = _END if to_offset is None else to_offset

        async def read_page(after: _End | None) -> _Page:
            low = start if after is None else after.end_offset
            return await self._database.fetch(
                "fetch_partition",
                partition.id,
                low,
                stop,
                to_time or _LATEST,
                _SLICE_ROWS if joined else _PAGE_ROWS,
                _PAGE_BYTES,
            )

        async for frames in self._pages(read_page, joined):
            yield frames

    async def queue(
        self,
        queue: Queue,
        *,
        from_time: datetime | None = None,
        to_time: datetime | None = None,
        joined: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a queue in order of time; each partition stays in order."""
        first, rows = from_time or _EARLIEST, _SLICE_ROWS if joined else _PAGE_ROWS

        async def read_page(after: _End | None) -> _Page:
            at = Point(first, -1, -1) if after is None else after.point
            return await self._database.fetch(
                "fetch_queue", queue.id, *at, to_time or _LATEST, rows, _PAGE_BYTES
            )

        async for frames in self._pages(read_page, joined):
            yield frames

    async def ranges(
        self, ranges: Sequence[TimeRange | OffsetRange], *, joined: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of ranges, one after the other."""
        for part in ranges:
            if isinstance(part, OffsetRange):
                read_page = self._reader_by_offset(part)
            else:
                read_page = self._reader_by_time(part)
            async for frames in self._pages(read_page, joined):
                yield frames

    def _reader_by_time(self, part: TimeRange) -> _NextPage:
        async def read_page(after: _End | None) -> _Page:
            low = part.start
            if after is not None:
                low = after.point._replace(offset=after.point.offset + 1)
            return await self._database.fetch(
                "fetch_slice", part.queue.id, *low, *part.end, _SLICE_ROWS, _PAGE_BYTES
            )

        return read_page

    def _reader_by_offset(self, part: OffsetRange) -> _NextPage:
        async def read_page(after: _End | None) -> _Page:
            low = part.low if after is None else after.end_offset
            if after is None:
                low = await self._database.findval("segment_start", part.partition.id, low) or 0
            return await self._database.fetch(
                "fetch_offsets", part.partition.id, low, part.high, _SLICE_ROWS, _PAGE_BYTES
            )

        return read_page

    async def _pages(self, read_page: _NextPage, joined: bool) -> AsyncGenerator[bytes, None]:
        rows = await read_page(None)
        while rows:
            end = _end_of(rows[-1])
            frames = await self._frames(rows, joined)
            # What is sent slowly is held once.
            rows.clear()
            yield frames
            del frames
            rows = await read_page(end)

    async def _frames(self, rows: _Page, joined: bool) -> bytes:
        partitions = await self._catalog.partitions({row["partition_id"] for row in rows})
        if joined and len(rows) > 1:
            return b"".join(self._joined_frames(partitions, rows))
        frames = []
        for row in rows:
            partition = partitions.get(row["partition_id"])
            if partition is not None:
                frames.append(self._frame(partition, row))
        return b"".join(frames)

    def _joined_frames(self, partitions: Mapping[int, Partition], rows: _Page) -> Iterator[bytes]:
        """Yield the frames of a page in its order, small segments of it put together."""
        rows = [row for row in rows if row["partition_id"] in partitions]
        if not rows:
            return
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
        self, joiner: FrameJoiner, partitions: Mapping[int, Partition], rows: _Page
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

    def _frame(self, partition: Partition, row: Record) -> bytes:
        codec, body = self._encryption.decrypt_row(row)
        return pack_frame(
            Frame(
                partition.queue.name,
                partition.name,
                row["end_offset"] - row["base_offset"],
                codec,
                raw_size(codec, body),
                body,
                row["base_offset"],
                microseconds(row["created_at"]),
                partition.id,
            )
        )


def _join_lone(joiner: FrameJoiner, partitions: Mapping[int, Partition], rows: _Page) -> bool:
    """Put a block of lone messages to the others; false when there is anything else in it."""
    numbers, bases, ends, times, codecs, bodies = zip(*rows, strict=True)
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


def _stretch(partition: Partition, row: Record) -> Stretch:
    base, at_us = row["base_offset"], microseconds(row["created_at"])
    return Stretch(partition.name, partition.id, base, at_us, row["end_offset"] - base)


def _end_of(row: Record) -> _End:
    at = Point(row["created_at"], row["partition_id"], row["base_offset"])
    return _End(at, row["end_offset"])
