"""Jobs: what a call of a task becomes, and what became of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from queen.client.transport.errors_from_answer import decode_answer
from queen.core.tasks.jobs import DONE, ENDED, FAILED, UNKNOWN, partition_of
from queen.errors import JobFailed, NoResult, NotFound

if TYPE_CHECKING:
    from queen.client.queen import Queen

R = TypeVar("R")

# How long one request waits for the end of a job.
_WAIT_S = 30.0


class JobStatus(msgspec.Struct, rename="camel", frozen=True):
    """Where a job stands.

    `state` is `scheduled`, `waiting`, `running`, `done`, `failed`, or `unknown` for one that never
    was or of which nothing is kept any more.
    """

    state: str
    has_result: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    # How often it was tried before, while it is to be tried again.
    attempts: int = 0
    due_at: datetime | None = None
    finished_at: datetime | None = None
    # Until then the result is kept.
    expires_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is done, or given up."""
        return self.state in ENDED


_status = msgspec.json.Decoder(JobStatus)


class Job(Generic[R]):
    """A job, wherever it was pushed: `queen.queue("jobs").job(id)` makes one of its id."""

    def __init__(
        self,
        queen: Queen,
        queue: str,
        job_id: str,
        *,
        partition: str | None = None,
        group: str = "workers",
        existed: bool = False,
        decode: Callable[[msgspec.Raw], R] | None = None,
    ) -> None:
        self._queen = queen
        self.queue = queue
        self.id = job_id
        self.partition = partition or partition_of(job_id)
        self.group = group
        # Another job had its key: this is that one, and nothing was pushed.
        self.existed = existed
        self._decode = decode or msgspec.json.decode

    def __repr__(self) -> str:
        return f"Job({self.queue!r}, {self.id!r})"

    async def status(self, *, wait_s: float = 0.0) -> JobStatus:
        """Where it stands; with `wait_s` when it has ended, or after so long."""
        asked: dict[str, Any] = {"consumerGroup": self.group, "wait": round(wait_s * 1000)}
        if self.partition != partition_of(self.id):
            asked["partition"] = self.partition
        path = f"/api/v1/jobs/{quote(self.queue, safe='')}/{quote(self.id, safe='')}"
        answer = await self._queen.cluster.call(
            "GET", f"{path}?{urlencode(asked)}", key=self.queue, wait_s=wait_s
        )
        return decode_answer(_status, answer)

    async def result(self, timeout: float | None = None) -> R:
        """What it has returned, when it is done.

        Raises `JobFailed` when it was given up, `NoResult` when there is none, and `TimeoutError`
        when it has not ended in time.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            wait_s = min(max(deadline - time.monotonic(), 0.0), _WAIT_S)
            status = await self.status(wait_s=wait_s)
            if status.has_ended:
                return self._take(status)
            if status.state == UNKNOWN:
                raise NoResult(f"job {self.id!r} is not known, or nothing is kept of it any more")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"job {self.id!r} is {status.state} after {timeout} s")

    def _take(self, status: JobStatus) -> R:
        if status.state == FAILED:
            raise JobFailed(status.error)
        if not status.has_result:
            raise NoResult(status.error)
        assert status.state == DONE
        return self._decode(status.result)

    async def cancel(self) -> bool:
        """Take it back, if its time has not come; return whether it was."""
        try:
            await self._queen.admin.cancel_scheduled(self.queue, self.id)
        except NotFound:
            return False
        return True
