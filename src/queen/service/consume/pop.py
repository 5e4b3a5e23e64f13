"""Pop: lease the next messages of a partition to a consumer.

A pop parks in its feed and is paired with ready partitions; all pops that are paired at one
time share a claim. A long poll is a pop that stays parked: it holds no connection to the
database and no task but its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Coroutine, Iterable
from typing import Any

from queen.errors import QueenError
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.consume.ack import Acker
from queen.service.consume.claims import Claims
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.feeds import Feed, Grant, Pop
from queen.service.consume.granted_reads import Reader
from queen.service.consume.leases import LeaseBook, Span
from queen.service.consume.sweeper import Sweeper
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import Vault
from queen.service.stats.activity import Activity
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_LABEL_INTERVAL_S = 1.0
_MAX_HELD_TRIED = 4
# Messages that were popped and not sent yet, as they are in memory.
_MAX_UNSENT_BYTES = 96 * 1024 * 1024
# Queues that one statement looks into, for a pop that may be served from many.
_FEEDS_AT_ONCE = 500


class Popper:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        cache: SegmentCache,
        leases: LeaseBook,
        vault: Vault,
        activity: Activity,
        maintenance: Maintenance,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._leases = leases
        # Who sets aside what nobody can process; the broker puts it in place.
        self.acker: Acker
        self._activity = activity
        self.dispatcher = Dispatcher(leases)
        self.sweeper = Sweeper(database, catalog, self.dispatcher)
        self._reader = Reader(database, cache, vault, _MAX_UNSENT_BYTES)
        self._claims = Claims(database, catalog, cache, leases, self._reader, self.dispatcher, self)
        self._maintenance = maintenance
        maintenance.pops_stopped = self.answer_all
        # Pops by namespace and task that wait; queues that come up later may serve them.
        self._by_label: dict[Pop, tuple[str, str]] = {}
        # Every pop that has not been answered yet.
        self._pops: set[Pop] = set()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- taking requests ----

    async def pop(
        self,
        queues: list[Queue],
        pop: Pop,
        timeout_s: float,
        label: tuple[str, str] | None = None,
    ) -> list[Grant]:
        """Return what could be claimed; empty when nothing came within the timeout."""
        if self.gives_nothing:
            return []
        await self._catalog.register(queues, pop.group, pop.subscription)
        pop.feeds = [await self._feed(queue, pop) for queue in queues]
        if pop.waits and label is not None:
            self._by_label[pop] = label
        self._pops.add(pop)
        try:
            for feed in pop.feeds:
                feed.pops.add(pop)
                feed.park(pop)
            await self._first_try(pop)
            if not pop.busy and (not pop.waits or self.gives_nothing):
                pop.finish([])
            grants = await self._served(pop, timeout_s)
            self._activity.popped(queues, grants)
            return grants
        except BaseException:
            # The client has gone, or looking failed. What a claim still brings goes back.
            _answer_empty(pop)
            self._spawn(self._give_back_result(pop))
            raise
        finally:
            self._by_label.pop(pop, None)
            self._pops.discard(pop)
            for feed in pop.feeds:
                feed.pops.discard(pop)
                feed.unpark(pop)

    async def _first_try(self, pop: Pop) -> None:
        """Try what is thought to be ready; before giving up, look for what nobody told."""
        if pop.named is not None:
            await self._try_named(pop, pop.feeds[0], pop.named)
            return
        batches = [
            pop.feeds[at : at + _FEEDS_AT_ONCE] for at in range(0, len(pop.feeds), _FEEDS_AT_ONCE)
        ]
        for feeds in batches:
            # Nobody has looked into new ones yet, and queues that are known to have something must
            # not be served for ever instead.
            await self.sweeper.fill_all([feed for feed in feeds if feed.is_new])
            if await self._try_each(pop, feeds):
                return
        if pop.feeds:
            await self.sweeper.look([feed.queue for feed in pop.feeds])
        for feeds in batches:
            await self.sweeper.fill_all(feeds)
            if not pop.waits:
                # Who does not wait wants to know now; a few leases of others may have ended.
                for feed in feeds:
                    feed.offer_held(_MAX_HELD_TRIED)
            if await self._try_each(pop, feeds):
                return

    async def _try_each(self, pop: Pop, feeds: list[Feed]) -> bool:
        """Claim what is ready, in the order of the feeds; return whether the pop has its answer."""
        for feed in feeds:
            self.dispatcher.pump(feed)
            if await self._is_served(pop):
                return True
        return False

    async def _is_served(self, pop: Pop) -> bool:
        """Wait while claims are on their way; return whether the pop has its answer."""
        if pop.busy and not pop.done.done():
            pop.turn = asyncio.get_running_loop().create_future()
            await pop.turn
            pop.turn = None
        return pop.done.done()

    async def _try_named(self, pop: Pop, feed: Feed, name: str) -> None:
        """Claim one partition whether or not it is thought to be ready: the database knows."""
        partition = await self._catalog.partition(feed.queue, name)
        free = partition is not None and partition.id not in feed.claiming
        if partition is not None and free and not pop.busy and not pop.done.done():
            feed.claiming.add(partition.id)
            self.dispatcher.attempt(pop, feed, [partition])

    async def _served(self, pop: Pop, timeout_s: float) -> list[Grant]:
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together
            # with the grants, and nobody would give them back.
            async with asyncio.timeout(timeout_s if pop.waits else None):
                return await asyncio.shield(pop.done)
        except TimeoutError:
            _answer_empty(pop)
            # If a claim is under way, what it brings must reach somebody.
            return await pop.done

    async def _feed(self, queue: Queue, pop: Pop) -> Feed:
        feed = self.dispatcher.feed(queue.id, pop.group)
        if feed is None or feed.queue is not queue:
            group_id = await self._catalog.group(queue, pop.group, pop.subscription)
            feed = self.dispatcher.feed(queue.id, pop.group)
            if feed is None or feed.queue is not queue:
                feed = Feed(queue, pop.group, group_id)
                self.dispatcher.add(feed)
        feed.used_at = time.monotonic()
        return feed

    def parked(self) -> dict[int, int]:
        """Return how many polls wait for messages of each queue."""
        parked: dict[int, int] = {}
        for pop in self._pops:
            if pop.waits and not pop.busy:
                for feed in pop.feeds:
                    parked[feed.queue.id] = parked.get(feed.queue.id, 0) + 1
        return parked

    def parked_by_name(self) -> dict[str, int]:
        names = {feed.queue.id: feed.queue.name for pop in self._pops for feed in pop.feeds}
        return {names[queue_id]: count for queue_id, count in self.parked().items()}

    @property
    def parked_count(self) -> int:
        return sum(pop.waits and not pop.busy for pop in self._pops)

    # ---- what others tell ----

    def written(self, partitions: Iterable[Partition]) -> None:
        """Partitions were written to, by this server or by another that said so."""
        partitions = list(partitions)
        self.dispatcher.written(partitions)
        if self._by_label:
            for queue in {
                partition.queue.name: partition.queue for partition in partitions
            }.values():
                self._adopt(queue)

    def look_at(self, queue_id: int) -> None:
        """Another server wrote more to a queue than it could name."""
        feeds = self.dispatcher.feeds_of(queue_id)
        if feeds:
            self._spawn(self.sweeper.look([feeds[0].queue]))

    def forget_queue(self, queue_id: int) -> None:
        for pop in self.dispatcher.remove_queue(queue_id):
            _answer_empty(pop)

    def forget_group(self, queue_id: int, group_id: int) -> None:
        """A group was deleted. Who waits for it is answered, and comes back as a new group."""
        self._catalog.forget_group(queue_id, group_id)
        self._leases.forget_group(group_id)
        feed = self.dispatcher.feed_of(queue_id, group_id)
        if feed is not None:
            for pop in self.dispatcher.remove(feed):
                _answer_empty(pop)

    def group_moved(self, queue_id: int, group_id: int) -> None:
        """A group was moved: its leases have ended, and anything may be there to read."""
        self._leases.forget_group(group_id)
        feed = self.dispatcher.feed_of(queue_id, group_id)
        if feed is not None:
            feed.reset()
            self.look_again(queue_id, group_id)

    def look_again(self, queue_id: int, group_id: int) -> None:
        """A group may read what it could not a moment ago."""
        feed = self.dispatcher.feed_of(queue_id, group_id)
        if feed is not None:
            feed.look_again()
            self.dispatcher.group_resumed(feed)
            self._spawn(self._refill(feed))

    def time_has_passed(self, queue_id: int) -> None:
        """Leases may have lapsed, and delays may be over, before their timers ring."""
        for feed in self.dispatcher.feeds_of(queue_id):
            self.group_moved(queue_id, feed.group_id)

    async def _refill(self, feed: Feed) -> None:
        await self.sweeper.fill(feed)
        self.dispatcher.pump(feed)

    def missing(self, feed: Feed) -> None:
        """A claim found no such partition, or no such group."""
        self._spawn(self._forget_if_gone(feed))

    async def _forget_if_gone(self, feed: Feed) -> None:
        """Another server may have deleted a group without our hearing of it."""
        found = await self._database.fetchval("find_group", feed.queue.id, feed.group)
        if found != feed.group_id:
            self.forget_group(feed.queue.id, feed.group_id)

    # ---- queues that come up while a pop by label waits ----

    async def run_labels(self) -> None:
        """Find new queues that other servers made."""
        while True:
            await asyncio.sleep(_LABEL_INTERVAL_S)
            try:
                for namespace, task in set(self._by_label.values()):
                    for queue in await self._catalog.queues_by_label(namespace, task):
                        self._adopt(queue)
            except QueenError as error:
                _log.warning("looking for queues: %s", error)

    def _adopt(self, queue: Queue) -> None:
        for pop, (namespace, task) in list(self._by_label.items()):
            feed = self.dispatcher.feed(queue.id, pop.group)
            known = feed is not None and feed.queue is queue and pop in feed.pops
            if pop.namespaces is not None and queue.namespace not in pop.namespaces:
                continue
            if not known and namespace in ("", queue.namespace) and task in ("", queue.task):
                self._spawn(self._join(pop, queue))

    async def _join(self, pop: Pop, queue: Queue) -> None:
        feed = await self._feed(queue, pop)
        await self.sweeper.fill(feed)
        if pop in self._by_label and feed not in pop.feeds:
            pop.feeds.append(feed)
            feed.pops.add(pop)
            if not pop.busy:
                feed.park(pop)
            self.dispatcher.pump(feed)

    # ---- leases that nobody will use ----

    def sent(self, grants: list[Grant]) -> None:
        """An answer has been written, or will never be: its messages need no memory any more."""
        self._reader.release(grants)

    def unwanted(self, grants: list[Grant], wait_ms: int = 0) -> None:
        self._spawn(self._give_back(grants, wait_ms))

    async def pass_over(self, span: Span, lease_id: uuid.UUID) -> None:
        await self.acker.pass_over(span, lease_id)

    async def give_up(
        self, partition: Partition, group: str, group_id: int, offset: int, attempts: int
    ) -> None:
        await self.acker.give_up(partition, group, group_id, offset, attempts)

    async def _give_back_result(self, pop: Pop) -> None:
        try:
            grants = await pop.done
        except QueenError:
            return
        await self._give_back(grants)

    async def _give_back(self, grants: list[Grant], wait_ms: int = 0) -> None:
        self.sent(grants)
        for grant in grants:
            feed = self.dispatcher.feed(grant.partition.queue.id, grant.group)
            if grant.lease_id is None:
                # autoAck delivers at most once: committed, and the client did not wait for it.
                _log.warning(
                    "%d messages were committed for a client that hung up", grant.stop - grant.start
                )
                continue
            if feed is None:
                continue
            await self._database.fetch(
                "release_lease", [grant.partition.id], [feed.group_id], grant.lease_id
            )
            self._leases.close(grant.lease_id, grant.partition.id)
            self.dispatcher.lease_ended(
                grant.partition, grant.group, grant.lease_id, grant.start, wait_ms
            )
            if wait_ms:
                # Who does not wait is told each time.
                feed.held[grant.partition.id] = grant.partition

    # ---- the end ----

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("background work failed: %s", task.exception())

    @property
    def gives_nothing(self) -> bool:
        return self._closed or self._maintenance.pops_are_held

    def answer_all(self) -> None:
        """Answer every pop that waits with nothing."""
        for pop in list(self._pops):
            _answer_empty(pop)

    async def close(self) -> None:
        """Answer every parked pop with nothing and let claims under way finish."""
        self._closed = True
        self._catalog.stop_waiting()
        self.answer_all()
        await self._claims.drained()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


def _answer_empty(pop: Pop) -> None:
    pop.waits = False
    pop.over = True
    if not pop.busy:
        pop.finish([])
