"""The messages of a window.

A window is a list of offset ranges; what lies in them is sealed and never changes, so the same
window read twice is the same. Messages that were deleted, and copies of dead letters that only
one queue group is to see, are left out. What retention has removed is counted: a consumer that
comes too late is told how much it missed.

A window that fits is read at once, in the order of time. A larger one is read range by range, a
page at a time: a page ends when it has its messages, or when it holds enough bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from queen.core.frame import Segment
from queen.core.visibility import DELETED, ONLY_GROUP
from queen.service.catalog import Catalog, Partition
from queen.service.log.segment_cache import StoredSegment
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.stretches import is_merged, stretches_of
from queen.service.read.fetch import Fetcher
from queen.storage.database import Database, Record
from queen.wire.frames.joined_frame import PLAIN, Accepted

_PAGE_ROWS = 64
# Read at a time, as it is stored; one segment at least.
_PAGE_BYTES = 2 * 1024 * 1024
# What a page holds decoded, and the last segment of it beside that.
_DECODED_BYTES = 8 * 1024 * 1024


class WindowSpan(NamedTuple):
    """Offsets [low, high) of a partition."""

    partition_id: int
    low: int
    high: int


class SegmentPart(NamedTuple):
    """Messages [low, high) of a stored segment, counted from its first."""

    partition: Partition
    stored: StoredSegment
    low: int
    high: int

    def visible(self) -> list[int]:
        """Return which of them are shown."""
        segment = self.stored.segment
        deleted, only = segment.column(DELETED), segment.column(ONLY_GROUP)
        positions = range(self.low, self.high)
        if deleted is None and only is None:
            return list(positions)
        return [at for at in positions if not _is_hidden(deleted, only, at)]


def _is_hidden(deleted: Sequence[object] | None, only: Sequence[object] | None, at: int) -> bool:
    return bool((deleted and deleted[at]) or (only and only[at]))


class PagePosition(NamedTuple):
    """Where the next page of a window begins: the range, and the offset in it."""

    span: int
    offset: int


class Content:
    def __init__(
        self, database: Database, catalog: Catalog, encryption: SegmentEncryption, fetcher: Fetcher
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._encryption = encryption
        self._fetcher = fetcher

    async def lost(self, spans: list[WindowSpan]) -> int:
        """Return how many messages of a window retention has removed."""
        rows = await self._database.fetch("tails", [span.partition_id for span in spans])
        tails = {row["id"]: row["tail"] for row in rows}
        # A partition that is gone has lost all.
        return sum(
            min(span.high, max(span.low, tails.get(span.partition_id, span.high))) - span.low
            for span in spans
        )

    async def parts(self, spans: list[WindowSpan], max_bytes: int) -> list[SegmentPart] | None:
        """Return everything in order of time, or None when it is more than so many bytes."""
        rows = await self._database.fetch("window_segments", *_columns(spans), max_bytes)
        if rows and rows[0]["all_bytes"] > max_bytes:
            return None
        merged = [row for row in rows if is_merged(row)]
        size = sum(self._raw_bytes(row) for row in rows if not is_merged(row))
        if size > max_bytes:
            return None
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        parts = [
            part
            for row in rows
            if row["partition_id"] in partitions
            for part in self._parts(partitions[row["partition_id"]], row)
        ]
        if merged:
            parts.sort(key=_place)
            size = sum(part.stored.segment.body_bytes for part in parts)
        return parts if size <= max_bytes else None

    def _raw_bytes(self, row: Record) -> int:
        return self._encryption.decrypt_sized(row)[2]

    async def page(
        self, spans: list[WindowSpan], position: PagePosition, limit: int
    ) -> tuple[list[tuple[SegmentPart, list[int]]], PagePosition | None]:
        """Return some messages of a window, range by range, and where the next page begins."""
        parts: list[tuple[SegmentPart, list[int]]] = []
        left, decoded_bytes = limit, 0
        for number in range(position.span, len(spans)):
            low = position.offset if number == position.span else 0
            async for part in self._walk(spans[number], low):
                visible = part.visible()
                is_full = decoded_bytes > _DECODED_BYTES
                if visible and (is_full or len(visible) > left):
                    shown = 0 if is_full else left
                    if shown:
                        parts.append((part, visible[:shown]))
                    return parts, PagePosition(number, part.stored.base_offset + visible[shown])
                if visible:
                    parts.append((part, visible))
                    left -= len(visible)
                    decoded_bytes += part.stored.segment.size_bytes
        return parts, None

    async def _walk(self, span: WindowSpan, low: int) -> AsyncGenerator[SegmentPart, None]:
        """Yield what a range holds from an offset on; each segment is decoded when it is due."""
        offset = max(span.low, low)
        partition = (await self._catalog.partitions([span.partition_id])).get(span.partition_id)
        while partition is not None and offset < span.high:
            rows = await self._database.fetch(
                "window_page", span.partition_id, offset, span.high, _PAGE_ROWS, _PAGE_BYTES
            )
            if not rows:
                return
            offset = rows[-1]["end_offset"]
            for row in rows:
                for part in self._parts(partition, row):
                    yield part

    async def frames(
        self, spans: list[WindowSpan], *, accepted: Accepted = PLAIN
    ) -> AsyncGenerator[bytes, None]:
        """Yield the stored segments of a window as they are, range by range."""
        partitions = await self._catalog.partitions(span.partition_id for span in spans)
        for span in spans:
            partition = partitions.get(span.partition_id)
            if partition is None:
                continue
            async for frames in self._fetcher.partition(
                partition, from_offset=span.low, to_offset=span.high, accepted=accepted
            ):
                yield frames

    def _parts(self, partition: Partition, row: Record) -> Iterator[SegmentPart]:
        """Yield what a row holds of the range that it was read for."""
        segment: Segment = self._encryption.decode_segment(row)
        for stretch in stretches_of(row, segment, row["low"], row["high"]):
            stored = StoredSegment(*stretch)
            yield SegmentPart(partition, stored, *stored.part(row["low"], row["high"]))


def _place(part: SegmentPart) -> tuple[datetime, int, int]:
    return part.stored.created_at, part.partition.id, part.stored.base_offset


def _columns(spans: list[WindowSpan]) -> tuple[list[int], list[int], list[int]]:
    return (
        [span.partition_id for span in spans],
        [span.low for span in spans],
        [span.high for span in spans],
    )
