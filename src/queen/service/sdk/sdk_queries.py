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


class RegisteredQuery(NamedTuple):
    query_id: uuid.UUID
    is_fresh: bool
    was_reset: bool
    # Of the definition that counts; not the caller's when that was refused.
    config_hash: str


class SdkQuery(NamedTuple):
    """A query in one partition of its source."""

    id: uuid.UUID
    name: str
    partition: Partition
    is_windowed: bool
    # Of its last cycle here; None before the first.
    last_group: str | None

    @property
    def key(self) -> tuple[uuid.UUID, int]:
        """What its rows in the database are found by."""
        return self.id, self.partition.id

    @property
    def group(self) -> str:
        return self.last_group or f"streams.{self.name}"


class StateFilter(NamedTuple):
    """Which state is asked for."""

    keys: list[str]
    prefix: str | None = None
    ripe_ms: float | None = None


class SdkQueries:
    def __init__(self, database: Database, catalog: Catalog, encryption: SegmentEncryption) -> None:
        self._database = database
        self._catalog = catalog
        self._encryption = encryption

    async def register(
        self, name: str, source: str, sink: str | None, config_hash: str, reset: bool
    ) -> RegisteredQuery:
        """Note a query under its name; the same definition may come any number of times."""
        row = await self._database.fetchrow(
            "register_query", name, source, sink, config_hash, reset
        )
        return RegisteredQuery(*row)

    async def find(self, query_id: uuid.UUID, partition: Partition) -> SdkQuery:
        """Return a query in a partition that is one of its source's."""
        row = await self._database.findrow("find_query", query_id, partition.id)
        if row is None or row["source_queue"] != partition.queue.name:
            raise NotFound("Query not found, or it does not read this partition")
        return SdkQuery(query_id, row["name"], partition, row["is_windowed"], row["consumer_group"])

    async def read_state(
        self, sdk_query: SdkQuery, state_filter: StateFilter
    ) -> list[tuple[str, bytes, Record]]:
        """Return key, value and row of the state that is asked for."""
        leased = await self._is_leased(sdk_query)
        rows = await self._database.fetch("read_query_state", *sdk_query.key, *state_filter)
        if rows and not leased:
            rows = await self._offer(sdk_query, state_filter, rows)
        elif state_filter.ripe_ms is not None:
            rows = []
        return [(row["key"], self._decode_value(row), row) for row in rows]

    async def _is_leased(self, sdk_query: SdkQuery) -> bool:
        """Whether somebody works on the partition just now: then it is for that one.

        A gate that lets nothing through says nothing: its lease lapses. That it has looked
        at its state shows that it is no consumer that died, so no try is counted.
        """
        group_id = await self._catalog.find_group(sdk_query.partition.queue, sdk_query.group)
        if group_id is None:
            return False
        live = await self._database.fetchval("is_leased", sdk_query.partition.id, group_id)
        if live and not sdk_query.is_windowed:
            await self._database.execute("forgive_attempts", sdk_query.partition.id, group_id)
        return bool(live)

    async def _offer(
        self, sdk_query: SdkQuery, state_filter: StateFilter, seen: list[Record]
    ) -> list[Record]:
        """Return state for somebody without a lease, and let that one close what is in it.

        Windows that are asked for because they are over are shown only when everything that
        belongs to them was read. Anybody else sees what there is, but may close it only then.
        """
        async with self._database.transaction() as transaction:
            settled_ms: float | None = await transaction.fetchval("offer_state", *sdk_query.key)
            if settled_ms is None:
                return [] if state_filter.ripe_ms is not None else seen
            if state_filter.ripe_ms is not None:
                ripe_ms = min(state_filter.ripe_ms, settled_ms - _MARGIN_MS)
                state_filter = state_filter._replace(ripe_ms=ripe_ms)
            return await transaction.fetch("read_query_state", *sdk_query.key, *state_filter)

    def _decode_value(self, row: Record) -> bytes:
        return self._encryption.decrypt_state(row["partition_id"], row["codec"], row["value"])

    def encode_value(self, partition: Partition, value: bytes) -> tuple[int, bytes]:
        """Return the codec and the bytes with which a value is stored."""
        if partition.queue.options.encryption_enabled:
            return self._encryption.encrypt_state(partition.id, value)
        return CODEC_RAW, value
