"""Ack: what consumers have done with what they were leased.

Acks of many connections share a transaction. The common one, a whole leased span done, is
one statement. Anything else (a part of a span, failures) locks the cursor, applies the rules
of `queen.core.cursor`, and writes it back.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from queen.core.cursor import (
    Cursor,
    Settled,
    Verdict,
    Wish,
    acked_up_to,
    bits_from_bytes,
    bits_to_bytes,
    set_aside,
    settle,
)
from queen.core.frame import CODEC_RAW
from queen.errors import QueenError
from queen.service.batcher import Batcher
from queen.service.catalog import Partition
from queen.service.leases import LeaseBook, Span, span_of
from queen.service.message import Message, message_at
from queen.service.segments import Stored
from queen.service.vault import Vault
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

_failures = msgspec.json.Decoder(dict[int, int])

# How far back an ended lease is looked through for the messages of a repeated ack.
_LOOK_BACK = 10_000
_SILENT = "No consumer ever came back with it"

# Partition, group, lease, how far the group has got, and how long the rest must wait.
LeaseEnded = Callable[[Partition, str, uuid.UUID | None, int, int], None]


class Letter(NamedTuple):
    """A dead letter, field by field as it is stored."""

    partition_id: int
    group_id: int
    offset: int
    transaction_id: str
    trace_id: str | None
    payload: bytes
    error: str | None
    attempts: int
    created_at: datetime
    codec: int
    producer_sub: str | None


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
    def key(self) -> tuple[int, int]:
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


class Acker:
    def __init__(
        self,
        database: Database,
        vault: Vault,
        leases: LeaseBook,
        lease_ended: LeaseEnded,
        tell_others: Callable[[Partition, int], None],
    ) -> None:
        self._database = database
        self._vault = vault
        self._leases = leases
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
        keys = sorted({one.key for one in settlements})
        rows = await transaction.fetch(
            "lock_cursors", [key[0] for key in keys], [key[1] for key in keys]
        )
        cursors = {(row["partition_id"], row["group_id"]): _cursor(row) for row in rows}
        changed: dict[tuple[int, int], int] = {}
        dead: list[tuple[Settlement, int, int]] = []
        for one in settlements:
            cursor = cursors.get(one.key)
            if cursor is None:
                one.give(Verdict.LOST)
                continue
            after = _apply(one, cursor)
            dead += [(one, offset, tries) for offset, tries in after.dead.items()]
            if after.cursor is not cursor:
                cursors[one.key] = after.cursor
                changed[one.key] = one.retry_ms
        if dead:
            await self._bury(transaction, dead)
        if changed:
            await transaction.execute("store_cursors", *_columns(changed, cursors))

    async def give_up(
        self, partition: Partition, group: str, group_id: int, offset: int, attempts: int
    ) -> None:
        """Set aside a message that no consumer ever came back from."""
        one = Settlement(partition, group, group_id, None, {}, reason=_SILENT)
        async with self._database.transaction() as transaction:
            rows = await transaction.fetch("lock_cursors", [partition.id], [group_id])
            cursor = _cursor(rows[0]) if rows else None
            if cursor is None or cursor.live or cursor.committed != offset:
                return
            if cursor.attempts < attempts:
                return
            await self._bury(transaction, [(one, offset, attempts)])
            after = set_aside(cursor, offset)
            after.lease_id = after.batch_start = after.batch_end = None
            await transaction.execute("store_cursors", *_columns({one.key: 0}, {one.key: after}))

    async def pass_over(self, span: Span, lease_id: uuid.UUID) -> None:
        """End a lease of which the group is shown nothing."""
        one = Settlement(span.partition, span.group, span.group_id, lease_id, {}, span=span)
        async with self._database.transaction() as transaction:
            await self.settle_in(transaction, [one])
        self.finish(one)

    async def _bury(
        self, transaction: Transaction, dead: list[tuple[Settlement, int, int]]
    ) -> None:
        """Copy dead messages aside, in the transaction that moves the cursor past them."""
        offsets: dict[int, set[int]] = defaultdict(set)
        for one, offset, _ in dead:
            offsets[one.partition.id].add(offset)
        spans = [(partition, offset) for partition, group in offsets.items() for offset in group]
        rows = await transaction.fetch(
            "read_spans",
            [partition for partition, _ in spans],
            [offset for _, offset in spans],
            [offset + 1 for _, offset in spans],
        )
        messages = self._messages_at(rows, offsets)
        letters: list[Letter] = []
        for one, offset, attempts in dead:
            message = messages.get((one.partition.id, offset))
            if message is not None and _is_kept(one, message):
                letters.append(self._letter(one, message, attempts))
        if letters:
            await transaction.execute("bury", *map(list, zip(*letters, strict=True)))

    def _letter(self, one: Settlement, message: Message, attempts: int) -> Letter:
        payload, codec = message.payload, CODEC_RAW
        if one.partition.queue.options.encryption_enabled:
            codec, payload = self._vault.close_letter(one.partition.id, payload)
        return Letter(
            one.partition.id,
            one.group_id,
            message.offset,
            message.transaction_id,
            message.trace_id,
            payload,
            one.errors.get(message.transaction_id) or one.reason,
            attempts,
            message.created_at,
            codec,
            message.producer_sub,
        )

    def _messages_at(
        self, rows: list[Any], offsets: Mapping[int, set[int]]
    ) -> dict[tuple[int, int], Message]:
        found: dict[tuple[int, int], Message] = {}
        for row in rows:
            segment = self._vault.segment(row)
            for at, offset in enumerate(range(row["base_offset"], row["end_offset"])):
                if offset in offsets[row["partition_id"]]:
                    message = message_at(segment, at, offset, row["created_at"])
                    found[row["partition_id"], offset] = message
        return found


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


def _apply(one: Settlement, cursor: Cursor) -> Settled:
    """Apply one settlement to a cursor and give it its verdicts."""
    if one.span is None:
        one.give(Verdict.LOST)
        return Settled(cursor)
    wishes: dict[int, Wish] = {}
    ids: dict[int, str] = {}
    for transaction_id, wish in one.wishes.items():
        one.verdicts[transaction_id] = Verdict.LOST
        for offset in one.span.offsets_of(transaction_id):
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


def _cursor(row: Record) -> Cursor:
    return Cursor(
        committed=row["committed"],
        batch_start=row["batch_start"],
        batch_end=row["batch_end"],
        # asyncpg has its own UUID class; ours compares equal to it, but not the other way.
        lease_id=uuid.UUID(bytes=row["lease_id"].bytes) if row["lease_id"] else None,
        live=row["live"],
        attempts=row["attempts"],
        acked=bits_from_bytes(row["acked"]),
        failed=bits_from_bytes(row["failed"]),
        failures=_failures.decode(row["failures"]) if row["failures"] else {},
        receipts=row["receipts"],
    )


def _columns(
    changed: dict[tuple[int, int], int], cursors: dict[tuple[int, int], Cursor]
) -> list[list[Any]]:
    """Return the arguments of `store_cursors`; `changed` says how long each has to wait."""
    keys = sorted(changed)
    rows = [cursors[key] for key in keys]
    return [
        [key[0] for key in keys],
        [key[1] for key in keys],
        [row.committed for row in rows],
        [row.batch_start for row in rows],
        [row.batch_end for row in rows],
        [row.lease_id for row in rows],
        [row.attempts for row in rows],
        [bits_to_bytes(row.acked) for row in rows],
        [bits_to_bytes(row.failed) for row in rows],
        [msgspec.json.encode(row.failures) if row.failures else None for row in rows],
        [row.receipts for row in rows],
        [changed[key] for key in keys],
    ]
