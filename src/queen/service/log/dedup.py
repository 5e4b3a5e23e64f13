"""Duplicate detection: which messages of an append are stored already.

Each queue says how far back equal transaction ids are one message: `window` (the last ten
minutes unless told), `forever` (everything retained, through an index), or `off`.

For `window` this server keeps the recent hashes of every partition it writes, complete up
to an offset (`Partition.known`). It compares with those, and the append compares, under the
partition's lock, with what others wrote behind that offset. A hash that hits is a suspicion;
the stored ids decide. So within the horizon every duplicate is found and no message is ever
refused because of a collision.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from queen.core.hashing import HASH_BYTES
from queen.core.options import DEFAULT_DEDUP_WINDOW_SECONDS
from queen.errors import QueenError, Unavailable
from queen.service.catalog import Partition
from queen.service.log.append import Append
from queen.service.log.dedup_filter import FEW, RecentKeys, keys_of, salt_of
from queen.service.log.flush_share import Share
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database, Record

_END = 2**62
# Offsets no further apart than this are read together.
_NEAR = 1000
_SPANS_AT_ONCE = 16
_READ_BYTES = 8 * 1024 * 1024
# Segments whose hashes are looked through at once for a suspect.
_PAGE_SEGMENTS = 2048
# Hashes that are loaded at once.
_PAGE_HASHES = 500_000
# A partition with more of them is loaded by itself, so that nobody waits for it.
_MANY_HASHES = 50_000
_WARM_TRIES = 10

Suspects = list[tuple[Append, int]]


class _Cold(NamedTuple):
    """A partition whose recent hashes are to be loaded, and where they stand."""

    partition: Partition
    start: int
    head: int
    head_at: datetime

    @property
    def has_many(self) -> bool:
        return self.head - self.start > _MANY_HASHES


class Dedup:
    def __init__(self, database: Database, encryption: SegmentEncryption, capacity: int) -> None:
        self._database = database
        self._encryption = encryption
        self._capacity = capacity
        self._written_at = datetime.min
        self.recent = RecentKeys(capacity, DEFAULT_DEDUP_WINDOW_SECONDS, time.monotonic)

    async def screen(self, shares: list[Share], *, alone: bool = True) -> list[Share]:
        """Mark every message that is stored already or stands twice in the same flush.

        Unless they are alone, shares that take long are left undone and returned: much has to be
        loaded for them, or a hash has hit and stored ids have to be read.
        """
        windowed = []
        for share in shares:
            if share.dedup != "off":
                _mark_repeats_inside(share)
            if share.compares_index:
                # Nothing is compared yet: the append looks through the whole index.
                share.known, share.known_at = 0, None
            elif share.compares_window:
                windowed.append(share)
            else:
                share.known = share.known_at = None
        slow = await self.warm([share.partition for share in windowed], alone=alone)
        ready = [share for share in windowed if share.partition not in slow]
        for share in ready:
            # Taken before the comparison: what is compared is complete up to here, whoever
            # appends meanwhile.
            share.known, share.known_at = share.partition.known, share.partition.known_at
        suspects = self._suspects(ready) if ready else {}
        if not alone:
            return [share for share in windowed if share.partition in slow or share in suspects]
        for share, group in suspects.items():
            await self._verify_recent(share, group)
        return []

    # ---- what is known of partitions ----

    async def warm(self, partitions: Iterable[Partition], *, alone: bool = True) -> set[Partition]:
        """Load the recent hashes of partitions that this server does not know, or not as far
        back as their queue now says. Unless they are alone, return those that have many."""
        warmed = list(partitions)
        for partition in warmed:
            self._widen(partition)
        slow: set[Partition] = set()
        for _ in range(_WARM_TRIES):
            # Again, if somebody found meanwhile that what is known is no longer true.
            unknown = [
                partition
                for partition in warmed
                if partition.known is None and partition not in slow
            ]
            if not unknown:
                return slow
            cold = await self._find_starts(unknown)
            if not alone:
                slow |= {start.partition for start in cold if start.has_many}
            await self._load([start for start in cold if start.partition not in slow])
        raise Unavailable("a partition changes faster than it can be read")

    def _widen(self, partition: Partition) -> None:
        window_s = partition.queue.options.dedup_window_seconds
        if window_s > partition.dedup_window_s:
            self.recent.widen(window_s)
            partition.dedup_window_s = window_s
            if partition.known:
                # What is older than the window was may have been dropped.
                partition.known = None

    async def _find_starts(self, partitions: list[Partition]) -> list[_Cold]:
        """Ask from which offset on the hashes of partitions have to be loaded."""
        by_id = {partition.id: partition for partition in partitions}
        windows = [partition.queue.options.dedup_window_seconds for partition in by_id.values()]
        rows = await self._database.fetch("window_starts", list(by_id), windows)
        for partition_id in by_id.keys() - {row["id"] for row in rows}:
            # It is gone; the append finds that out.
            by_id[partition_id].known = 0
        return [
            # More than the memory holds need not be loaded.
            _Cold(
                by_id[row["id"]],
                max(row["start"], row["head"] - self._capacity),
                row["head"],
                row["head_at"],
            )
            for row in rows
        ]

    async def _load(self, cold: list[_Cold]) -> None:
        for page in _pages(cold):
            columns = (list(column) for column in zip(*page, strict=True))
            for row in await self._database.fetch("hashes_between", *columns):
                if row["hashes"]:
                    self.recent.add(keys_of(row["id"], row["hashes"]))
        for partition, _, head, head_at in cold:
            partition.knows(head, head_at)

    # ---- suspects ----

    def _suspects(self, shares: list[Share]) -> dict[Share, Suspects]:
        """Look all ids of the flush up at once; return those whose hash was seen."""
        few = _set_few_keys(shares)
        if few is not None and not self.recent.may_have_seen_any(few):
            return {}
        keys = _set_keys(shares)
        hits = np.flatnonzero(self.recent.seen(keys))
        if not len(hits):
            return {}
        appends = [(share, append) for share in shares for append in share.appends]
        ends = np.cumsum([len(append) for _, append in appends])
        suspects: dict[Share, Suspects] = defaultdict(list)
        for hit in hits.tolist():
            at = int(np.searchsorted(ends, hit, side="right"))
            share, append = appends[at]
            suspects[share].append((append, hit - int(ends[at]) + len(append)))
        return suspects

    async def _verify_recent(self, share: Share, suspects: Suspects) -> None:
        """Look for suspects in the stored hashes, newest first: a repeat is usually recent."""
        partition = share.partition
        window_s = partition.queue.options.dedup_window_seconds
        window = await self._database.fetch("window_starts", [partition.id], [window_s])
        before = _END
        while suspects and window:
            rows = await self._database.fetch(
                "hashes_before", partition.id, window[0]["start"], before, _PAGE_SEGMENTS
            )
            if not rows:
                return
            before = rows[-1]["base_offset"]
            positions = _positions_of(rows, {append.hash()[index] for append, index in suspects})
            await self._compare_ids(share, suspects, positions)
            suspects = [
                (append, index)
                for append, index in suspects
                if index not in (append.repeats or {}) and append not in share.refused
            ]

    async def verify_indexed(self, share: Share) -> None:
        """Compare with the whole index of a partition that keeps one."""
        partition = share.partition
        head: int = await self._database.findval("partition_head", partition.id) or 0
        suspects = [(append, index) for append in share.appends for index in append.fresh()]
        hashes = [append.hash()[index].to_bytes(HASH_BYTES, "little") for append, index in suspects]
        rows = await self._database.fetch("indexed_offsets", partition.id, list(set(hashes)))
        positions = [(row["message_offset"], int.from_bytes(row["hash"], "little")) for row in rows]
        await self._compare_ids(share, suspects, positions)
        share.known, share.known_at = head, None

    async def _compare_ids(
        self, share: Share, suspects: Suspects, positions: list[tuple[int, int]]
    ) -> None:
        """Mark the suspects whose ids are really stored at one of the positions, and refuse
        those of which nobody can tell."""
        if not positions:
            return
        stored = await self._read_ids(share.partition, {offset for offset, _ in positions})
        by_hash: dict[int, list[int]] = defaultdict(list)
        for offset, value in positions:
            by_hash[value].append(offset)
        for append, index in suspects:
            candidates = {at: stored.get(at) for at in by_hash.get(append.hash()[index], ())}
            same = [at for at, stored_id in candidates.items() if stored_id == append.ids[index]]
            errors = [error for error in candidates.values() if isinstance(error, QueenError)]
            if same:
                _mark(append, index, same[0])
            elif errors:
                share.refused[append] = errors[0]

    async def _read_ids(
        self, partition: Partition, offsets: set[int]
    ) -> dict[int, bytes | QueenError]:
        """Return the ids that are stored at some offsets, or why one cannot be read."""
        ids: dict[int, bytes | QueenError] = {}
        unread = sorted(offsets)
        while unread:
            spans = _spans_of(unread)[:_SPANS_AT_ONCE]
            rows = await self._database.fetch(
                "read_some",
                [partition.id] * len(spans),
                [start for start, _ in spans],
                [stop for _, stop in spans],
                _READ_BYTES,
                _READ_BYTES,
            )
            last = max((row["span"] for row in rows), default=len(spans))
            spans = spans[:last]
            read_to = {span: span[1] for span in spans}
            for row in rows:
                read_to[spans[row["span"] - 1]] = row["end_offset"]
                ids |= self._ids_of(row, offsets)
            # A span with much in it is read in several steps.
            rest = [at for at in unread if any(read_to[s] <= at < s[1] for s in spans)]
            unread = rest + [at for at in unread if at >= spans[-1][1]]
        return ids

    def _ids_of(self, row: Record, offsets: set[int]) -> dict[int, bytes | QueenError]:
        base = row["base_offset"]
        contained = offsets.intersection(range(base, row["end_offset"]))
        try:
            ids = self._encryption.decode_segment(row).id_bytes()
        except QueenError as error:
            return dict.fromkeys(contained, error)
        return {at: ids[at - base] for at in contained}

    # ---- what was committed ----

    def note_appended(self, share: Share, head: int, at: datetime, unseen: bytes | None) -> None:
        """A share was committed; others had written `unseen` in front of it."""
        if share.compares_window:
            if unseen:
                self.recent.add(keys_of(share.partition.id, unseen))
            # What is written together has one time, of which one is kept.
            self._written_at = self._written_at if at == self._written_at else at
            share.partition.knows(head, self._written_at)

    def remember(self, shares: list[Share]) -> None:
        """Keep the hashes of shares that were committed, all at once."""
        few = [key for share in shares for key in share.few_keys]
        if few:
            self.recent.add_few(few)
        shares = [share for share in shares if not share.few_keys]
        if not shares:
            return
        keys = shares[0].keys
        count = sum(share.keys_to - share.keys_from for share in shares)
        if count != len(keys) or any(share.keys is not keys for share in shares):
            keys = np.concatenate([share.keys[share.keys_from : share.keys_to] for share in shares])
        if count:
            self.recent.add(keys)

    def note_unseen(self, share: Share, head: int, at: datetime, unseen: bytes | None) -> None:
        """Keep what others wrote; the append was refused because of it."""
        if unseen:
            self.recent.add(keys_of(share.partition.id, unseen))
        share.partition.knows(head, at)


def _pages(cold: list[_Cold]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield what to load, partition and offsets from and to, in steps that fit into memory."""
    page: list[tuple[int, int, int]] = []
    size = 0
    for partition, start, head, _ in cold:
        for low in range(start, head, _PAGE_HASHES):
            high = min(low + _PAGE_HASHES, head)
            if page and size + high - low > _PAGE_HASHES:
                yield page
                page, size = [], 0
            page.append((partition.id, low, high))
            size += high - low
    if page:
        yield page


def _positions_of(rows: list[Record], sought: set[int]) -> list[tuple[int, int]]:
    """Return where hashes stand: offset and hash."""
    values = np.fromiter(sought, dtype=np.uint64, count=len(sought))
    positions: list[tuple[int, int]] = []
    for row in rows:
        hashes = np.frombuffer(row["hashes"] or b"", dtype=np.uint64)
        for at in np.flatnonzero(np.isin(hashes, values)).tolist():
            positions.append((row["base_offset"] + at, int(hashes[at])))
    return positions


def _spans_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Return few spans that cover sorted offsets: those near each other share their segments."""
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        if spans and offset - spans[-1][1] < _NEAR:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))
    return spans


def _set_few_keys(shares: list[Share]) -> list[int] | None:
    """Give each share its keys as plain numbers, if all of them are few; return all of them."""
    if len(shares) > FEW or sum(len(append) for share in shares for append in share.appends) > FEW:
        return None
    keys: list[int] = []
    for share in shares:
        salt = salt_of(share.partition.id)
        share.few_keys = [value ^ salt for append in share.appends for value in append.hash()]
        keys += share.few_keys
    return keys


def _set_keys(shares: list[Share]) -> NDArray[np.uint64]:
    """Give each share its keys; return those of all shares."""
    hashes = b"".join([append.hash() for share in shares for append in share.appends])
    counts = [sum(map(len, share.appends)) for share in shares]
    salts = np.array([salt_of(share.partition.id) for share in shares], dtype=np.uint64)
    keys: NDArray[np.uint64] = np.frombuffer(hashes, dtype=np.uint64) ^ np.repeat(salts, counts)
    start = 0
    for share, count in zip(shares, counts, strict=True):
        share.keys, share.keys_from, share.keys_to = keys, start, start + count
        share.few_keys = []
        start += count
    return keys


def _mark(append: Append, index: int, stored_at: int | tuple[Append, int]) -> None:
    if append.repeats is None:
        append.repeats = {}
    append.repeats[index] = stored_at


def _mark_repeats_inside(share: Share) -> None:
    ids = share.ids
    if len(ids) == 1 or len(set(ids)) == len(ids):
        return
    first: dict[bytes, tuple[Append, int]] = {}
    for append in share.appends:
        for index, transaction_id in enumerate(append.ids):
            stored_at = first.setdefault(transaction_id, (append, index))
            if stored_at != (append, index):
                _mark(append, index, stored_at)
