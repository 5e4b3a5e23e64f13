"""Fetch: stored segments as they are, in bulk.

The bytes of a segment are never decoded here: a row becomes a frame by a header in front.
Pages are bounded, and the next one is read while the last one is sent, so memory stays flat
however much is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from queen.core.frame import Frame, pack_frame, raw_size
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.vault import Vault
from queen.storage.database import Database

_PAGE_ROWS = 256
_END = 2**62
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)

_Page = list[Any]


class Fetcher:
    def __init__(self, database: Database, catalog: Catalog, vault: Vault) -> None:
        self._database = database
        self._vault = vault
        self._catalog = catalog

    async def partition(
        self,
        partition: Partition,
        *,
        from_offset: int = 0,
        to_offset: int | None = None,
        from_time: datetime | None = None,
        to_time: datetime | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the frames of one partition in order, whole segments that touch the range."""
        start = from_offset
        if from_time is not None:
            found: int = await self._database.fetchval("offset_at", partition.id, from_time)
            start = max(start, found)
        start = await self._database.fetchval("segment_start", partition.id, start) or 0
        stop = _END if to_offset is None else to_offset

        async def page(after: Any | None) -> _Page:
            low = start if after is None else after["end_offset"]
            return await self._database.fetch(
                "fetch_partition", partition.id, low, stop, to_time or _LATEST, _PAGE_ROWS
            )

        async for frames in self._pages(page):
            yield frames

    async def queue(
        self, queue: Queue, *, from_time: datetime | None = None, to_time: datetime | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the frames of a queue in order of time; each partition stays in order."""
        first = from_time or _EARLIEST

        async def page(after: Any | None) -> _Page:
            at = (first, -1, -1)
            if after is not None:
                at = (after["created_at"], after["partition_id"], after["base_offset"])
            return await self._database.fetch(
                "fetch_queue", queue.id, *at, to_time or _LATEST, _PAGE_ROWS
            )

        async for frames in self._pages(page):
            yield frames

    async def _pages(
        self, page: Callable[[Any | None], Coroutine[Any, Any, _Page]]
    ) -> AsyncIterator[bytes]:
        rows = await page(None)
        while rows:
            following = asyncio.create_task(page(rows[-1])) if len(rows) == _PAGE_ROWS else None
            try:
                yield await self._frames(rows)
                rows = await following if following is not None else []
            finally:
                if following is not None:
                    following.cancel()

    async def _frames(self, rows: _Page) -> bytes:
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        frames = []
        for row in rows:
            partition = partitions.get(row["partition_id"])
            if partition is not None:
                frames.append(self._frame(partition, row))
        return b"".join(frames)

    def _frame(self, partition: Partition, row: Any) -> bytes:
        codec, body = self._vault.plain(partition.id, row["codec"], row["body"])
        return pack_frame(
            Frame(
                partition.queue.name,
                partition.name,
                row["end_offset"] - row["base_offset"],
                codec,
                raw_size(codec, body),
                body,
                row["base_offset"],
                _microseconds(row["created_at"]),
                partition.id,
            )
        )


def _microseconds(at: datetime) -> int:
    delta = at - _EARLIEST
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds
