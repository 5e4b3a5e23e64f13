"""The drain: reads spooled records in order and has them stored, in batches.

It begins when the first of the records that wait is due, when enough of them wait, or when the
database is back. It pauses while the database is away and while an operator holds pushes back.

Basins are drained one after the other: those of processes that have ended first, and of these the
ones that hold what had to wait, since that is the oldest. What waits for its queue is looked at
now and then, the less often the more of it there is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from queen.errors import (
    EncryptionUnavailable,
    InvalidFrame,
    OutcomeUnknown,
    Overloaded,
    QueenError,
    SpoolFailed,
    SpoolFull,
    Unavailable,
)
from queen.service.admin.maintenance import Maintenance
from queen.service.spooling.basins import Basin, Basins
from queen.service.spooling.keys import WaitingKeys
from queen.service.spooling.records import (
    MOVED,
    Gathering,
    Spooled,
    key_of_record,
    was_moved,
)
from queen.service.spooling.store import DrainBatch, Overtaken, SpoolStore, TakenTogether
from queen.spool.disk.format import Record
from queen.storage.breaker import Breaker

_log = logging.getLogger(__name__)

_BATCH_RECORDS = 5000
_BATCH_BYTES = 8 * 1024 * 1024
_PAUSE_S = 0.25
# Between batches, while others push: this many times as long as a batch took.
_REST_SHARE = 4.0
_MAX_REST_S = 0.5
_ADOPT_S = 30.0
_LONGEST_PAUSE_S = 5.0
# What waits for its queue is tried again after this, and after so long that no more than this is
# written again in a second.
_WAITING_PAUSE_S = 1.0
_REWRITTEN_BYTES_PER_S = 10 * 1024 * 1024


class Drain:
    def __init__(
        self,
        basins: Basins,
        store: SpoolStore,
        breaker: Breaker,
        maintenance: Maintenance,
        live_flushes: Callable[[], int],
    ) -> None:
        self._basins = basins
        self._store = store
        self._breaker = breaker
        self._maintenance = maintenance
        # How often others have written meanwhile.
        self._live_flushes = live_flushes
        # Partitions with records in any basin, and those of them that wait for their queues.
        self.keys = WaitingKeys()
        self._held = WaitingKeys()
        self._wake = asyncio.Event()
        self._due_at = 0.0
        self._expected = 0
        self._adopt_at = time.monotonic() + _ADOPT_S
        self._waiting_due_at = 0.0
        self._is_draining = False
        # A batch of which nobody knows whether it was committed.
        self._in_doubt: DrainBatch | None = None
        self.batches = 0
        self.drained_messages = 0
        self.last_batch_records = 0
        # Since when the oldest waits of those that their queues do not take. They are written again
        # now and then, so their files do not tell.
        self.held_since_ms: int | None = None
        # Why nothing is drained, when something is wrong.
        self.problem: str | None = None

    @property
    def is_clear(self) -> bool:
        """Whether a push can go to the log: nothing is, or may be, in front of it."""
        return not self.keys and self._basins.are_known

    def is_behind(self, key: tuple[str, str]) -> bool:
        """Whether records of a partition wait, so that what comes now goes behind them."""
        return not self._basins.are_known or self.keys.holds(key)

    def expect(self, messages: int, within_s: float, most: int) -> None:
        """Messages were spooled: drain them in time, or when so many wait."""
        self._expected += messages
        due_at = time.monotonic() + within_s if self._expected < most else 0.0
        if due_at < self._due_at:
            self._due_at = due_at
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wait_until_due()
            try:
                await self._drain_all()
                self.problem = None
            except QueenError as error:
                self._note_problem(error)
                await asyncio.sleep(_PAUSE_S)

    async def finish(self, patience_s: float) -> None:
        """Drain what is there, for so long; the rest stays in its files."""
        with suppress(TimeoutError, QueenError):
            async with asyncio.timeout(patience_s):
                while (
                    self.keys and not self._breaker.is_open and self._maintenance.pushes_are_stored
                ):
                    await self._drain_all()
                    await asyncio.sleep(_PAUSE_S if self.keys else 0)

    # ---- when ----

    async def _wait_until_due(self) -> None:
        while True:
            await self._breaker.wait_closed()
            if not self._maintenance.pushes_are_stored:
                self._due_at = 0.0
                await asyncio.sleep(_PAUSE_S)
                continue
            now = time.monotonic()
            due_at = min(self._due_at, self._waiting_due_at, self._adopt_at)
            if not self._basins.are_known:
                due_at = now
            if due_at <= now:
                return
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(due_at - now, _LONGEST_PAUSE_S)):
                    await self._wake.wait()

    # ---- what ----

    async def _drain_all(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        try:
            await self._adopt()
            await self._get_to_know()
            for basin in sorted(self._basins.adopted, key=lambda basin: not basin.has_moved):
                await self._drain_adopted(basin)
            await self._drain_basin(self._basins.own)
            await self._look_at_waiting()
        except BaseException:
            self._due_at = time.monotonic() + _PAUSE_S
            raise
        finally:
            self._is_draining = False

    async def _adopt(self) -> None:
        if time.monotonic() < self._adopt_at:
            return
        await self._basins.adopt()
        self._adopt_at = time.monotonic() + _ADOPT_S
        own = self._basins.own
        if own.position is not None:
            # Files that are old by now, and done, are removed.
            await own.spool.release(own.position)

    async def _drain_adopted(self, basin: Basin) -> None:
        """Drain what somebody left; what cannot be read there holds up nobody else."""
        try:
            await self._drain_basin(basin)
        except (EncryptionUnavailable, SpoolFailed) as error:
            self._note_problem(error)
            return
        if not await self._is_needed(basin) and await self._basins.give_up(basin):
            await self._store.forget(basin)

    async def _is_needed(self, basin: Basin) -> bool:
        """Whether something is left in a basin that a person has to look at."""
        statistics = await basin.spool.statistics()
        return statistics.quarantined > 0 or statistics.records > 0

    async def _get_to_know(self) -> None:
        """Learn how far basins are drained, and which partitions old records belong to."""
        for basin in (*self._basins.adopted, self._basins.own):
            if basin.position is None:
                await self._store.locate(basin)
                await basin.spool.release(basin.position or 0)
            if not basin.is_known:
                _log.warning("the spool %s has records of an earlier process", basin.id)
                await self._scan(basin)
                basin.is_known = True

    async def _scan(self, basin: Basin) -> None:
        after, end = basin.position or 0, basin.spool.spool.first_new_seq
        while True:
            records = await basin.spool.read(after, _BATCH_RECORDS, _BATCH_BYTES)
            old = [record for record in records if record.seq < end]
            for record in filter(basin.counts, old):
                self._note_found(basin, record)
            if len(old) < len(records) or not records:
                return
            after = records[-1].seq

    def _note_found(self, basin: Basin, record: Record) -> None:
        # What cannot be decoded belongs nowhere, and is put aside when its turn comes.
        with suppress(InvalidFrame):
            key = key_of_record(record)
            self.keys.add(key)
            if was_moved(record):
                basin.has_moved = True
                self._held.add(key)

    async def _drain_basin(self, basin: Basin, until: int | None = None) -> None:
        while self._maintenance.pushes_are_stored:
            await self._resolve_doubt()
            assert basin.position is not None
            if until is not None and basin.position >= until:
                return
            is_own = basin is self._basins.own
            if is_own:
                # Before the read: what is written from now on says anew how long it has time.
                self._expected, self._due_at = 0, float("inf")
            last_seq = basin.spool.spool.writer.last_seq
            began, flushes = time.monotonic(), self._live_flushes()
            records = await basin.spool.read(basin.position, _BATCH_RECORDS, _BATCH_BYTES)
            if not records:
                return
            await self._drain_records(basin, records)
            await basin.spool.release(basin.position)
            if self._live_flushes() != flushes:
                await self._rest(time.monotonic() - began)
            # A batch also ends with a file, or with its bytes: there may be more behind it.
            is_all = is_own and last_seq is not None and basin.position >= last_seq
            if is_all and len(records) < _BATCH_RECORDS // 2 and self._due_at > time.monotonic():
                # What came meanwhile has time; together with others it costs less.
                return

    async def _rest(self, worked_s: float) -> None:
        """Leave the greater part of the time to those who push now."""
        await asyncio.sleep(min(worked_s * _REST_SHARE, _MAX_REST_S))

    async def _drain_records(self, basin: Basin, records: list[Record]) -> None:
        """Drain records; when one of them cannot be stored, find out which."""
        try:
            try:
                await self._drain_batch(self._batch_of(basin, records))
            except TakenTogether:
                await self._drain_batch(self._batch_of(basin, records, apart=True))
        except (Unavailable, SpoolFull, Overloaded):
            # Not for what they are: what has to wait finds no room to wait in, or the like.
            raise
        except QueenError as error:
            if len(records) > 1:
                half = len(records) // 2
                await self._drain_records(basin, records[:half])
                await self._drain_records(basin, records[half:])
                return
            await self._refuse(basin, records[0], error)

    async def _refuse(self, basin: Basin, record: Record, error: QueenError) -> None:
        spooled, _ = _decoded(basin, [record])
        batch = DrainBatch(basin, basin.position or 0, record.seq, spooled)
        batch.given_up = set(spooled)
        batch.refused = [(_as_it_came(record), error.message)]
        await self._drain_batch(batch)
        _log.error("a spooled record is in quarantine: %s", error)

    def _batch_of(self, basin: Basin, records: list[Record], *, apart: bool = False) -> DrainBatch:
        spooled, damaged = _decoded(basin, records, apart=apart)
        batch = DrainBatch(basin, basin.position or 0, records[-1].seq, spooled)
        batch.refused = [(_as_it_came(record), reason) for record, reason in damaged]
        held = self._held
        if held:
            behind = [s.append for s in spooled if not s.was_moved and held.holds(s.key)]
            batch.move(behind)
        return batch

    async def _drain_batch(self, batch: DrainBatch) -> None:
        try:
            await self._store.store(batch)
        except OutcomeUnknown:
            self._in_doubt = batch
            raise
        except Overtaken:
            _log.error("the spool %s is not drained as far as was believed", batch.basin.id)
            await self._store.locate(batch.basin)
            return
        self._note_committed(batch)

    async def _resolve_doubt(self) -> None:
        """Ask whether the last batch was committed."""
        batch = self._in_doubt
        if batch is None:
            return
        await self._store.locate(batch.basin)
        self._in_doubt = None
        if (batch.basin.position or 0) >= batch.last:
            self._note_committed(batch)

    def _note_committed(self, batch: DrainBatch) -> None:
        basin = batch.basin
        basin.position = batch.last
        basin.forget_moves(batch.last)
        self.problem = None
        if batch.moved_to is not None and self._basins.waiting is not None:
            self._basins.waiting.add_move(*batch.moved_to)
            self._basins.waiting.end_seq = batch.moved_to[1]
            self._waiting_due_at = min(
                self._waiting_due_at or float("inf"), time.monotonic() + _WAITING_PAUSE_S
            )
        for spooled in batch.spooled:
            if spooled not in batch.moved:
                self._note_done(spooled)
            elif not spooled.was_moved:
                self._held.add(spooled.key, len(spooled.records))
                at_ms = spooled.records[0].at_ms
                self.held_since_ms = min(self.held_since_ms or at_ms, at_ms)
        if not self._held:
            self.held_since_ms = None
        self.batches += 1
        self.last_batch_records = len(batch)
        self.drained_messages += batch.messages

    def _note_done(self, spooled: Spooled) -> None:
        self.keys.done(spooled.key, len(spooled.records))
        if spooled.was_moved:
            self._held.done(spooled.key, len(spooled.records))

    async def _look_at_waiting(self) -> None:
        """Try what waits for its queue again, each record once."""
        waiting = self._basins.waiting
        if waiting is None or waiting.position is None or waiting.position >= waiting.end_seq:
            self._waiting_due_at = float("inf")
            return
        if time.monotonic() < self._waiting_due_at:
            return
        self._waiting_due_at = float("inf")
        await self._drain_basin(waiting, waiting.end_seq)
        if waiting.position < waiting.end_seq:
            statistics = await waiting.spool.statistics()
            pause_s = max(_WAITING_PAUSE_S, statistics.bytes / _REWRITTEN_BYTES_PER_S)
            self._waiting_due_at = time.monotonic() + pause_s

    def _note_problem(self, error: QueenError) -> None:
        if self.problem is None:
            _log.warning("the spool is not drained: %s", error)
        self.problem = error.message


def _decoded(
    basin: Basin, records: list[Record], *, apart: bool = False
) -> tuple[list[Spooled], list[tuple[Record, str]]]:
    """Return the records that count, gathered or apart, and those that nobody can read."""
    gathering = Gathering(apart=apart)
    damaged: list[tuple[Record, str]] = []
    for record in records:
        if not basin.counts(record):
            continue
        try:
            gathering.add(record)
        except InvalidFrame as error:
            damaged.append((record, error.message))
    return gathering.end(), damaged


def _as_it_came(record: Record) -> Record:
    """Return a record for the quarantine: from there it is spooled again as a new one."""
    return Record(record.seq, record.kind & ~MOVED, record.flags, record.at_ms, record.body)
