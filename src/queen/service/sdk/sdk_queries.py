"""Queries of the published streaming SDK: who they are, and the state they keep.

The SDK computes in the client. Between two cycles its state is here, one value for each key
of a query in a partition. A runner reads it while it holds the lease on the partition, so
nobody else writes it in that time. What runs without a lease is the SDK's timer, which closes
windows when nothing arrives. It gets to see only what cannot change any more; see
`offer_state.sql` and the decision on idle flushes.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from queen.core.frame import CODEC_RAW
from queen.errors import NotFound
from queen.service.catalog import Catalog, Partition
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database, Record

# The SDK takes times apart in floating point and may be off by one.
_MARGIN_MS = 2


class Registered(NamedTuple):
    query_id: uuid.UUID
    is_fresh: bool
    was_reset: bool
    # Of the definition that counts; not the caller's when that was refused.
    config_hash: str


class Query(NamedTuple):
    """A query in one partition of its source."""

    id: uuid.UUID
    name: str
    partition: Partition
    is_windowed: bool
    # Of its last cycle here; None before the first.
    last_group: str | None

    @property
    def group(self) -> str:
        return self.last_group or f"streams.{self.name}"


class Wanted(NamedTuple):
    """Which state is asked for."""

    keys: list[str]
    prefix: str | None = None
    ripe_ms: float | None = None


class Queries:
    def __init__(self, database: Database, catalog: Catalog, encryption: SegmentEncryption) -> None:
        self._database = database
        self._catalog = catalog
        self._encryption = encryption

    async def register(
        self, name: str, source: str, sink: str | None, config_hash: str, reset: bool
    ) -> Registered:
        """Note a query under its name; the same definition may come any number of times."""
        row = await self._database.fetchrow(
            "register_query", name, source, sink, config_hash, reset
        )
        return Registered(*row)

    async def find(self, query_id: uuid.UUID, partition: Partition) -> Query:
        """Return a query in a partition that is one of its source's."""
        row = await self._database.findrow("find_query", query_id, partition.id)
        if row is None or row["source_queue"] != partition.queue.name:
            raise NotFound("Query not found, or it does not read this partition")
        return Query(query_id, row["name"], partition, row["is_windowed"], row["consumer_group"])

    async def state(self, query: Query, wanted: Wanted) -> list[tuple[str, bytes, Record]]:
        """Return key, value and row of the state that is asked for."""
        leased = await self._is_leased(query)
        rows = await self._database.fetch("read_query_state", *_place(query), *wanted)
        if rows and not leased:
            rows = await self._offered(query, wanted, rows)
        elif wanted.ripe_ms is not None:
            rows = []
        return [(row["key"], self._value(row), row) for row in rows]

    async def _is_leased(self, query: Query) -> bool:
        """Whether somebody works on the partition just now: then it is for that one.

        A gate that lets nothing through says nothing: its lease lapses. That it has looked
        at its state shows that it is no consumer that died, so no try is counted.
        """
        group_id = await self._catalog.find_group(query.partition.queue, query.group)
        if group_id is None:
            return False
        live = await self._database.fetchval("is_leased", query.partition.id, group_id)
        if live and not query.is_windowed:
            await self._database.execute("forgive_attempts", query.partition.id, group_id)
        return bool(live)

    async def _offered(self, query: Query, wanted: Wanted, seen: list[Record]) -> list[Record]:
        """Return state for somebody without a lease, and let that one close what is in it.

        Windows that are asked for because they are over are shown only when everything that
        belongs to them was read. Anybody else sees what there is, but may close it only then.
        """
        async with self._database.transaction() as transaction:
            settled_ms: float | None = await transaction.fetchval("offer_state", *_place(query))
            if settled_ms is None:
                return [] if wanted.ripe_ms is not None else seen
            if wanted.ripe_ms is not None:
                ripe_ms = min(wanted.ripe_ms, settled_ms - _MARGIN_MS)
                wanted = wanted._replace(ripe_ms=ripe_ms)
            return await transaction.fetch("read_query_state", *_place(query), *wanted)

    def _value(self, row: Record) -> bytes:
        return self._encryption.decrypt_state(row["partition_id"], row["codec"], row["value"])

    def stored(self, partition: Partition, value: bytes) -> tuple[int, bytes]:
        """Return codec and bytes of a value as it is stored."""
        if partition.queue.options.encryption_enabled:
            return self._encryption.encrypt_state(partition.id, value)
        return CODEC_RAW, value


def _place(query: Query) -> tuple[uuid.UUID, int]:
    return query.id, query.partition.id
