"""Leases by their id, wherever they were granted: what they hold, and for how much longer."""

from __future__ import annotations

import uuid
from datetime import datetime

from queen.service.acks.cursors import Key
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.lease_book import LeaseBook
from queen.storage.database import Database


class Leases:
    def __init__(self, database: Database, book: LeaseBook, dispatcher: Dispatcher) -> None:
        self._database = database
        self._book = book
        self._dispatcher = dispatcher

    async def cursors_of(self, lease_id: uuid.UUID) -> list[Key]:
        """Return partition and group of every cursor that a lease holds, or held a moment ago."""
        held = [(span.partition.id, span.group_id) for span in self._book.spans(lease_id)]
        if not held:
            rows = await self._database.fetch("cursors_of_lease", lease_id)
            rows = rows or await self._database.fetch("spans_of_lease", lease_id)
            held = [(row["partition_id"], row["group_id"]) for row in rows]
        return held

    async def extend(self, lease_id: uuid.UUID, seconds: int) -> datetime | None:
        """Prolong a live lease; None when it is not, or no longer, one."""
        held = await self.cursors_of(lease_id)
        key = [partition for partition, _ in held], [group for _, group in held]
        rows = await self._database.fetch("extend_lease", *key, lease_id, seconds * 1000)
        if len(rows) < len(held):
            # In shared groups a lease is a span.
            rows += await self._database.fetch(
                "extend_shared_lease", *key, lease_id, seconds * 1000
            )
        for span in self._book.spans(lease_id):
            self._dispatcher.lease_extended(span, lease_id, seconds * 1000)
        return min((row["lease_until"] for row in rows), default=None)
