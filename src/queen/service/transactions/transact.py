"""Transactions: acks and pushes that happen together or not at all.

Everything runs in one PostgreSQL transaction: appends first, because partitions are locked
before cursors, then what is scheduled, then the acks. One acknowledgment whose lease is gone
refuses all of it.

A transaction that is sent again because its answer was lost succeeds: its acks find their
receipts, and its pushes are duplicates or, where nobody could tell, are left out.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from queen.core.cursor import AckResult
from queen.core.ids import parse_lease
from queen.errors import Contended, LeaseLost
from queen.service.acks.ack import Acker
from queen.service.acks.ack_batch import AckBatch
from queen.service.acks.cursors import Key
from queen.service.admin.maintenance import Maintenance
from queen.service.consume.leases import Leases
from queen.service.log.append import Append
from queen.service.log.appender import Appender, Outcome, append_columns, outcomes
from queen.service.log.flush_share import Share
from queen.service.outbox.scheduled import Scheduled, outbox_columns
from queen.service.shared.spans import spans_of
from queen.service.stats.activity import Activity
from queen.service.transactions.repeats import Repeats, is_repeat
from queen.storage.database import Abandoned, Database, Record, Transaction

# How long a transaction waits for a lock while it has a connection, and for how long it is tried
# again, a few of those that wait at a time.
_LOCK_WAIT_MS = "100"
_PATIENCE_S = 10.0
_PAUSE_S = 0.05
_RETRIES_AT_ONCE = 2
# What is wrong with a message that refuses its transaction.
_REASONS = {
    AckResult.LOST: "is not, or no longer, leased to the caller",
    AckResult.TOO_LATE: "is completed already",
}


class _Refused(Abandoned):
    """Leaves the transaction, so that it is rolled back, with what the append said."""

    def __init__(self, rows: list[Outcome]) -> None:
        self.rows = rows


# What else is decided in the same transaction; raises to undo all of it.
Decision = Callable[[Transaction], Awaitable[None]]


class Guard(NamedTuple):
    """A lease that must live when the transaction commits, although nothing is acked by it."""

    partition_id: int
    group_id: int
    lease_id: uuid.UUID

    @property
    def key(self) -> tuple[int, int]:
        return self.partition_id, self.group_id


class _Repeated(Abandoned):
    """Leaves the transaction because it was committed before."""


@dataclass(slots=True, eq=False)
class _Plan:
    """What one transaction is to do."""

    appends: list[Append]
    scheduled: list[Scheduled]
    ack_batches: list[AckBatch]
    guards: list[Guard]
    decide: Decision | None


class Transactor:
    def __init__(
        self,
        database: Database,
        appender: Appender,
        acker: Acker,
        leases: Leases,
        repeats: Repeats,
        activity: Activity,
        maintenance: Maintenance,
    ) -> None:
        self._database = database
        self._maintenance = maintenance
        self._appender = appender
        self._acker = acker
        self._leases = leases
        self._repeats = repeats
        self._activity = activity
        self._retries = asyncio.Semaphore(_RETRIES_AT_ONCE)

    async def run(
        self,
        appends: list[Append],
        scheduled: list[Scheduled],
        ack_batches: list[AckBatch],
        guards: list[Guard],
        decide: Decision | None = None,
    ) -> None:
        """Commit all of it, or raise and change nothing."""
        if appends or scheduled:
            self._maintenance.check_push()
        shares = await self._appender.plan(appends)
        await self._appender.check_admission(shares)
        await self._acker.find_spans(ack_batches)
        # Whoever decides more knows repeats by that.
        plan = _Plan(appends, scheduled, ack_batches, guards, decide or _only_once(ack_batches))
        await self._appender.append(shares, lambda built: self._commit_once(plan, built))

    async def _commit_once(self, plan: _Plan, shares: list[Share]) -> list[Share] | None:
        """Commit; return what has to be built again, None when it is done."""
        try:
            rows = await self._commit(plan, shares)
        except _Refused as refused:
            await self._appender.learn_all(shares, refused.rows)
            return shares
        except _Repeated:
            await self._repeats.leave_out(plan.appends)
            plan.scheduled = await self._repeats.recognisable(plan.scheduled)
            plan.decide = None
            return shares
        self._appender.tell(shares, rows)
        self._finish(plan.appends, plan.ack_batches)
        return None

    async def _commit(self, plan: _Plan, shares: list[Share]) -> list[Outcome]:
        """Commit all of it. What somebody has locked is tried again: waiting in the database would
        keep connections from everybody else."""
        deadline = time.monotonic() + _PATIENCE_S
        turn: AbstractAsyncContextManager[None] = nullcontext()
        while True:
            try:
                async with turn:
                    return await self._try(plan, shares)
            except Contended:
                if time.monotonic() > deadline:
                    raise
            turn = self._retries
            await asyncio.sleep(_PAUSE_S)

    async def _try(self, plan: _Plan, shares: list[Share]) -> list[Outcome]:
        async with self._database.transaction() as transaction:
            await transaction.execute("limit_lock_wait", _LOCK_WAIT_MS)
            rows = await self._append(transaction, shares)
            if plan.scheduled:
                await transaction.execute("stage", *outbox_columns(plan.scheduled))
            await self._lock(transaction, plan.ack_batches, plan.guards)
            await self._settle(transaction, plan.ack_batches)
            if plan.decide is not None:
                await plan.decide(transaction)
        return rows

    def _finish(self, appends: list[Append], ack_batches: list[AckBatch]) -> None:
        """Tell everybody whom the transaction concerns."""
        for batch in ack_batches:
            self._acker.finish(batch)
        if appends:
            self._activity.flows.count_transaction(ack_batches, appends)
        partitions = [append.target for append in appends]
        partitions += [batch.partition for batch in ack_batches]
        self._activity.count_transaction(
            partition.queue for partition in partitions if partition is not None
        )

    async def _append(self, transaction: Transaction, shares: list[Share]) -> list[Outcome]:
        if not shares:
            return []
        rows = outcomes(await transaction.fetch("append", *append_columns(shares)))
        if not all(row.is_appended for row in rows):
            raise _Refused(rows)
        return rows

    async def guards(self, required: list[str], ack_batches: list[AckBatch]) -> list[Guard]:
        """Return the leases that must live when a transaction commits.

        The published clients name leases here and not in their acks; an ack without one
        then uses the lease that holds its partition, and no other.
        """
        # The acks check their own leases, and a repeated one may have ended its lease already.
        named = {ack_batch.lease_id for ack_batch in ack_batches}
        nameless = [ack_batch for ack_batch in ack_batches if ack_batch.lease_id is None]
        guards: list[Guard] = []
        for text, lease_id in {text: parse_lease(text) for text in required}.items():
            if lease_id in named:
                continue
            held = await self._leases.cursors_of(lease_id) if lease_id is not None else []
            mine = [ack_batch for ack_batch in nameless if ack_batch.key in held]
            if lease_id is not None and not held:
                mine = await self._acker.batches_with_receipt(lease_id, nameless)
            if lease_id is None or not (held or mine):
                raise LeaseLost(f"required lease {text!r} is not, or no longer, a lease")
            for ack_batch in mine:
                ack_batch.lease_id = lease_id
            acked = {ack_batch.key for ack_batch in mine}
            guards += [Guard(*key, lease_id) for key in held if key not in acked]
        if required and any(ack_batch.lease_id is None for ack_batch in nameless):
            raise LeaseLost
        return guards

    async def _lock(
        self, transaction: Transaction, ack_batches: list[AckBatch], guards: list[Guard]
    ) -> None:
        """Lock every cursor in order, and see that the guarding leases live."""
        if not guards:
            return
        keys = sorted({guard.key for guard in guards} | {batch.key for batch in ack_batches})
        rows = await transaction.fetch(
            "lock_cursors", [key[0] for key in keys], [key[1] for key in keys]
        )
        live = {_key(row): row["lease_id"] for row in rows if row["live"]}
        shared = {_key(row) for row in rows if row["handed"] is not None}
        spans = await spans_of(transaction, [guard for guard in guards if guard.key in shared])
        for guard in guards:
            span = spans.get(guard)
            is_held = live.get(guard.key) == guard.lease_id or (span is not None and span.live)
            if not is_held:
                raise LeaseLost("a required lease has ended; nothing of the transaction was done")

    async def _settle(self, transaction: Transaction, ack_batches: list[AckBatch]) -> None:
        if not ack_batches:
            return
        await self._acker.settle_in(transaction, ack_batches)
        for batch in ack_batches:
            if batch.error is not None:
                raise batch.error
            for transaction_id, result in batch.results.items():
                reason = _REASONS.get(result)
                if reason is not None:
                    raise LeaseLost(
                        f"message {transaction_id!r} {reason}; nothing of the transaction was done"
                    )


def _key(row: Record) -> Key:
    return row["partition_id"], row["group_id"]


def _only_once(ack_batches: list[AckBatch]) -> Decision:
    """Return what undoes a transaction that turns out to be a repeat."""

    async def decide(_transaction: Transaction) -> None:
        if is_repeat(ack_batches):
            raise _Repeated

    return decide
