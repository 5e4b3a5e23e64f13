"""The messages of a window.

A window is a list of offset ranges; what lies in them is sealed and never changes, so the same
window read twice is the same. Messages that were deleted, and copies of dead letters that only
one queue group is to see, are left out. What retention has removed is counted: a consumer that
comes too late is told how much it missed.

A window that fits is read at once, in the order of time. A larger one is read range by range, a
page at a time: a page ends when it has its messages, or when it holds enough bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from queen.core.frame import Segment, raw_size
from queen.core.visibility import DELETED, ONLY_GROUP
from queen.service.catalog import Catalog, Partition
from queen.service.log.segment_cache import StoredSegment
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.read.fetch import Fetcher
from queen.storage.database import Database, Record

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
        opened = [self._encryption.decrypt_row(row) for row in rows]
        if sum(raw_size(codec, body) for codec, body in opened) > max_bytes:
            return None
        bounds = {span.partition_id: span for span in spans}
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        return [
            self._part(partitions[row["partition_id"]], row, bounds[row["partition_id"]])
            for row in rows
            if row["partition_id"] in partitions
        ]

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
            bounds = span._replace(low=offset)
            offset = rows[-1]["end_offset"]
            for row in rows:
                yield self._part(partition, row, bounds)

    async def frames(
        self, spans: list[WindowSpan], *, joined: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the stored segments of a window as they are, range by range."""
        partitions = await self._catalog.partitions(span.partition_id for span in spans)
        for span in spans:
            partition = partitions.get(span.partition_id)
            if partition is None:
                continue
            async for frames in self._fetcher.partition(
                partition, from_offset=span.low, to_offset=span.high, joined=joined
            ):
                yield frames

    def _part(self, partition: Partition, row: Record, span: WindowSpan) -> SegmentPart:
        segment: Segment = self._encryption.decode_segment(row)
        stored = StoredSegment(row["base_offset"], row["created_at"], segment)
        return SegmentPart(partition, stored, *stored.part(span.low, span.high))


def _columns(spans: list[WindowSpan]) -> tuple[list[int], list[int], list[int]]:
    return (
        [span.partition_id for span in spans],
        [span.low for span in spans],
        [span.high for span in spans],
    )
