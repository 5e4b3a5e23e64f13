"""The entries of a stream, in the order of their ids.

    chunk   base ordinal | ids, ascending | bodies | places that are gone

Ids only grow, so a chunk is filled at its end, and whatever is removed leaves its place: the
ordinal of an entry, which is its offset in a log, never changes. A chunk without any entry
left is dropped. Approximate trimming removes whole chunks, as Redis does with its nodes, so
chunks are as large as those.

A body may be missing from memory. `fields` then returns an empty list that remembers where its
content is, and whoever runs the command fills it before anybody reads it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from queen.streambroker.engine.ids import MAX_ID
from queen.streambroker.engine.state.packed_ids import PackedIds, join_ids

CHUNK_ENTRIES = 100
CHUNK_BYTES = 4096


class Fields(list[bytes]):
    """Names and values in turn; empty until its content is read from where `ordinal` says."""

    __slots__ = ("entry_id", "ordinal")

    def __init__(self, ordinal: int, entry_id: int) -> None:
        super().__init__()
        self.ordinal = ordinal
        self.entry_id = entry_id


class Chunk:
    __slots__ = ("base", "bodies", "gone", "ids", "live", "size")

    def __init__(self, base: int) -> None:
        self.base = base
        # Packed where they are rarely looked at.
        self.ids: list[int] | PackedIds = []
        self.bodies: list[list[bytes] | None] = []
        self.gone: set[int] = set()
        self.live = 0
        self.size = 0

    def open(self) -> list[int]:
        """Return the ids, to be added to."""
        if isinstance(self.ids, PackedIds):
            self.ids = list(self.ids)
        return self.ids

    def pack(self) -> None:
        """Keep what cannot be read elsewhere, in as few bytes as possible."""
        self.ids = PackedIds(join_ids(self.ids))
        self.bodies = [None] * len(self.ids)


def _live_runs(start: int, chunk: Chunk) -> Iterator[tuple[int, int]]:
    """Yield runs of places that are not gone, from one on."""
    for gone in sorted(chunk.gone):
        if gone > start:
            yield start, gone
        start = max(start, gone + 1)
    if start < len(chunk.ids):
        yield start, len(chunk.ids)


class Place(NamedTuple):
    entry_id: int
    chunk: Chunk
    at: int

    @property
    def ordinal(self) -> int:
        return self.chunk.base + self.at


class Entries:
    def __init__(self, next_ordinal: int = 0) -> None:
        self.chunks: list[Chunk] = []
        self._firsts: list[int] = []
        self.length = 0
        self.next_ordinal = next_ordinal
        # Bytes of entries that were removed.
        self.freed_bytes = 0
        # Lists that were handed out empty, to be filled before anybody reads them.
        self.unread: list[Fields] = []

    def skip(self, count: int) -> None:
        """Leave ordinals out: the next entry begins a new chunk behind them."""
        self.next_ordinal += count

    def needs_chunk(self, size: int) -> bool:
        """Whether an entry of some bytes begins a new chunk."""
        if not self.chunks:
            return True
        last = self.chunks[-1]
        if last.base + len(last.ids) != self.next_ordinal:
            return True
        return len(last.ids) >= CHUNK_ENTRIES or last.size + size >= CHUNK_BYTES

    def add(self, entry_id: int, body: list[bytes] | None, size: int, new_chunk: bool) -> None:
        if new_chunk:
            self.chunks.append(Chunk(self.next_ordinal))
            self._firsts.append(entry_id)
        chunk = self.chunks[-1]
        chunk.open().append(entry_id)
        chunk.bodies.append(body)
        chunk.live += 1
        chunk.size += size
        self.length += 1
        self.next_ordinal += 1

    def add_run(
        self,
        ids: range,
        bodies: Sequence[list[bytes] | None],
        size: int,
        room: int,
        capacity: int,
    ) -> None:
        """Add entries of so many bytes each: some to the last chunk, as many as it has room for,
        and the rest to new ones."""
        at = 0
        while at < len(ids):
            if not room:
                self.chunks.append(Chunk(self.next_ordinal))
                self._firsts.append(ids[at])
                room = capacity
            chunk = self.chunks[-1]
            part = ids[at : at + room]
            chunk.open().extend(part)
            chunk.bodies.extend(bodies[at : at + room])
            chunk.live += len(part)
            chunk.size += size * len(part)
            self.length += len(part)
            self.next_ordinal += len(part)
            at += len(part)
            room = 0

    def room_for(self, size: int) -> tuple[int, int]:
        """Return how many entries of so many bytes the last chunk takes, and how many a new one."""
        capacity = max(1, min(CHUNK_ENTRIES, CHUNK_BYTES // size))
        if self.needs_chunk(size):
            return 0, capacity
        last = self.chunks[-1]
        return min(CHUNK_ENTRIES - len(last.ids), (CHUNK_BYTES - last.size) // size), capacity

    def put_chunk(self, chunk: Chunk) -> None:
        """Take over a chunk whose entries come after all others."""
        self.chunks.append(chunk)
        self._firsts.append(chunk.ids[0])
        self.length += chunk.live
        self.next_ordinal = chunk.base + len(chunk.ids)

    def place(self, entry_id: int) -> Place | None:
        number = bisect_right(self._firsts, entry_id) - 1
        if number < 0:
            return None
        chunk = self.chunks[number]
        index = bisect_left(chunk.ids, entry_id)
        if index == len(chunk.ids) or chunk.ids[index] != entry_id or index in chunk.gone:
            return None
        return Place(entry_id, chunk, index)

    def __contains__(self, entry_id: int) -> bool:
        return self.place(entry_id) is not None

    def remove(self, entry_id: int) -> bool:
        place = self.place(entry_id)
        if place is None:
            return False
        chunk = place.chunk
        chunk.gone.add(place.at)
        chunk.bodies[place.at] = None
        chunk.live -= 1
        self.length -= 1
        self.freed_bytes += chunk.size // len(chunk.ids)
        if chunk.live == 0:
            number = bisect_right(self._firsts, entry_id) - 1
            del self.chunks[number], self._firsts[number]
        return True

    def drop_first_chunk(self) -> None:
        self.length -= self.chunks[0].live
        self.freed_bytes += self.chunks[0].size
        del self.chunks[0], self._firsts[0]

    def _chunks_from(self, entry_id: int) -> Iterator[Chunk]:
        """Yield the chunks that may hold an id or greater ones."""
        for number in range(max(0, bisect_right(self._firsts, entry_id) - 1), len(self.chunks)):
            yield self.chunks[number]

    def between(self, start: int, end: int) -> Iterator[Place]:
        """Yield entries with `start <= id <= end`, ascending."""
        for chunk in self._chunks_from(start):
            if chunk.ids[0] > end:
                return
            gone = chunk.gone
            for index in range(bisect_left(chunk.ids, start), len(chunk.ids)):
                entry_id = chunk.ids[index]
                if entry_id > end:
                    return
                if index not in gone:
                    yield Place(entry_id, chunk, index)

    def between_reversed(self, start: int, end: int) -> Iterator[Place]:
        """Yield the same, descending."""
        for number in range(bisect_right(self._firsts, end) - 1, -1, -1):
            chunk = self.chunks[number]
            if chunk.ids[-1] < start:
                return
            for index in range(bisect_right(chunk.ids, end) - 1, -1, -1):
                entry_id = chunk.ids[index]
                if entry_id < start:
                    return
                if index not in chunk.gone:
                    yield Place(entry_id, chunk, index)

    def runs_after(self, entry_id: int, count: int) -> Iterator[tuple[Chunk, int, int]]:
        """Yield the next entries behind an id, so many at most, as runs of places in chunks."""
        for chunk in self._chunks_from(entry_id):
            start = bisect_right(chunk.ids, entry_id)
            for begin, end in _live_runs(start, chunk):
                if count <= 0:
                    return
                stop = min(end, begin + count)
                count -= stop - begin
                yield chunk, begin, stop

    def runs_between(self, start: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """Yield entries with `start <= id <= end` as runs of places in chunks."""
        for chunk in self._chunks_from(start):
            if chunk.ids[0] > end:
                return
            last = bisect_right(chunk.ids, end)
            for begin, stop in _live_runs(bisect_left(chunk.ids, start), chunk):
                if begin < last:
                    yield chunk, begin, min(stop, last)

    def ids_after(self, entry_id: int, count: int) -> list[int]:
        """Return the ids of the next entries behind one."""
        ids: list[int] = []
        for chunk, begin, end in self.runs_after(entry_id, count):
            ids += chunk.ids[begin:end]
        return ids

    def next_after(self, entry_id: int) -> int | None:
        """Return the id of the first entry behind one."""
        return next(iter(self.ids_after(entry_id, 1)), None)

    def fields(self, place: Place) -> list[bytes]:
        body = place.chunk.bodies[place.at]
        if body is not None:
            return body
        fields = Fields(place.ordinal, place.entry_id)
        self.unread.append(fields)
        return fields

    def first(self) -> Place | None:
        return next(self.between(0, MAX_ID), None)

    def last(self) -> Place | None:
        return next(self.between_reversed(0, MAX_ID), None)

    def first_ordinal(self) -> int:
        """Return the ordinal of the first entry, or that of the next one when there is none."""
        if not self.chunks:
            return self.next_ordinal
        chunk = self.chunks[0]
        return chunk.base + next(_live_runs(0, chunk))[0]

    def first_id(self) -> int:
        """Return the id of the first entry; 0 when there is none."""
        if not self.chunks:
            return 0
        chunk = self.chunks[0]
        return chunk.ids[0] if not chunk.gone else chunk.ids[next(_live_runs(0, chunk))[0]]

    def count_after(self, entry_id: int) -> int:
        """Count the entries with greater ids."""
        number = bisect_right(self._firsts, entry_id)
        count = sum(chunk.live for chunk in self.chunks[number:])
        if number:
            chunk = self.chunks[number - 1]
            places = range(bisect_right(chunk.ids, entry_id), len(chunk.ids))
            count += sum(index not in chunk.gone for index in places)
        return count
