"""Ack: what consumers have done with what they were leased.

Acks of many connections share a transaction. The common one, a whole leased span done, is
one statement. Anything else (a part of a span, failures) locks the cursor, applies the rules
of `queen.core.cursor`, and writes it back.

What is wrong with one batch (a cursor that somebody holds, a dead message that cannot be
read and so not be kept) is told to that one. It is left out, or set aside and tried alone, and
the others of the flush go on.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queen.core.cursor import AckResult, Cursor, acked_up_to, set_aside
from queen.errors import Contended, QueenError, Unavailable, Unreadable
from queen.service.acks.ack_batch import (
    AckBatch,
    GivenUp,
    OffsetBatch,
    apply_all,
    is_kept,
    part_by_kind,
    part_whole_spans,
    span_limits,
)
from queen.service.acks.cursors import Key, lock, store
from queen.service.acks.dead_letter_copies import DeadLetter, DeadLetterCopies
from queen.service.catalog import Partition
from queen.service.consume.lease_book import BareSpan, LeaseBook, SpanBuilder
from queen.service.events import Events
from queen.service.log.aside import Aside
from queen.service.log.batcher import Batcher
from queen.service.log.segment_cache import StoredSegment
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.pacing.breakers import Breakers
from queen.service.shared.spans import Spans, lease_key, leased_spans
from queen.service.shared.whole_spans import ack_whole, part_shared, part_whole
from queen.service.stats.activity import Activity
from queen.service.stats.steps import Steps
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

_MAX_FLUSH_ITEMS = 500
_MAX_FLUSH_MESSAGES = 100_000
# How long a flush waits for a cursor before it goes on without it.
_LOCK_WAIT_MS = 100
_PAGE_BYTES = 8 * 1024 * 1024
_SILENT = "No consumer ever came back with it"


class Acker:
    def __init__(
        self,
        database: Database,
        encryption: SegmentEncryption,
        leases: LeaseBook,
        activity: Activity,
        events: Events,
        steps: Steps,
        breakers: Breakers,
    ) -> None:
        self._database = database
        self._breakers = breakers
        self._encryption = encryption
        self._copies = DeadLetterCopies(encryption)
        self._leases = leases
        self._activity = activity
        self._events = events
        self._steps = steps
        self._batcher: Batcher[AckBatch] = Batcher(
            self._flush,
            max_items=_MAX_FLUSH_ITEMS,
            max_weight=_MAX_FLUSH_MESSAGES,
            max_waiting_weight=2_000_000,
        )
        self._aside: Aside[AckBatch] = Aside(
            self._flush_alone,
            self._fail,
            max_items=_MAX_FLUSH_ITEMS,
            max_weight=_MAX_FLUSH_MESSAGES,
        )

    async def ack(self, ack_batches: list[AckBatch]) -> None:
        """Apply acknowledgments; each batch then has its results, or its error. Returns
        after the commit; raises when nothing at all could be done."""
        for done in self.submit(ack_batches):
            await done
        raise_if_none_acked(ack_batches)

    def submit(self, ack_batches: list[AckBatch]) -> list[asyncio.Future[None]]:
        """Begin to apply acknowledgments; what is returned is done when each of them is."""
        loop = asyncio.get_running_loop()
        self._batcher.check_room(self._aside.weight + sum(batch.weight for batch in ack_batches))
        self._note("acked", ack_batches)
        under_way = []
        for batch in ack_batches:
            if batch.done is None:
                batch.done = loop.create_future()
            under_way.append(batch.done)
            self._batcher.submit(batch)
        return under_way

    async def drain(self) -> None:
        await self._batcher.drain()
        await self._aside.drain()

    # ---- one flush ----

    def _note(self, step: str, ack_batches: list[AckBatch]) -> None:
        if self._steps.queue is not None and len(ack_batches) == 1:
            self._steps.note(ack_batches[0].partition.queue.name, step)

    async def _flush(self, ack_batches: list[AckBatch]) -> None:
        ready: list[AckBatch] = []
        for batch in ack_batches:
            if self._aside.holds(batch.key):
                self._set_aside([batch])
            else:
                ready.append(batch)
        if ready:
            await self._try(ready, alone=False)

    def _set_aside(self, ack_batches: Iterable[AckBatch]) -> None:
        for batch in ack_batches:
            batch.is_aside = True
            self._aside.put(batch.key, [batch])

    async def _flush_alone(self, ack_batches: list[AckBatch]) -> None:
        for batch in ack_batches:
            batch.is_aside = False
        await self._try(ack_batches, alone=True)

    async def _try(self, ack_batches: list[AckBatch], *, alone: bool) -> None:
        self._note("settling", ack_batches)
        try:
            await self._settle(ack_batches)
            self._note("settled", ack_batches)
        except Exception as error:
            if alone and isinstance(error, Contended):
                raise
            if alone or (isinstance(error, Unavailable) and not isinstance(error, Contended)):
                self._fail(ack_batches, _report(error))
            else:
                # One of them is to blame; each finds out by itself.
                self._set_aside(
                    batch for batch in ack_batches if not (batch.is_settled or batch.is_aside)
                )
        for batch in ack_batches:
            if batch.is_settled:
                self.finish(batch)

    async def _settle(self, ack_batches: list[AckBatch]) -> None:
        # Tried again, one of them may be done already.
        ack_batches = [batch for batch in ack_batches if not batch.is_settled]
        for batch in ack_batches:
            batch.look_up(self._leases)
        await self._find_limits(ack_batches)
        # A breaker has to know of all.
        rest = [batch for batch in ack_batches if batch.is_guarded]
        shared, ordered = part_shared([batch for batch in ack_batches if not batch.is_guarded])
        rest += await self._ack_spans(ordered)
        if shared:
            rest += await self._ack_shared(shared)
        if rest:
            await self._settle_closely(rest)

    def _fail(self, ack_batches: list[AckBatch], error: QueenError) -> None:
        for batch in ack_batches:
            if not batch.is_aside and not batch.is_settled:
                batch.error, batch.ended, batch.is_settled = error, False, True
                self.finish(batch)

    def finish(self, batch: AckBatch) -> None:
        """Tell whoever waits for the partition, then whoever asked."""
        if batch.error is None:
            self._activity.count_acks(batch)
        if batch.turn is not None:
            self._breakers.tell(batch)
        if batch.is_shared:
            self._finish_shared(batch)
        elif batch.ended:
            if batch.lease_id is not None:
                self._leases.close(batch.lease_id, batch.partition.id)
            self._events.lease_ended(
                batch.partition, batch.group, batch.lease_id, batch.committed, batch.retry_ms
            )
            makes_room = batch.partition.queue.options.limits_in_flight
            if makes_room or not batch.own or batch.partition.head > batch.committed:
                # Consumers that wait at other servers may have what is left.
                self._events.lease_released(batch.partition, batch.group_id)
        if batch.done is not None and not batch.done.done():
            batch.done.set_result(None)

    def _finish_shared(self, batch: AckBatch) -> None:
        """The same in a shared group: others wait only for what was given back."""
        if batch.ended and batch.lease_id is not None:
            self._leases.close(batch.lease_id, batch.partition.id)
        if batch.ended or batch.gives_back:
            # What may come again at once is found by a timer, too.
            wait_ms = max(batch.retry_ms, 1) if batch.gives_back else 0
            self._events.lease_ended(
                batch.partition, batch.group, batch.lease_id, batch.committed, wait_ms
            )
        if batch.gives_back or (batch.ended and batch.partition.queue.options.limits_in_flight):
            self._events.lease_released(batch.partition, batch.group_id)

    async def _ack_shared(self, ack_batches: list[AckBatch]) -> list[AckBatch]:
        """Commit whole spans of shared groups; return what needs a closer look."""
        whole, rest = part_whole(ack_batches)
        if not whole:
            return rest
        try:
            acked = await ack_whole(self._database, whole, _LOCK_WAIT_MS)
        except Contended:
            if len({batch.key for batch in ack_batches}) == 1:
                raise
            # Somebody holds a cursor for long: go on without it.
            acked = await ack_whole(self._database, whole, 0)
        busy = {batch.key for batch, done in zip(whole, acked, strict=True) if done is None}
        self._set_aside(batch for batch in ack_batches if batch.key in busy)
        rest = [batch for batch in rest if batch.key not in busy]
        for batch, done in zip(whole, acked, strict=True):
            if done:
                batch.give(AckResult.DONE)
                batch.ended = batch.is_settled = batch.is_shared = True
            elif not batch.is_aside:
                rest.append(batch)
        return rest

    async def _ack_spans(self, ack_batches: list[AckBatch]) -> list[AckBatch]:
        """Commit whole spans in one statement; return what needs a closer look."""
        whole, rest = part_whole_spans(ack_batches)
        if not whole or (len(whole) == 1 and await self._ack_lone(whole[0])):
            return rest
        columns = (
            [batch.partition.id for batch in whole],
            [batch.group_id for batch in whole],
            [batch.lease_id for batch in whole],
            [batch.covered.stop if batch.covered else 0 for batch in whole],
            [False] * len(whole),
        )
        try:
            rows = await self._database.fetch("ack_spans", *columns, _LOCK_WAIT_MS)
        except Contended:
            if len({batch.key for batch in ack_batches}) == 1:
                raise
            # Somebody holds a cursor for long: go on without it.
            rows = await self._database.fetch("ack_spans", *columns, 0)
        busy = {batch.key for batch, row in zip(whole, rows, strict=True) if row["done"] is None}
        self._set_aside(batch for batch in ack_batches if batch.key in busy)
        rest = [batch for batch in rest if batch.key not in busy]
        for batch, row in zip(whole, rows, strict=True):
            if batch.is_aside:
                continue
            if row["done"]:
                batch.committed = row["committed"]
                batch.give(AckResult.DONE)
                batch.ended = batch.is_settled = True
            else:
                rest.append(batch)
        return rest

    async def _ack_lone(self, batch: AckBatch) -> bool:
        """Commit one whole span; return false when something is in the way."""
        assert batch.covered is not None
        committed = await self._database.findval(
            "ack_lone", *batch.key, batch.lease_id, batch.covered.stop
        )
        if committed is None:
            return False
        batch.committed = committed
        batch.give(AckResult.DONE)
        batch.ended = batch.is_settled = True
        return True

    async def _settle_closely(self, ack_batches: list[AckBatch]) -> None:
        await self.find_spans(ack_batches)
        await self._find_hidden(ack_batches)
        async with self._database.transaction() as transaction:
            await transaction.execute("limit_lock_wait", str(_LOCK_WAIT_MS))
            await self.settle_in(transaction, ack_batches)
        for batch in ack_batches:
            batch.is_settled = True

    async def find_spans(self, ack_batches: list[AckBatch]) -> None:
        """Read which ids leases cover that this server has not granted, or not by their ids, or
        that are over."""
        unknown = [
            batch
            for batch in ack_batches
            if batch.covered is None and not isinstance(batch, OffsetBatch)
        ]
        leases = await self._read_leases(unknown)
        for batch in unknown:
            batch.own = False
            row = leases.get(batch)
            limits = span_limits(batch, row) if row is not None else None
            if row is None or limits is None:
                continue
            try:
                ids = await self._read_span(batch, *limits, with_ids=True)
            except Unreadable as error:
                batch.error = error
                continue
            batch.span = ids.span(batch.partition, batch.group_id)
            if batch.lease_id is not None and row["lease_id"] == batch.lease_id:
                batch.own = self._leases.learn_ids(batch.lease_id, batch.span)

    async def _find_limits(self, ack_batches: list[AckBatch]) -> None:
        """Find out what leases cover of which acks by offset do not know it."""
        unknown = [
            batch
            for batch in ack_batches
            if isinstance(batch, OffsetBatch) and batch.leased is None
        ]
        leases = await self._read_leases(unknown)
        for batch in unknown:
            if batch in leases:
                batch.take_limits(leases[batch])

    async def _find_hidden(self, ack_batches: list[AckBatch]) -> None:
        """Read which messages consumers were not shown, for leases that others have granted."""
        for batch in ack_batches:
            if not (isinstance(batch, OffsetBatch) and batch.lacks_hidden and batch.leased):
                continue
            try:
                limits = batch.leased.start, batch.leased.stop
                shown = await self._read_span(batch, *limits, with_ids=False)
            except Unreadable as error:
                batch.error = error
                continue
            batch.leased = shown.bare_span(batch.partition, batch.group_id)
            batch.lacks_hidden = False

    async def _read_cursors(self, ack_batches: Sequence[AckBatch]) -> dict[Key, Record]:
        if not ack_batches:
            return {}
        rows = await self._database.fetch(
            "cursor_spans",
            [batch.partition.id for batch in ack_batches],
            [batch.group_id for batch in ack_batches],
        )
        return {(row["partition_id"], row["group_id"]): row for row in rows}

    async def _read_leases(
        self, ack_batches: Sequence[AckBatch]
    ) -> dict[AckBatch, Mapping[str, Any]]:
        """Return what the cursor of each batch knows of its lease; in a shared group it is one of
        several, and has a span."""
        cursors = await self._read_cursors(ack_batches)
        leases: dict[AckBatch, Mapping[str, Any]] = {
            batch: dict(cursors[batch.key]) for batch in ack_batches if batch.key in cursors
        }
        shared = [batch for batch, row in leases.items() if row["handed"] is not None]
        spans = await leased_spans(self._database, shared) if shared else {}
        for batch in shared:
            span = spans.get(key) if (key := lease_key(batch)) is not None else None
            if span is not None:
                held = {"lease_id": span.lease_id, "batch_start": span.first, "batch_end": span.end}
                leases[batch] = {**leases[batch], **held}
        return leases

    async def batches_with_receipt(
        self, lease_id: uuid.UUID, ack_batches: list[AckBatch]
    ) -> list[AckBatch]:
        """Return those whose cursor remembers that a lease, now over, decided something."""
        cursors = await self._read_cursors(ack_batches)
        remembered = {
            key
            for key, row in cursors.items()
            if acked_up_to(row["receipts"], lease_id) is not None
        }
        return [batch for batch in ack_batches if batch.key in remembered]

    async def _read_span(
        self, batch: AckBatch, start: int, stop: int, *, with_ids: bool
    ) -> SpanBuilder:
        """Read which messages a lease covers, a page at a time: at most their ids are kept."""
        span = SpanBuilder(start, stop, batch.group, with_ids=with_ids)
        at = start
        while at < stop:
            rows = await self._database.fetch(
                "read_some", [batch.partition.id], [at], [stop], _PAGE_BYTES, _PAGE_BYTES
            )
            for row in rows:
                segment = self._encryption.decode_segment(row)
                span.add(StoredSegment(row["base_offset"], row["created_at"], segment))
            at = rows[-1]["end_offset"] if rows else stop
        return span

    async def settle_in(self, transaction: Transaction, ack_batches: list[AckBatch]) -> None:
        """Apply acknowledgments inside a transaction that may do more. One whose dead messages
        cannot be kept is left out, and has its error."""
        breakers = await self._breakers.lock(transaction, ack_batches)
        cursors = await lock(transaction, (batch.key for batch in ack_batches))
        shared, ordered = part_by_kind(ack_batches, cursors)
        spans = await Spans.lock(transaction, shared, cursors) if shared else None
        breakers.begin(ack_batches)
        applied = apply_all(ordered, cursors)
        dead = applied.dead if spans is None else applied.dead + spans.apply(shared)
        dead_letters = await self._copy_dead(transaction, dead)
        if any(batch.error is not None for batch in ack_batches):
            breakers.begin(ack_batches)
            applied = apply_all(ordered, cursors)
            if spans is not None:
                spans.apply(shared)
        sound = [dead_letter for batch, dead_letter in dead_letters if batch.error is None]
        await self._copies.store(transaction, sound)
        await self._tell_who_is_late(transaction, ack_batches)
        await store(transaction, applied.cursors, applied.waits_ms)
        if spans is not None:
            await spans.store(transaction)
        await breakers.store(transaction)

    async def _tell_who_is_late(
        self, transaction: Transaction, ack_batches: list[AckBatch]
    ) -> None:
        """Part the failures of messages that are done: repeated ones have left a dead letter; the
        others change nothing, because somebody has completed the message meanwhile."""
        late = [
            (batch, name, offset)
            for batch in ack_batches
            for name, offset in batch.failures_of_done()
        ]
        if not late:
            return
        rows = await transaction.fetch(
            "letters_at",
            [batch.partition.id for batch, _, _ in late],
            [batch.group_id for batch, _, _ in late],
            [offset for _, _, offset in late],
        )
        dead_letters = {tuple(row) for row in rows}
        for batch, name, offset in late:
            is_dead = (*batch.key, offset) in dead_letters
            batch.results[name] = AckResult.ALREADY_DEAD if is_dead else AckResult.TOO_LATE

    async def give_up(
        self, partition: Partition, group: str, group_id: int, offset: int, attempts: int
    ) -> None:
        """Set aside a message that no consumer ever came back from."""
        batch = AckBatch(partition, group, group_id, None, {}, reason=_SILENT)
        async with self._database.transaction() as transaction:
            cursor = (await lock(transaction, [batch.key])).get(batch.key)
            if cursor is None or not await self._is_silent(transaction, cursor, batch, offset):
                return
            if cursor.handed is None and cursor.attempts < attempts:
                return
            dead_letters = await self._copy_dead(transaction, [GivenUp(batch, offset, attempts)])
            if batch.error is not None:
                raise batch.error
            await self._copies.store(transaction, [dead_letter for _, dead_letter in dead_letters])
            if cursor.handed is None:
                after = set_aside(cursor, offset)
                await store(transaction, {batch.key: after}, {})
            else:
                await transaction.fetchval("set_aside_shared", *batch.key, offset)
        self._activity.count_given_up(partition.queue)

    async def _is_silent(
        self, transaction: Transaction, cursor: Cursor, batch: AckBatch, offset: int
    ) -> bool:
        """Whether a message that is to be given up is still next, and nobody has it."""
        if cursor.handed is None:
            return not cursor.live and cursor.committed == offset
        limits = [offset], [offset + 1]
        rows = await transaction.fetch(
            "spans_between", [batch.partition.id], [batch.group_id], *limits
        )
        return any(
            row["is_alone"] and row["first_offset"] == offset and row["lease_id"] is None
            for row in rows
        )

    async def pass_over(self, span: BareSpan, lease_id: uuid.UUID) -> None:
        """End a lease of which the group is shown nothing."""
        batch = OffsetBatch(span.partition, span.group, span.group_id, lease_id, leased=span)
        async with self._database.transaction() as transaction:
            await self.settle_in(transaction, [batch])
        if batch.error is not None:
            raise batch.error
        self.finish(batch)

    async def _copy_dead(
        self, transaction: Transaction, dead: list[GivenUp]
    ) -> list[tuple[AckBatch, DeadLetter]]:
        """Return the copies of dead messages. A batch of acks with one that cannot be read gets
        the error."""
        if not dead:
            return []
        messages = await self._copies.read_messages(
            transaction, (given_up.position for given_up in dead)
        )
        dead_letters: list[tuple[AckBatch, DeadLetter]] = []
        for given_up in dead:
            message, batch = messages.get(given_up.position), given_up.ack_batch
            if isinstance(message, QueenError):
                batch.error = message
            elif message is not None and is_kept(batch, message):
                error, attempts = batch.error_of(message), given_up.attempts
                group = batch.partition, batch.group_id
                dead_letters.append(
                    (batch, self._copies.dead_letter(*group, message, error, attempts))
                )
        return dead_letters


def raise_if_none_acked(ack_batches: list[AckBatch]) -> None:
    """Raise why, when nothing at all could be done; else each batch says it of itself."""
    errors = [batch.error for batch in ack_batches if batch.error is not None]
    if errors and len(errors) == len(ack_batches):
        raise errors[0]


def _report(error: Exception) -> QueenError:
    """Log an error that is not ours; return what a client is told of it."""
    if isinstance(error, QueenError):
        return error
    _log.error("an ack failed", exc_info=error)
    return QueenError()
