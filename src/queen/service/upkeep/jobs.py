"""Work that comes round: clean-up, statistics, whatever must happen now and then.

Any number of servers run the same jobs on one database. Each round takes an advisory lock
for its transaction, so one server works and the others find the lock taken; every job is
idempotent, so it does not matter which one. A round is bounded: one that has more to do
says so and gets another at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

from queen.errors import QueenError
from queen.service.outages import level_of
from queen.storage.database import Database, Isolation, Transaction

_log = logging.getLogger(__name__)

# One round of a job; returns whether there is more to do right now.
Round = Callable[[Transaction], Awaitable[bool]]


class Jobs:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs: dict[str, tuple[float, Round, Isolation]] = {}
        # Says whether a round is worth a transaction.
        self._needs: dict[str, Callable[[], bool]] = {}
        self._rests: dict[str, float] = {}
        self._wakes: dict[str, asyncio.Event] = {}

    def add(
        self,
        name: str,
        interval_s: float,
        run_round: Round,
        isolation: Isolation = "read_committed",
        is_needed: Callable[[], bool] = lambda: True,
        rest: float = 0.0,
    ) -> None:
        """Add a job. One with more to do gets another round at once, or when it has rested for so
        many times what the last one took."""
        self._jobs[name] = (interval_s, run_round, isolation)
        self._needs[name] = is_needed
        self._rests[name] = rest
        self._wakes[name] = asyncio.Event()

    def wake(self, name: str) -> None:
        """Let a job run now instead of at its time."""
        self._wakes[name].set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in self._jobs:
                group.create_task(self._repeat(name))

    async def run_once(
        self, name: str, instead: Round | None = None, *, waits: bool = False
    ) -> bool:
        """Run one round of a job, or `instead` in its place, and return its answer.

        False too when another server is at it, unless the caller `waits` for that.
        """
        _, run_round, isolation = self._jobs[name]
        take = "wait_for_job" if waits else "try_job"
        async with self._database.transaction(isolation) as transaction:
            is_mine: bool = await transaction.fetchval(take, name)
            return is_mine and await (instead or run_round)(transaction)

    async def _repeat(self, name: str) -> None:
        interval_s = self._jobs[name][0]
        wake = self._wakes[name]
        while True:
            wake.clear()
            try:
                more = True
                while more and self._needs[name]():
                    began = time.monotonic()
                    more = await self.run_once(name)
                    await asyncio.sleep((time.monotonic() - began) * self._rests[name])
            except QueenError as error:
                _log.log(level_of(error), "job %s: %s", name, error)
            except Exception:
                _log.exception("job %s failed", name)
            # Servers that started together do not stay in step.
            pause_s = interval_s * random.uniform(0.9, 1.1)  # noqa: S311
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes
                # together with the wake, and the server would never end.
                async with asyncio.timeout(pause_s):
                    await wake.wait()
