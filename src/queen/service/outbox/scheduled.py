"""Scheduled messages: in the outbox now, appended by the relay when they are due.

They lie in the same table as what SQL producers push. Until a message is due it is in no
partition, has no offset, and can be cancelled. For a queue that is encrypted it waits
encrypted.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from queen.core.frame import CODEC_RAW
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database, Record


class Scheduled(NamedTuple):
    """One message and when it is due."""

    queue: str
    partition: str
    transaction_id: str
    trace_id: str | None
    payload: bytes
    deliver_at: datetime
    producer_sub: str | None
    # How the payload is stored: as it is, or encrypted.
    codec: int = CODEC_RAW
    # The sender has given it its id: sent again, it has the same.
    is_named: bool = True
    # As the payload is, in plain text or encrypted.
    headers: bytes | None = None


def outbox_columns(messages: list[Scheduled]) -> tuple[list[Any], ...]:
    """Return the arguments of the statement that puts messages into the outbox."""
    return (
        [message.queue for message in messages],
        [message.partition for message in messages],
        [message.transaction_id for message in messages],
        [message.trace_id for message in messages],
        [message.producer_sub for message in messages],
        [message.payload for message in messages],
        [message.codec for message in messages],
        [message.deliver_at for message in messages],
        [message.headers for message in messages],
    )


class Outbox:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        encryption: SegmentEncryption,
        maintenance: Maintenance,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._encryption = encryption
        self._maintenance = maintenance

    async def put(self, messages: list[Scheduled]) -> None:
        """Store messages for later; returns after the commit."""
        if messages:
            self._maintenance.check_push()
            await self._database.execute("stage", *outbox_columns(messages))

    async def encrypted_queues(self, queues: Iterable[str]) -> set[str]:
        """Return which of these queues keep nothing in plain text."""
        cataloged = await self._catalog.queues(queues)
        return {queue.name for queue in cataloged if queue.options.encryption_enabled}

    def encrypt(self, message: Scheduled) -> Scheduled:
        """Return a message as it waits for an encrypted queue."""
        codec, payload = self._encryption.encrypt_outbox_message(
            message.queue, message.partition, message.payload
        )
        headers = message.headers
        if headers is not None:
            _, headers = self._encryption.encrypt_outbox_message(
                message.queue, message.partition, headers
            )
        return message._replace(codec=codec, payload=payload, headers=headers)

    async def page(
        self, queue: str | None, namespaces: list[str] | None, limit: int, offset: int
    ) -> list[Record]:
        """Return what is scheduled, soonest first, for one queue or for all."""
        if queue is None and namespaces is None:
            return await self._database.fetch("scheduled_everywhere", limit, offset)
        if queue is None:
            return await self._database.fetch("scheduled_among", limit, offset, namespaces)
        return await self._database.fetch("scheduled", queue, limit, offset, namespaces)

    async def cancel(
        self, queue: str, transaction_id: str, namespaces: list[str] | None
    ) -> list[Record]:
        """Remove what is scheduled under a transaction id and not appended yet."""
        return await self._database.fetch("cancel_scheduled", queue, transaction_id, namespaces)
