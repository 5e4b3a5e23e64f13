"""A spool as an event loop uses it: nothing here blocks the loop for longer than one write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from queen.spool.disk.format import Record
from queen.spool.entries import Entry
from queen.spool.spool import Spool, SpoolStatistics


class AsyncSpool:
    """The same spool for one event loop."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._futures: dict[Entry, asyncio.Future[range]] = {}
        self._written = asyncio.Event()
        spool.writer.on_write = self._on_write

    @property
    def id(self) -> UUID:
        return self.spool.id

    async def append(
        self, bodies: Sequence[bytes], kind: int, durable: bool | None = None
    ) -> range:
        """Write records; return their seqs. With `durable` they are on the disk then.

        What need not be durable is written at once. Only when another thread is writing, or the
        record must be durable, the thread of the spool writes it, and syncs it with others.
        """
        spool, writer = self.spool, self.spool.writer
        bodies = spool.encrypt(bodies)
        if durable is None:
            durable = writer.is_durable_by_default
        if not durable:
            seqs = writer.try_append(bodies, kind, spool.flags)
            if seqs is not None:
                return seqs
        entry = Entry(bodies, kind, spool.flags, durable, self._tell)
        future: asyncio.Future[range] = self._loop.create_future()
        self._futures[entry] = future
        try:
            writer.submit(entry)
            return await future
        finally:
            del self._futures[entry]

    def append_now(self, bodies: Sequence[bytes], kind: int) -> bool:
        """Write records that need not be durable; false when that means to wait, or to sync."""
        spool = self.spool
        if spool.writer.is_durable_by_default:
            return False
        return spool.writer.try_append(spool.encrypt(bodies), kind, spool.flags) is not None

    async def read(
        self, after: int, max_records: int = 1000, max_bytes: int = 8 * 1024 * 1024
    ) -> list[Record]:
        self._written.clear()
        return await asyncio.to_thread(self.spool.read, after, max_records, max_bytes)

    async def wait_for_records(self) -> None:
        """Wait until something was written after the last `read` began."""
        await self._written.wait()

    async def release(self, seq: int) -> None:
        await asyncio.to_thread(self.spool.release, seq)

    async def refuse(self, refusals: Sequence[tuple[Record, str]]) -> None:
        await asyncio.to_thread(self.spool.refuse, refusals)

    async def statistics(self) -> SpoolStatistics:
        return await asyncio.to_thread(self.spool.statistics)

    async def close(self) -> None:
        await asyncio.to_thread(self.spool.close)

    def _tell(self, entries: Sequence[Entry]) -> None:
        """Called by the thread of the spool, once for a whole group."""
        self._call_in_loop(self._resolve, entries)

    def _resolve(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            future = self._futures.get(entry)
            # Who was cancelled does not want to know.
            if future is None or future.done():
                continue
            if entry.error is None:
                future.set_result(entry.seqs)
            else:
                future.set_exception(entry.error)

    def _on_write(self) -> None:
        if self._written.is_set():
            return
        if threading.get_ident() == self._loop_thread:
            self._written.set()
        else:
            self._call_in_loop(self._written.set)

    def _call_in_loop(self, call: Callable[..., None], *arguments: object) -> None:
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)
