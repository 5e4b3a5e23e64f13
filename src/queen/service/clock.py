"""The time that counts: the database's. Servers do not agree on any other."""

from __future__ import annotations

import time
from datetime import datetime

from queen.storage.database import Database

_TRIES = 5


class Clock:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        at: datetime = await self._database.fetchval("now")
        return at

    async def ahead_ns(self) -> int:
        """Return how far the database is ahead of this machine, as its quickest answer says."""
        tries = []
        for _ in range(_TRIES):
            asked_ns = time.time_ns()
            at_ns = int((await self.now()).timestamp() * 1e6) * 1000
            answered_ns = time.time_ns()
            tries.append((answered_ns - asked_ns, at_ns - (asked_ns + answered_ns) // 2))
        return min(tries)[1]
