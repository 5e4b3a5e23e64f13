"""The drain: sends what waits in a spool, in order, when the broker takes it.

It is also how an outage's end is noticed: while the broker is away, the drain tries the oldest
records again, few of them and with pauses, and everybody else leaves the broker alone.

After each answer the position is written before more is sent. Records keep their transaction
ids, so what is sent twice is stored once, as far back as the queue remembers ids.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from queen.client.queues.messages import Pushed
from queen.client.spooling.backlog import MOST_RECORDS, ReadAhead, Waiting
from queen.client.spooling.folders import SpoolFolder
from queen.client.spooling.outcomes import BatchOutcome, is_of_records, outcome_of
from queen.client.spooling.records import PartitionKey, address_of, request_of
from queen.client.spooling.source import Source
from queen.client.transport.errors_from_answer import decode_answer, retry_after_s
from queen.errors import QueenError
from queen.spool import Record

if TYPE_CHECKING:
    from queen.client.transport.cluster import Cluster

_log = logging.getLogger("queen.client")

_READ_BYTES = 8 * 1024 * 1024
# So few are sent in a moment.
_NEARLY_RECORDS = 2 * MOST_RECORDS
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
# The spools of processes that end while this one goes on.
_ADOPT_EVERY_S = 10.0

_pushed = msgspec.json.Decoder(list[Pushed])


class Drain:
    """Sends what one client has in its folder."""

    def __init__(self, cluster: Cluster, folder: SpoolFolder, own: Source, try_s: float) -> None:
        self._cluster = cluster
        self._folder = folder
        self.own = own
        self._try_s = try_s
        adopted = folder.adopt()
        self._sources = [*adopted, own]
        self._ahead = ReadAhead()
        self._most = 1
        self._pause_s = _FIRST_PAUSE_S
        # Whether everything that was there at the start is read.
        self._knows_all = not adopted and not any(own.path.glob("*.spool"))
        # The first record that this process has written.
        self._first_appended = float("inf")
        self._appended_to = 0
        self._progress = asyncio.Event()
        self._hurry = asyncio.Event()
        self._adopted_at = time.monotonic()
        self.is_away = not self._knows_all
        self._has_warned = False
        self.failures = 0
        self._is_stopping = False
        # Why the last try has failed.
        self.error: Exception | None = None

    @property
    def sources(self) -> list[Source]:
        return list(self._sources)

    def note_appended(self, seqs: range) -> None:
        """This process has written records to its own spool."""
        if seqs:
            self._first_appended = min(self._first_appended, seqs.start)
            self._appended_to = max(self._appended_to, seqs.stop - 1)

    @property
    def is_behind(self) -> bool:
        """Whether something was read by nobody yet, or is on its way."""
        return not self._knows_all or self._appended_to > self._settled_to

    @property
    def is_nearly_done(self) -> bool:
        """Whether it will have sent everything in a moment, if nothing more is written."""
        left = self._appended_to - self._settled_to
        is_going_on = self._knows_all and not self.is_away and self._ahead.has_room
        return is_going_on and left <= _NEARLY_RECORDS

    @property
    def _settled_to(self) -> int:
        """Up to here everything that this process has written is stored, or is held back."""
        first = self._ahead.first_free(self.own)
        return self.own.read_to if first is None else first - 1

    def holds(self, key: PartitionKey) -> bool:
        return key in self._ahead.holds

    @property
    def is_empty(self) -> bool:
        return not self.is_behind and not len(self._ahead)

    def hurry(self) -> None:
        """Try now."""
        self._hurry.set()

    def stop(self) -> None:
        """End with the answer that is on its way."""
        self._is_stopping = True
        self.hurry()

    def note_outage(self, error: QueenError) -> None:
        """Somebody else has met it."""
        if not self._has_warned:
            _log.warning("pushes wait in %s: %s", self._folder.path, error)
        self.is_away = self._has_warned = True
        self._most = 1
        self.error = error

    async def wait_for_progress(self) -> None:
        """Wait until something was taken, or could not be."""
        await self._progress.wait()

    async def run(self) -> None:
        try:
            while not self._is_stopping:
                await self._try_step()
        finally:
            self._tell()

    async def _try_step(self) -> None:
        try:
            await self._step()
        except (QueenError, OSError) as error:
            # The disk: what is there stays there.
            _log.error("the spool in %s: %s", self._folder.path, error)
            await self._pause_after(error)
        except Exception as error:
            # Whatever it was, those who wait for the drain may not wait for ever.
            _log.exception("the drain of the spool in %s has failed", self._folder.path)
            await self._pause_after(error)

    async def _pause_after(self, error: Exception) -> None:
        self.error, self.is_away = error, True
        self.failures += 1
        self._tell()
        await self._wait(_LONGEST_PAUSE_S)

    async def _step(self) -> None:
        if self._ahead.is_free_empty and self._ahead.has_room:
            await self._read()
        batch = self._ahead.batch(self._most)
        if batch:
            await self._send(batch)
        else:
            await self._rest()
        self._tell()

    def _tell(self) -> None:
        """Wake those who wait for progress."""
        told, self._progress = self._progress, asyncio.Event()
        told.set()

    # ---- reading ----

    async def _read(self) -> None:
        """Read the next records that somebody may send; there may be none."""
        for source in self.sources:
            try:
                await self._read_from(source)
            except (QueenError, OSError) as error:
                if source is self.own:
                    raise
                _log.error("%s cannot be read and is left alone: %s", source.path, error)
                await self._leave(source)
                continue
            if not self._ahead.is_free_empty or not self._ahead.has_room:
                return
            if source is not self.own and source.is_done:
                await self._leave(source)
        self._knows_all = True

    async def _read_from(self, source: Source) -> None:
        while self._ahead.is_free_empty and self._ahead.has_room:
            records = await source.read(MOST_RECORDS, _READ_BYTES)
            if records is None:
                return
            await self._add(source, records)
            if source is self.own and source.read_to >= self._first_appended:
                self._knows_all = True

    async def _leave(self, source: Source) -> None:
        self._sources.remove(source)
        self._ahead.forget(source)
        await asyncio.to_thread(source.close)

    async def _add(self, source: Source, records: Sequence[Record]) -> None:
        refusals: list[tuple[Record, str]] = []
        # Nothing else runs meanwhile: what is read is known before somebody asks what waits.
        for record in records:
            try:
                self._ahead.add(Waiting(source, record, address_of(record.body).key))
            except msgspec.DecodeError as error:
                refusals.append((record, f"not a message: {error}"))
        if refusals:
            await source.asynchronous.refuse(refusals)
            for record, _ in refusals:
                source.finish(record.seq)

    # ---- sending ----

    async def _send(self, batch: list[Waiting]) -> None:
        try:
            outcome = await self._ask(batch)
        except QueenError as error:
            told = outcome_of(batch, error)
            if told is None:
                await self._give_up(batch, error)
                return
            outcome = told
        self._note_answer(len(batch), outcome)
        await self._settle(batch, outcome)

    async def _ask(self, batch: list[Waiting]) -> BatchOutcome:
        body = request_of(waiting.record.body for waiting in batch)
        answer = await self._cluster.call(
            "POST",
            "/api/v1/push",
            body,
            key=":".join(batch[0].key),
            retry_s=0.0,
            answer_s=self._try_s,
        )
        decode_answer(_pushed, answer)
        return BatchOutcome(batch, [], {})

    async def _give_up(self, batch: list[Waiting], error: QueenError) -> None:
        """Nothing of it was taken: look for whose fault it is, or wait."""
        if is_of_records(error) and len(batch) > 1:
            self._most = len(batch) // 2
            return
        self.note_outage(error)
        self.failures += 1
        self._tell()
        pause_s = max(self._pause_s, retry_after_s(error))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        await self._wait(min(pause_s, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0))  # noqa: S311

    def _note_answer(self, tried: int, outcome: BatchOutcome) -> None:
        if self._has_warned:
            _log.warning("what waits in %s is sent now", self._folder.path)
        self.is_away = self._has_warned = False
        self.error = next(iter(outcome.held.values()), None)
        self._pause_s = _FIRST_PAUSE_S
        if tried == self._most:
            self._most = min(self._most * 8, MOST_RECORDS)

    async def _settle(self, batch: Sequence[Waiting], outcome: BatchOutcome) -> None:
        self._finish(outcome.stored)
        for waiting, reason in outcome.refused:
            _log.error("a broker refuses a record for %s/%s: %s", *waiting.key, reason)
            await waiting.source.asynchronous.refuse([(waiting.record, reason)])
        self._finish([waiting for waiting, _ in outcome.refused])
        for key, error in outcome.held.items():
            self._ahead.hold(key, error, sum(waiting.key == key for waiting in batch))
        for source in self.sources:
            await source.save()

    def _finish(self, settled: Sequence[Waiting]) -> None:
        for waiting in settled:
            waiting.source.finish(waiting.record.seq)
        self._ahead.remove(settled)

    # ---- waiting ----

    async def _rest(self) -> None:
        """Wait until there is something to do."""
        now = time.monotonic()
        wakes = [self._adopted_at + _ADOPT_EVERY_S]
        due = self._ahead.next_due()
        if due is not None:
            wakes.append(due)
        self._tell()
        written = asyncio.ensure_future(self.own.asynchronous.wait_for_records())
        # Nobody reads while there is no room, whatever is written.
        others = (written,) if self._ahead.has_room else ()
        try:
            await self._wait(max(0.0, min(wakes) - now), *others)
        finally:
            written.cancel()
        if time.monotonic() >= self._adopted_at + _ADOPT_EVERY_S:
            await self._adopt()

    async def _adopt(self) -> None:
        self._adopted_at = time.monotonic()
        adopted = await asyncio.to_thread(self._folder.adopt)
        if adopted:
            self._sources = [*adopted, *self._sources]
            self._knows_all = False

    async def _wait(self, timeout_s: float, *others: asyncio.Future[Any]) -> None:
        """Wait for a time, for something else, or until somebody is in a hurry."""
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                (hurry, *others), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            hurry.cancel()
            self._hurry.clear()
