"""Unique jobs: of a key, one job at a time is scheduled, waiting or running.

A row says which job has a key, and it is written in the transaction that stores the job: two
servers that push at the same moment meet at this row, and one of them waits and then finds the
other's job. The row does not say whether that job is still to be done. The log does; so a key is
free again however its job has ended: acked, set aside, cancelled, or deleted with its queue.

Locks: the row of a key is the last that a push locks, after partitions, and that an ack locks,
after cursors.
"""

from __future__ import annotations

from typing import NamedTuple

from queen.errors import Contended
from queen.service.intake.pushes import Intake
from queen.service.scope import Viewer
from queen.service.tasks.states import JobStates
from queen.service.transactions.transact import Transactor
from queen.storage.database import Abandoned, Database, Record, Transaction
from queen.wire.requests import PushItem

JOB = "job_keys"
JOB_INTERVAL_S = 60.0
# Most keys are given back with the ack of their job. What is left over waits this long.
_STALE_S = 600.0
_CHECKED_AT_ONCE = 100
_TRIES = 10


class UniqueJob(NamedTuple):
    """A job that is to be pushed unless its key is taken."""

    item: PushItem
    key: str
    group: str
    # How long the key is kept even when the job is done.
    hold_s: float

    @property
    def job_id(self) -> str:
        assert self.item.transactionId is not None
        return self.item.transactionId

    @property
    def partition(self) -> str:
        assert self.item.partition is not None
        return self.item.partition


class Holder(NamedTuple):
    """The job that has a key."""

    job_id: str
    partition: str
    # It had the key already; nothing was pushed.
    existed: bool


class _KeyTaken(Abandoned):
    """Leaves the transaction because somebody else has taken the key."""


class JobKeys:
    def __init__(
        self, database: Database, intake: Intake, transactor: Transactor, states: JobStates
    ) -> None:
        self._database = database
        self._intake = intake
        self._transactor = transactor
        self._states = states

    async def push(self, viewer: Viewer, job: UniqueJob) -> Holder:
        """Push a job, unless another one has its key; return the one that has it then."""
        # Before anything is said of a key: it is of a queue that not everybody may see.
        await self._intake.plan_all(viewer, [job.item])
        for _ in range(_TRIES):
            row = await self._database.findrow("job_key", job.item.queue, job.key)
            holder = None if row is None else await self._holder(job, row)
            if holder is not None:
                return holder
            # A job that has ended stays so: nobody has to look again inside the transaction.
            before = None if row is None else row["job_id"]
            try:
                await self._push_with_key(viewer, job, before)
            except _KeyTaken:
                continue
            return Holder(job.job_id, job.partition, existed=False)
        raise Contended("the key changes hands all the time; push the job again")

    async def _push_with_key(self, viewer: Viewer, job: UniqueJob, before: str | None) -> None:
        """Push a job and take its key, which nobody has or a job that has ended."""
        planned, later = await self._intake.plan_all(viewer, [job.item])
        values = (job.item.queue, job.key, job.job_id, job.partition, job.group, job.hold_s)

        async def take_key(transaction: Transaction) -> None:
            if before is None:
                taken = await transaction.findval("take_job_key", *values)
            else:
                taken = await transaction.findval("pass_job_key", *values, before)
            if taken is None:
                raise _KeyTaken

        await self._transactor.run(
            [plan.append for plan in planned],
            [scheduled.message for scheduled in later],
            [],
            [],
            take_key,
        )

    async def _holder(self, job: UniqueJob, row: Record) -> Holder | None:
        """Return who has a key, None when it is free."""
        job_id, partition = row["job_id"], row["partition"]
        if job_id == job.job_id:
            # The same push, sent again.
            return Holder(job_id, partition, existed=False)
        is_taken = row["is_held"] or await self._states.is_to_be_done(
            job.item.queue, job_id, partition, row["group_name"]
        )
        return Holder(job_id, partition, existed=True) if is_taken else None

    async def forget_some(self, transaction: Transaction) -> bool:
        """Remove keys whose jobs have ended without giving them back; return whether there may be
        more."""
        rows = await transaction.fetch("stale_job_keys", _STALE_S, _CHECKED_AT_ONCE)
        for row in rows:
            queue, key, job_id = row["queue"], row["key"], row["job_id"]
            is_needed = await self._states.is_to_be_done(
                queue, job_id, row["partition"], row["group_name"]
            )
            statement = "note_job_key" if is_needed else "drop_job_key"
            await transaction.execute(statement, queue, key, job_id)
        return len(rows) == _CHECKED_AT_ONCE
