"""Ack: what consumers have done with what they were leased.

Acks of many connections share a transaction. The common one, a whole leased span done, is
one statement. Anything else (a part of a span, failures) locks the cursor, applies the rules
of `queen.core.cursor`, and writes it back.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from queen.core.cursor import (
    Cursor,
    Settled,
    Verdict,
    Wish,
    acked_up_to,
    set_aside,
    settle,
)
from queen.errors import QueenError
from queen.service.activity import Activity
from queen.service.batcher import Batcher
from queen.service.burial import Burial, Letter, Place
from queen.service.catalog import Partition
from queen.service.cursors import Key, lock, store
from queen.service.leases import LeaseBook, Span, span_of
from queen.service.message import Message
from queen.service.segments import Stored
from queen.service.vault import Vault
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

# How far back an ended lease is looked through for the messages of a repeated ack.
_LOOK_BACK = 10_000
_SILENT = "No consumer ever came back with it"

# Partition, group, lease, how far the group has got, and how long the rest must wait.
LeaseEnded = Callable[[Partition, str, uuid.UUID | None, int, int], None]


@dataclass(slots=True, eq=False)
class Settlement:
    """Acknowledgments of one lease in one partition, and the verdict on each."""

    partition: Partition
    group: str
    group_id: int
    lease_id: uuid.UUID | None
    wishes: dict[str, Wish]
    errors: dict[str, str] = field(default_factory=dict)
    # Why a message died whose consumer gives no error.
    reason: str = "Message processing failed"
    span: Span | None = None
    # This server granted the lease.
    own: bool = True
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    committed: int = 0
    ended: bool = False
    # How long what failed has to wait before it is delivered again.
    retry_ms: int = 0
    all_done: bool = False
    done: asyncio.Future[None] | None = None

    @property
    def weight(self) -> int:
        return len(self.wishes)

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
            and set(self.wishes.values()) == {Wish.DONE}
            and self.wishes.keys() == set(span.ids)
        )

    def give(self, verdict: Verdict) -> None:
        self.verdicts = dict.fromkeys(self.wishes, verdict)
        self.all_done = verdict is Verdict.DONE


class Death(NamedTuple):
    """A message that was given up, and how often it was tried."""

    settlement: Settlement
    offset: int
    attempts: int

    @property
    def place(self) -> Place:
        return self.settlement.partition.id, self.offset


class Acker:
    def __init__(
        self,
        database: Database,
        vault: Vault,
        leases: LeaseBook,
        activity: Activity,
        lease_ended: LeaseEnded,
        tell_others: Callable[[Partition, int], None],
    ) -> None:
        self._database = database
        self._vault = vault
        self._burial = Burial(vault)
        self._leases = leases
        self._activity = activity
        self._lease_ended = lease_ended
        self._tell_others = tell_others
        self._batcher: Batcher[Settlement] = Batcher(
            self._flush, max_items=500, max_weight=100_000, max_waiting_weight=2_000_000
        )

    async def ack(self, settlements: list[Settlement]) -> None:
        """Apply acknowledgments; each settlement then has its verdicts. Returns after commit."""
        loop = asyncio.get_running_loop()
        self._batcher.check_room(sum(one.weight for one in settlements))
        for one in settlements:
            one.done = loop.create_future()
            self._batcher.submit(one)
        waiting = [one.done for one in settlements if one.done is not None]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def drained(self) -> None:
        await self._batcher.drained()

    async def _flush(self, settlements: list[Settlement]) -> None:
        try:
            for one in settlements:
                if one.lease_id is not None and one.span is None:
                    one.span = self._leases.span(one.lease_id, one.partition.id)
                    one.own = one.span is not None
            rest = await self._ack_spans(settlements)
            if rest:
                await self._settle_closely(rest)
        except Exception as error:
            if not isinstance(error, QueenError):
                _log.exception("an ack failed")
            self._fail(settlements, error if isinstance(error, QueenError) else QueenError())
        else:
            for one in settlements:
                self.finish(one)

    def _fail(self, settlements: list[Settlement], error: QueenError) -> None:
        for one in settlements:
            if one.done is not None and not one.done.done():
                one.done.set_exception(error)

    def finish(self, one: Settlement) -> None:
        """Tell whoever waits for the partition, then whoever asked."""
        self._activity.settled(one)
        if one.ended:
            if one.lease_id is not None:
                self._leases.close(one.lease_id, one.partition.id)
            self._lease_ended(one.partition, one.group, one.lease_id, one.committed, one.retry_ms)
            if not one.own or one.partition.head > one.committed:
                # Consumers that wait at other servers may have what is left.
                self._tell_others(one.partition, one.group_id)
        if one.done is not None and not one.done.done():
            one.done.set_result(None)

    async def _ack_spans(self, settlements: list[Settlement]) -> list[Settlement]:
        """Commit whole spans in one statement; return what needs a closer look."""
        keys: set[tuple[int, int]] = set()
        whole: list[Settlement] = []
        rest: list[Settlement] = []
        for one in settlements:
            # Two acks for one cursor are applied one after the other.
            if one.key not in keys and one.covers_span():
                whole.append(one)
            else:
                rest.append(one)
            keys.add(one.key)
        if not whole:
            return rest
        whole.sort(key=lambda one: one.key)
        rows = await self._database.fetch(
            "ack_spans",
            [one.partition.id for one in whole],
            [one.group_id for one in whole],
            [one.lease_id for one in whole],
            [one.span.stop if one.span else 0 for one in whole],
        )
        for one, row in zip(whole, rows, strict=True):
            if row["done"]:
                one.committed = row["committed"]
                one.give(Verdict.DONE)
                one.ended = True
            else:
                rest.append(one)
        return rest

    async def _settle_closely(self, settlements: list[Settlement]) -> None:
        await self.find_spans(settlements)
        async with self._database.transaction() as transaction:
            await self.settle_in(transaction, settlements)

    async def find_spans(self, settlements: list[Settlement]) -> None:
        """Read what leases cover that this server has not granted, or that are over."""
        unknown = [one for one in settlements if one.span is None]
        if not unknown:
            return
        rows = await self._database.fetch(
            "cursor_spans", [one.partition.id for one in unknown], [one.group_id for one in unknown]
        )
        held = {(row["partition_id"], row["group_id"]): row for row in rows}
        for one in unknown:
            one.own = False
            row = held.get(one.key)
            limits = _limits(one, row) if row is not None else None
            if limits is not None:
                one.span = await self._read_span(one, *limits)

    async def with_receipt(
        self, lease_id: uuid.UUID, settlements: list[Settlement]
    ) -> list[Settlement]:
        """Return those whose cursor remembers that a lease, now over, decided something."""
        rows = await self._database.fetch(
            "cursor_spans",
            [one.partition.id for one in settlements],
            [one.group_id for one in settlements],
        )
        known = {
            (row["partition_id"], row["group_id"])
            for row in rows
            if acked_up_to(row["receipts"], lease_id) is not None
        }
        return [one for one in settlements if one.key in known]

    async def _read_span(self, one: Settlement, start: int, stop: int) -> Span:
        rows = await self._database.fetch("read_spans", [one.partition.id], [start], [stop])
        stored = [
            Stored(row["base_offset"], row["created_at"], self._vault.segment(row)) for row in rows
        ]
        return span_of(one.partition, one.group, one.group_id, start, stop, stored)

    async def settle_in(self, transaction: Transaction, settlements: list[Settlement]) -> None:
        """Apply acknowledgments inside a transaction that may do more."""
        cursors = await lock(transaction, (one.key for one in settlements))
        changed: dict[Key, Cursor] = {}
        waits_ms: dict[Key, int] = {}
        dead: list[Death] = []
        for one in settlements:
            cursor = changed.get(one.key) or cursors.get(one.key)
            if cursor is None:
                one.give(Verdict.LOST)
                continue
            after = _apply(one, cursor)
            dead += [Death(one, offset, tries) for offset, tries in after.dead.items()]
            if after.cursor is not cursor:
                changed[one.key] = after.cursor
                waits_ms[one.key] = one.retry_ms
        await self._bury(transaction, dead)
        await self._tell_who_is_late(transaction, settlements)
        await store(transaction, changed, waits_ms)

    async def _tell_who_is_late(
        self, transaction: Transaction, settlements: list[Settlement]
    ) -> None:
        """Part the failures of messages that are done: repeated ones have left a dead letter; the
        others change nothing, because somebody has completed the message meanwhile."""
        late = [failure for one in settlements for failure in _failures_of_done(one)]
        if not late:
            return
        rows = await transaction.fetch(
            "letters_at",
            [one.partition.id for one, _, _ in late],
            [one.group_id for one, _, _ in late],
            [offset for _, _, offset in late],
        )
        letters = {tuple(row) for row in rows}
        for one, transaction_id, offset in late:
            is_dead = (*one.key, offset) in letters
            one.verdicts[transaction_id] = Verdict.ALREADY_DEAD if is_dead else Verdict.TOO_LATE

    async def give_up(
        self, partition: Partition, group: str, group_id: int, offset: int, attempts: int
    ) -> None:
        """Set aside a message that no consumer ever came back from."""
        one = Settlement(partition, group, group_id, None, {}, reason=_SILENT)
        async with self._database.transaction() as transaction:
            cursor = (await lock(transaction, [one.key])).get(one.key)
            if cursor is None or cursor.live or cursor.committed != offset:
                return
            if cursor.attempts < attempts:
                return
            await self._bury(transaction, [Death(one, offset, attempts)])
            after = set_aside(cursor, offset)
            await store(transaction, {one.key: after}, {})
        self._activity.gave_up(partition.queue)

    async def pass_over(self, span: Span, lease_id: uuid.UUID) -> None:
        """End a lease of which the group is shown nothing."""
        one = Settlement(span.partition, span.group, span.group_id, lease_id, {}, span=span)
        async with self._database.transaction() as transaction:
            await self.settle_in(transaction, [one])
        self.finish(one)

    async def _bury(self, transaction: Transaction, dead: list[Death]) -> None:
        """Copy dead messages aside, in the transaction that moves the cursor past them."""
        if not dead:
            return
        messages = await self._burial.messages(transaction, (death.place for death in dead))
        letters: list[Letter] = []
        for death in dead:
            message, one = messages.get(death.place), death.settlement
            if message is None or not _is_kept(one, message):
                continue
            error = one.errors.get(message.transaction_id) or one.reason
            letters.append(
                self._burial.letter(one.partition, one.group_id, message, error, death.attempts)
            )
        await self._burial.bury(transaction, letters)


def _is_kept(one: Settlement, message: Message) -> bool:
    """Whether a dead message is kept: always when the consumer asked for it."""
    wanted = one.wishes.get(message.transaction_id) is Wish.DEAD
    return wanted or one.partition.queue.options.dead_letter_queue


def _limits(one: Settlement, row: Record) -> tuple[int, int] | None:
    """Return the offsets among which the messages of an acknowledgment can be."""
    lease_id = one.lease_id
    if row["lease_id"] is not None and (lease_id is None or row["lease_id"] == lease_id):
        return row["batch_start"], row["batch_end"]
    upto = acked_up_to(row["receipts"], lease_id) if lease_id is not None else None
    return (max(upto - _LOOK_BACK, 0), upto) if upto is not None else None


def _failures_of_done(one: Settlement) -> list[tuple[Settlement, str, int]]:
    """Return the messages, and where they stand, that were failed although they are done."""
    return [
        (one, transaction_id, _offsets(one.span, transaction_id)[-1])
        for transaction_id, verdict in one.verdicts.items()
        if one.span is not None
        and verdict is Verdict.ALREADY
        and one.wishes[transaction_id] is not Wish.DONE
    ]


def _offsets(span: Span, transaction_id: str) -> list[int]:
    """Return where an id stands. The last one answers for all: a message that was shown, if
    there is one."""
    offsets = span.offsets_of(transaction_id)
    return sorted(offsets, key=span.hidden.__contains__, reverse=True)


def _apply(one: Settlement, cursor: Cursor) -> Settled:
    """Apply one settlement to a cursor and give it its verdicts."""
    if one.span is None:
        one.give(Verdict.LOST)
        return Settled(cursor)
    wishes: dict[int, Wish] = {}
    ids: dict[int, str] = {}
    for transaction_id, wish in one.wishes.items():
        one.verdicts[transaction_id] = Verdict.LOST
        for offset in _offsets(one.span, transaction_id):
            wishes[offset] = wish
            ids[offset] = transaction_id
    options = one.partition.queue.options
    after = settle(cursor, one.lease_id, wishes, options.retry_ceiling, one.span.hidden)
    for offset, verdict in after.verdicts.items():
        one.verdicts[ids[offset]] = verdict
    one.retry_ms = options.retry_delay if after.must_wait else 0
    one.committed = after.cursor.committed
    one.ended = cursor.lease_id is not None and after.cursor.lease_id is None
    return after
