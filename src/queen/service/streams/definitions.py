"""What streams there are: define, change, forget.

A definition replaces the one before, sources included. A change that would cut other windows
than those that somebody may have read is refused unless the caller says that it is meant.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import NamedTuple

import msgspec

from queen.core.streams import StreamDefinition, differences
from queen.errors import NotFound, StreamDiffers, Unavailable
from queen.service.catalog import Catalog
from queen.service.events import Events
from queen.service.streams.ttl_cache import TtlCache
from queen.storage.database import Database, Record, Transaction

_definition = msgspec.json.Decoder(StreamDefinition)


class Stream(NamedTuple):
    id: int
    uuid: uuid.UUID
    name: str
    namespace: str
    definition: StreamDefinition
    sources: list[str]
    planned_until: datetime | None
    created_at: datetime
    updated_at: datetime


class DefinedStream(NamedTuple):
    """A stream as it is now, and what its definition has changed."""

    stream: Stream
    created: bool
    changed: bool


class Definitions:
    def __init__(self, database: Database, catalog: Catalog, events: Events) -> None:
        self._database = database
        self._catalog = catalog
        self._events = events
        self._recent: TtlCache[str, Stream] = TtlCache()

    async def find(self, name: str) -> Stream | None:
        row = await self._database.findrow("stream_by_name", name)
        return _stream(row) if row is not None else None

    async def recent(self, name: str) -> Stream:
        """Return a stream as it is, or was a moment ago."""
        stream = self._recent.get(name)
        if stream is None:
            stream = await self.get(name)
            self._recent.put(name, stream)
        return stream

    async def get(self, name: str) -> Stream:
        stream = await self.find(name)
        if stream is None:
            raise NotFound(f"Stream {name!r} not found")
        return stream

    async def define(
        self,
        name: str,
        namespace: str,
        definition: StreamDefinition,
        sources: list[str],
        *,
        recut: bool,
    ) -> DefinedStream:
        """Create a stream or replace its definition; source queues that are missing are made."""
        for source in sources:
            await self._catalog.ensure_queue(source)
        encoded = msgspec.json.encode(definition).decode()
        async with self._database.transaction() as transaction:
            stream_id = await transaction.findval("create_stream", name, namespace, encoded)
            if stream_id is not None:
                await transaction.execute("set_stream_sources", stream_id, sources)
                changed = True
            else:
                changed = await _replace(
                    transaction, name, namespace, definition, sources, recut=recut
                )
        self._recent.forget(name)
        self._events.streams_changed()
        return DefinedStream(await self.get(name), stream_id is not None, changed)

    async def delete(self, name: str) -> bool:
        """Forget a stream with its windows and groups; the queues stay as they are."""
        self._recent.forget(name)
        return await self._database.findval("delete_stream", name) is not None


async def _replace(
    transaction: Transaction,
    name: str,
    namespace: str,
    definition: StreamDefinition,
    sources: list[str],
    *,
    recut: bool,
) -> bool:
    row = await transaction.findrow("lock_stream", name)
    if row is None:
        raise Unavailable("the stream was deleted at the same moment")
    old = _definition.decode(row["definition"])
    differs = differences(old, definition, row["sources"], sources)
    if differs and row["is_read"] and not recut:
        raise StreamDiffers(differs)
    encoded = msgspec.json.encode(definition).decode()
    await transaction.execute("update_stream", row["id"], namespace, encoded)
    if differs or old.max_in_flight != definition.max_in_flight:
        await transaction.execute("lock_stream_groups", row["id"])
        await transaction.execute("lock_stream_group_rows", row["id"])
        await transaction.execute("balance_stream", row["id"], definition.max_in_flight)
    if differs:
        await transaction.execute("set_stream_sources", row["id"], sources)
        await transaction.execute("recut_stream", row["id"])
    return bool(differs) or old != definition or row["namespace"] != namespace


def _stream(row: Record) -> Stream:
    return Stream(
        row["id"],
        row["uuid"],
        row["name"],
        row["namespace"],
        _definition.decode(row["definition"]),
        row["sources"],
        row["planned_until"],
        row["created_at"],
        row["updated_at"],
    )
