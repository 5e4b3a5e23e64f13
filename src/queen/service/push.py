"""Push: many requests, few commits.

All appends that are waiting when a flush starts go into one transaction. Appends to the
same partition that are small are merged into one segment, in the order they arrived.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from queen.errors import OutcomeUnknown, QueenError, Unavailable
from queen.service.activity import Activity
from queen.service.admission import Admission
from queen.service.append import OWN_SEGMENT_MESSAGES, Append, Request
from queen.service.batcher import Batcher
from queen.service.catalog import Catalog, Partition
from queen.service.dedup import Dedup
from queen.service.lane import Lane
from queen.service.maintenance import Maintenance
from queen.service.segments import SegmentCache
from queen.service.vault import Vault
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 128 * 1024 * 1024
_APPENDED, _SUSPECT, _MISSING = 0, 1, 2
# A partition that many servers write can raise suspicions again and again; each round makes
# progress for somebody, so this is never reached by honest traffic.
MAX_ROUNDS = 50


class Outcome(NamedTuple):
    """What the append said of one partition."""

    outcome: int
    head: int
    created_at: datetime
    unseen: bytes | None

    @property
    def is_appended(self) -> bool:
        return self.outcome == _APPENDED


def append_columns(lanes: list[Lane]) -> tuple[list[Any], ...]:
    """Return the arguments of the append statement. Lanes must be in order of partition id."""
    queues = sorted({lane.partition.queue.id for lane in lanes})
    part, before, counts, codecs, hashes, bodies = [], [], [], [], [], []
    for number, lane in enumerate(lanes, 1):
        position = 0
        for built in lane.segments:
            part.append(number)
            before.append(position)
            counts.append(built.size)
            codecs.append(built.codec)
            hashes.append(built.hashes)
            bodies.append(built.body)
            position += built.size
    return (
        queues,
        [lane.partition.id for lane in lanes],
        [lane.total for lane in lanes],
        [lane.known for lane in lanes],
        [lane.dedup == "forever" for lane in lanes],
        part,
        before,
        counts,
        codecs,
        hashes,
        bodies,
    )


def outcomes(rows: Iterable[Iterable[Any]]) -> list[Outcome]:
    return [Outcome(*row) for row in rows]


class Pusher:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        dedup: Dedup,
        vault: Vault,
        cache: SegmentCache,
        activity: Activity,
        committed: Callable[[list[Partition]], None],
        maintenance: Maintenance,
        flushes: int,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._dedup = dedup
        self._vault = vault
        self._admission = Admission(database, vault)
        self._cache = cache
        self._activity = activity
        self._committed = committed
        self._maintenance = maintenance
        # A partition always goes through the same one, so its appends stay in order and no two
        # flushes of this server wait for one lock.
        self._batchers: list[Batcher[Append]] = [
            Batcher(
                self._flush,
                max_items=1000,
                max_weight=8 * 1024 * 1024,
                max_waiting_weight=_MAX_WAITING_BYTES // flushes,
            )
            for _ in range(flushes)
        ]

    async def push(self, appends: list[Append]) -> None:
        """Store messages; returns after the commit. Raises when none of them were stored; where
        only some were not, their appends say why."""
        if not appends:
            return
        self._maintenance.check_push()
        batchers = [self._batcher_of(append) for append in appends]
        for append, batcher in zip(appends, batchers, strict=True):
            batcher.check_room(append.weight)
        request = Request(appends)
        for append, batcher in zip(appends, batchers, strict=True):
            self._prepare(append)
            batcher.submit(append)
        await request.done
        errors = [append.error for append in appends if append.error is not None]
        if len(errors) == len(appends):
            raise errors[0]
        self._activity.pushed(appends)

    @property
    def waiting(self) -> int:
        """How many appends wait for a flush."""
        return sum(batcher.waiting for batcher in self._batchers)

    def _prepare(self, append: Append) -> None:
        """Do what needs no database while it is busy with the flush before this one."""
        lane = self._catalog.cached(append.queue, append.partition)
        append.lane = lane
        if len(append) >= OWN_SEGMENT_MESSAGES and append.encoded is None:
            append.encode()
        if lane is not None and lane.queue.options.dedup != "off":
            append.hash()

    def _batcher_of(self, append: Append) -> Batcher[Append]:
        return self._batchers[hash((append.queue, append.partition)) % len(self._batchers)]

    async def drained(self) -> None:
        for batcher in self._batchers:
            await batcher.drained()

    async def _flush(self, appends: list[Append]) -> None:
        try:
            await self._store(appends)
        except QueenError as error:
            self._fail(appends, error)
        except Exception:
            _log.exception("a flush failed")
            self._fail(appends, QueenError())

    def _fail(self, appends: list[Append], error: QueenError) -> None:
        for append in appends:
            if append.request is not None:
                append.answer(error)
                append.request = None

    async def _store(self, appends: list[Append]) -> None:
        lanes = await self._admitted(await self.plan(appends))
        for _ in range(MAX_ROUNDS):
            lanes = self.build(lanes)
            if not lanes:
                return
            started = time.perf_counter()
            rows = await self._append(lanes)
            self._activity.flushed(sum(lane.total for lane in lanes), time.perf_counter() - started)
            self.appended(lanes, rows)
            lanes = await self.refused(lanes, rows)
        raise Unavailable("too many servers write the same transaction ids at once")

    async def _admitted(self, lanes: list[Lane]) -> list[Lane]:
        """Answer the appends that their queue refuses; return what is left."""
        refused = await self._admission.refusals(lanes)
        if not refused:
            return lanes
        for append, error in refused.items():
            self._fail([append], error)
        for lane in lanes:
            lane.appends = [append for append in lane.appends if append not in refused]
        return [lane for lane in lanes if lane.appends]

    async def check_admission(self, lanes: list[Lane]) -> None:
        """Raise why a queue takes one of the appends not, if there is one."""
        for error in (await self._admission.refusals(lanes)).values():
            raise error

    async def plan(self, appends: list[Append]) -> list[Lane]:
        """Group appends by partition and mark what is stored already."""
        lanes = await self._lanes(appends)
        await self._dedup.screen(lanes)
        return lanes

    async def _lanes(self, appends: list[Append]) -> list[Lane]:
        unknown = [(one.queue, one.partition) for one in appends if one.lane is None]
        if unknown:
            await self._catalog.resolve(unknown)
        grouped: dict[Partition, list[Append]] = {}
        for append in appends:
            if append.lane is None:
                append.lane = self._catalog.known(append.queue, append.partition)
                if append.lane is None:
                    raise Unavailable("a queue was deleted while it was written")
            grouped.setdefault(append.lane, []).append(append)
        return [Lane(partition, group) for partition, group in grouped.items()]

    def build(self, lanes: list[Lane]) -> list[Lane]:
        """Make segments of what is new, in lock order; answer lanes that have nothing new."""
        open_lanes = []
        for lane in lanes:
            lane.build(self._vault)
            if lane.segments:
                open_lanes.append(lane)
            else:
                self._answer(lane)
        open_lanes.sort(key=lambda lane: lane.partition.id)
        return open_lanes

    async def _append(self, lanes: list[Lane]) -> list[Outcome]:
        columns = append_columns(lanes)
        try:
            rows = await self._database.fetch("append", *columns)
        except OutcomeUnknown:
            if any(lane.known is None for lane in lanes):
                raise
            # The same ids again: if the first try was committed, this one finds it.
            for lane in lanes:
                for append in lane.appends:
                    append.first_try_head = lane.partition.head
            try:
                rows = await self._database.fetch("append", *columns)
            except Unavailable:
                raise OutcomeUnknown from None
        return outcomes(rows)

    def appended(self, lanes: list[Lane], rows: list[Outcome]) -> None:
        """Answer what was committed, and tell those who wait for it."""
        written: list[Lane] = []
        for lane, row in zip(lanes, rows, strict=True):
            if row.is_appended:
                self._appended(lane, row)
                written.append(lane)
        if written:
            self._dedup.remember(written)
            self._committed([lane.partition for lane in written])
            for lane in written:
                self._answer(lane)

    async def refused(self, lanes: list[Lane], rows: list[Outcome]) -> list[Lane]:
        """Find out why partitions were refused; return them ready to be tried again."""
        again: list[Lane] = []
        for lane, row in zip(lanes, rows, strict=True):
            if not row.is_appended:
                await self._again(lane, row)
                again.append(lane)
        return again

    def _appended(self, lane: Lane, row: Outcome) -> None:
        self._activity.stored(lane)
        if row.head < min(lane.head, lane.partition.head):
            self._catalog.went_back(lane.partition, row.head)
        offset = row.head
        for append in lane.appends:
            append.base_offset = offset
            offset += len(append) - len(append.repeats or ())
        base = row.head
        for built in lane.segments:
            self._cache.put(lane.partition.id, base, row.created_at, built.columns)
            base += built.size
        lane.partition.saw_head(base)
        self._dedup.appended(lane, base, row.unseen)

    def _answer(self, lane: Lane) -> None:
        for append in lane.appends:
            append.answer()
            append.request = None

    async def _again(self, lane: Lane, row: Outcome) -> None:
        partition = lane.partition
        if row.outcome == _MISSING:
            self._catalog.forget_queue(partition.queue.name)
            await self._catalog.resolve([(partition.queue.name, partition.name)])
            found = self._catalog.known(partition.queue.name, partition.name)
            if found is None:
                raise Unavailable("a queue was deleted while it was written")
            lane.partition = found
            for append in lane.appends:
                append.lane = found
            await self._dedup.screen([lane])
        elif lane.dedup == "forever":
            await self._dedup.verify_indexed(lane)
        elif row.created_at is not None:
            self._dedup.met_unseen(lane, row.head, row.unseen)
            await self._dedup.screen([lane])
