"""Problems: where to look first.

The lists are read from what was counted last, and from the breakers that are open, a bounded
number of rows of each, so that they cost the same with ten partitions and with 100,000.
"""

from __future__ import annotations

from datetime import datetime

from queen.service.rows import Record
from queen.storage.database import Database

MOST = 50


class Problems:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def stuck(self, namespaces: list[str] | None, before: datetime) -> list[Record]:
        """Return partitions in which a group has had something to read since before an instant."""
        return await self._database.fetch("stuck_partitions", namespaces, before, MOST)

    async def retention_risks(self, namespaces: list[str] | None) -> list[Record]:
        """Return whose oldest unread messages will be removed, the soonest first."""
        return await self._database.fetch("retention_risks", namespaces, MOST)

    async def open_breakers(self, namespaces: list[str] | None, most: int = MOST) -> list[Record]:
        """Return the groups that their breaker holds back, the first that opened first."""
        return await self._database.fetch("list_open_breakers", namespaces, most)
