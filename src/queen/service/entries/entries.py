"""Streams with the verbs of Redis: all of it, wired together."""

from __future__ import annotations

from queen.service.background import Background
from queen.service.catalog import Catalog
from queen.service.clock import Clock
from queen.service.entries.batches import Worker
from queen.service.entries.bodies import Bodies
from queen.service.entries.desk import EntryDesk
from queen.service.entries.executor import EntryExecutor
from queen.service.entries.replicas import Replicas
from queen.service.entries.times import DatabaseTime
from queen.service.events import Events
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.scope import Viewer
from queen.storage.database import Database
from queen.streambroker.engine import commands

# Importing them makes them known.
assert commands


class Entries:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        cache: SegmentCache,
        encryption: SegmentEncryption,
        clock: Clock,
        background: Background,
        events: Events,
    ) -> None:
        self._replicas = Replicas(database, catalog)
        bodies = Bodies(database, cache, encryption)
        worker = Worker(
            database,
            self._replicas,
            bodies,
            cache,
            encryption,
            DatabaseTime(clock),
            background,
            events,
        )
        self._desk = EntryDesk(worker, self._replicas, events)

    def executor_for(self, viewer: Viewer) -> EntryExecutor:
        return EntryExecutor(self._desk, viewer)

    @property
    def blocked(self) -> int:
        """How many readers wait."""
        return self._desk.blocked

    def forget(self) -> None:
        """Forget what is in memory; it is loaded again when it is needed."""
        self._replicas.by_key.clear()

    async def run(self) -> None:
        await self._desk.run_batches()

    async def close(self) -> None:
        await self._desk.close()
