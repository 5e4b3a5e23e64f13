"""Time that passes at once, for tests.

Time comes from the database and cannot be moved. What is stored can: when every instant that
a queue holds moves into the past, delays are over, leases have lapsed and messages are old,
as if one had waited. Only a server that was started for tests offers this.

Whatever servers remember of these instants is void afterwards: cached segments carry their
time, and timers stand for leases that have lapsed by now. So this server and all others on the
database forget it and look again.
"""

from __future__ import annotations

from queen.service.groups import Groups
from queen.service.jobs import Jobs
from queen.service.relay import Relay
from queen.service.signals import Signals
from queen.storage.database import Database

_RETENTION = "retention"


class Clock:
    def __init__(
        self, database: Database, signals: Signals, groups: Groups, relay: Relay, jobs: Jobs
    ) -> None:
        self._database = database
        self._signals = signals
        self._groups = groups
        self._relay = relay
        self._jobs = jobs

    async def advance(self, seconds: float, queue: str | None) -> int:
        """Let time pass for a queue, or (None) for all; return for how many.

        What is due by then has happened on return: scheduled messages are in the log, and
        what is too old is gone. When another server is at either, it happens a moment later.
        """
        rows = await self._database.fetch("pass_time", queue, seconds)
        self._groups.version += 1
        for row in rows:
            self._signals.time_has_passed(row["queue_id"])
        while await self._relay.relay_some() is None:
            pass
        while await self._jobs.run_once(_RETENTION):
            pass
        # One that was at it all the while may have looked too early.
        self._relay.wake()
        self._jobs.wake(_RETENTION)
        return len(rows)
