"""Queues: what they are configured to be, and their end."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

from queen.core.names import DEFAULT_PARTITION
from queen.core.options import QueueOptions, differing_options
from queen.errors import Conflict, EncryptionUnavailable, NotFound, Unavailable
from queen.service.catalog import Catalog, Partition
from queen.service.events import Events
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database

# Segments of which the messages are counted; more would keep somebody waiting.
_MOST_SEGMENTS = 100_000
_DELETE_TRIES = 6

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Configuration(NamedTuple):
    """What was said about a queue; options that nobody named are not in it."""

    namespace: str
    task: str
    named: dict[str, Any]


class StoredQueue(NamedTuple):
    id: int
    revision: int
    configuration: Configuration


class QueueChange(NamedTuple):
    """What is to be different about a queue: None leaves a label as it is."""

    namespace: str | None
    task: str | None
    named: dict[str, Any]
    # Options that go back to their default.
    unset: list[str]
    create: bool
    # Which configuration the caller has seen; None takes any.
    revision: int | None


class AlteredQueue(NamedTuple):
    id: int
    revision: int
    is_new: bool
    before: Configuration
    now: Configuration
    partition: Partition


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
        self, queue: str, namespace: str, task: str, options: QueueOptions | dict[str, Any]
    ) -> tuple[int, Partition]:
        """Create a queue or overwrite its configuration; returns its id and first partition.

        Only options that were named are stored: the others follow the defaults. A caller that has
        all of them has named those that differ."""
        named = differing_options(options) if isinstance(options, QueueOptions) else options
        self._check_key(named)
        encoded = msgspec.json.encode(named).decode()
        queue_id: int = await self._database.fetchval(
            "configure_queue", queue, namespace, task, encoded
        )
        return queue_id, await self._made(queue)

    async def alter(self, queue: str, change: QueueChange) -> AlteredQueue:
        """Change what is named of a queue, and nothing else; raises `NotFound` when there is none
        and it was not to be created, `Conflict` when it is no longer what the caller has seen."""
        self._check_key(change.named)
        row = await self._database.findrow(
            "alter_queue",
            queue,
            change.create,
            change.namespace,
            change.task,
            msgspec.json.encode(change.named).decode(),
            change.unset,
            change.revision,
        )
        if row is None:
            raise NotFound(f"Queue {queue!r} not found")
        if row["is_refused"]:
            raise Conflict(
                f"queue {queue!r} was changed meanwhile: it has revision {row['revision']}, "
                f"not {change.revision}; look again and decide then"
            )
        partition = await self._made(queue)
        before = Configuration(row["old_namespace"], row["old_task"], _decode(row["old_options"]))
        now = Configuration(row["namespace"], row["task"], _decode(row["options"]))
        return AlteredQueue(row["id"], row["revision"], row["is_new"], before, now, partition)

    def _check_key(self, named: dict[str, Any]) -> None:
        if named.get("encryptionEnabled") and not self._encryption.keys:
            raise EncryptionUnavailable(
                "this server has no key to encrypt with: start it with QUEEN_ENCRYPTION_KEY"
            )

    async def _made(self, queue: str) -> Partition:
        """Tell who has to know that a queue is configured; returns its first partition."""
        self._events.options_changed()
        await self._catalog.resolve([(queue, DEFAULT_PARTITION)])
        partition = self._catalog.known(queue, DEFAULT_PARTITION)
        if partition is None:
            raise Unavailable("the queue was deleted at the same moment")
        return partition

    async def stored(self, name: str) -> StoredQueue | None:
        """Return how a queue is configured at this moment, None when there is none."""
        rows = await self._database.fetch("queues_by_name", [name])
        if not rows:
            return None
        row = rows[0]
        configuration = Configuration(row["namespace"], row["task"], _decode(row["options"]))
        return StoredQueue(row["id"], row["revision"], configuration)

    async def count_older(self, queue_id: int, seconds: int) -> tuple[int, bool]:
        """Return how many messages were written longer ago, and whether there are more than were
        counted."""
        row = await self._database.fetchrow("count_older", queue_id, seconds, _MOST_SEGMENTS)
        return row["messages"], row["segments"] == _MOST_SEGMENTS

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
