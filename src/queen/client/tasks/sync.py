"""Tasks and jobs for programs without asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from queen.client.tasks.job import Job, JobStatus
from queen.client.tasks.task import BaseTask, Key, P, define_cron

if TYPE_CHECKING:
    from queen.client.sync import SyncQueen

R = TypeVar("R")


class SyncJob(Generic[R]):
    """A job; asking what became of it waits for the answer."""

    def __init__(self, queen: SyncQueen, job: Job[R]) -> None:
        self._queen = queen
        self._job = job
        self.queue = job.queue
        self.id = job.id
        self.partition = job.partition
        self.existed = job.existed

    def __repr__(self) -> str:
        return f"SyncJob({self.queue!r}, {self.id!r})"

    def status(self, *, wait_s: float = 0.0) -> JobStatus:
        """Where it stands; with `wait_s` when it has ended, or after so long."""
        return self._queen.wait_for(self._job.status(wait_s=wait_s))

    def result(self, timeout: float | None = None) -> R:
        """What it has returned, when it is done; see `Job.result`."""
        return self._queen.wait_for(self._job.result(timeout))

    def cancel(self) -> bool:
        """Take it back, if its time has not come; return whether it was."""
        return self._queen.wait_for(self._job.cancel())


class SyncTask(BaseTask[P, R]):
    """A function of a queue. Calling it runs it here; `delay` pushes a job that a worker runs."""

    @property
    def _client(self) -> SyncQueen:
        return cast("SyncQueen", self.queue._owner)

    def with_options(
        self,
        *,
        partition: str | None = None,
        partitions: int | None = None,
        key: Key | None = None,
        unique_for_s: float | None = None,
        keep_result_s: float | None = None,
    ) -> SyncTask[P, R]:
        """The same task with other options; see `Task.with_options`."""
        return self._changed(  # type: ignore[return-value]
            {
                "partition": partition,
                "partitions": partitions,
                "key": key,
                "unique_for_s": unique_for_s,
                "keep_result_s": keep_result_s,
            }
        )

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Push a call; returns when it is stored."""
        return SyncJob(self._client, self._client.wait_for(self._push(args, kwargs)))

    def after(self, seconds: float | timedelta, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Push a call that is due after some seconds, by the broker's clock."""
        delay_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        job = self._client.wait_for(self._push(args, kwargs, delay_s=delay_s))
        return SyncJob(self._client, job)

    def at(self, when: datetime, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Push a call that is due at an instant; without a zone it is local time."""
        return SyncJob(self._client, self._client.wait_for(self._push(args, kwargs, at=when)))

    def cron(
        self, name: str, cron: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Call it again and again, by the calendar of a zone: see `queue.cron`."""
        return self._client.wait_for(define_cron(self, name, cron, arguments, options))
