"""Scheduled messages: staged now, appended by the relay when they are due.

They lie in the same table as what SQL producers stage. Until a message is due it is in no
partition, has no offset, and can be cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from queen.service.catalog import Catalog
from queen.storage.database import Database, Record

_PLAIN = 0


class Scheduled(NamedTuple):
    """One message and when it is due."""

    queue: str
    partition: str
    transaction_id: str
    trace_id: str | None
    payload: bytes
    deliver_at: datetime
    producer_sub: str | None = None
    # How the payload is stored: 0 is JSON as it is.
    codec: int = _PLAIN


def stage_columns(messages: list[Scheduled]) -> tuple[list[Any], ...]:
    """Return the arguments of the stage statement."""
    return (
        [one.queue for one in messages],
        [one.partition for one in messages],
        [one.transaction_id for one in messages],
        [one.trace_id for one in messages],
        [one.producer_sub for one in messages],
        [one.payload for one in messages],
        [one.codec for one in messages],
        [one.deliver_at for one in messages],
    )


class Staging:
    def __init__(self, database: Database, catalog: Catalog) -> None:
        self._database = database
        self._catalog = catalog

    async def stage(self, messages: list[Scheduled]) -> None:
        """Store messages for later; returns after the commit."""
        if messages:
            await self._database.fetch("stage", *stage_columns(messages))

    async def encrypted(self, queues: Iterable[str]) -> set[str]:
        """Return which of these queues keep nothing in plain text.

        What they get could be encrypted here, before it is staged, and decrypted by the relay
        (`Scheduled.codec` says how); until then nothing is scheduled for them.
        """
        found = [await self._catalog.queue(name) for name in set(queues)]
        return {one.name for one in found if one is not None and one.options.encryption_enabled}

    async def page(self, queue: str | None, limit: int, offset: int) -> list[Record]:
        """Return what is scheduled, soonest first, for one queue or for all."""
        if queue is None:
            return await self._database.fetch("scheduled_everywhere", limit, offset)
        return await self._database.fetch("scheduled", queue, limit, offset)

    async def cancel(self, queue: str, transaction_id: str) -> list[Record]:
        """Remove what is scheduled under a transaction id and not appended yet."""
        return await self._database.fetch("cancel_scheduled", queue, transaction_id)
