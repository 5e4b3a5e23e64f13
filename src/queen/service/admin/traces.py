"""Traces: what consumers tell about a message on its way.

An event belongs to one message and may carry names; a name gathers the events of many
messages on one line of time. Events are kept for some days and go with their queue.
"""

from __future__ import annotations

from queen.errors import NotFound
from queen.service.catalog import Partition
from queen.storage.database import Database, Record, Transaction

DEFAULT_DAYS = 30
JOB = "traces"
JOB_INTERVAL_S = 3600.0
_FORGET_BATCH = 5000


class Traces:
    def __init__(self, database: Database, days: int) -> None:
        self._database = database
        self._days = days

    async def record(
        self,
        partition: Partition,
        transaction_id: str,
        group: str,
        event_type: str,
        data: str,
        names: list[str],
    ) -> int:
        """Keep an event and return its id."""
        trace_id: int | None = await self._database.findval(
            "record_trace", partition.id, transaction_id, group, event_type, data, names
        )
        if trace_id is None:
            raise NotFound("Partition not found")
        return trace_id

    async def of_message(
        self, partition: Partition, transaction_id: str, limit: int, offset: int
    ) -> tuple[list[Record], int]:
        """Return events of a message, oldest first, and how many there are."""
        key = (partition.id, transaction_id)
        rows = await self._database.fetch("traces_of", *key, limit, offset)
        return rows, await self._database.fetchval("count_traces_of", *key)

    async def by_name(
        self, name: str, limit: int, offset: int, among: list[str] | None = None
    ) -> tuple[list[Record], int]:
        """Return events that carry a name, and how many there are; `among` some namespaces."""
        rows = await self._database.fetch("traces_by_name", name, limit, offset, among)
        return rows, await self._database.fetchval("count_traces_by_name", name, among)

    async def names(self, limit: int, offset: int, among: list[str] | None = None) -> list[Record]:
        """Return the names that were used last."""
        return await self._database.fetch("newest_trace_names", limit, offset, among)

    async def forget_old(self, transaction: Transaction) -> bool:
        """Drop some events that are too old; return whether there are more."""
        forgotten = await transaction.fetchval("forget_traces", self._days, _FORGET_BATCH)
        return bool(forgotten == _FORGET_BATCH)
