"""Cycles of the published streaming SDK: state, results and an ack, in one transaction.

The ack carries the lease, and the database refuses it when the lease is no longer held: then
nothing is written. A cycle that comes again because its answer was lost finds its receipt,
and is not done again.

A cycle without an ack is the SDK's timer closing windows. No lease fences it, so it is done
only when it can do no harm: when its group has done everything in the partition, and when all
that it removes is still as it was when it was last offered. Otherwise somebody else has closed
these windows, or is about to: it is left undone, which is no error.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import msgspec

from queen.core.cursor import REPEATS, AckResult, AckStatus
from queen.core.cycle import count_up_to, is_of_a_window
from queen.errors import LeaseLost, NotFound, Unavailable
from queen.service.acks.ack import Acker
from queen.service.acks.ack_batch import AckBatch
from queen.service.acks.cursors import lock
from queen.service.catalog import Catalog
from queen.service.consume.lease_book import LeaseBook, Span
from queen.service.log.append import Append
from queen.service.outbox.scheduled import Scheduled
from queen.service.sdk.sdk_queries import SdkQueries, SdkQuery
from queen.service.transactions.transact import Transactor
from queen.storage.database import Abandoned, Database, Transaction

STALE = "Invalid or expired lease"
_FAILED = "Streaming cycle reported failure"
_UNREAD = "the group has not done everything in the partition"
_CLOSED = "the state was changed or removed since it was read"
_ANY_EPOCH = 2**63 - 1


class _Undone(Abandoned):
    """Leaves a cycle undone; the cycle says why."""


@dataclass(frozen=True, slots=True)
class CycleAck:
    transaction_id: str
    lease_id: uuid.UUID
    status: AckStatus
    count: int | None
    error: str | None


@dataclass(slots=True, eq=False)
class Cycle:
    """What one round of a query wants done, and what became of it."""

    sdk_query: SdkQuery
    group: str
    # New values by key; None removes.
    state: dict[str, bytes | None]
    appends: list[Append]
    scheduled: list[Scheduled]
    ack: CycleAck | None
    release: bool
    ack_batches: list[AckBatch] = field(default_factory=list)
    is_repeated: bool = False
    skipped: str | None = None

    @property
    def has_ended_lease(self) -> bool:
        return any(batch.ended for batch in self.ack_batches)

    @property
    def result(self) -> AckResult:
        """What became of the message that is named."""
        assert self.ack is not None
        return self.ack_batches[0].results.get(self.ack.transaction_id, AckResult.LOST)


class _Windowed(msgspec.Struct, rename="camel"):
    window_end: object = None


_windowed = msgspec.json.Decoder(_Windowed)


class SdkCycles:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        sdk_queries: SdkQueries,
        leases: LeaseBook,
        acker: Acker,
        transactor: Transactor,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._sdk_queries = sdk_queries
        self._leases = leases
        self._acker = acker
        self._transactor = transactor

    async def run(self, cycle: Cycle) -> None:
        """Do all of a cycle, or none of it and say why: in the cycle, or by raising."""
        await self._prepare(cycle)

        async def write(transaction: Transaction) -> None:
            await self._write(transaction, cycle)

        try:
            await self._transactor.run(cycle.appends, cycle.scheduled, cycle.ack_batches, [], write)
        except LeaseLost:
            # What is behind the message was given back at the first time, and cannot be again.
            if cycle.result not in REPEATS:
                raise LeaseLost(STALE) from None
            cycle.is_repeated = True
        except _Undone:
            pass

    async def _prepare(self, cycle: Cycle) -> None:
        sdk_query = cycle.sdk_query
        if cycle.ack is not None:
            cycle.ack_batches = await self._ack_batches(cycle, cycle.ack)
        if sdk_query.last_group is None:
            await self._database.execute("open_query_partition", *sdk_query.key, cycle.group)
        if not sdk_query.is_windowed and any(map(is_of_a_window, cycle.state)):
            await self._database.execute("mark_windowed", sdk_query.id)

    async def _ack_batches(self, cycle: Cycle, ack: CycleAck) -> list[AckBatch]:
        """Return what the ack says of the lease: of its front, and if it ends, of the rest."""
        partition = cycle.sdk_query.partition
        group_id = await self._catalog.find_group(partition.queue, cycle.group)
        if group_id is None:
            raise LeaseLost(STALE)
        first = AckBatch(partition, cycle.group, group_id, ack.lease_id, {}, reason=_FAILED)
        first.span = self._leases.span(ack.lease_id, partition.id)
        await self._acker.find_spans([first])
        if first.span is None:
            raise LeaseLost(STALE)
        done = count_up_to(first.span.ids, ack.transaction_id, ack.count)
        if done is None:
            raise NotFound("Message not found")
        front, back = _split_span(first.span, done)
        first.span = front
        first.statuses = dict.fromkeys(front.ids, AckStatus.DONE)
        first.statuses[ack.transaction_id] = ack.status
        if ack.error:
            first.errors[ack.transaction_id] = ack.error
        if not back.ids or not (cycle.release or ack.status is AckStatus.DEAD):
            return [first]
        statuses = dict.fromkeys(back.ids, AckStatus.RETRY)
        rest = AckBatch(partition, cycle.group, group_id, ack.lease_id, statuses, span=back)
        rest.own = first.own
        return [first, rest]

    async def _write(self, transaction: Transaction, cycle: Cycle) -> None:
        """Change the state; the cursor is locked and has moved already."""
        if cycle.ack is not None:
            if cycle.result in REPEATS:
                cycle.is_repeated = True
                raise _Undone
        elif cycle.state:
            await self._check_settled(transaction, cycle)
        row = await transaction.findrow("lock_query_partition", *cycle.sdk_query.key, cycle.group)
        if row is None:
            raise Unavailable("a query or a partition was deleted at the same moment")
        await self._remove(transaction, cycle, row["offered"])
        await self._put(transaction, cycle, row["epoch"])

    async def _check_settled(self, transaction: Transaction, cycle: Cycle) -> None:
        """Leave a cycle without a lease undone while its group has something left to read.

        What is unread may belong to the windows, and whoever reads it closes them too.
        """
        partition = cycle.sdk_query.partition
        group_id = await self._catalog.find_group(partition.queue, cycle.group)
        if group_id is not None:
            cursors = await lock(transaction, [(partition.id, group_id)])
            head = await transaction.findval("head_of_partition", partition.id)
            cursor = cursors.get((partition.id, group_id))
            if cursor and head is not None and not cursor.live and cursor.committed >= head:
                return
        cycle.skipped = _UNREAD
        raise _Undone

    async def _remove(self, transaction: Transaction, cycle: Cycle, offered: int) -> None:
        keys = [key for key, value in cycle.state.items() if value is None]
        if not keys:
            return
        epoch = _ANY_EPOCH if cycle.ack is not None else offered
        removed = await transaction.fetch("delete_query_state", *cycle.sdk_query.key, keys, epoch)
        if cycle.ack is None and len(removed) < len(keys):
            cycle.skipped = _CLOSED
            raise _Undone

    async def _put(self, transaction: Transaction, cycle: Cycle, epoch: int) -> None:
        partition = cycle.sdk_query.partition
        put = {key: value for key, value in cycle.state.items() if value is not None}
        if not put:
            return
        encoded = [self._sdk_queries.encode_value(partition, value) for value in put.values()]
        await transaction.execute(
            "put_query_state",
            *cycle.sdk_query.key,
            epoch,
            list(put),
            [_window_end_ms(value) for value in put.values()],
            [codec for codec, _ in encoded],
            [value for _, value in encoded],
        )


def _split_span(span: Span, count: int) -> tuple[Span, Span]:
    """Return the first messages of a lease, and the others."""
    middle = span.start + count
    owner = (span.partition, span.group, span.group_id)
    before = frozenset(offset for offset in span.hidden if offset < middle)
    return (
        Span(*owner, span.start, middle, span.ids[:count], before),
        Span(*owner, middle, span.stop, span.ids[count:], span.hidden - before),
    )


def _window_end_ms(value: bytes) -> float | None:
    """Return the end of a window from its state; None when that is the state of something else."""
    try:
        end = _windowed.decode(value).window_end
        return float(end) if isinstance(end, int | float) and not isinstance(end, bool) else None
    except (msgspec.DecodeError, OverflowError):
        return None
