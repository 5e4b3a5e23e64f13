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

from queen.core.frame import decode_body, decompress
from queen.core.hashing import HASH_BYTES
from queen.core.options import DEFAULT_DEDUP_WINDOW_SECONDS
from queen.service.append import Append
from queen.service.catalog import Partition
from queen.service.recent import RecentKeys, keys_of
from queen.storage.database import Database

_END = 2**62


class Dedup:
    def __init__(self, database: Database, capacity: int) -> None:
        self._database = database
        self.recent = RecentKeys(capacity, DEFAULT_DEDUP_WINDOW_SECONDS, time.monotonic)

    async def screen(self, lanes: dict[int, list[Append]]) -> None:
        """Mark every message that is stored already or stands twice in the same flush."""
        for appends in lanes.values():
            if _policy(appends) != "off":
                _mark_repeats_inside(appends)
        windowed = {key: appends for key, appends in lanes.items() if _policy(appends) == "window"}
        if windowed:
            await self._load_cold(appends[0].lane for appends in windowed.values())
            await self._mark_suspects(windowed)

    async def _load_cold(self, lanes: Iterable[Partition | None]) -> None:
        cold = {lane.id: lane for lane in lanes if lane is not None and lane.known is None}
        if not cold:
            return
        windows = [lane.queue.options.dedup_window_seconds for lane in cold.values()]
        self.recent.widen(max(windows))
        for row in await self._database.fetch("recent_hashes", list(cold), windows):
            if row["hashes"]:
                self.recent.add(keys_of(row["id"], row["hashes"]))
            cold[row["id"]].known = row["head"]

    async def _mark_suspects(self, lanes: dict[int, list[Append]]) -> None:
        appends = [append for group in lanes.values() for append in group]
        keys = [keys_of(_lane(one).id, memoryview(one.hash())) for one in appends]
        hits = np.flatnonzero(self.recent.seen(np.concatenate(keys)))
        if not len(hits):
            return
        ends = np.cumsum([len(one) for one in appends])
        suspects: dict[int, list[tuple[Append, int]]] = defaultdict(list)
        for hit in hits.tolist():
            at = int(np.searchsorted(ends, hit, side="right"))
            append = appends[at]
            suspects[_lane(append).id].append((append, hit - int(ends[at]) + len(append)))
        for group in suspects.values():
            await self._verify_recent(group)

    async def _verify_recent(self, suspects: list[tuple[Append, int]]) -> None:
        """Look for suspects in the stored hashes, newest first: a repeat is usually recent."""
        lane = _lane(suspects[0][0])
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

    async def verify_indexed(self, appends: list[Append]) -> int:
        """Compare with the whole index; return the offset up to which that is complete."""
        lane = _lane(appends[0])
        head: int = await self._database.fetchval("partition_head", lane.id) or 0
        suspects = [(append, index) for append in appends for index in append.fresh()]
        hashes = [append.hash()[index].to_bytes(HASH_BYTES, "little") for append, index in suspects]
        rows = await self._database.fetch("indexed_offsets", lane.id, list(set(hashes)))
        places = [(row["message_offset"], int.from_bytes(row["hash"], "little")) for row in rows]
        await self._compare_ids(lane, suspects, places)
        return head

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

    async def _ids_at(self, lane: Partition, offsets: list[int]) -> dict[int, str]:
        starts = sorted(set(offsets))
        rows = await self._database.fetch(
            "read_spans", [lane.id] * len(starts), starts, [offset + 1 for offset in starts]
        )
        wanted = set(starts)
        found: dict[int, str] = {}
        for row in rows:
            ids = decode_body(decompress(row["codec"], row["body"])).transaction_ids()
            for at, transaction_id in enumerate(ids, row["base_offset"]):
                if at in wanted:
                    found[at] = transaction_id
        return found

    def appended(
        self, lane: Partition, appends: list[Append], head: int, unseen: bytes | None
    ) -> None:
        """Remember what was just committed, and what others had committed before it."""
        added = sum(len(append) - len(append.repeats or ()) for append in appends)
        if lane.queue.options.dedup == "window":
            if unseen:
                self.recent.add(keys_of(lane.id, unseen))
            for append in appends:
                self.recent.add(keys_of(lane.id, memoryview(append.hash())))
            lane.known = head + added
        lane.saw_head(head + added)

    def met_unseen(self, lane: Partition, head: int, unseen: bytes | None) -> None:
        """Remember what others wrote; the append was refused because of it."""
        if unseen:
            self.recent.add(keys_of(lane.id, unseen))
        lane.known = head


def _lane(append: Append) -> Partition:
    assert append.lane is not None
    return append.lane


def _policy(appends: list[Append]) -> str:
    return _lane(appends[0]).queue.options.dedup


def _mark(append: Append, index: int, place: int | tuple[Append, int]) -> None:
    if append.repeats is None:
        append.repeats = {}
    append.repeats[index] = place


def _mark_repeats_inside(appends: list[Append]) -> None:
    total = sum(map(len, appends))
    distinct = set(appends[0].ids) if len(appends) == 1 else set().union(*(a.ids for a in appends))
    if len(distinct) == total:
        return
    first: dict[str, tuple[Append, int]] = {}
    for append in appends:
        for index, transaction_id in enumerate(append.ids):
            place = first.setdefault(transaction_id, (append, index))
            if place != (append, index):
                _mark(append, index, place)
