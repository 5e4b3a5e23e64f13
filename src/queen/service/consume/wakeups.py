"""What this server and others tell about queues and groups, and what waiting pops get of it."""

from __future__ import annotations

from collections.abc import Iterable

from queen.service.background import Background
from queen.service.catalog import Catalog, Partition
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.feeds import Feed
from queen.service.consume.lease_book import LeaseBook
from queen.service.consume.sweeper import Sweeper
from queen.service.events import Events
from queen.service.shared.kinds import Kinds
from queen.storage.database import Database


class Wakeups:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        leases: LeaseBook,
        dispatcher: Dispatcher,
        sweeper: Sweeper,
        background: Background,
        kinds: Kinds,
        events: Events,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._leases = leases
        self._dispatcher = dispatcher
        self._sweeper = sweeper
        self._background = background
        self._kinds = kinds
        events.queue_deleted.subscribe(self.forget_queue)
        events.group_missing.subscribe(self.check_group)
        events.group_deleted.subscribe(self.forget_group)
        events.group_moved.subscribe(self.group_moved)
        events.group_resumed.subscribe(self.look_again)

    def look_at(self, queue_id: int) -> None:
        """Another server wrote more to a queue than it could name."""
        feeds = self._dispatcher.feeds_of(queue_id)
        if feeds:
            self._background.start(self._sweeper.look([feeds[0].queue]))

    def forget_queue(self, queue_id: int) -> None:
        for pop in self._dispatcher.remove_queue(queue_id):
            pop.answer_empty()

    def forget_group(self, queue_id: int, group_id: int) -> None:
        """A group was deleted. Who waits for it is answered, and comes back as a new group."""
        self._catalog.forget_group(queue_id, group_id)
        self._leases.forget_group(group_id)
        feed = self._dispatcher.feed_of(queue_id, group_id)
        if feed is not None:
            for pop in self._dispatcher.remove(feed):
                pop.answer_empty()

    def group_moved(self, queue_id: int, group_id: int) -> None:
        """A group was moved: its leases have ended, and anything may be there to read."""
        self._leases.forget_group(group_id)
        feed = self._dispatcher.feed_of(queue_id, group_id)
        if feed is not None:
            feed.reset()
            self.look_again(queue_id, group_id)

    def look_again(self, queue_id: int, group_id: int) -> None:
        """A group may read what it could not a moment ago."""
        feed = self._dispatcher.feed_of(queue_id, group_id)
        if feed is not None:
            feed.look_again()
            self._dispatcher.group_resumed(feed)
            self._background.start(self._refill(feed))

    def look_everywhere(self) -> None:
        """Anything may have been said while nobody listened."""
        for feeds in self._dispatcher.feeds_by_queue():
            for feed in feeds:
                feed.look_again()

    def time_has_passed(self, queue_id: int) -> None:
        """Leases may have lapsed, and delays may be over, before their timers ring."""
        for feed in self._dispatcher.feeds_of(queue_id):
            self.group_moved(queue_id, feed.group_id)

    def released_elsewhere(self, partitions: Iterable[Partition], group_id: int) -> None:
        """Another server ended leases, its own or ones that this server granted."""
        for partition in partitions:
            self._dispatcher.released_elsewhere(partition, group_id)

    async def _refill(self, feed: Feed) -> None:
        feed.said = await self._kinds.is_shared(feed.group_id)
        feed.turn(is_shared=feed.said)
        await self._sweeper.fill(feed)
        self._dispatcher.pump(feed)

    def check_group(self, feed: Feed) -> None:
        """A claim found no such partition, or no such group: find out which."""
        self._background.start(self._forget_if_gone(feed))

    async def _forget_if_gone(self, feed: Feed) -> None:
        """Another server may have deleted a group without our hearing of it."""
        group_id = await self._database.findval("find_group", feed.queue.id, feed.group)
        if group_id != feed.group_id:
            self.forget_group(feed.queue.id, feed.group_id)
