"""Results of jobs: stored in the transaction that acks them, so that one is there exactly when the
other is.

A worker that dies before has done nothing that counts, and its job runs again; one whose lease has
lapsed is refused with its result. Each job of a request is answered by itself: when something is
wrong with one of them, they are done one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queen.core.cursor import AckResult
from queen.core.frame import CODEC_RAW
from queen.core.payload import as_line, reason_against_payload
from queen.core.tasks import jobs
from queen.errors import BadRequest, QueenError
from queen.service.acks.ack_batch import storable
from queen.service.catalog import Queue
from queen.service.events import Events
from queen.service.intake.acks import AckIntake, GatheredAcks
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.scope import Viewer
from queen.service.transactions.transact import Transactor
from queen.storage.database import Transaction
from queen.wire.tasks import FinishedJob

JOB = "job_results"
JOB_INTERVAL_S = 10.0
_FORGOTTEN_AT_ONCE = 1000

_DONE = frozenset((AckResult.DONE, AckResult.ALREADY))
_DEAD = frozenset((AckResult.DEAD, AckResult.ALREADY_DEAD))


class _Row(NamedTuple):
    """A result as it is stored."""

    queue: str
    job_id: str
    state: str
    result: bytes | None
    codec: int
    error: str | None
    keep_s: float


class JobResults:
    def __init__(
        self,
        transactor: Transactor,
        intake: AckIntake,
        encryption: SegmentEncryption,
        events: Events,
    ) -> None:
        self._transactor = transactor
        self._intake = intake
        self._encryption = encryption
        self._events = events

    async def finish(
        self, viewer: Viewer, finished: list[FinishedJob], group: str | None
    ) -> list[AckResult | QueenError]:
        """Ack jobs and store their results; return what became of each."""
        try:
            return await self._finish_together(viewer, finished, group)
        except QueenError as error:
            if error.retryable:
                raise
            if len(finished) == 1:
                return [error]
        outcomes: list[AckResult | QueenError] = []
        for job in finished:
            outcomes += await self.finish(viewer, [job], group)
        return outcomes

    async def _finish_together(
        self, viewer: Viewer, finished: list[FinishedJob], group: str | None
    ) -> list[AckResult | QueenError]:
        _check(finished)
        gathered = await self._intake.gather(viewer, [job.ack() for job in finished], group)
        for error in gathered.refused.values():
            raise error

        async def decide(transaction: Transaction) -> None:
            await self._store(transaction, finished, gathered)

        await self._transactor.run([], [], gathered.batches, [], decide)
        self._tell(finished, gathered)
        return [gathered.result(index, job.transaction_id) for index, job in enumerate(finished)]

    async def _store(
        self, transaction: Transaction, finished: list[FinishedJob], gathered: GatheredAcks
    ) -> None:
        rows: list[_Row] = []
        keys: list[tuple[str, str, str]] = []
        for index, job in enumerate(finished):
            queue = _queue_of(gathered, index)
            outcome = gathered.result(index, job.transaction_id)
            if outcome not in _DONE | _DEAD:
                continue
            row = self._row(queue, job, is_done=outcome in _DONE)
            if row is not None:
                rows.append(row)
            if job.key:
                keys.append((queue.name, job.key, job.transaction_id))
        if rows:
            await transaction.execute("store_results", *map(list, zip(*rows, strict=True)))
        if keys:
            await transaction.execute("release_job_keys", *map(list, zip(*keys, strict=True)))

    def _row(self, queue: Queue, job: FinishedJob, *, is_done: bool) -> _Row | None:
        """Return what is kept of a job; None when nothing is."""
        if not job.keep_s:
            return None
        # Of one that is done: why there is no result. It was too large, or no JSON.
        error = storable(job.error) if job.error else None
        if not is_done:
            error = error or "Message processing failed"
            return _Row(
                queue.name, job.transaction_id, jobs.FAILED, None, CODEC_RAW, error, job.keep_s
            )
        codec, result = CODEC_RAW, as_line(bytes(job.result))
        if queue.options.encryption_enabled:
            codec, result = self._encryption.encrypt_outbox_message(
                queue.name, job.transaction_id, result
            )
        return _Row(queue.name, job.transaction_id, jobs.DONE, result, codec, error, job.keep_s)

    def _tell(self, finished: list[FinishedJob], gathered: GatheredAcks) -> None:
        ids: dict[str, list[str]] = {}
        for index, job in enumerate(finished):
            ids.setdefault(_queue_of(gathered, index).name, []).append(job.transaction_id)
        for queue, some in ids.items():
            self._events.jobs_finished(queue, some)


async def forget_results(transaction: Transaction) -> bool:
    """Remove some results that have expired; return whether there may be more."""
    count: int = await transaction.fetchval("forget_results", _FORGOTTEN_AT_ONCE)
    return count == _FORGOTTEN_AT_ONCE


def _queue_of(gathered: GatheredAcks, index: int) -> Queue:
    if gathered.batch_of_item is None:
        (batch,) = gathered.by_key.values()
        return batch.partition.queue
    return gathered.batch_of_item[index].partition.queue


def _check(finished: Sequence[FinishedJob]) -> None:
    """Raise `BadRequest` for a job whose result cannot be kept."""
    for index, job in enumerate(finished):
        size = len(job.result)
        if size > jobs.MAX_RESULT_BYTES:
            raise BadRequest(
                f"jobs[{index}]: a result of {size} bytes; {jobs.MAX_RESULT_BYTES} can be kept"
            )
        if not 0 <= job.keep_s <= jobs.MAX_KEEP_S:
            raise BadRequest(f"jobs[{index}]: keepS must be between 0 and {jobs.MAX_KEEP_S}")
        reason = reason_against_payload(bytes(job.result))
        if reason:
            raise BadRequest(f"jobs[{index}]: {reason.replace('payload', 'result')}")
