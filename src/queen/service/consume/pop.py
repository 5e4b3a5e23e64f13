"""Pop: lease the next messages of a partition to a consumer.

A pop parks in its feed and is paired with ready partitions; all pops that are paired at one
time share a claim. A long poll is a pop that stays parked: it holds no connection to the
database and no task but its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from queen.errors import QueenError
from queen.service.admin.maintenance import Maintenance
from queen.service.background import Background
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.consume.claims import Claims
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.feeds import Feed, Grant, Pop
from queen.service.consume.give_back import GiveBack
from queen.service.consume.granted_reads import Reader
from queen.service.consume.sweeper import Sweeper
from queen.service.events import Events
from queen.service.outages import level_of
from queen.service.shared.kinds import Kinds
from queen.service.stats.activity import Activity

_log = logging.getLogger(__name__)

_LABEL_INTERVAL_S = 1.0
# How long the end waits for grants that go back.
_LAST_WORK_S = 5.0
# Queues that one statement looks into, for a pop that may be served from many.
_FEEDS_AT_ONCE = 500


class Popper:
    def __init__(
        self,
        catalog: Catalog,
        dispatcher: Dispatcher,
        sweeper: Sweeper,
        reader: Reader,
        claims: Claims,
        give_back: GiveBack,
        background: Background,
        activity: Activity,
        maintenance: Maintenance,
        kinds: Kinds,
        events: Events,
    ) -> None:
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._sweeper = sweeper
        self._reader = reader
        self._claims = claims
        self._give_back = give_back
        self._background = background
        self._activity = activity
        self._maintenance = maintenance
        self._kinds = kinds
        # Pops by namespace and task that wait; queues that come up later may serve them.
        self._by_label: dict[Pop, tuple[str, str]] = {}
        # Every pop that has not been answered yet.
        self._pops: set[Pop] = set()
        self._closed = False
        events.written.subscribe(self.adopt_written)
        events.written_elsewhere.subscribe(self.adopt_written)
        events.pops_stopped.subscribe(self.answer_all)

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
        pop.feeds = [await self._find_or_make_feed(queue, pop) for queue in queues]
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
            grants = await self._wait_for_grants(pop, timeout_s)
            self._activity.count_pop(queues, grants)
            return grants
        except BaseException:
            # The client has gone, or looking failed. What a claim still brings goes back.
            pop.answer_empty()
            self._give_back.result_of(pop)
            raise
        finally:
            self._by_label.pop(pop, None)
            self._pops.discard(pop)
            for feed in pop.feeds:
                feed.pops.discard(pop)
                feed.unpark(pop)

    # ---- the same without a task ----

    def may_begin(self, queue: Queue, pop: Pop) -> bool:
        """Whether a pop can wait without a question to anybody."""
        feed = self._dispatcher.feed(queue.id, pop.group)
        return (
            feed is not None
            and feed.queue is queue
            and not feed.is_new
            and pop.waits
            and pop.named is None
            and (pop.shared is None or feed.said is pop.shared)
            and not self.gives_nothing
            and self._catalog.known_group(queue, pop.group) is not None
            and self._sweeper.looks_after((queue,))
        )

    def begin(self, queue: Queue, pop: Pop) -> None:
        """Begin a pop that may; see `end` and `leave`."""
        feed = self._dispatcher.feed(queue.id, pop.group)
        assert feed is not None
        feed.used_at = time.monotonic()
        pop.feeds = [feed]
        self._pops.add(pop)
        feed.pops.add(pop)
        feed.park(pop)
        self._dispatcher.pump(feed)

    def end(self, pop: Pop) -> list[Grant]:
        """Return what a pop got that was begun and is done."""
        (feed,) = pop.feeds
        self._pops.discard(pop)
        feed.pops.discard(pop)
        grants = pop.done.result()
        self._activity.count_pop([feed.queue], grants)
        return grants

    def leave(self, pop: Pop) -> None:
        """Nobody waits any more for a pop that was begun. What a claim still brings goes back."""
        (feed,) = pop.feeds
        self._pops.discard(pop)
        feed.pops.discard(pop)
        pop.answer_empty()
        self._give_back.result_of(pop)

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
            await self._sweeper.fill_all([feed for feed in feeds if feed.is_new])
            if await self._try_each(pop, feeds):
                return
        queues = [feed.queue for feed in pop.feeds]
        if pop.waits and self._sweeper.looks_after(queues):
            return
        if queues:
            await self._sweeper.look(queues)
        for feeds in batches:
            await self._sweeper.fill_all(feeds)
            if not pop.waits:
                # Who does not wait wants to know now, and leases may have ended elsewhere.
                await self._sweeper.ask_after_leases(feeds)
            if await self._try_each(pop, feeds):
                return

    async def _try_each(self, pop: Pop, feeds: list[Feed]) -> bool:
        """Claim what is ready, in the order of the feeds; return whether the pop has its answer."""
        for feed in feeds:
            self._dispatcher.pump(feed)
            if await self._wait_for_claims(pop):
                return True
        return False

    async def _wait_for_claims(self, pop: Pop) -> bool:
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
            self._dispatcher.attempt(pop, feed, [partition])

    async def _wait_for_grants(self, pop: Pop, timeout_s: float) -> list[Grant]:
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together
            # with the grants, and nobody would give them back.
            async with asyncio.timeout(timeout_s if pop.waits else None):
                return await asyncio.shield(pop.done)
        except TimeoutError:
            pop.answer_empty()
            # If a claim is under way, what it brings must reach somebody.
            return await pop.done

    async def _find_or_make_feed(self, queue: Queue, pop: Pop) -> Feed:
        feed = self._dispatcher.feed(queue.id, pop.group)
        if feed is None or feed.queue is not queue:
            joined = await self._catalog.join(queue, pop.group, pop.subscription)
            feed = self._dispatcher.feed(queue.id, pop.group)
            if feed is None or feed.queue is not queue:
                feed = Feed(queue, pop.group, *joined)
                self._dispatcher.add(feed)
        feed.used_at = time.monotonic()
        if pop.shared is not None and feed.said is not pop.shared:
            await self._kinds.set([feed.group_id], shared=pop.shared)
            feed.said = pop.shared
            feed.turn(is_shared=pop.shared)
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
    def has_labels(self) -> bool:
        """Whether a poll waits for queues that may come up."""
        return bool(self._by_label)

    @property
    def parked_count(self) -> int:
        return sum(pop.waits and not pop.busy for pop in self._pops)

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
                _log.log(level_of(error), "looking for queues: %s", error)

    def adopt_written(self, partitions: Iterable[Partition]) -> None:
        """Partitions were written to: their queues may be new to pops that wait by label."""
        if self._by_label:
            for queue in {
                partition.queue.name: partition.queue for partition in partitions
            }.values():
                self._adopt(queue)

    def _adopt(self, queue: Queue) -> None:
        for pop, (namespace, task) in list(self._by_label.items()):
            feed = self._dispatcher.feed(queue.id, pop.group)
            has_joined = feed is not None and feed.queue is queue and pop in feed.pops
            if pop.namespaces is not None and queue.namespace not in pop.namespaces:
                continue
            if not has_joined and namespace in ("", queue.namespace) and task in ("", queue.task):
                self._background.start(self._join(pop, queue))

    async def _join(self, pop: Pop, queue: Queue) -> None:
        feed = await self._find_or_make_feed(queue, pop)
        await self._sweeper.fill(feed)
        if pop in self._by_label and feed not in pop.feeds:
            pop.feeds.append(feed)
            feed.pops.add(pop)
            if not pop.busy:
                feed.park(pop)
            self._dispatcher.pump(feed)

    # ---- leases that nobody will use ----

    def release(self, grants: list[Grant]) -> None:
        """An answer has been written, or will never be: its messages need no memory any more."""
        self._reader.release(grants)

    def give_back(self, grants: list[Grant]) -> None:
        """Take grants back whose client has gone."""
        self._give_back.grants(grants)

    # ---- the end ----

    @property
    def gives_nothing(self) -> bool:
        return self._closed or self._maintenance.pops_are_held

    def answer_all(self) -> None:
        """Answer every pop that waits with nothing."""
        for pop in list(self._pops):
            pop.answer_empty()

    async def close(self) -> None:
        """Answer every parked pop with nothing and let claims under way finish."""
        self._closed = True
        self._catalog.stop_waiting()
        self.answer_all()
        await self._claims.drain()
        await self._background.finish(_LAST_WORK_S)
