"""Search: what has a text in its name."""

from __future__ import annotations

from queen.service.rows import Record
from queen.storage.database import Database

# Beyond so many partitions some are not looked at: the answer has to come while somebody types.
_MOST_PARTITIONS = 200_000


class Search:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def names(self, text: str, namespaces: list[str] | None, each: int) -> list[Record]:
        """Return queues, groups, streams, pipelines and partitions; at most so many of each."""
        return await self._database.fetch("search_names", text, namespaces, each, _MOST_PARTITIONS)
