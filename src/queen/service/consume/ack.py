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
from collections.abc import Iterable

from queen.core.cursor import AckResult, acked_up_to, set_aside
from queen.errors import Contended, QueenError, Unavailable, Unreadable
from queen.service.catalog import Partition
from queen.service.consume.ack_batch import (
    AckBatch,
    GivenUp,
    apply_all,
    failures_of_done,
    is_kept,
    part_whole_spans,
    span_limits,
)
from queen.service.consume.cursors import lock, store
from queen.service.consume.dead_letter_copies import DeadLetter, DeadLetterCopies
from queen.service.consume.lease_book import LeaseBook, Span, SpanBuilder
from queen.service.events import Events
from queen.service.log.aside import Aside
from queen.service.log.batcher import Batcher
from queen.service.log.segment_cache import StoredSegment
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.stats.activity import Activity
from queen.storage.database import Database, Transaction

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
    ) -> None:
        self._database = database
        self._encryption = encryption
        self._copies = DeadLetterCopies(encryption)
        self._leases = leases
        self._activity = activity
        self._events = events
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
        loop = asyncio.get_running_loop()
        self._batcher.check_room(self._aside.weight + sum(batch.weight for batch in ack_batches))
        for batch in ack_batches:
            batch.done = loop.create_future()
            self._batcher.submit(batch)
        for batch in ack_batches:
            assert batch.done is not None
            await batch.done
        errors = [batch.error for batch in ack_batches if batch.error is not None]
        if errors and len(errors) == len(ack_batches):
            raise errors[0]

    async def drain(self) -> None:
        await self._batcher.drain()
        await self._aside.drain()

    # ---- one flush ----

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
        try:
            await self._settle(ack_batches)
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
            if batch.lease_id is not None and batch.span is None:
                batch.span = self._leases.span(batch.lease_id, batch.partition.id)
                batch.own = batch.span is not None
        rest = await self._ack_spans(ack_batches)
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
        if batch.ended:
            if batch.lease_id is not None:
                self._leases.close(batch.lease_id, batch.partition.id)
            self._events.lease_ended(
                batch.partition, batch.group, batch.lease_id, batch.committed, batch.retry_ms
            )
            if not batch.own or batch.partition.head > batch.committed:
                # Consumers that wait at other servers may have what is left.
                self._events.lease_released(batch.partition, batch.group_id)
        if batch.done is not None and not batch.done.done():
            batch.done.set_result(None)

    async def _ack_spans(self, ack_batches: list[AckBatch]) -> list[AckBatch]:
        """Commit whole spans in one statement; return what needs a closer look."""
        whole, rest = part_whole_spans(ack_batches)
        if not whole:
            return rest
        columns = (
            [batch.partition.id for batch in whole],
            [batch.group_id for batch in whole],
            [batch.lease_id for batch in whole],
            [batch.span.stop if batch.span else 0 for batch in whole],
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

    async def _settle_closely(self, ack_batches: list[AckBatch]) -> None:
        await self.find_spans(ack_batches)
        async with self._database.transaction() as transaction:
            await transaction.execute("limit_lock_wait", str(_LOCK_WAIT_MS))
            await self.settle_in(transaction, ack_batches)
        for batch in ack_batches:
            batch.is_settled = True

    async def find_spans(self, ack_batches: list[AckBatch]) -> None:
        """Read what leases cover that this server has not granted, or that are over."""
        unknown = [batch for batch in ack_batches if batch.span is None]
        if not unknown:
            return
        rows = await self._database.fetch(
            "cursor_spans",
            [batch.partition.id for batch in unknown],
            [batch.group_id for batch in unknown],
        )
        held = {(row["partition_id"], row["group_id"]): row for row in rows}
        for batch in unknown:
            batch.own = False
            row = held.get(batch.key)
            limits = span_limits(batch, row) if row is not None else None
            try:
                batch.span = await self._read_span(batch, *limits) if limits is not None else None
            except Unreadable as error:
                batch.error = error

    async def batches_with_receipt(
        self, lease_id: uuid.UUID, ack_batches: list[AckBatch]
    ) -> list[AckBatch]:
        """Return those whose cursor remembers that a lease, now over, decided something."""
        rows = await self._database.fetch(
            "cursor_spans",
            [batch.partition.id for batch in ack_batches],
            [batch.group_id for batch in ack_batches],
        )
        remembered = {
            (row["partition_id"], row["group_id"])
            for row in rows
            if acked_up_to(row["receipts"], lease_id) is not None
        }
        return [batch for batch in ack_batches if batch.key in remembered]

    async def _read_span(self, batch: AckBatch, start: int, stop: int) -> Span:
        """Read which messages a lease covers, a page at a time: only their ids are kept."""
        span = SpanBuilder(start, stop, batch.group)
        at = start
        while at < stop:
            rows = await self._database.fetch(
                "read_some", [batch.partition.id], [at], [stop], _PAGE_BYTES, _PAGE_BYTES
            )
            for row in rows:
                segment = self._encryption.decode_segment(row)
                span.add(StoredSegment(row["base_offset"], row["created_at"], segment))
            at = rows[-1]["end_offset"] if rows else stop
        return span.span(batch.partition, batch.group_id)

    async def settle_in(self, transaction: Transaction, ack_batches: list[AckBatch]) -> None:
        """Apply acknowledgments inside a transaction that may do more. One whose dead messages
        cannot be kept is left out, and has its error."""
        cursors = await lock(transaction, (batch.key for batch in ack_batches))
        applied = apply_all(ack_batches, cursors)
        dead_letters = await self._copy_dead(transaction, applied.dead)
        if any(batch.error is not None for batch in ack_batches):
            applied = apply_all(ack_batches, cursors)
        sound = [dead_letter for batch, dead_letter in dead_letters if batch.error is None]
        await self._copies.store(transaction, sound)
        await self._tell_who_is_late(transaction, ack_batches)
        await store(transaction, applied.cursors, applied.waits_ms)

    async def _tell_who_is_late(
        self, transaction: Transaction, ack_batches: list[AckBatch]
    ) -> None:
        """Part the failures of messages that are done: repeated ones have left a dead letter; the
        others change nothing, because somebody has completed the message meanwhile."""
        late = [failure for batch in ack_batches for failure in failures_of_done(batch)]
        if not late:
            return
        rows = await transaction.fetch(
            "letters_at",
            [batch.partition.id for batch, _, _ in late],
            [batch.group_id for batch, _, _ in late],
            [offset for _, _, offset in late],
        )
        dead_letters = {tuple(row) for row in rows}
        for batch, transaction_id, offset in late:
            is_dead = (*batch.key, offset) in dead_letters
            batch.results[transaction_id] = (
                AckResult.ALREADY_DEAD if is_dead else AckResult.TOO_LATE
            )

    async def give_up(
        self, partition: Partition, group: str, group_id: int, offset: int, attempts: int
    ) -> None:
        """Set aside a message that no consumer ever came back from."""
        batch = AckBatch(partition, group, group_id, None, {}, reason=_SILENT)
        async with self._database.transaction() as transaction:
            cursor = (await lock(transaction, [batch.key])).get(batch.key)
            if cursor is None or cursor.live or cursor.committed != offset:
                return
            if cursor.attempts < attempts:
                return
            dead_letters = await self._copy_dead(transaction, [GivenUp(batch, offset, attempts)])
            if batch.error is not None:
                raise batch.error
            await self._copies.store(transaction, [dead_letter for _, dead_letter in dead_letters])
            after = set_aside(cursor, offset)
            await store(transaction, {batch.key: after}, {})
        self._activity.count_given_up(partition.queue)

    async def pass_over(self, span: Span, lease_id: uuid.UUID) -> None:
        """End a lease of which the group is shown nothing."""
        batch = AckBatch(span.partition, span.group, span.group_id, lease_id, {}, span=span)
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
                error = batch.errors.get(message.transaction_id) or batch.reason
                group = batch.partition, batch.group_id
                dead_letters.append(
                    (batch, self._copies.dead_letter(*group, message, error, given_up.attempts))
                )
        return dead_letters


def _report(error: Exception) -> QueenError:
    """Log an error that is not ours; return what a client is told of it."""
    if isinstance(error, QueenError):
        return error
    _log.error("an ack failed", exc_info=error)
    return QueenError()
