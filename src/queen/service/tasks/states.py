"""Where a job stands: its result if it has one, and otherwise what the log says of its message.

Nothing is written when a job is pushed, leased or given back, so a job that somebody replays,
deletes or sets aside by hand is told of as truly as any other. It is looked for in the order in
which it moves on: a result, the outbox, the log. So it is never missed between two of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from queen.core.tasks import jobs
from queen.service.catalog import Catalog, Queue
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.read import browse
from queen.service.read.browse import Browser
from queen.service.read.message_finder import MessageFinder
from queen.storage.database import Database, Record

_STATES = {
    browse.PENDING: jobs.WAITING,
    browse.PROCESSING: jobs.RUNNING,
    browse.COMPLETED: jobs.DONE,
    browse.DEAD: jobs.FAILED,
}


class JobState(NamedTuple):
    """What is known of a job."""

    state: str
    # One JSON text; None when the task keeps no result, or it has expired.
    result: bytes | None = None
    error: str | None = None
    attempts: int = 0
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    due_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in jobs.ENDED


class JobStates:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        finder: MessageFinder,
        browser: Browser,
        encryption: SegmentEncryption,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._finder = finder
        self._browser = browser
        self._encryption = encryption

    async def of(self, queue: str, job_id: str, partition: str, group: str) -> JobState:
        """Return where a job stands for a group."""
        row = await self._database.findrow("job_result", queue, job_id)
        if row is not None:
            return self._ended(queue, job_id, row)
        due_at = await self._database.findval("scheduled_job", queue, job_id)
        if due_at is not None:
            return JobState(jobs.SCHEDULED, due_at=due_at)
        cataloged = await self._catalog.queue(queue)
        if cataloged is None:
            return JobState(jobs.UNKNOWN)
        state = await self._in_log(cataloged, job_id, partition, group)
        if state.state not in (jobs.DONE, jobs.UNKNOWN):
            return state
        # It may have ended, and been removed from the log, since the first look.
        row = await self._database.findrow("job_result", queue, job_id)
        return state if row is None else self._ended(queue, job_id, row)

    async def is_to_be_done(self, queue: str, job_id: str, partition: str, group: str) -> bool:
        """Whether a job is still scheduled, waiting or running."""
        state = await self.of(queue, job_id, partition, group)
        return not state.has_ended and state.state != jobs.UNKNOWN

    def _ended(self, queue: str, job_id: str, row: Record) -> JobState:
        result = row["result"]
        if result is not None:
            result = self._encryption.decrypt_outbox_message(queue, job_id, row["codec"], result)
        return JobState(
            row["state"],
            result,
            row["error"],
            finished_at=row["finished_at"],
            expires_at=row["expires_at"],
        )

    async def _in_log(self, queue: Queue, job_id: str, partition: str, group: str) -> JobState:
        target = await self._catalog.partition(queue, partition)
        message = await self._finder.by_transaction_id(target, job_id) if target else None
        if target is None or message is None:
            return JobState(jobs.UNKNOWN)
        browsed = await self._browser.at(target, message.offset)
        if browsed is None:
            return JobState(jobs.UNKNOWN)
        for standing in browsed.groups:
            if standing.group == group:
                return JobState(
                    _STATES[standing.status], error=standing.error, attempts=standing.retry_count
                )
        return JobState(jobs.WAITING)
