"""The index of `dedup: forever`, built beside the traffic.

A queue that turns to `forever` may hold millions of messages that are in no index yet. From
that moment every append adds its own; this job adds the rest, a page at a time, and rests
between pages. Nobody waits for it: until the index is complete, ids are compared with the
window, as before. Then one number changes (`queues.revision`) and every server compares with
everything.

Each page is a transaction of its own and may be done twice, so a crash costs a walk from the
beginning and no more.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import NamedTuple

from queen.service.events import Events
from queen.service.upkeep.jobs import Jobs
from queen.storage.database import Database, Transaction

JOB = "dedup_index"
_INTERVAL_S = 10.0
_PAGE_MESSAGES = 5_000
_ROUND_S = 1.0
# Pushes go on at their rate on a machine with two cores.
_REST = 0.5
_POLL_S = 0.05


class _Position(NamedTuple):
    """How far the walk over a queue has got, for one configuration of it."""

    revision: int
    created_at: datetime
    partition_id: int
    base_offset: int


class Indexer:
    def __init__(self, database: Database, jobs: Jobs, events: Events) -> None:
        self._database = database
        self._jobs = jobs
        # Told when the index of a queue is complete.
        self._events = events
        self._positions: dict[int, _Position] = {}
        jobs.add(JOB, _INTERVAL_S, self.index_some)

    async def wait_until_complete(self, queue_id: int, timeout_s: float) -> bool:
        """Return whether everything a queue holds is in its index, after waiting for it."""
        deadline = time.monotonic() + timeout_s
        while not await self._is_complete(queue_id):
            if time.monotonic() > deadline:
                return False
            self._jobs.wake(JOB)
            await asyncio.sleep(_POLL_S)
        return True

    async def _is_complete(self, queue_id: int) -> bool:
        rows = await self._database.fetch("unindexed_queues")
        return all(row["id"] != queue_id for row in rows)

    async def index_some(self, transaction: Transaction) -> bool:
        """Work for a while; return whether there is more. The transaction holds only the job's
        lock: pages are committed as they are done."""
        started = time.monotonic()
        for row in await transaction.fetch("unindexed_queues"):
            while await self._page(row["id"], row["revision"]):
                if time.monotonic() - started > _ROUND_S:
                    return True
        return False

    async def _page(self, queue_id: int, revision: int) -> bool:
        """Index one page of a queue; return whether there may be more."""
        at = self._positions.get(queue_id)
        if at is None or at.revision != revision:
            at = _Position(revision, datetime.min.replace(tzinfo=UTC), 0, 0)
        started = time.monotonic()
        rows = await self._database.fetch("index_some", queue_id, *at[1:], _PAGE_MESSAGES)
        for row in rows:
            self._positions[queue_id] = _Position(revision, *row)
        if not rows:
            self._positions.pop(queue_id, None)
            if await self._database.fetchval("finish_index", queue_id, revision):
                self._events.options_changed()
            return False
        await asyncio.sleep(_REST * (time.monotonic() - started))
        return True
