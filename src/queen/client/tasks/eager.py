"""Jobs that are run at once, where they are pushed: for tests, without a worker or a broker."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec

from queen.client.payloads import encode_payload
from queen.client.queues.messages import error_text
from queen.client.queues.running import failure_of, is_ours
from queen.client.tasks.job import Job, JobStatus
from queen.client.tasks.task import BaseTask, Call
from queen.core.tasks.jobs import DONE, FAILED, job_id_of

_call = msgspec.json.Decoder(Call)


class EagerJob(Job[Any]):
    """A job that has ended before it was returned."""

    ended: JobStatus

    async def status(self, *, wait_s: float = 0.0) -> JobStatus:
        """How it has ended."""
        return self.ended

    async def cancel(self) -> bool:
        """It is done already."""
        return False


class EagerJobs:
    """Runs jobs when they are pushed. Arguments and results travel as JSON, as they always do."""

    def __init__(self) -> None:
        self.jobs: list[EagerJob] = []
        self._numbers = itertools.count(1)

    async def run(self, task: BaseTask[..., Any], payload: bytes) -> EagerJob:
        """Call a task; what it raises is the error of its job."""
        partition = task.options.choose_partition()
        job_id = job_id_of(f"eager-{next(self._numbers)}", partition)
        job = EagerJob(
            task.queue._queen,
            task.queue._require_name(),
            job_id,
            partition=partition,
            decode=task.arguments.decode_result,
        )
        job.ended = await _run(task, _call.decode(payload))
        self.jobs.append(job)
        return job


async def _run(task: BaseTask[..., Any], call: Call) -> JobStatus:
    args, kwargs = task.arguments.decode(call.arguments)
    try:
        if task.is_async:
            result = await task.function(*args, **kwargs)
        else:
            result = await asyncio.to_thread(task.function, *args, **kwargs)
        encoded = msgspec.Raw(encode_payload(result))
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        if is_ours(error):
            raise
        return JobStatus(FAILED, error=error_text(failure_of(error)), attempts=1)
    return JobStatus(DONE, has_result=True, result=encoded)
