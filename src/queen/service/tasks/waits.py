"""Waiting for jobs to end.

Whoever waits is told by the request that finishes the job, if that came to the same process.
Other processes say that jobs of a queue have finished (`queen.service.signals`), and then, or once
a second, one statement asks for all who wait here. A job that ends in another way, because it is
deleted or set aside by hand or by leases that lapsed, is noticed within some seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time

from queen.errors import Overloaded, QueenError
from queen.service.events import Events
from queen.service.outages import level_of
from queen.service.tasks.states import JobState, JobStates
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_NET_S = 1.0
# Looks that others ask for are not made more often.
_REST_S = 0.02
# How often it is asked where a job stands that somebody waits for.
_STATE_S = 5.0
_MAX_WAITING = 10_000

# Queue and id of a job.
_Job = tuple[str, str]


class JobWaits:
    def __init__(self, database: Database, states: JobStates, events: Events) -> None:
        self._database = database
        self._states = states
        self._waiting: dict[_Job, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._wake = asyncio.Event()
        events.jobs_finished.subscribe(self._finished)
        events.jobs_elsewhere.subscribe(self._finished_elsewhere)

    async def wait(
        self, queue: str, job_id: str, partition: str, group: str, wait_s: float
    ) -> JobState:
        """Return where a job stands, when it has ended or after so long."""
        deadline = time.monotonic() + wait_s
        while True:
            # Listening before looking: what ends in between is heard.
            ended = self._listen((queue, job_id)) if wait_s > 0 else None
            try:
                state = await self._states.of(queue, job_id, partition, group)
                left_s = deadline - time.monotonic()
                if state.has_ended or ended is None or left_s <= 0:
                    return state
                await asyncio.wait((ended,), timeout=min(left_s, _STATE_S))
            finally:
                if ended is not None:
                    self._leave((queue, job_id), ended)

    def _listen(self, job: _Job) -> asyncio.Future[None]:
        if self._count >= _MAX_WAITING:
            raise Overloaded(f"{_MAX_WAITING} requests wait for jobs already")
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job, set()).add(ended)
        self._count += 1
        if self._count == 1:
            self._wake.set()
        return ended

    def _leave(self, job: _Job, ended: asyncio.Future[None]) -> None:
        self._count -= 1
        others = self._waiting[job]
        others.discard(ended)
        if not others:
            del self._waiting[job]

    def _tell(self, job: _Job) -> None:
        for ended in self._waiting.get(job, ()):
            if not ended.done():
                ended.set_result(None)

    def _finished(self, queue: str, ids: list[str]) -> None:
        if self._waiting:
            for job_id in ids:
                self._tell((queue, job_id))

    def _finished_elsewhere(self) -> None:
        if self._waiting:
            self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_NET_S if self._waiting else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._look()
            except QueenError as error:
                _log.log(level_of(error), "results of jobs: %s", error)
            await asyncio.sleep(_REST_S)

    async def _look(self) -> None:
        """Ask for all who wait whether there is a result now."""
        if not self._waiting:
            return
        queues, ids = zip(*self._waiting, strict=True)
        rows = await self._database.fetch("finished_among", list(queues), list(ids))
        for row in rows:
            self._tell((row["queue"], row["job_id"]))
