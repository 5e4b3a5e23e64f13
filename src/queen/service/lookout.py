"""Looking for what nobody told.

Commits of this server and notifications of others feed the ready sets at once. The lookout
finds the rest: what other servers wrote when their notification was lost, what was there
before this server started, what a dead server had leased. It can be slow, because it only
ever bounds a delay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from queen.errors import QueenError
from queen.service.catalog import Catalog, Queue
from queen.service.dispatch import Dispatcher
from queen.service.feeds import Feed
from queen.service.together import Together
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

# A commit may become visible this much later than the time it carries.
_LOOK_BACK = timedelta(seconds=2)
_TIMER_INTERVAL_S = 0.02
_NET_INTERVAL_S = 1.0
_SWEEP_INTERVAL_S = 30.0
_FEED_IDLE_S = 600.0
_SWEEP_PAGE = 1000
# Of each queue, when many are looked at together.
_SWEEP_EACH = 100
_TOUCH_INTERVAL_S = 60.0


class Lookout:
    def __init__(self, database: Database, catalog: Catalog, dispatcher: Dispatcher) -> None:
        self._database = database
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._looked: dict[int, datetime] = {}
        self._touched_at = float("-inf")
        self._together = Together[None]()

    async def look(self, queues: Sequence[Queue]) -> None:
        """Offer what was written to queues lately. Callers that come together ask once."""
        key = tuple(queue.id for queue in queues)
        await self._together.ask(key, lambda: self._look(queues))

    async def _look(self, queues: Sequence[Queue]) -> None:
        now: datetime = await self._database.fetchval("now")
        ids = [queue.id for queue in queues]
        since = [self._looked.get(one, now) - _LOOK_BACK for one in ids]
        rows = await self._database.fetch("written_since", ids, since)
        self._looked |= dict.fromkeys(ids, now)
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        for row in rows:
            if row["partition_id"] in partitions:
                partitions[row["partition_id"]].saw_head(row["head"])
        self._dispatcher.written(partitions.values())

    async def fill(self, feed: Feed) -> None:
        """Sweep on until something is ready or all partitions have been seen once."""
        while not feed.has_ready and feed.sweep_after is not None:
            await self._together.ask(feed, lambda: self.sweep(feed))

    async def fill_all(self, feeds: Sequence[Feed]) -> None:
        """The same for many feeds, a few partitions of each at a time."""
        if len(feeds) == 1:
            await self.fill(feeds[0])
            return
        while empty := [one for one in feeds if not one.has_ready and one.sweep_after is not None]:
            await self._together.ask(tuple(empty), partial(self._sweep_all, empty))

    async def sweep(self, feed: Feed) -> None:
        """Walk over the next partitions and offer those that have something."""
        after = feed.sweep_after
        if after is None:
            return
        rows = await self._database.fetch("sweep_page", feed.queue.id, feed.group_id, after)
        if feed.sweep_after == after:
            self._swept(feed, rows, rows[-1]["id"] if len(rows) == _SWEEP_PAGE else None)

    async def _sweep_all(self, feeds: Sequence[Feed]) -> None:
        afters = [feed.sweep_after for feed in feeds]
        rows = await self._database.fetch(
            "sweep_pages",
            [feed.queue.id for feed in feeds],
            [feed.group_id for feed in feeds],
            afters,
            _SWEEP_EACH,
        )
        found: dict[int, list[Record]] = {}
        for row in rows:
            found.setdefault(row["number"] - 1, []).append(row)
        for number, feed in enumerate(feeds):
            mine = found.get(number, [])
            if feed.sweep_after is not None and feed.sweep_after == afters[number]:
                is_full = bool(mine) and mine[-1]["seen"] == _SWEEP_EACH
                self._swept(feed, mine, mine[-1]["id"] if is_full else None)

    def _swept(self, feed: Feed, rows: list[Record], after: int | None) -> None:
        """Offer what a sweep has found, and note where it goes on."""
        for row in rows:
            if row["head"] <= row["committed"]:
                continue
            partition = self._catalog.remember_row(feed.queue, row["id"], row["name"], row["head"])
            ours = feed.leased.get(partition.id)
            if ours is not None and (not row["live"] or row["lease_id"] != ours):
                feed.leased.pop(partition.id, None)
            feed.offer_again(partition)
        feed.sweep_after = after
        feed.swept_at = time.monotonic()

    async def run_timers(self) -> None:
        """Wake what lapsed leases held back."""
        while True:
            self._dispatcher.ring()
            await asyncio.sleep(_TIMER_INTERVAL_S)

    async def run_net(self) -> None:
        """Look slowly for what no commit and no notification told."""
        while True:
            await asyncio.sleep(_NET_INTERVAL_S)
            try:
                for feeds in self._dispatcher.feeds_by_queue():
                    await self._cast(feeds)
                await self._touch()
            except QueenError as error:
                _log.warning("looking for messages: %s", error)

    async def _touch(self) -> None:
        """Note which groups are in use: what nobody uses must not hold back the clean-up."""
        now = time.monotonic()
        if now - self._touched_at < _TOUCH_INTERVAL_S:
            return
        since, self._touched_at = self._touched_at, now
        used = [
            feed.group_id
            for feeds in self._dispatcher.feeds_by_queue()
            for feed in feeds
            if feed.used_at >= since
        ]
        if used:
            await self._database.fetch("touch_groups", sorted(used))

    async def _cast(self, feeds: list[Feed]) -> None:
        now = time.monotonic()
        for feed in feeds:
            if feed.has_waiters:
                feed.used_at = now
            if feed.sweep_after is None and now - feed.swept_at > _SWEEP_INTERVAL_S:
                feed.sweep_after = 0
            if feed.sweep_after is not None and now - feed.used_at < _FEED_IDLE_S:
                await self.sweep(feed)
                self._dispatcher.pump(feed)
        if any(feed.has_waiters and not feed.has_ready for feed in feeds):
            await self.look([feeds[0].queue])
