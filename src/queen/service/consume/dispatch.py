"""Pairing pops with partitions, in memory only.

The dispatcher knows every feed of this server. Whoever learns that a partition may have
something tells it; whoever wants messages parks a pop. When both are there, an attempt goes
to the claim. Nothing here asks the database.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Iterator

from queen.service.catalog import Partition, Queue
from queen.service.consume.feeds import Feed, Pop
from queen.service.consume.lease_book import BareSpan, LeaseBook
from queen.service.consume.timers import Timers
from queen.service.events import Events

# The database decides when a lease has ended; its clock may be a little behind ours.
_CLOCK_MARGIN_S = 0.02
# How often a paused group is looked at; resuming it wakes its pops at once where it is heard.
_PAUSE_CHECK_MS = 1000


class Attempt:
    """A pop and the partitions it tries to claim."""

    __slots__ = ("feed", "generation", "partitions", "pop")

    def __init__(self, pop: Pop, feed: Feed, partitions: list[Partition]) -> None:
        self.pop = pop
        self.feed = feed
        self.partitions = partitions
        self.generation = feed.generation

    @property
    def weight(self) -> int:
        return len(self.partitions)


class Dispatcher:
    def __init__(self, leases: LeaseBook, events: Events) -> None:
        self._leases = leases
        self._events = events
        self._feeds: dict[int, dict[str, Feed]] = {}
        self.timers = Timers()
        events.written.subscribe(self.written)
        events.written_elsewhere.subscribe(self.written)
        events.lease_ended.subscribe(self.lease_ended)
        events.partition_lost.subscribe(self.went_back)

    # ---- feeds ----

    def feed(self, queue_id: int, group: str) -> Feed | None:
        return self._feeds.get(queue_id, {}).get(group)

    def add(self, feed: Feed) -> None:
        self._feeds.setdefault(feed.queue.id, {})[feed.group] = feed

    @property
    def has_feeds(self) -> bool:
        return any(self._feeds.values())

    def feeds_of(self, queue_id: int) -> list[Feed]:
        return list(self._feeds.get(queue_id, {}).values())

    def feeds_by_queue(self) -> list[list[Feed]]:
        return [list(feeds.values()) for feeds in self._feeds.values()]

    def feeds_with_waiters(self) -> list[Feed]:
        return [
            feed for feeds in self._feeds.values() for feed in feeds.values() if feed.has_waiters
        ]

    def remove_queue(self, queue_id: int) -> Iterator[Pop]:
        """Forget the feeds of a queue; yield the pops that were there."""
        for feed in self._feeds.pop(queue_id, {}).values():
            self.timers.forget(feed)
            yield from list(feed.pops)

    def feed_of(self, queue_id: int, group_id: int) -> Feed | None:
        for feed in self.feeds_of(queue_id):
            if feed.group_id == group_id:
                return feed
        return None

    def remove(self, feed: Feed) -> list[Pop]:
        """Forget a feed; return the pops that were there."""
        feeds = self._feeds.get(feed.queue.id, {})
        if feeds.get(feed.group) is feed:
            del feeds[feed.group]
        self.timers.forget(feed)
        return list(feed.pops)

    # ---- what others tell ----

    def written(self, partitions: Iterable[Partition]) -> None:
        """Partitions were written to, up to the head they now have. Queues are served in order."""
        touched: dict[Feed, None] = {}
        for partition in partitions:
            for feed in self._feeds.get(partition.queue.id, {}).values():
                feed.offer(partition)
                touched[feed] = None
        for feed in touched:
            self.pump(feed)

    def went_back(self, partition: Partition) -> None:
        """The database has lost what groups had done there: believe nothing of it."""
        for feed in self.feeds_of(partition.queue.id):
            feed.forget(partition.id)

    def lease_ended(
        self,
        partition: Partition,
        group: str,
        lease_id: uuid.UUID | None,
        committed: int,
        wait_ms: int = 0,
    ) -> None:
        """A lease is over, acked or given back; its partition may have more, now or later."""
        self._made_room(partition.queue, group)
        feed = self.feed(partition.queue.id, group)
        if feed is None:
            return
        more = feed.lease_ended(partition, lease_id, committed, offer=not wait_ms)
        if partition.id not in feed.leased and not feed.is_shared:
            self.timers.disarm(feed, partition.id)
        if more and wait_ms:
            self.set_timer(feed, partition, None, wait_ms)
        elif more:
            self.pump(feed)

    def group_paused(self, feed: Feed) -> None:
        """Claims find that the group is paused: leave them for a while."""
        self.hold_feed(feed, _PAUSE_CHECK_MS)

    def hold_feed(self, feed: Feed, ms: int) -> None:
        """Claim nothing for a group for so long, unless it is resumed before."""
        pause_s = ms / 1000
        feed.paused_until = time.monotonic() + pause_s
        asyncio.get_running_loop().call_later(pause_s + _CLOCK_MARGIN_S, self.pump, feed)

    def group_resumed(self, feed: Feed) -> None:
        feed.paused_until = 0.0
        feed.waits_for_room = False
        self.pump(feed)

    def _made_room(self, queue: Queue, group: str | int) -> None:
        """A group has a lease less: it may be given something, or any group of its queue may."""
        is_for_all = queue.options.queue_max_in_flight > 0
        for feed in self.feeds_of(queue.id):
            if feed.waits_for_room and (is_for_all or group in (feed.group, feed.group_id)):
                self.group_resumed(feed)

    def released_elsewhere(self, partition: Partition, group_id: int) -> None:
        """Another server ended a lease, one of its own or one that this server granted."""
        for feed in self.feeds_of(partition.queue.id):
            if feed.group_id == group_id:
                feed.leased.pop(partition.id, None)
                feed.held.pop(partition.id, None)
                if not feed.is_shared:
                    self.timers.disarm(feed, partition.id)
                feed.offer_again(partition)
                self.pump(feed)
        self._made_room(partition.queue, group_id)

    def lease_extended(self, span: BareSpan, lease_id: uuid.UUID, ms: int) -> None:
        feed = self.feed(span.partition.queue.id, span.group)
        if feed is not None:
            self.set_timer(feed, span.partition, lease_id, ms)

    # ---- pairing ----

    def pump(self, feed: Feed) -> None:
        """Give ready partitions to waiting pops while there are both."""
        if feed.is_paused(time.monotonic()):
            return
        while (pair := feed.take_named()) is not None:
            self.attempt(pair[0], feed, [pair[1]])
        while feed.waiters and feed.has_ready:
            pop = next(iter(feed.waiters))
            self.attempt(pop, feed, feed.take(pop.partitions))

    def attempt(self, pop: Pop, feed: Feed, partitions: list[Partition]) -> None:
        self._begin(pop)
        self._events.claim_wanted(Attempt(pop, feed, partitions))

    def reserve(self, pop: Pop, feed: Feed, partition: Partition) -> Attempt:
        """Pair a pop with a partition that somebody else claims for it."""
        self._begin(pop)
        feed.claiming.add(partition.id)
        return Attempt(pop, feed, [partition])

    def _begin(self, pop: Pop) -> None:
        assert not pop.done.done(), "an answered pop must not claim"
        pop.busy = True
        for parked in pop.feeds:
            parked.unpark(pop)

    def try_next(self, pop: Pop) -> None:
        """A claim brought nothing: try the next candidates, look for more, wait, or give up."""
        pop.busy = False
        if pop.done.done():
            return
        if pop.over:
            # Another candidate would only make it later.
            pop.finish([])
            return
        for feed in pop.feeds:
            feed.park(pop, first=True)
        for feed in pop.feeds:
            self.pump(feed)
        if pop.busy:
            return
        if pop.turn is not None:
            pop.end_turn()
        elif not pop.waits:
            pop.finish([])

    # ---- leases that lapse ----

    def set_timer(
        self, feed: Feed, partition: Partition, lease_id: uuid.UUID | None, ms: int
    ) -> None:
        """Look at a partition again when a lease on it has ended, ours or (None) another's."""
        at = time.monotonic() + ms / 1000 + _CLOCK_MARGIN_S
        if feed.is_shared:
            # Of several leases, and of what waits for its next try, the first one counts.
            self.timers.arm_earlier(feed, partition, at)
            return
        # A partition that is held back may be so by a lease of ours, which then ends with it; a
        # lease that is no longer ours is somebody else's.
        current = feed.leased.get(partition.id)
        ours = current if lease_id in (None, current) else None
        self.timers.arm(feed, partition, ours, at)

    def ring(self) -> None:
        """Offer the partitions whose leases have lapsed by now."""
        for _, _, feed, partition, lease_id in self.timers.take_due(time.monotonic()):
            if lease_id is not None and not feed.is_shared:
                if feed.leased.get(partition.id, lease_id) != lease_id:
                    continue
                # Forgotten, if the group was turned meanwhile.
                feed.leased.pop(partition.id, None)
                self._leases.close(lease_id, partition.id)
            feed.held.pop(partition.id, None)
            feed.offer_again(partition)
            self.pump(feed)
