"""Pop: lease the next messages of a partition to a consumer.

A pop is paired with ready partitions from its feed and joins the next claim, one
transaction for all pops that are waiting. A long poll is a pop that stays in its feed; it
holds no connection and no task but its own.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from queen.core.cursor import bits_from_bytes
from queen.core.frame import decode_body, decompress
from queen.core.ids import new_lease
from queen.errors import QueenError, Unavailable
from queen.service.batcher import Batcher
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.feeds import Feed, Grant, Pop
from queen.service.leases import LeaseBook, Span
from queen.service.segments import SegmentCache, Stored
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

_GRANTED, _EMPTY, _HELD, _MISSING, _SPENT = range(5)
# A commit may become visible this much later than the time it carries.
_LOOK_BACK = timedelta(seconds=2)
_NET_INTERVAL_S = 1.0
_SWEEP_INTERVAL_S = 30.0
_FEED_IDLE_S = 600.0


class _Attempt:
    """A pop and the partitions it tries to claim."""

    __slots__ = ("feed", "partitions", "pop")

    def __init__(self, pop: Pop, feed: Feed, partitions: list[int]) -> None:
        self.pop = pop
        self.feed = feed
        self.partitions = partitions

    @property
    def weight(self) -> int:
        return len(self.partitions)


class Popper:
    def __init__(
        self, database: Database, catalog: Catalog, cache: SegmentCache, leases: LeaseBook
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache
        self._leases = leases
        self._feeds: dict[int, dict[str, Feed]] = {}
        self._looked: dict[int, datetime] = {}
        self._looking: dict[int, asyncio.Task[None]] = {}
        self._by_label: dict[Pop, tuple[str, str]] = {}
        self._timers: list[tuple[float, int, Feed, int, uuid.UUID | None]] = []
        self._timer_number = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._claims: Batcher[_Attempt] = Batcher(
            self._flush, max_items=512, max_weight=1000, max_waiting_weight=100_000
        )

    # ---- taking requests ----

    async def pop(
        self,
        queues: list[Queue],
        pop: Pop,
        timeout_s: float,
        *,
        mode: str = "all",
        starts_at: datetime | None = None,
        label: tuple[str, str] | None = None,
    ) -> list[Grant]:
        """Return what could be claimed; empty when nothing came within the timeout."""
        pop.feeds = [await self._feed(queue, pop.group, mode, starts_at) for queue in queues]
        if pop.waits and label is not None:
            self._by_label[pop] = label
        try:
            for feed in pop.feeds:
                feed.park(pop)
            await self._first_try(pop)
            if not pop.busy and not pop.waits and not pop.done.done():
                pop.done.set_result([])
            return await self._served(pop, timeout_s)
        finally:
            self._by_label.pop(pop, None)
            for feed in pop.feeds:
                feed.unpark(pop)

    async def _first_try(self, pop: Pop) -> None:
        if pop.named is not None:
            await self._try_named(pop)
            return
        for feed in pop.feeds:
            self._pump(feed)
            if pop.busy:
                return
        for feed in pop.feeds:
            if pop.busy or pop.done.done():
                return
            await self._look(feed.queue)
            while not feed.has_ready and feed.sweep_after is not None:
                await self._sweep(feed)
            self._pump(feed)

    async def _try_named(self, pop: Pop) -> None:
        """Claim one partition whether or not it is thought to be ready: the database knows."""
        assert pop.named is not None
        feed = pop.feeds[0]
        partition = await self._catalog.partition(feed.queue, pop.named)
        if partition is None or partition.id in feed.claiming or pop.done.done():
            return
        feed.claiming.add(partition.id)
        self._attempt(pop, feed, [partition.id])

    async def _served(self, pop: Pop, timeout_s: float) -> list[Grant]:
        try:
            return await asyncio.wait_for(
                asyncio.shield(pop.done), timeout_s if pop.waits else None
            )
        except TimeoutError:
            pop.waits = False
            if not pop.busy:
                return []
            # A claim is under way; what it brings must not be lost between two chairs.
            return await pop.done
        except asyncio.CancelledError:
            # The client has gone. Whatever the claim still brings goes back unused.
            pop.waits = False
            if pop.busy or pop.done.done():
                self._spawn(self._give_back(pop))
            raise

    async def _give_back(self, pop: Pop) -> None:
        for grant in await pop.done:
            if grant.lease_id is not None:
                await self.release(grant)

    async def release(self, grant: Grant) -> None:
        """Give a lease back that nobody will use."""
        feed = self._feeds[grant.partition.queue.id][grant.group]
        assert grant.lease_id is not None
        await self._database.fetch(
            "release_lease", [grant.partition.id], [feed.group_id], grant.lease_id
        )
        self._leases.close(grant.lease_id, grant.partition.id)
        self.lease_ended(grant.partition, grant.group, grant.lease_id, grant.start)

    async def _feed(self, queue: Queue, group: str, mode: str, starts_at: datetime | None) -> Feed:
        feeds = self._feeds.setdefault(queue.id, {})
        feed = feeds.get(group)
        if feed is None or feed.queue is not queue:
            group_id = await self._catalog.group(queue, group, mode, starts_at)
            feed = feeds.get(group)
            if feed is None or feed.queue is not queue:
                feed = feeds[group] = Feed(queue, group, group_id)
        feed.used_at = time.monotonic()
        return feed

    # ---- what others tell ----

    def committed(self, partitions: Iterable[Partition]) -> None:
        """Partitions were written to, by this server or by another that said so."""
        touched: set[Feed] = set()
        for partition in partitions:
            feeds = self._feeds.get(partition.queue.id)
            if feeds:
                for feed in feeds.values():
                    feed.offer(partition, partition.head)
                    touched.add(feed)
                    if feed.named:
                        self._wake_named(feed, partition)
            elif self._by_label:
                self._adopt(partition.queue)
        for feed in touched:
            self._pump(feed)

    def lease_ended(
        self, partition: Partition, group: str, lease_id: uuid.UUID | None, committed: int
    ) -> None:
        """A lease is over, acked or given back; its partition may have more."""
        feed = self._feeds.get(partition.queue.id, {}).get(group)
        if feed is not None and feed.lease_ended(partition, lease_id, committed):
            if feed.named:
                self._wake_named(feed, partition)
            self._pump(feed)

    def released_elsewhere(self, partition: Partition, group_id: int) -> None:
        """Another server ended a lease that this one granted."""
        for feed in self._feeds.get(partition.queue.id, {}).values():
            if feed.group_id == group_id:
                feed.leased.pop(partition.id, None)
                feed.offer_again(partition.id)
                if feed.named:
                    self._wake_named(feed, partition)
                self._pump(feed)

    def look_at(self, queue_id: int) -> None:
        """Another server wrote more to a queue than it could name."""
        feeds = self._feeds.get(queue_id)
        if feeds:
            queue = next(iter(feeds.values())).queue
            self._spawn(self._look_and_pump(queue))

    def lease_extended(
        self, partition: Partition, group: str, lease_id: uuid.UUID, ms: int
    ) -> None:
        feed = self._feeds.get(partition.queue.id, {}).get(group)
        if feed is not None:
            self._set_timer(feed, partition.id, lease_id, ms)

    def forget_queue(self, queue_id: int) -> None:
        for feed in self._feeds.pop(queue_id, {}).values():
            for pop in [*feed.waiters, *(p for named in feed.named.values() for p in named)]:
                if not pop.done.done() and not pop.busy:
                    pop.done.set_result([])

    # ---- pairing pops with partitions ----

    def _pump(self, feed: Feed) -> None:
        while feed.waiters and feed.has_ready:
            pop = next(iter(feed.waiters))
            partitions = feed.take(pop.partitions)
            if not partitions:
                return
            self._attempt(pop, feed, partitions)

    def _wake_named(self, feed: Feed, partition: Partition) -> None:
        waiting = feed.named.get(partition.name)
        if waiting and partition.id not in feed.claiming and partition.id not in feed.leased:
            feed.claiming.add(partition.id)
            self._attempt(next(iter(waiting)), feed, [partition.id])

    def _attempt(self, pop: Pop, feed: Feed, partitions: list[int]) -> None:
        pop.busy = True
        for one in pop.feeds:
            one.unpark(pop)
        self._claims.submit(_Attempt(pop, feed, partitions))

    def _unserved(self, pop: Pop) -> None:
        """A claim brought nothing: try the next candidates, wait on, or give up."""
        pop.busy = False
        if pop.done.done():
            return
        for feed in pop.feeds:
            feed.park(pop, first=True)
        if pop.named is None:
            for feed in pop.feeds:
                self._pump(feed)
        if not pop.busy and not pop.waits:
            pop.done.set_result([])

    # ---- the claim ----

    async def _flush(self, attempts: list[_Attempt]) -> None:
        try:
            await self._claim(attempts)
        except Exception as error:
            if not isinstance(error, QueenError):
                _log.exception("a claim failed")
            self._fail(attempts, error if isinstance(error, QueenError) else QueenError())

    def _fail(self, attempts: list[_Attempt], error: QueenError) -> None:
        for attempt in attempts:
            for partition_id in attempt.partitions:
                attempt.feed.claiming.discard(partition_id)
                attempt.feed.offer_again(partition_id)
            attempt.pop.busy = False
            if not attempt.pop.done.done():
                attempt.pop.done.set_exception(error)

    async def _claim(self, attempts: list[_Attempt]) -> None:
        lease_ids = [new_lease() for _ in attempts]
        entries = sorted(
            (partition_id, attempt.feed.group_id, number)
            for number, attempt in enumerate(attempts)
            for partition_id in attempt.partitions
        )
        lease_ms = [attempt.feed.queue.options.lease_time * 1000 for attempt in attempts]
        rows = await self._database.fetch(
            "claim",
            [entry[0] for entry in entries],
            [entry[1] for entry in entries],
            [lease_ids[number] for _, _, number in entries],
            [lease_ms[number] for _, _, number in entries],
            [attempts[number].pop.auto_ack for _, _, number in entries],
            [number + 1 for _, _, number in entries],
            [attempt.pop.batch for attempt in attempts],
        )
        partitions = await self._catalog.partitions(entry[0] for entry in entries)
        granted: dict[int, list[Grant]] = defaultdict(list)
        for (partition_id, _, number), row in zip(entries, rows, strict=True):
            attempt = attempts[number]
            attempt.feed.claiming.discard(partition_id)
            partition = partitions.get(partition_id)
            if partition is None:
                attempt.feed.forget(partition_id)
                continue
            partition.saw_head(row["head"])
            if row["outcome"] == _GRANTED:
                lease_id = None if attempt.pop.auto_ack else lease_ids[number]
                granted[number].append(self._grant(attempt.feed, partition, lease_id, row))
            else:
                self._not_granted(attempt.feed, partition, row)
        await self._read([grant for grants in granted.values() for grant in grants])
        for number, attempt in enumerate(attempts):
            self._deliver(attempt, granted[number])

    def _grant(
        self, feed: Feed, partition: Partition, lease_id: uuid.UUID | None, row: Record
    ) -> Grant:
        stop: int = row["batch_end"]
        grant = Grant(
            partition,
            feed.group,
            lease_id,
            row["committed"],
            stop,
            row["epoch"],
            row["attempt"],
            bits_from_bytes(row["acked"]),
            [],
            row["wait_ms"],
        )
        if lease_id is None:
            feed.lease_ended(partition, None, stop)
        else:
            feed.granted(partition.id, lease_id, stop)
            self._set_timer(feed, partition.id, lease_id, grant.lease_ms)
        return grant

    def _not_granted(self, feed: Feed, partition: Partition, row: Record) -> None:
        outcome = row["outcome"]
        if outcome == _EMPTY:
            feed.moved(partition.id, row["committed"])
            if partition.head > row["committed"]:
                # Written while the claim was on its way.
                feed.offer_again(partition.id)
        elif outcome == _HELD:
            self._set_timer(feed, partition.id, None, row["wait_ms"])
        elif outcome == _SPENT:
            feed.offer_again(partition.id, first=True)
        elif outcome == _MISSING:
            feed.forget(partition.id)
            self._catalog.forget_partition(partition.id)

    def _deliver(self, attempt: _Attempt, grants: list[Grant]) -> None:
        pop = attempt.pop
        if not grants:
            self._unserved(pop)
        else:
            pop.busy = False
            for grant in grants:
                if grant.lease_id is not None:
                    self._book(attempt.feed, grant)
            if pop.done.done():
                self._spawn(self._give_back_all(grants))
            else:
                pop.done.set_result(list(grants))
        self._pump(attempt.feed)

    async def _give_back_all(self, grants: list[Grant]) -> None:
        for grant in grants:
            if grant.lease_id is not None:
                await self.release(grant)

    def _book(self, feed: Feed, grant: Grant) -> None:
        assert grant.lease_id is not None
        ids: list[str] = []
        for stored in grant.stored:
            low = max(grant.start, stored.base_offset) - stored.base_offset
            high = min(grant.stop, stored.end_offset) - stored.base_offset
            ids += stored.segment.transaction_ids(low, high)
        span = Span(grant.partition, feed.group, feed.group_id, grant.start, grant.stop, ids)
        self._leases.add(grant.lease_id, span)

    async def _read(self, grants: list[Grant]) -> None:
        """Fill in the messages, from the cache where it has them all."""
        missing: list[Grant] = []
        for grant in grants:
            found = self._cache.span(grant.partition.id, grant.start, grant.stop)
            if found is None:
                missing.append(grant)
            else:
                grant.stored.extend(found)
        if not missing:
            return
        by_partition: dict[int, list[Grant]] = defaultdict(list)
        for grant in missing:
            by_partition[grant.partition.id].append(grant)
        rows = await self._database.fetch(
            "read_spans",
            [grant.partition.id for grant in missing],
            [grant.start for grant in missing],
            [grant.stop for grant in missing],
        )
        for row in rows:
            segment = decode_body(decompress(row["codec"], row["body"]))
            stored = Stored(row["base_offset"], row["created_at"], segment)
            for grant in by_partition[row["partition_id"]]:
                if stored.base_offset < grant.stop and stored.end_offset > grant.start:
                    grant.stored.append(stored)

    # ---- looking for what nobody told ----

    async def _look_and_pump(self, queue: Queue) -> None:
        await self._look(queue)
        for feed in list(self._feeds.get(queue.id, {}).values()):
            self._pump(feed)

    async def _look(self, queue: Queue) -> None:
        """Ask what was written to a queue lately. Callers that come together ask once."""
        task = self._looking.get(queue.id)
        if task is None:
            task = asyncio.create_task(self._look_now(queue))
            self._looking[queue.id] = task
            task.add_done_callback(lambda _: self._looking.pop(queue.id, None))
        await asyncio.shield(task)

    async def _look_now(self, queue: Queue) -> None:
        now: datetime = await self._database.fetchval("now")
        since = self._looked.get(queue.id, now) - _LOOK_BACK
        rows = await self._database.fetch("written_since", queue.id, since)
        self._looked[queue.id] = now
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        for row in rows:
            partition = partitions.get(row["partition_id"])
            if partition is not None:
                partition.saw_head(row["head"])
                for feed in self._feeds.get(queue.id, {}).values():
                    feed.offer(partition, row["head"])
                    if feed.named:
                        self._wake_named(feed, partition)

    async def _sweep(self, feed: Feed) -> None:
        """Walk over the next thousand partitions and offer those that have something."""
        after = feed.sweep_after
        if after is None:
            return
        rows = await self._database.fetch("sweep_page", feed.queue.id, feed.group_id, after)
        if feed.sweep_after != after:
            return
        for row in rows:
            if row["head"] <= row["committed"]:
                continue
            partition = self._catalog.remember_row(feed.queue, row["id"], row["name"], row["head"])
            held = feed.leased.get(partition.id)
            if held is not None and (not row["live"] or row["lease_id"] != held):
                feed.leased.pop(partition.id, None)
            feed.offer_again(partition.id)
        feed.sweep_after = rows[-1]["id"] if len(rows) == 1000 else None
        feed.swept_at = time.monotonic()

    def _adopt(self, queue: Queue) -> None:
        """A queue came up that pops by namespace or task may have been waiting for."""
        for pop, (namespace, task) in list(self._by_label.items()):
            if namespace in ("", queue.namespace) and task in ("", queue.task):
                self._spawn(self._join(pop, queue))

    async def _join(self, pop: Pop, queue: Queue) -> None:
        feed = await self._feed(queue, pop.group, "all", None)
        if pop in self._by_label and feed not in pop.feeds:
            pop.feeds.append(feed)
            if not pop.busy:
                feed.park(pop)
            while not feed.has_ready and feed.sweep_after is not None:
                await self._sweep(feed)
            self._pump(feed)

    # ---- time ----

    def _set_timer(
        self, feed: Feed, partition_id: int, lease_id: uuid.UUID | None, ms: int
    ) -> None:
        """Look at a partition again when a lease on it has ended."""
        self._timer_number += 1
        # The database decides when it ended; its clock may be a little behind.
        at = time.monotonic() + ms / 1000 + 0.02
        if lease_id is not None:
            feed.lease_ends[partition_id] = at
        heapq.heappush(self._timers, (at, self._timer_number, feed, partition_id, lease_id))

    def _ring(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, feed, partition_id, lease_id = heapq.heappop(self._timers)
            held = feed.leased.get(partition_id)
            if lease_id is not None:
                # Acked, or extended: then a later timer stands for it.
                if held != lease_id or feed.lease_ends.get(partition_id, now) > now:
                    continue
                del feed.leased[partition_id]
                self._leases.close(lease_id, partition_id)
            feed.offer_again(partition_id)
            partition = self._catalog.partition_by_id(partition_id)
            if partition is not None and feed.named:
                self._wake_named(feed, partition)
            self._pump(feed)

    async def run_timers(self) -> None:
        """Wake what lapsed leases held back."""
        while not self._closed:
            self._ring()
            await asyncio.sleep(0.02)

    async def run_net(self) -> None:
        """Look slowly for what no commit and no notification told."""
        while not self._closed:
            await asyncio.sleep(_NET_INTERVAL_S)
            try:
                await self._cast_net()
            except QueenError as error:
                _log.warning("looking for messages: %s", error)

    async def _cast_net(self) -> None:
        now = time.monotonic()
        for queue_id, feeds in list(self._feeds.items()):
            for feed in list(feeds.values()):
                if feed.has_waiters:
                    feed.used_at = now
                if feed.sweep_after is None and now - feed.swept_at > _SWEEP_INTERVAL_S:
                    feed.sweep_after = 0
                if feed.sweep_after is not None and now - feed.used_at < _FEED_IDLE_S:
                    await self._sweep(feed)
                    self._pump(feed)
            if any(feed.has_waiters and not feed.has_ready for feed in feeds.values()):
                await self._look_and_pump(next(iter(feeds.values())).queue)
            if not feeds:
                del self._feeds[queue_id]
        for namespace, task in set(self._by_label.values()):
            for queue in await self._catalog.queues_by_label(namespace, task):
                self._adopt(queue)

    # ---- the end ----

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("background work failed: %s", task.exception())

    async def close(self) -> None:
        """Answer every parked pop with nothing and let claims under way finish."""
        self._closed = True
        for feeds in self._feeds.values():
            for feed in feeds.values():
                for pop in [*feed.waiters, *(p for named in feed.named.values() for p in named)]:
                    if not pop.busy and not pop.done.done():
                        pop.done.set_result([])
        await self._claims.drained()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("the server is stopping")
