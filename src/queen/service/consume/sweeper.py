"""Looking for what nobody told.

Commits of this server and notifications of others feed the ready sets at once. The sweeper
finds the rest: what other servers wrote or gave back when their notification was lost, what was
there before this server started, what a dead server had leased. It can be slow, because it only
ever bounds a delay.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from queen.errors import QueenError
from queen.service.catalog import Catalog, Queue
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.feeds import Feed
from queen.service.outages import level_of
from queen.service.singleflight import Rounds, SingleFlight
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

# Clocks are read one after the other.
_MARGIN = timedelta(seconds=1)
# Of times in the database: what was written at an instant was written after the one before it.
_RESOLUTION = timedelta(microseconds=1)
_TIMER_INTERVAL_S = 0.02
_NET_INTERVAL_S = 1.0
_SWEEP_INTERVAL_S = 30.0
_FEED_IDLE_S = 600.0
_SWEEP_PAGE = 1000
# Leases that somebody waits for and that are asked after at once.
_MAX_LEASES = 1000
# Of each queue, when many are looked at together.
_SWEEP_EACH = 100
_TOUCH_INTERVAL_S = 60.0


class Horizon(NamedTuple):
    """How far a look can see. What is written carries the time of the writing and is seen after
    the commit, however long that takes: only what no transaction under way can still change has
    been seen for good."""

    now: datetime
    seen_until: datetime
    asked_at: float

    def reaching_back_to(self, last: Horizon) -> datetime:
        """Return since when a look has to see, after the one before. The database's clock may
        have been set back meanwhile, but no further than so much time ago."""
        elapsed = timedelta(seconds=self.asked_at - last.asked_at)
        return min(last.seen_until, self.now - elapsed) - _MARGIN


class Sweeper:
    def __init__(self, database: Database, catalog: Catalog, dispatcher: Dispatcher) -> None:
        self._database = database
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._looked: dict[int, Horizon] = {}
        self._touched_at = float("-inf")
        self._looks = Rounds[None]()
        self._sweeps = SingleFlight[None]()

    async def look(self, queues: Sequence[Queue]) -> None:
        """Offer what was written to queues before this call. Callers that come together ask
        once, and nobody joins a look that has begun: it may have missed their push."""
        key = tuple(queue.id for queue in queues)
        await self._looks.ask(key, lambda: self._look(queues))

    def looks_after(self, queues: Iterable[Queue]) -> bool:
        """Whether queues were looked at a moment ago: whoever waits there is told of what comes,
        and if that was lost, the net finds it as soon as it would for those who wait already."""
        since = time.monotonic() - _NET_INTERVAL_S
        looked = (self._looked.get(queue.id) for queue in queues)
        return all(last is not None and last.asked_at > since for last in looked)

    async def _look(self, queues: Sequence[Queue]) -> None:
        at = await self._horizon()
        ids = [queue.id for queue in queues]
        since = [at.reaching_back_to(self._looked.get(queue_id, at)) for queue_id in ids]
        rows = await self._database.fetch("written_since", ids, since)
        self._looked |= dict.fromkeys(ids, at)
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        for row in rows:
            if row["partition_id"] in partitions:
                partitions[row["partition_id"]].saw_head(row["head"])
        self._dispatcher.written(partitions.values())

    async def _horizon(self) -> Horizon:
        asked_at = time.monotonic()
        row = await self._database.fetchrow("horizon")
        return Horizon(row["now"], row["seen_until"], asked_at)

    async def fill(self, feed: Feed) -> None:
        """Sweep on until something is ready or all partitions have been seen once."""
        while not feed.has_ready and feed.sweep_after is not None:
            await self._sweeps.ask(feed, lambda: self.sweep(feed))

    async def fill_all(self, feeds: Sequence[Feed]) -> None:
        """Do what `fill` does for many feeds, a few partitions of each at a time."""
        if len(feeds) == 1:
            await self.fill(feeds[0])
            return
        while empty := [
            feed for feed in feeds if not feed.has_ready and feed.sweep_after is not None
        ]:
            await self._sweeps.ask(tuple(empty), partial(self._sweep_all, empty, _SWEEP_EACH))

    async def sweep(self, feed: Feed) -> None:
        """Walk over the next partitions and offer those that have something."""
        if feed.begins_at is not None:
            await self._begin(feed, feed.begins_at)
        elif feed.sweep_after is not None:
            await self._sweep_all([feed], _SWEEP_PAGE)

    async def _begin(self, feed: Feed, begins_at: datetime) -> None:
        """Offer what was written since the group was made. It has read nothing yet and wants
        nothing from before, so there is no need to walk over all partitions."""
        await self._start_looking([feed])
        rows = await self._database.fetch(
            "written_since", [feed.queue.id], [begins_at - _RESOLUTION]
        )
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        # Moved meanwhile, it may want anything.
        if feed.begins_at != begins_at:
            return
        for row in rows:
            partition = partitions.get(row["partition_id"])
            if partition is not None:
                partition.saw_head(row["head"])
                feed.offer(partition)
        feed.begins_at = None
        feed.sweep_after = None
        feed.swept_at = time.monotonic()

    async def _start_looking(self, feeds: Sequence[Feed]) -> None:
        """What is written behind the back of a walk is found by the first look."""
        unseen = [feed.queue.id for feed in feeds if feed.queue.id not in self._looked]
        if unseen:
            self._looked |= dict.fromkeys(unseen, await self._horizon())

    async def _sweep_all(self, feeds: Sequence[Feed], each: int) -> None:
        afters = [feed.sweep_after for feed in feeds]
        await self._start_looking(feeds)
        rows = await self._database.fetch(
            "sweep_pages",
            [feed.queue.id for feed in feeds],
            [feed.group_id for feed in feeds],
            afters,
            each,
        )
        by_feed: dict[int, list[Record]] = {}
        for row in rows:
            by_feed.setdefault(row["number"] - 1, []).append(row)
        for number, feed in enumerate(feeds):
            swept = by_feed.get(number, [])
            if feed.sweep_after is not None and feed.sweep_after == afters[number]:
                is_full = bool(swept) and swept[-1]["seen"] == each
                self._offer_swept(feed, swept, swept[-1]["id"] if is_full else None)

    def _offer_swept(self, feed: Feed, rows: list[Record], after: int | None) -> None:
        """Offer what a sweep has found, and note where it goes on."""
        for row in rows:
            if row["head"] <= row["committed"]:
                continue
            partition = self._catalog.remember_row(feed.queue, row["id"], row["name"], row["head"])
            ours = feed.leased.get(partition.id)
            if ours is not None and (not row["live"] or row["lease_id"] != ours):
                feed.leased.pop(partition.id, None)
            feed.offer_again(partition)
        feed.begins_at = None
        feed.sweep_after = after
        feed.swept_at = time.monotonic()

    async def run_timers(self) -> None:
        """Wake what lapsed leases held back."""
        while True:
            await self._dispatcher.timers.wait_until_due()
            self._dispatcher.ring()
            # Leases end one by one, and many are acked before: not each is worth a look.
            await asyncio.sleep(_TIMER_INTERVAL_S)

    async def run_net(self) -> None:
        """Look slowly for what no commit and no notification told."""
        while True:
            await asyncio.sleep(_NET_INTERVAL_S)
            try:
                for feeds in self._dispatcher.feeds_by_queue():
                    await self._look_after(feeds)
                await self.ask_after_leases(self._dispatcher.feeds_with_waiters())
                await self._touch()
            except QueenError as error:
                _log.log(level_of(error), "looking for messages: %s", error)

    async def ask_after_leases(self, feeds: Iterable[Feed]) -> None:
        """Offer what was leased, and is free without our hearing."""
        leased = [
            (partition_id, feed.group_id, lease_id, feed)
            for feed in feeds
            if not feed.has_ready
            for partition_id, lease_id in (dict.fromkeys(feed.held) | feed.leased).items()
        ]
        if not leased:
            return
        if len(leased) > _MAX_LEASES:
            leased = random.sample(leased, _MAX_LEASES)
        ids, groups, leases, feeds = map(list, zip(*leased, strict=True))
        rows = await self._database.fetch("free_partitions", ids, groups, leases)
        asked_about = dict(
            zip(zip(ids, groups, strict=True), zip(feeds, leases, strict=True), strict=True)
        )
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        for row in rows:
            feed, lease_id = asked_about[row["partition_id"], row["group_id"]]
            partition = partitions.get(row["partition_id"])
            # Granted anew while we asked: then it is not the lease that we asked about.
            if partition is not None and feed.leased.get(partition.id) == lease_id:
                self._dispatcher.released_elsewhere(partition, feed.group_id)

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
            await self._database.execute("touch_groups", sorted(used))

    async def _look_after(self, feeds: list[Feed]) -> None:
        """Sweep on in the feeds of a queue, and look for what was written to it."""
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
