"""What the broker runs on: its processes, and PostgreSQL."""

from __future__ import annotations

from typing import NamedTuple

from queen.service.rows import Record
from queen.service.stats.vitals import GAUGES
from queen.storage.database import Database

# A transaction that is younger holds nothing up.
_HELD_S = 1.0
_MOST_HELD = 50
_MOST_SLOW = 20


class ServerVitals(NamedTuple):
    """A process that serves, and what it used in the last minute in which it reported."""

    row: Record
    gauges: dict[str, float]


class Machinery:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def servers(self) -> list[ServerVitals]:
        """Return the processes that have reported within half a minute."""
        rows = await self._database.fetch("servers_now")
        return [
            ServerVitals(row, dict(zip(GAUGES, row["lasts"] or (), strict=False))) for row in rows
        ]

    async def postgres(self) -> Record:
        """Return what PostgreSQL counts of itself."""
        return await self._database.fetchrow("pg_health")

    async def tables(self) -> list[Record]:
        return await self._database.fetch("pg_health_tables")

    async def held(self) -> list[Record]:
        """Return transactions that began a while ago, the oldest first."""
        return await self._database.fetch("pg_held_transactions", _HELD_S, _MOST_HELD)

    async def slow(self) -> list[Record]:
        """Return the statements that took longest on average; none when nobody counts them."""
        return await self._database.fetch("pg_slow_statements", _MOST_SLOW)
