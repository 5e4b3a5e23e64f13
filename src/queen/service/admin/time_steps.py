"""Time that passes at once, for tests.

Time comes from the database and cannot be moved. What is stored can: when every instant that
a queue holds moves into the past, delays are over, leases have lapsed and messages are old,
as if one had waited. Only a server that was started for tests offers this.

Whatever servers remember of these instants is void afterwards: cached segments carry their
time, and timers stand for leases that have lapsed by now. So this server and all others on the
database forget it and look again.
"""

from __future__ import annotations

from datetime import timedelta

from queen.service.admin.groups import Groups
from queen.service.outbox.relay import Relay
from queen.service.signals import Signals
from queen.service.streams.planner import Planner
from queen.service.streams.planning_round import move_gathered
from queen.service.streams.work import Work
from queen.service.tasks.keys import JOB as _KEYS
from queen.service.tasks.results import JOB as _RESULTS
from queen.service.tasks.ticker import Ticker
from queen.service.upkeep.jobs import Jobs
from queen.storage.database import Database

_RETENTION = "retention"
# Rounds of planning after a step of time; the planner goes on by itself.
_ROUNDS = 100


class TimeSteps:
    def __init__(
        self,
        database: Database,
        signals: Signals,
        groups: Groups,
        relay: Relay,
        ticker: Ticker,
        jobs: Jobs,
        planner: Planner,
        work: Work,
    ) -> None:
        self._database = database
        self._signals = signals
        self._groups = groups
        self._relay = relay
        self._ticker = ticker
        self._jobs = jobs
        self._planner = planner
        self._work = work

    async def advance(self, seconds: float, queue: str | None) -> int:
        """Let time pass for a queue, or (None) for all; return for how many.

        What is due by then has happened on return: scheduled messages, and what schedules push,
        are in the log, windows of streams are closed, and what is too old is gone. A schedule or
        a window that another server has at hand comes a moment later.
        """
        async with self._database.transaction() as transaction:
            rows = await transaction.fetch("pass_time", queue, seconds)
            queue_ids = [row["queue_id"] for row in rows]
            await move_gathered(transaction, queue_ids, timedelta(seconds=-seconds))
        self._groups.version += 1
        for row in rows:
            self._signals.time_has_passed(row["queue_id"])
        while await self._ticker.tick_some():
            pass
        while await self._relay.relay_some(waits=True) is None:
            pass
        await self._close_windows()
        for job in (_RETENTION, _RESULTS, _KEYS):
            while await self._jobs.run_once(job, waits=True):
                pass
        # One that was at it all the while may have looked too early.
        self._ticker.wake()
        self._relay.wake()
        self._jobs.wake(_RETENTION)
        return len(rows)

    async def _close_windows(self) -> None:
        for _ in range(_ROUNDS):
            if not await self._planner.plan_due():
                break
        # Leases and the pauses before a retry may be over too.
        self._work.look_at_all()
