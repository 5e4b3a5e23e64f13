"""Running jobs: a consumer whose handler is whatever task a message names.

What a task returns is stored together with the ack of its job, in one request; of tasks that keep
no result the acks go their ordinary way, many at a time.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from queen.client import tracing
from queen.client.leases.acks import COMPLETED, AckItem, Said
from queen.client.leases.progress import Progress
from queen.client.payloads import encode_payload
from queen.client.queues.consumer import Consumer, Handler
from queen.client.queues.handler_rules import HandlerRules
from queen.client.queues.messages import Received
from queen.client.queues.queue import QueueBuilder
from queen.client.queues.renewal import BatchLease
from queen.client.queues.running import failure_of, is_ours
from queen.client.tasks.task import BaseTask, Call
from queen.client.transport.errors_from_answer import decode_answer
from queen.core.tasks.jobs import MAX_RESULT_BYTES
from queen.errors import HandlerTimeout, QueenError

_log = logging.getLogger("queen.worker")

# Jobs, and bytes of their results, that are finished in one request.
_MAX_JOBS = 500
_MAX_BYTES = 4 * 1024 * 1024

_call = msgspec.json.Decoder(Call)
_NULL = msgspec.Raw(b"null")


class CurrentJob(NamedTuple):
    """The job that a task was called for."""

    id: str
    task: str
    # The how-manyth time, counted from 1.
    attempt: int
    message: Received


_current: contextvars.ContextVar[CurrentJob | None] = contextvars.ContextVar(
    "current_job", default=None
)


def current_job() -> CurrentJob | None:
    """The job that this task was called for; None outside of a worker."""
    return _current.get()


class NoSuchTask(LookupError):
    """No task of this name is known here."""


@dataclass(slots=True, eq=False)
class _OpenBatch:
    """Jobs that were taken together, and how many of them were begun and ended."""

    progress: Progress
    begun: int = 0
    ended: int = 0


_batch_at_hand: contextvars.ContextVar[_OpenBatch] = contextvars.ContextVar("batch_at_hand")


class _Finished(msgspec.Struct, rename="camel", omit_defaults=True):
    """What became of a job, as it is sent."""

    transaction_id: str
    partition_id: str
    lease_id: str
    status: str = COMPLETED
    error: str | None = None
    result: msgspec.Raw = _NULL
    keep_s: float = -1.0
    key: str | None = None


class _Kept(NamedTuple):
    """What is to be told of a job beside its ack."""

    keep_s: float
    key: str | None
    result: bytes = b"null"
    # Why it has no result although it is done.
    error: str | None = None


class _FinishResult(msgspec.Struct):
    success: bool
    error: str | None = None


class _FinishAnswer(msgspec.Struct):
    results: list[_FinishResult]


_answers = msgspec.json.Decoder(_FinishAnswer)


# Of these a traceback says no more than their text.
_PLAIN_ERRORS = (NoSuchTask, msgspec.MsgspecError, HandlerTimeout)


class TaskConsumer(Consumer[Received]):
    """Runs the jobs of one queue, until it is stopped."""

    def __init__(self, queue: QueueBuilder, tasks: Mapping[str, BaseTask[..., Any]]) -> None:
        super().__init__(queue, self._run_job, signals=False)
        self._tasks = tasks
        # Each job has the time of its task: see `_rules_for`.
        self._rules = replace(self._rules, timeout_s=None)
        # By partition and transaction id, until it is told.
        self._kept: dict[tuple[str, str], _Kept] = {}
        # The batches that are at hand.
        self._open: set[_OpenBatch] = set()

    @property
    def running(self) -> int:
        """How many jobs run now."""
        return sum(batch.begun > batch.ended for batch in self._open)

    async def _handle_batch(
        self, handler: Handler, progress: Progress, lease: BatchLease | None
    ) -> tuple[Said, asyncio.Future[Any] | None]:
        open_batch = _OpenBatch(progress)
        self._open.add(open_batch)
        # A job with a deadline runs beside this, in what it takes along from here.
        _batch_at_hand.set(open_batch)
        try:
            return await super()._handle_batch(handler, progress, lease)
        finally:
            self._open.discard(open_batch)

    # ---- one job ----

    async def _run_job(self, message: Received) -> None:
        began = time.monotonic()
        job_id, attempt = message.transaction_id, message.retry_count + 1
        name = "?"
        batch = _batch_at_hand.get()
        batch.begun += 1
        try:
            call = _decode_call(message)
            name = call.task
            task = self._tasks.get(name)
            if task is None:
                known = ", ".join(sorted(self._tasks)) or "none"
                raise NoSuchTask(f"no task {name!r} is known here; known are {known}")
            keep_s = task.options.keep_result_s
            self._note(message, _Kept(keep_s, call.key))
            result = await self._call_task(task, call, CurrentJob(job_id, name, attempt, message))
            self._note(message, _kept_result(task, call, result))
        except Exception as error:
            _log.warning(
                "job %s %s failed on attempt %d after %s: %s: %s",
                job_id,
                name,
                attempt,
                _duration(began),
                type(error).__name__,
                error,
                exc_info=None if isinstance(error, _PLAIN_ERRORS) else error,
            )
            raise
        finally:
            batch.ended += 1
        _log.info("job %s %s done in %s", job_id, name, _duration(began))

    async def _call_task(self, task: BaseTask[..., Any], call: Call, current: CurrentJob) -> Any:
        """Call the function of a task; raises `HandlerTimeout` when it takes longer than it may."""
        args, kwargs = task.arguments.decode(call.arguments)
        token = _current.set(current)
        try:
            timeout_s = self._rules_for(task).timeout_s
            return await self._call_in_time(timeout_s, self._call_function, task, args, kwargs)
        finally:
            _current.reset(token)

    async def _call_function(
        self, task: BaseTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function. One that exits ends its job, and not the worker: there are others, and
        it would come again and end the next worker."""
        try:
            if task.is_async:
                return await task.function(*args, **kwargs)
            return await self._call(lambda: task.function(*args, **kwargs))
        except (asyncio.CancelledError, SystemExit) as error:
            if is_ours(error):
                raise
            raise failure_of(error) from error

    def _gives_up(self, message: Received, error: Exception) -> bool:
        task = self._task_of(message)
        if task is None:
            return super()._gives_up(message, error)
        retries = task.options.retries
        is_last = retries is not None and message.retry_count >= retries
        return is_last or self._rules_for(task).gives_up(error)

    def _rules_for(self, task: BaseTask[..., Any]) -> HandlerRules:
        return task.options.rules_within(self._queue._rules)

    def _task_of(self, message: Received) -> BaseTask[..., Any] | None:
        try:
            return self._tasks.get(_call.decode(message.raw).task)
        except msgspec.MsgspecError:
            return None

    def _note(self, message: Received, kept: _Kept) -> None:
        if kept.keep_s or kept.key is not None:
            self._kept[message.partition_id, message.transaction_id] = kept

    async def _note_failure(self, messages: list[Any], error: Exception) -> None:
        # It is logged where it is raised.
        self.failed += len(messages)
        await self._tell(self._queue._on_error, messages, error)

    # ---- what became of them ----

    def goes_with_pop(self, said: Said) -> bool:
        # Results have a request of their own.
        return not self._kept and super().goes_with_pop(said)

    async def settle(self, said: Said) -> None:
        """Tell what became of jobs, with the results of those that have some."""
        if not self._kept:
            await super().settle(said)
            return
        acks, server = said.take(), said.batch.server
        finished = [self._finished(item) for item in acks.items()]
        with tracing.settling(self._queue.name or "*", acks.count, acks.spans):
            for some in _in_requests(finished):
                await self._finish(some, server)

    def _finished(self, item: AckItem) -> _Finished:
        kept = self._kept.pop((item.partition_id, item.transaction_id), _Kept(0.0, None))
        is_done = item.status == COMPLETED
        return _Finished(
            item.transaction_id,
            item.partition_id,
            item.lease_id or "",
            item.status,
            kept.error if is_done else item.error,
            msgspec.Raw(kept.result) if is_done else _NULL,
            kept.keep_s,
            kept.key,
        )

    async def _finish(self, finished: list[_Finished], server: str) -> None:
        body = msgspec.json.encode({"jobs": finished, "consumerGroup": self._queue._group})
        try:
            answer = await self._queue._queen.cluster.call(
                "POST", "/api/v1/jobs/finish", body, key=finished[0].partition_id, first=server
            )
        except QueenError as error:
            if not error.retryable:
                raise
            _log.warning("%d jobs could not be settled; they come again: %s", len(finished), error)
            return
        for job, result in zip(finished, decode_answer(_answers, answer).results, strict=False):
            if not result.success:
                _log.warning("job %s comes again: %s", job.transaction_id, result.error)

    async def give_back_open(self) -> int:
        """Tell what is done of the batches at hand, and give back the rest without fault; return
        how many jobs were running.

        Whatever such a job does from now on, its worker cannot finish it any more.
        """
        running = self.running
        for at_hand in list(self._open):
            # Nothing of it can be said a second time, nor anything else.
            at_hand.progress.give_back(at_hand.progress.done_to)
            await at_hand.progress.say()
        return running


def _decode_call(message: Received) -> Call:
    try:
        return _call.decode(message.raw)
    except msgspec.MsgspecError as error:
        raise msgspec.ValidationError(
            f'this is no job, which would be {{"task": ..., "arguments": {{...}}}}: {error}'
        ) from None


def _kept_result(task: BaseTask[..., Any], call: Call, result: Any) -> _Kept:
    """Return what is kept of a job that is done. A result that cannot be kept does not undo it."""
    keep_s = task.options.keep_result_s
    if not keep_s:
        return _Kept(0.0, call.key)
    try:
        encoded = encode_payload(result)
    except (TypeError, ValueError, RecursionError) as error:
        return _Kept(keep_s, call.key, error=f"its result cannot travel as JSON: {error}")
    if len(encoded) > MAX_RESULT_BYTES:
        reason = f"its result has {len(encoded)} bytes; {MAX_RESULT_BYTES} can be kept"
        return _Kept(keep_s, call.key, error=reason)
    return _Kept(keep_s, call.key, encoded)


def _in_requests(finished: list[_Finished]) -> Iterator[list[_Finished]]:
    part: list[_Finished] = []
    size = 0
    for job in finished:
        if part and (len(part) == _MAX_JOBS or size + len(job.result) > _MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(job)
        size += len(job.result)
    if part:
        yield part


def _duration(began: float) -> str:
    took_s = time.monotonic() - began
    return f"{took_s * 1000:.0f} ms" if took_s < 1 else f"{took_s:.1f} s"
