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
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from queen.core.hashing import HASH_BYTES
from queen.core.options import DEFAULT_DEDUP_WINDOW_SECONDS
from queen.service.append import Append
from queen.service.catalog import Partition
from queen.service.lane import Lane
from queen.service.recent import RecentKeys, keys_of, salt_of
from queen.service.vault import Vault
from queen.storage.database import Database

_END = 2**62
# Offsets no further apart than this are read together.
_NEAR = 1000


class Dedup:
    def __init__(self, database: Database, vault: Vault, capacity: int) -> None:
        self._database = database
        self._vault = vault
        self.recent = RecentKeys(capacity, DEFAULT_DEDUP_WINDOW_SECONDS, time.monotonic)

    async def screen(self, lanes: list[Lane]) -> None:
        """Mark every message that is stored already or stands twice in the same flush."""
        windowed = []
        for lane in lanes:
            if lane.dedup != "off":
                _mark_repeats_inside(lane)
            if lane.dedup == "forever":
                # Nothing is compared yet: the append looks through the whole index.
                lane.known = 0
            elif lane.dedup == "window":
                windowed.append(lane)
        if windowed:
            await self.warm(lane.partition for lane in windowed)
            await self._mark_suspects(windowed)
            for lane in windowed:
                lane.known = lane.partition.known

    async def warm(self, partitions: Iterable[Partition]) -> None:
        """Load the recent hashes of partitions that this server has not written to yet."""
        cold = {partition.id: partition for partition in partitions if partition.known is None}
        if not cold:
            return
        windows = [partition.queue.options.dedup_window_seconds for partition in cold.values()]
        self.recent.widen(max(windows))
        for row in await self._database.fetch("recent_hashes", list(cold), windows):
            if row["hashes"]:
                self.recent.add(keys_of(row["id"], row["hashes"]))
            cold[row["id"]].known = row["head"]

    async def _mark_suspects(self, lanes: list[Lane]) -> None:
        """Look all ids of the flush up at once."""
        keys = _set_keys(lanes)
        hits = np.flatnonzero(self.recent.seen(keys))
        if not len(hits):
            return
        appends = [(lane, append) for lane in lanes for append in lane.appends]
        ends = np.cumsum([len(append) for _, append in appends])
        suspects: dict[Lane, list[tuple[Append, int]]] = defaultdict(list)
        for hit in hits.tolist():
            at = int(np.searchsorted(ends, hit, side="right"))
            lane, append = appends[at]
            suspects[lane].append((append, hit - int(ends[at]) + len(append)))
        for lane, group in suspects.items():
            await self._verify_recent(lane.partition, group)

    async def _verify_recent(self, lane: Partition, suspects: list[tuple[Append, int]]) -> None:
        """Look for suspects in the stored hashes, newest first: a repeat is usually recent."""
        window = lane.queue.options.dedup_window_seconds
        open_suspects = suspects
        before = _END
        while open_suspects:
            rows = await self._database.fetch("hashes_before", lane.id, before, window)
            if not rows:
                return
            before = rows[-1]["base_offset"]
            wanted = {append.hash()[index] for append, index in open_suspects}
            places = [
                (row["base_offset"] + at, value)
                for row in rows
                if row["hashes"]
                for at, value in enumerate(memoryview(row["hashes"]).cast("Q"))
                if value in wanted
            ]
            await self._compare_ids(lane, open_suspects, places)
            open_suspects = [
                (append, index)
                for append, index in open_suspects
                if index not in (append.repeats or {})
            ]

    async def verify_indexed(self, lane: Lane) -> None:
        """Compare with the whole index of a partition that keeps one."""
        partition = lane.partition
        head: int = await self._database.fetchval("partition_head", partition.id) or 0
        suspects = [(append, index) for append in lane.appends for index in append.fresh()]
        hashes = [append.hash()[index].to_bytes(HASH_BYTES, "little") for append, index in suspects]
        rows = await self._database.fetch("indexed_offsets", partition.id, list(set(hashes)))
        places = [(row["message_offset"], int.from_bytes(row["hash"], "little")) for row in rows]
        await self._compare_ids(partition, suspects, places)
        lane.known = head

    async def _compare_ids(
        self, lane: Partition, suspects: list[tuple[Append, int]], places: list[tuple[int, int]]
    ) -> None:
        """Mark the suspects whose ids are really stored at one of the places."""
        if not places:
            return
        stored = await self._ids_at(lane, [offset for offset, _ in places])
        by_hash: dict[int, list[int]] = defaultdict(list)
        for offset, value in places:
            by_hash[value].append(offset)
        for append, index in suspects:
            for offset in by_hash.get(append.hash()[index], ()):
                if stored.get(offset) == append.ids[index]:
                    _mark(append, index, offset)
                    break

    async def _ids_at(self, lane: Partition, offsets: list[int]) -> dict[int, bytes]:
        wanted = set(offsets)
        spans = _spans_of(sorted(wanted))
        rows = await self._database.fetch(
            "read_spans",
            [lane.id] * len(spans),
            [start for start, _ in spans],
            [stop for _, stop in spans],
        )
        found: dict[int, bytes] = {}
        for row in rows:
            ids = self._vault.segment(row).id_bytes()
            for at, transaction_id in enumerate(ids, row["base_offset"]):
                if at in wanted:
                    found[at] = transaction_id
        return found

    def appended(self, lane: Lane, head: int, unseen: bytes | None) -> None:
        """A lane was committed; others had written `unseen` in front of it."""
        if lane.dedup == "window":
            if unseen:
                self.recent.add(keys_of(lane.partition.id, unseen))
            lane.partition.known = head

    def remember(self, lanes: list[Lane]) -> None:
        """Keep the hashes of lanes that were committed, all at once."""
        keys = lanes[0].keys
        count = sum(lane.keys_to - lane.keys_from for lane in lanes)
        if count != len(keys) or any(lane.keys is not keys for lane in lanes):
            keys = np.concatenate([lane.keys[lane.keys_from : lane.keys_to] for lane in lanes])
        if count:
            self.recent.add(keys)

    def met_unseen(self, lane: Lane, head: int, unseen: bytes | None) -> None:
        """Keep what others wrote; the append was refused because of it."""
        if unseen:
            self.recent.add(keys_of(lane.partition.id, unseen))
        lane.partition.known = head


def _spans_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Return few spans that cover sorted offsets: those near each other share their segments."""
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        if spans and offset - spans[-1][1] < _NEAR:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))
    return spans


def _set_keys(lanes: list[Lane]) -> NDArray[np.uint64]:
    """Give each lane its keys; return those of all lanes."""
    hashes = b"".join([append.hash() for lane in lanes for append in lane.appends])
    counts = [sum(map(len, lane.appends)) for lane in lanes]
    salts = np.array([salt_of(lane.partition.id) for lane in lanes], dtype=np.uint64)
    keys: NDArray[np.uint64] = np.frombuffer(hashes, dtype=np.uint64) ^ np.repeat(salts, counts)
    start = 0
    for lane, count in zip(lanes, counts, strict=True):
        lane.keys, lane.keys_from, lane.keys_to = keys, start, start + count
        start += count
    return keys


def _mark(append: Append, index: int, place: int | tuple[Append, int]) -> None:
    if append.repeats is None:
        append.repeats = {}
    append.repeats[index] = place


def _mark_repeats_inside(lane: Lane) -> None:
    ids = lane.ids
    if len(ids) == 1 or len(set(ids)) == len(ids):
        return
    first: dict[bytes, tuple[Append, int]] = {}
    for append in lane.appends:
        for index, transaction_id in enumerate(append.ids):
            place = first.setdefault(transaction_id, (append, index))
            if place != (append, index):
                _mark(append, index, place)
