"""`Queen(spool=path)`: a producer goes on while its broker is away, and loses nothing.

A push is tried as ever. If the broker is away, the push is written to the spool, synced, and
answered `buffered`. From then on pushes go behind it without trying, until the drain has sent
everything. What waits for a queue that is full holds back that queue's partitions only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from queen.client.spooling.drain import Drain
from queen.client.spooling.folders import SpoolFolder, owner_of
from queen.client.spooling.outcomes import is_outage
from queen.client.spooling.records import PartitionKey, bodies_of
from queen.client.spooling.refused import RefusedMessage, refused_messages
from queen.client.spooling.settings import Settings
from queen.errors import InvalidFrame, InvalidItem, QueenError
from queen.spool import KIND_JSON, SpoolOptions

if TYPE_CHECKING:
    from queen.client.queen import NamedFrame
    from queen.client.transport.cluster import Cluster


# How long an answer that is on its way is waited for at the end.
_LAST_ANSWER_S = 1.0


class SpoolState(msgspec.Struct, kw_only=True):
    """What waits in the spool of a client."""

    # A lower bound while the files of earlier processes are looked through.
    records: int
    # On the disk, with what is in quarantine.
    bytes: int
    oldest_at: datetime | None
    # Refused by the broker for what they are; see `refused`.
    quarantined: int
    # Ranges of the files that were damaged and are set aside.
    damaged: int
    # Whether the broker was away at the last try.
    is_away: bool
    # Why something waits.
    error: str | None


class ClientSpool:
    """The spool of a client, as `queen.spool`."""

    def __init__(self, cluster: Cluster, path: Path, settings: Settings) -> None:
        self.path = path
        self._settings = settings
        options = SpoolOptions(
            max_bytes=settings.max_bytes,
            min_free_bytes=settings.min_free_bytes,
            # What is sent is still counted until half of a file is; that shall not be much.
            max_file_bytes=min(SpoolOptions().max_file_bytes, settings.max_bytes // 4),
        )
        folder = SpoolFolder(path, owner_of(settings.broker, cluster.urls), options)
        own = folder.claim()
        folder.warn_of_others()
        # What hangs leaves time to ask the next server.
        self.try_s = settings.try_s / len(cluster.urls)
        self._drain = Drain(cluster, folder, own, self.try_s)
        self._task: asyncio.Task[None] | None = None
        self._writing = 0
        self._is_closed = False
        _open.add(self)
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            self.start()

    def start(self) -> None:
        """Send what waits. A client that is made before its loop begins with its first use."""
        if self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._drain.run())

    # ---- keeping ----

    async def keys_behind(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Return which partitions' pushes are written to the spool without being tried, because
        others wait before them or because the broker is away."""
        self.start()
        while self._drain.is_behind or (self._writing and self._drain.is_away):
            if self._is_closed or not self._drain.is_nearly_done:
                return set(keys)
            # Written behind the last ones, each push would keep the next from going past.
            await self._drain.wait_for_progress()
        return {key for key in keys if self._drain.holds(key)}

    @staticmethod
    def is_for_spool(error: QueenError) -> bool:
        """Whether a push that has failed so is written to the spool."""
        return is_outage(error)

    def note_failure(self, error: QueenError) -> bool:
        """Return whether a push that has failed so is written to the spool; the next ones are
        then, without being tried."""
        if is_outage(error):
            self._drain.note_outage(error)
            return True
        return False

    async def keep_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Write items of a push; they are on the disk then."""
        await self._keep(bodies_of(items))

    async def keep_frames(self, frames: Sequence[NamedFrame]) -> None:
        """Write whole frames; they are on the disk then."""
        items = [
            message.item(queue, partition)
            for queue, partition, messages in frames
            for message in messages
        ]
        try:
            bodies = bodies_of(items)
        except InvalidItem as error:
            # As a server says it of a frame.
            raise InvalidFrame(error.reason) from None
        await self._keep(bodies)

    async def _keep(self, bodies: list[bytes]) -> None:
        if not bodies:
            return
        self.start()
        # Who is cancelled meanwhile has written it all the same, and others go behind it.
        writing = asyncio.ensure_future(self._write(bodies))
        writing.add_done_callback(_ask_for_error)
        await asyncio.shield(writing)

    async def _write(self, bodies: list[bytes]) -> None:
        self._writing += 1
        try:
            seqs = await self._drain.own.asynchronous.append(bodies, KIND_JSON, durable=True)
        finally:
            self._writing -= 1
        self._drain.note_appended(seqs)

    # ---- looking ----

    async def statistics(self) -> SpoolState:
        """Return what waits."""
        records = size_bytes = quarantined = damaged = 0
        oldest: list[int] = []
        for source in self._drain.sources:
            statistics = await source.asynchronous.statistics()
            records += source.count_waiting(statistics.records)
            size_bytes += statistics.bytes
            quarantined += statistics.quarantined
            damaged += statistics.damaged
            if statistics.oldest_at_ms is not None:
                oldest.append(statistics.oldest_at_ms)
        error = self._drain.error
        return SpoolState(
            records=records,
            bytes=size_bytes,
            oldest_at=datetime.fromtimestamp(min(oldest) / 1000, UTC) if oldest else None,
            quarantined=quarantined,
            damaged=damaged,
            is_away=self._drain.is_away and records > 0,
            error=str(error) if error is not None and records else None,
        )

    async def refused(self, limit: int = 100) -> list[RefusedMessage]:
        """Return messages that the broker has refused for what they are, with the reasons."""
        spool = self._drain.own.spool
        return await asyncio.to_thread(lambda: list(refused_messages(spool, 0, limit)))

    async def retry(self, seqs: Sequence[int] | None = None) -> int:
        """Send refused messages again, these or all; return how many."""
        self.start()
        spool = self._drain.own.spool
        count = spool.statistics().quarantined if seqs is None else len(seqs)
        self._drain.note_appended(await asyncio.to_thread(spool.retry, seqs))
        return count

    async def drop(self, seqs: Sequence[int] | None = None) -> None:
        """Forget refused messages for good, these or all."""
        await asyncio.to_thread(self._drain.own.spool.drop, seqs)

    async def drained(self) -> None:
        """Return when nothing waits any more; what is in quarantine does not count."""
        self.start()
        while self._writing or not self._drain.is_empty:
            if self._is_closed:
                raise RuntimeError("the client is closed; what waits is in its folder")
            await self._drain.wait_for_progress()

    # ---- ending ----

    async def close(self) -> None:
        """Let the broker take what waits, if that is a matter of moments; the rest stays in the
        folder, and the next client with this folder sends it."""
        if self._is_closed:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.close_s):
                    await self._drain_while_taken()
        finally:
            self._is_closed = True
            try:
                await self._end_drain()
            finally:
                # Not awaited: whoever is in a hurry would leave the folder locked.
                for source in self._drain.sources:
                    source.close()
                _open.discard(self)

    async def _drain_while_taken(self) -> None:
        self.start()
        failures = self._drain.failures
        self._drain.hurry()
        while not self._drain.is_empty and self._drain.failures == failures:
            await self._drain.wait_for_progress()

    async def _end_drain(self) -> None:
        """Let what is on its way be answered: otherwise it has to be sent again."""
        if self._task is None:
            return
        self._drain.stop()
        await asyncio.wait((self._task,), timeout=_LAST_ANSWER_S)
        self._task.cancel()
        await asyncio.wait((self._task,))

    def leave_to_parent(self) -> None:
        for source in self._drain.sources:
            source.leave_to_parent()


def _ask_for_error(writing: asyncio.Future[None]) -> None:
    """Nobody may be left who wants to know how it ended."""
    if not writing.cancelled():
        writing.exception()


_open: weakref.WeakSet[ClientSpool] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    """A forked process has the locks too, and would keep them when its parent has ended."""
    for spool in list(_open):
        spool.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
