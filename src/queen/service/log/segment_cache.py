"""Segments that were written or read a moment ago.

Consumers that keep up read what was just written, so most pops find their messages here and
the database only moves the cursor. Segments never change; the cache can only be incomplete.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from datetime import datetime

from queen.core.frame import CODEC_RAW, CODEC_ZSTD, Segment, encode_body


class StoredSegment:
    """A segment and where it stands."""

    __slots__ = ("_compressed", "base_offset", "created_at", "end_offset", "segment", "size_bytes")

    def __init__(
        self,
        base_offset: int,
        created_at: datetime,
        segment: Segment,
        codec: int = CODEC_RAW,
        body: bytes = b"",
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset + segment.count
        self.created_at = created_at
        self.segment = segment
        # What lies compressed is not compressed again for a frame. A body that does not is put
        # together from its columns as quickly as it is kept.
        self._compressed = body if codec == CODEC_ZSTD else None
        self.size_bytes = segment.size_bytes + len(self._compressed or b"")

    def encoded(self) -> tuple[int, bytes]:
        """Return codec and body as they stand in a frame."""
        if self._compressed is not None:
            return CODEC_ZSTD, self._compressed
        return CODEC_RAW, encode_body(self.segment)

    def part(self, start: int, stop: int) -> tuple[int, int]:
        """Return which messages of the segment lie in [start, stop), counted from its first."""
        first = max(start, self.base_offset)
        return first - self.base_offset, min(stop, self.end_offset) - self.base_offset


class _CachedPartition:
    """The cached segments of one partition, oldest first; dropped ones leave at the front."""

    __slots__ = ("first", "fresh", "items")

    def __init__(self) -> None:
        self.items: list[StoredSegment | None] = []
        self.first = 0
        # What stands before this is no longer true; it leaves in its turn.
        self.fresh = 0

    def drop_first(self) -> None:
        self.items[self.first] = None
        self.first += 1
        if self.first > 64 and self.first * 2 > len(self.items):
            del self.items[: self.first]
            self.fresh = max(0, self.fresh - self.first)
            self.first = 0


class SegmentCache:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._partitions: dict[int, _CachedPartition] = {}
        self._order: deque[tuple[int, int]] = deque()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def put(
        self,
        partition_id: int,
        base_offset: int,
        created_at: datetime,
        segment: Segment,
        codec: int = CODEC_RAW,
        body: bytes = b"",
    ) -> None:
        """Remember a segment that was just written: it is the newest of its partition."""
        stored = StoredSegment(base_offset, created_at, segment, codec, body)
        if stored.size_bytes > self._max_bytes // 8:
            return
        kept = self._partitions.get(partition_id)
        if kept is None:
            kept = self._partitions[partition_id] = _CachedPartition()
        kept.items.append(stored)
        self._order.append((partition_id, stored.size_bytes))
        self._bytes += stored.size_bytes
        while self._bytes > self._max_bytes:
            self._drop_oldest()

    def forget(self, partition_id: int) -> None:
        """Drop what is cached of a partition whose segments have changed after all."""
        kept = self._partitions.get(partition_id)
        if kept is not None:
            kept.fresh = len(kept.items)

    def forget_all(self) -> None:
        """Drop everything: what was heard of changes may be incomplete."""
        for partition_id in self._partitions:
            self.forget(partition_id)

    def _drop_oldest(self) -> None:
        partition_id, size = self._order.popleft()
        self._bytes -= size
        kept = self._partitions[partition_id]
        kept.drop_first()
        if kept.first == len(kept.items):
            del self._partitions[partition_id]

    def span(self, partition_id: int, start: int, stop: int) -> list[StoredSegment] | None:
        """Return the segments that cover [start, stop), or None unless all of it is here."""
        kept = self._partitions.get(partition_id)
        if kept is None:
            return None
        lowest = max(kept.first, kept.fresh)
        at = bisect_right(kept.items, start, lo=lowest, key=_base_offset) - 1
        if at < lowest:
            return None
        covering: list[StoredSegment] = []
        position = start
        while position < stop and at < len(kept.items):
            stored = kept.items[at]
            # Another server may have written in between.
            if stored is None or not stored.base_offset <= position < stored.end_offset:
                return None
            covering.append(stored)
            position = stored.end_offset
            at += 1
        return covering if position >= stop else None


def _base_offset(stored: StoredSegment | None) -> int:
    assert stored is not None
    return stored.base_offset
