"""Giving back: leases that nobody will use go to the next consumer at once."""

from __future__ import annotations

import asyncio
import logging
import uuid

from queen.errors import QueenError, Unavailable
from queen.service.background import Background
from queen.service.catalog import Partition
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.feeds import Grant, Pop
from queen.service.consume.granted_reads import Reader
from queen.service.consume.lease_book import LeaseBook
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_PAUSE_S = 0.25


class GiveBack:
    def __init__(
        self,
        database: Database,
        leases: LeaseBook,
        reader: Reader,
        dispatcher: Dispatcher,
        background: Background,
    ) -> None:
        self._database = database
        self._leases = leases
        self._reader = reader
        self._dispatcher = dispatcher
        self._background = background

    def grants(self, grants: list[Grant], wait_ms: int = 0) -> None:
        """Take grants for which nobody waits any more; their partitions wait before the next."""
        self._background.start(self.take(grants, wait_ms))

    def result_of(self, pop: Pop) -> None:
        """Take whatever a claim still brings for a pop that was left."""
        self._background.start(self._give_back_result(pop))

    def unclear(self, partition: Partition, group: str, group_id: int, lease: uuid.UUID) -> None:
        """Take a lease of which nobody knows whether it was given: the connection broke."""
        self._background.start(self._end_unclear(partition, group, group_id, lease))

    async def _end_unclear(
        self, partition: Partition, group: str, group_id: int, lease: uuid.UUID
    ) -> None:
        feed = self._dispatcher.feed(partition.queue.id, group)
        await self._end(partition.id, group_id, lease, is_shared=feed is None or feed.is_shared)
        self._dispatcher.lease_ended(partition, group, lease, 0)

    async def _give_back_result(self, pop: Pop) -> None:
        try:
            grants = await pop.done
        except QueenError:
            return
        await self.take(grants)

    async def take(self, grants: list[Grant], wait_ms: int = 0) -> None:
        """Take grants; returns when their partitions are free."""
        self._reader.release(grants)
        for grant in grants:
            if grant.lease_id is None:
                # autoAck delivers at most once: committed, and the client did not wait for it.
                _log.warning(
                    "%d messages were committed for a client that hung up", grant.stop - grant.start
                )
            else:
                await self._release(grant, wait_ms)

    async def _release(self, grant: Grant, wait_ms: int) -> None:
        partition = grant.partition
        feed = self._dispatcher.feed(partition.queue.id, grant.group)
        if feed is None or grant.lease_id is None:
            return
        await self._end(
            partition.id, feed.group_id, grant.lease_id, wait_ms, is_shared=grant.is_shared
        )
        self._leases.close(grant.lease_id, partition.id)
        if grant.is_shared:
            # It is a part of what others read on from.
            wait_ms = max(wait_ms, 1)
        self._dispatcher.lease_ended(partition, grant.group, grant.lease_id, grant.start, wait_ms)
        if wait_ms:
            # Who does not wait is told each time.
            feed.held[partition.id] = partition

    async def _end(
        self,
        partition_id: int,
        group_id: int,
        lease: uuid.UUID,
        wait_ms: int = 0,
        *,
        is_shared: bool,
    ) -> None:
        """End a lease; when the database is away, as soon as it is back."""
        key = [partition_id], [group_id]
        while True:
            try:
                if is_shared:
                    await self._database.execute("release_shared_lease", *key, lease, wait_ms)
                await self._database.execute("release_lease", *key, lease)
                return
            except Unavailable as error:
                if not error.is_outage:
                    raise
            # A lease that lapses meanwhile is nobody's, and there is nothing left to end.
            await asyncio.sleep(_PAUSE_S)
            await self._database.breaker.wait_closed()
