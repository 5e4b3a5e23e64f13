"""Batches of acks, and what they make of cursors. Nothing here asks the database.

A batch is what one request says of one lease in one partition, by transaction ids or by
offsets. Whether it ends the lease with everything done is seen by comparing ids, or two numbers;
anything else goes through the rules of `queen.core.cursor`, message by message.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from queen.core.cursor import AckResult, AckStatus, Cursor, Settled, acked_up_to, settle
from queen.core.pacing.group_breaker import GroupBreaker, Turn
from queen.core.shared import SettledSpan, SharedSpan
from queen.errors import QueenError
from queen.service.acks.cursors import Key
from queen.service.acks.dead_letter_copies import Position
from queen.service.catalog import Partition
from queen.service.consume.lease_book import BareSpan, LeaseBook, Span
from queen.service.log.message import Message

# How far back an ended lease is looked through for the messages of a repeated ack.
_LOOK_BACK = 10_000
_MAX_ERROR_CHARACTERS = 10_000
_DONE = frozenset((AckResult.DONE, AckResult.ALREADY))
_DEAD = frozenset((AckResult.DEAD, AckResult.ALREADY_DEAD))

# Offsets [first, end).
Run = tuple[int, int]

# What acks are applied to, and what comes of it: a cursor, or a span of a shared group.
State = TypeVar("State", Cursor, SharedSpan)
Outcome = TypeVar("Outcome", Settled, SettledSpan)
Rules = Callable[
    [State, uuid.UUID | None, Mapping[int, AckStatus], int | None, Iterable[int]], Outcome
]


class Tally(NamedTuple):
    """How many messages were acknowledged, in the words of the statistics."""

    done: int
    failed: int
    dead: int


@dataclass(slots=True, eq=False)
class AckBatch:
    """Acknowledgments of one lease in one partition, and the result on each."""

    partition: Partition
    group: str
    group_id: int
    lease_id: uuid.UUID | None
    statuses: dict[str, AckStatus]
    errors: dict[str, str] = field(default_factory=dict)
    # How long a consumer wants messages to wait, by id and (when it is known) by offset.
    delays_ms: dict[str, int] = field(default_factory=dict)
    asked_ms: dict[int, int] = field(default_factory=dict)
    # Why a message died whose consumer gives no error.
    reason: str = "Message processing failed"
    span: Span | None = None
    # This server granted the lease.
    own: bool = True
    # By id, or by offset.
    results: dict[str | int, AckResult] = field(default_factory=dict)
    committed: int = 0
    ended: bool = False
    # Of a group that has one; and what these acks have done to it.
    breaker: GroupBreaker | None = None
    turn: Turn | None = None
    # How long what failed has to wait before it is delivered again.
    retry_ms: int = 0
    all_done: bool = False
    # Why nothing of it could be done.
    error: QueenError | None = None
    # Its results are committed, or it has failed for good.
    is_settled: bool = False
    # Waits for something slow; whoever made it wait answers it.
    is_aside: bool = False
    # Of a shared group; and whether some of its messages are there for others now, or later.
    is_shared: bool = False
    gives_back: bool = False
    done: asyncio.Future[None] | None = None

    @property
    def weight(self) -> int:
        return len(self.statuses)

    @property
    def key(self) -> Key:
        return self.partition.id, self.group_id

    @property
    def covered(self) -> BareSpan | None:
        """What its lease covers, as far as that is known."""
        return self.span

    def look_up(self, leases: LeaseBook) -> None:
        """Take from the book what its lease covers."""
        if self.lease_id is not None and self.span is None:
            self.own = leases.bare_span(self.lease_id, self.partition.id) is not None
            self.span = leases.span(self.lease_id, self.partition.id)

    def covers_span(self) -> bool:
        """Whether everything that was leased is done."""
        span = self.span
        return (
            span is not None
            and self.lease_id is not None
            and not span.hidden
            and list(self.statuses.values()).count(AckStatus.DONE) == len(self.statuses)
            # Most are acknowledged in the order in which they came.
            and (list(self.statuses) == span.ids or self.statuses.keys() == set(span.ids))
        )

    def give(self, result: AckResult) -> None:
        self.results = dict.fromkeys(self.statuses, result)
        self.all_done = result is AckResult.DONE

    def settle(self, state: State, rules: Rules[State, Outcome]) -> Outcome:
        """Apply the rules to a cursor or a span, and take the results."""
        assert self.span is not None
        statuses: dict[int, AckStatus] = {}
        ids: dict[int, str] = {}
        for transaction_id, status in self.statuses.items():
            self.results[transaction_id] = AckResult.LOST
            for offset in _offsets(self.span, transaction_id):
                statuses[offset] = status
                ids[offset] = transaction_id
                if transaction_id in self.delays_ms:
                    self.asked_ms[offset] = self.delays_ms[transaction_id]
        after = self._apply_rules(state, rules, statuses, self.span.hidden)
        for offset, result in after.results.items():
            self.results[ids[offset]] = result
        return after

    def _apply_rules(
        self,
        state: State,
        rules: Rules[State, Outcome],
        statuses: dict[int, AckStatus],
        hidden: frozenset[int],
    ) -> Outcome:
        if self.breaker is not None:
            turned_before, self.breaker.turn = self.breaker.turn, None
            statuses = self.breaker.judge(state, self.lease_id, statuses)
            self.turn = self.breaker.turn
            self.breaker.turn = self.turn or turned_before
        ceiling = self.partition.queue.options.retry_ceiling
        return rules(state, self.lease_id, statuses, ceiling, hidden)

    @property
    def is_guarded(self) -> bool:
        """Whether a breaker of its group has to know of it."""
        return self.partition.queue.options.breaker > 0

    def status_of(self, message: Message) -> AckStatus | None:
        return self.statuses.get(message.transaction_id)

    def error_of(self, message: Message) -> str:
        """Return why a message died."""
        return self.errors.get(message.transaction_id) or self.reason

    def failures_of_done(self) -> list[tuple[str | int, int]]:
        """Return the messages, and where they stand, that were failed although they are done."""
        return [
            (transaction_id, _offsets(self.span, transaction_id)[-1])
            for transaction_id, status in self.statuses.items()
            if self.span is not None
            and self.results.get(transaction_id) is AckResult.ALREADY
            and status is not AckStatus.DONE
        ]

    def tally(self) -> Tally:
        if self.all_done:
            return Tally(self.weight, 0, 0)
        results = self.results.values()
        done = sum(result in _DONE for result in results)
        dead = sum(result is AckResult.DEAD for result in results)
        return Tally(done, len(results) - done, dead)


@dataclass(slots=True, eq=False)
class OffsetBatch(AckBatch):
    """The same by offsets: runs of messages that are done, and messages that are not."""

    statuses: dict[str, AckStatus] = field(default_factory=dict)
    # In order, and apart from each other.
    runs: list[Run] = field(default_factory=list)
    failed: dict[int, AckStatus] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    # How many offsets it names: as many as somebody cares to write.
    count: int = 0
    leased: BareSpan | None = None
    # Which messages of it are hidden was not read yet.
    lacks_hidden: bool = False
    # Offsets that are not of the lease.
    outside: int = 0
    # The lease is no longer held.
    is_over: bool = False

    @property
    def weight(self) -> int:
        # No lease is larger.
        return min(self.count, _LOOK_BACK)

    @property
    def covered(self) -> BareSpan | None:
        return self.leased

    def look_up(self, leases: LeaseBook) -> None:
        if self.leased is None:
            assert self.lease_id is not None
            self.leased = leases.bare_span(self.lease_id, self.partition.id)
            self.own = self.leased is not None

    def take_limits(self, row: Mapping[str, Any]) -> None:
        """Take from the cursor what a lease covers, or covered, that another server granted."""
        limits = span_limits(self, row)
        if limits is not None:
            self.leased = BareSpan(self.partition, self.group, self.group_id, *limits)
            # Nothing is changed for a lease that is over.
            self.lacks_hidden = row["lease_id"] == self.lease_id

    def covers_span(self) -> bool:
        leased = self.leased
        return leased is not None and not self.failed and self.runs == [(leased.start, leased.stop)]

    def give(self, result: AckResult) -> None:
        self.all_done = self.is_over = result is AckResult.DONE
        if result is AckResult.LOST:
            self.outside, self.is_over = self.count, True

    def settle(self, state: State, rules: Rules[State, Outcome]) -> Outcome:
        assert self.leased is not None
        statuses = self._statuses_within(self.leased.start, self.leased.stop)
        after = self._apply_rules(state, rules, statuses, self.leased.hidden)
        self.results = dict(after.results.items())
        self.outside = self.count - len(statuses)
        self.is_over = not after.is_held_by(self.lease_id)
        return after

    def _statuses_within(self, start: int, stop: int) -> dict[int, AckStatus]:
        """Return what is said of each message between two offsets."""
        statuses: dict[int, AckStatus] = {}
        for first, end in self.runs:
            offsets = range(max(first, start), min(end, stop))
            statuses.update(dict.fromkeys(offsets, AckStatus.DONE))
        statuses.update(
            (offset, status) for offset, status in self.failed.items() if start <= offset < stop
        )
        return statuses

    def status_of(self, message: Message) -> AckStatus | None:
        return self.failed.get(message.offset)

    def error_of(self, message: Message) -> str:
        return self.reasons.get(message.offset) or self.reason

    def failures_of_done(self) -> list[tuple[str | int, int]]:
        return [
            (offset, offset)
            for offset in self.failed
            if self.results.get(offset) is AckResult.ALREADY
        ]

    @property
    def lost(self) -> int:
        """How many of its messages were not its own any more, or never were."""
        return self.outside + self._count_of(frozenset((AckResult.LOST,)))

    @property
    def dead(self) -> int:
        return self._count_of(_DEAD)

    @property
    def is_too_late(self) -> bool:
        return AckResult.TOO_LATE in self.results.values()

    @property
    def is_taken(self) -> bool:
        """Whether nothing of it was refused."""
        return self.error is None and not self.lost and not self.is_too_late

    def _count_of(self, results: frozenset[AckResult]) -> int:
        return sum(result in results for result in self.results.values())


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


def part_by_kind(
    ack_batches: list[AckBatch], cursors: dict[Key, Cursor]
) -> tuple[list[AckBatch], list[AckBatch]]:
    """Return the batches of shared groups, by their locked cursors, and the others."""
    shared: list[AckBatch] = []
    others: list[AckBatch] = []
    for batch in ack_batches:
        cursor = cursors.get(batch.key)
        is_shared = cursor is not None and cursor.handed is not None
        (shared if is_shared else others).append(batch)
    return shared, others


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
    if batch.covered is None:
        batch.give(AckResult.LOST)
        return Settled(cursor)
    after = batch.settle(cursor, settle)
    batch.retry_ms = _retry_ms(batch, after)
    batch.committed = after.cursor.committed
    batch.ended = cursor.lease_id is not None and after.cursor.lease_id is None
    return after


def _retry_ms(batch: AckBatch, after: Settled) -> int:
    """Return how long the cursor gives out nothing: until the last of the messages that were given
    back is due, so that none of them comes before its time."""
    backoff = batch.partition.queue.options.backoff
    given_back = [offset for offset, result in after.results.items() if result is AckResult.RETRY]
    waits_ms = [
        backoff.asked_wait_ms(batch.asked_ms[offset])
        for offset in given_back
        if offset in batch.asked_ms
    ]
    waits_ms += [
        backoff.wait_ms(failures, batch.group_id, batch.partition.id, offset)
        for offset, failures in after.given_back.items()
        if failures and offset not in batch.asked_ms
    ]
    return max(waits_ms, default=0)


def is_kept(batch: AckBatch, message: Message) -> bool:
    """Whether a dead message is kept: always when the consumer asked for it."""
    is_asked_for = batch.status_of(message) is AckStatus.DEAD
    return is_asked_for or batch.partition.queue.options.dead_letter_queue


def span_limits(batch: AckBatch, row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the offsets among which the messages of an acknowledgment can be."""
    lease_id = batch.lease_id
    if row["lease_id"] is not None and (lease_id is None or row["lease_id"] == lease_id):
        return row["batch_start"], row["batch_end"]
    upto = acked_up_to(row["receipts"], lease_id) if lease_id is not None else None
    return (max(upto - _LOOK_BACK, 0), upto) if upto is not None else None


def _offsets(span: Span, transaction_id: str) -> list[int]:
    """Return where an id stands. The last one answers for all: a message that was shown, if
    there is one."""
    offsets = span.offsets_of(transaction_id)
    return sorted(offsets, key=span.hidden.__contains__, reverse=True)


def storable(error: str) -> str:
    """Return a consumer's error text as PostgreSQL can keep it."""
    return error[:_MAX_ERROR_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}")
