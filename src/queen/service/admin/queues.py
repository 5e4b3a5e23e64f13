"""Queues: what they are configured to be, and their end."""

from __future__ import annotations

import asyncio

import msgspec

from queen.core.names import DEFAULT_PARTITION
from queen.core.options import QueueOptions
from queen.errors import EncryptionUnavailable, Unavailable
from queen.service.catalog import Catalog, Partition
from queen.service.events import Events
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database

_DELETE_TRIES = 6


class Queues:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        encryption: SegmentEncryption,
        events: Events,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._encryption = encryption
        self._events = events

    async def configure(
        self, queue: str, namespace: str, task: str, options: QueueOptions
    ) -> tuple[int, Partition]:
        """Create a queue or overwrite its configuration; returns its id and first partition."""
        if options.encryption_enabled and not self._encryption.keys:
            raise EncryptionUnavailable
        encoded = msgspec.json.encode(options).decode()
        queue_id: int = await self._database.fetchval(
            "configure_queue", queue, namespace, task, encoded
        )
        self._events.options_changed()
        await self._catalog.resolve([(queue, DEFAULT_PARTITION)])
        partition = self._catalog.known(queue, DEFAULT_PARTITION)
        if partition is None:
            raise Unavailable("the queue was deleted at the same moment")
        return queue_id, partition

    async def delete(self, name: str) -> bool:
        """Delete a queue with everything in it; false when there is none."""
        queue = await self._catalog.queue(name)
        existed = await self._delete(name)
        self._catalog.forget_queue(name)
        if queue is not None:
            self._events.queue_deleted(queue.id)
        self._events.options_changed()
        return existed

    async def _delete(self, name: str) -> bool:
        """Delete until nobody adds a partition or a group in the same moment."""
        for attempt in range(_DELETE_TRIES):
            try:
                existed: bool = await self._database.fetchval("delete_queue", name)
                return existed
            except Unavailable:
                if attempt == _DELETE_TRIES - 1:
                    raise
                await asyncio.sleep(0.01 * 2**attempt)
        raise AssertionError("unreachable")
