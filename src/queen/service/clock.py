"""The time that counts: the database's. Servers do not agree on any other."""

from __future__ import annotations

from datetime import datetime

from queen.storage.database import Database


class Clock:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        at: datetime = await self._database.fetchval("now")
        return at
