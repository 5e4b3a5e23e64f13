"""Batches of acks, and what they make of cursors. Nothing here asks the database.

A batch is what one request says of one lease in one partition. Whether it ends the lease with
everything done is seen by comparing ids; anything else goes through the rules of
`queen.core.cursor`, message by message.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

from queen.core.cursor import AckResult, AckStatus, Cursor, Settled, acked_up_to, settle
from queen.errors import QueenError
from queen.service.catalog import Partition
from queen.service.consume.cursors import Key
from queen.service.consume.dead_letter_copies import Position
from queen.service.consume.lease_book import Span
from queen.service.log.message import Message
from queen.storage.database import Record

# How far back an ended lease is looked through for the messages of a repeated ack.
_LOOK_BACK = 10_000
_MAX_ERROR_CHARACTERS = 10_000


@dataclass(slots=True, eq=False)
class AckBatch:
    """Acknowledgments of one lease in one partition, and the result on each."""

    partition: Partition
    group: str
    group_id: int
    lease_id: uuid.UUID | None
    statuses: dict[str, AckStatus]
    errors: dict[str, str] = field(default_factory=dict)
    # Why a message died whose consumer gives no error.
    reason: str = "Message processing failed"
    span: Span | None = None
    # This server granted the lease.
    own: bool = True
    results: dict[str, AckResult] = field(default_factory=dict)
    committed: int = 0
    ended: bool = False
    # How long what failed has to wait before it is delivered again.
    retry_ms: int = 0
    all_done: bool = False
    # Why nothing of it could be done.
    error: QueenError | None = None
    # Its results are committed, or it has failed for good.
    is_settled: bool = False
    # Waits for something slow; whoever made it wait answers it.
    is_aside: bool = False
    done: asyncio.Future[None] | None = None

    @property
    def weight(self) -> int:
        return len(self.statuses)

    @property
    def key(self) -> Key:
        return self.partition.id, self.group_id

    def covers_span(self) -> bool:
        """Whether everything that was leased is done."""
        span = self.span
        return (
            span is not None
            and self.lease_id is not None
            and not span.hidden
            and set(self.statuses.values()) == {AckStatus.DONE}
            and self.statuses.keys() == set(span.ids)
        )

    def give(self, result: AckResult) -> None:
        self.results = dict.fromkeys(self.statuses, result)
        self.all_done = result is AckResult.DONE


def part_whole_spans(ack_batches: list[AckBatch]) -> tuple[list[AckBatch], list[AckBatch]]:
    """Return the batches that end their lease with everything done, in lock order, and the rest."""
    keys: set[Key] = set()
    whole: list[AckBatch] = []
    rest: list[AckBatch] = []
    for batch in ack_batches:
        # Two acks for one cursor are applied one after the other.
        if batch.key not in keys and batch.covers_span():
            whole.append(batch)
        else:
            rest.append(batch)
        keys.add(batch.key)
    whole.sort(key=lambda batch: batch.key)
    return whole, rest


class GivenUp(NamedTuple):
    """A message that was given up, and how often it was tried."""

    ack_batch: AckBatch
    offset: int
    attempts: int

    @property
    def position(self) -> Position:
        return self.ack_batch.partition.id, self.offset


class Applied(NamedTuple):
    """What batches of acks make of cursors."""

    cursors: dict[Key, Cursor]
    waits_ms: dict[Key, int]
    dead: list[GivenUp]


def apply_all(ack_batches: list[AckBatch], cursors: dict[Key, Cursor]) -> Applied:
    """Apply batches of acks one after the other, without those that have an error."""
    applied = Applied({}, {}, [])
    for batch in ack_batches:
        cursor = applied.cursors.get(batch.key) or cursors.get(batch.key)
        if batch.error is not None:
            batch.results, batch.ended = {}, False
            continue
        if cursor is None:
            batch.give(AckResult.LOST)
            continue
        after = _apply(batch, cursor)
        applied.dead.extend(GivenUp(batch, offset, tries) for offset, tries in after.dead.items())
        if after.cursor is not cursor:
            applied.cursors[batch.key] = after.cursor
            applied.waits_ms[batch.key] = batch.retry_ms
    return applied


def _apply(batch: AckBatch, cursor: Cursor) -> Settled:
    """Apply one batch to a cursor and give it its results."""
    if batch.span is None:
        batch.give(AckResult.LOST)
        return Settled(cursor)
    statuses: dict[int, AckStatus] = {}
    ids: dict[int, str] = {}
    for transaction_id, status in batch.statuses.items():
        batch.results[transaction_id] = AckResult.LOST
        for offset in _offsets(batch.span, transaction_id):
            statuses[offset] = status
            ids[offset] = transaction_id
    options = batch.partition.queue.options
    after = settle(cursor, batch.lease_id, statuses, options.retry_ceiling, batch.span.hidden)
    for offset, result in after.results.items():
        batch.results[ids[offset]] = result
    batch.retry_ms = options.retry_delay if after.must_wait else 0
    batch.committed = after.cursor.committed
    batch.ended = cursor.lease_id is not None and after.cursor.lease_id is None
    return after


def is_kept(batch: AckBatch, message: Message) -> bool:
    """Whether a dead message is kept: always when the consumer asked for it."""
    is_asked_for = batch.statuses.get(message.transaction_id) is AckStatus.DEAD
    return is_asked_for or batch.partition.queue.options.dead_letter_queue


def span_limits(batch: AckBatch, row: Record) -> tuple[int, int] | None:
    """Return the offsets among which the messages of an acknowledgment can be."""
    lease_id = batch.lease_id
    if row["lease_id"] is not None and (lease_id is None or row["lease_id"] == lease_id):
        return row["batch_start"], row["batch_end"]
    upto = acked_up_to(row["receipts"], lease_id) if lease_id is not None else None
    return (max(upto - _LOOK_BACK, 0), upto) if upto is not None else None


def failures_of_done(batch: AckBatch) -> list[tuple[AckBatch, str, int]]:
    """Return the messages, and where they stand, that were failed although they are done."""
    return [
        (batch, transaction_id, _offsets(batch.span, transaction_id)[-1])
        for transaction_id, result in batch.results.items()
        if batch.span is not None
        and result is AckResult.ALREADY
        and batch.statuses[transaction_id] is not AckStatus.DONE
    ]


def _offsets(span: Span, transaction_id: str) -> list[int]:
    """Return where an id stands. The last one answers for all: a message that was shown, if
    there is one."""
    offsets = span.offsets_of(transaction_id)
    return sorted(offsets, key=span.hidden.__contains__, reverse=True)


def storable(error: str) -> str:
    """Return a consumer's error text as PostgreSQL can keep it."""
    return error[:_MAX_ERROR_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}")
