"""Handing over: a lone push leases what it stores to a consumer that waits for it.

A message that comes alone to a consumer that waits would take three transactions: the append, the
claim that it wakes, and the ack. Where nothing else is in the way they are one:

    the consumer   acks what it has done with the request that asks for more; that ack is held for
                   a moment, because nothing waits behind it and its answer comes with the messages
    the push       finds who waits for the partition, and appends, commits the ack and leases what
                   it stores in one statement: `queen.append_and_lease`

This is a short cut and decides nothing: the statement asks of the cursor what `queen.claim` and an
ack would ask. Where it leases nothing, the ack and the claim go their ordinary ways, as they do
for whatever is not plain: shared groups, limits, breakers, delays, many partitions at once.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial

from queen.core.cursor import AckResult
from queen.errors import QueenError
from queen.service.acks.ack import Acker, raise_if_none_acked
from queen.service.acks.ack_batch import AckBatch, OffsetBatch
from queen.service.catalog import Partition, Queue
from queen.service.consume.claims import Claims, lease_ms
from queen.service.consume.dispatch import Attempt, Dispatcher
from queen.service.consume.feeds import Feed, Grant, Pop
from queen.service.consume.give_back import GiveBack
from queen.service.consume.lease_book import LeaseBook
from queen.service.consume.pop import Popper
from queen.service.events import Events
from queen.service.holders import Holders
from queen.service.log.segment_cache import StoredSegment

# How long an ack waits for a push to share its transaction with. The consumer waits for messages
# meanwhile, and whoever else reads the group is told this much later that it has got on.
_HELD_S = 0.003


class Handoff:
    """A consumer that waits for what is appended to a partition, and the ack that goes with it."""

    __slots__ = ("_is_given", "_owner", "attempt", "done", "lease_id", "partition")

    def __init__(
        self, owner: Handoffs, attempt: Attempt, lease_id: uuid.UUID, done: AckBatch | None
    ) -> None:
        self._owner = owner
        self.attempt = attempt
        (self.partition,) = attempt.partitions
        self.lease_id = lease_id
        self.done = done
        self._is_given = False

    @property
    def arguments(self) -> tuple[object, ...]:
        """What `queen.append_and_lease` wants to know of it."""
        done = self.done.lease_id if self.done is not None else None
        return (
            self.attempt.feed.group_id,
            self.lease_id,
            lease_ms(self.attempt),
            self.attempt.pop.batch,
            done,
        )

    def take(self, stored: StoredSegment, epoch: int | None) -> None:
        """Hand over what the statement has leased, before anybody is told what it has stored."""
        if epoch is None:
            return
        self._is_given = True
        start = stored.base_offset
        grant = Grant(
            self.partition,
            self.attempt.feed.group,
            self.lease_id,
            start,
            min(stored.end_offset, start + self.attempt.pop.batch),
            epoch,
            attempt=1,
            seen=0,
            skip=0,
            failures={},
            lease_ms=lease_ms(self.attempt),
        )
        if self.done is not None:
            self._owner.finish_ack(self.done, start)
        self._owner.deliver(self.attempt, grant, stored)

    def leave_unclear(self) -> None:
        """The connection broke: nobody knows whether anything was leased."""
        self._owner.end_unclear(self)

    def finish(self) -> None:
        """Let the consumer wait on, if nothing was leased to it."""
        if not self._is_given:
            self._owner.give_up(self)


class _Held:
    """An ack that waits for a push."""

    __slots__ = ("batch", "timer")

    def __init__(self, batch: AckBatch, timer: asyncio.TimerHandle) -> None:
        self.batch = batch
        self.timer = timer


class Handoffs:
    def __init__(
        self,
        dispatcher: Dispatcher,
        leases: LeaseBook,
        claims: Claims,
        acker: Acker,
        popper: Popper,
        give_back: GiveBack,
        holders: Holders,
        events: Events,
    ) -> None:
        self._popper = popper
        self._dispatcher = dispatcher
        self._leases = leases
        self._claims = claims
        self._acker = acker
        self._give_back = give_back
        self._holders = holders
        # Acks that wait, by partition and group.
        self._held: dict[int, dict[int, _Held]] = {}
        events.written.subscribe(self._written)
        events.written_elsewhere.subscribe(self._written)

    # ---- acks that came with a pop ----

    async def pop_after(
        self, ack_batches: list[OffsetBatch], queues: list[Queue], pop: Pop, timeout_s: float
    ) -> list[Grant]:
        """Apply acknowledgments, and pop if all of them are taken. They never wait for the pop
        longer than a moment, and go on by themselves when it ends before them."""
        self.begin(ack_batches, pop)
        try:
            popped = await self._popper.pop(queues, pop, timeout_s)
        except QueenError:
            await self._finish(ack_batches)
            raise
        finally:
            self.release(ack_batches)
        try:
            await self._finish(ack_batches)
        except BaseException:
            self._popper.give_back(popped)
            raise
        if popped and not all(batch.is_taken for batch in ack_batches):
            await self.take_back(popped)
            return []
        return popped

    async def take_back(self, popped: list[Grant]) -> None:
        """Return when what was popped is free again."""
        await self._give_back.take(popped)

    def begin(self, ack_batches: Sequence[OffsetBatch], pop: Pop) -> None:
        """Begin to apply acknowledgments; a pop does not wait once one of them is refused."""
        if len(ack_batches) == 1 and self._may_wait(ack_batches[0]):
            self._hold(ack_batches[0])
        else:
            self._acker.submit([*ack_batches])
        for batch in ack_batches:
            assert batch.done is not None
            batch.done.add_done_callback(partial(_stop_if_refused, batch, pop))

    async def _finish(self, ack_batches: list[OffsetBatch]) -> None:
        """Return when they are committed; raises when nothing at all could be done."""
        self.release(ack_batches)
        for batch in ack_batches:
            assert batch.done is not None
            await batch.done
        raise_if_none_acked([*ack_batches])

    def release(self, ack_batches: Iterable[AckBatch]) -> None:
        """Let those that still wait for a push go by themselves."""
        for batch in ack_batches:
            if self._take_held(batch.partition.id, batch.group_id, batch) is not None:
                self._submit(batch)

    def release_all(self) -> None:
        """Let all that wait go by themselves."""
        held = [each.batch for groups in self._held.values() for each in groups.values()]
        self.release(held)

    def _may_wait(self, batch: OffsetBatch) -> bool:
        """Whether an ack says that all of a lease is done behind which there is nothing to read."""
        if not _is_plain(batch.partition):
            return False
        batch.look_up(self._leases)
        leased = batch.covered
        feed = self._dispatcher.feed_of(batch.partition.queue.id, batch.group_id)
        return (
            feed is not None
            and leased is not None
            and not leased.is_shared
            and batch.covers_span()
            and feed.leased.get(batch.partition.id) == batch.lease_id
            and batch.partition.head <= leased.stop
            and batch.group_id not in self._held.get(batch.partition.id, ())
        )

    def _hold(self, batch: AckBatch) -> None:
        loop = asyncio.get_running_loop()
        batch.done = loop.create_future()
        timer = loop.call_later(_HELD_S, self.release, (batch,))
        self._held.setdefault(batch.partition.id, {})[batch.group_id] = _Held(batch, timer)

    def _take_held(
        self, partition_id: int, group_id: int, batch: AckBatch | None = None
    ) -> AckBatch | None:
        """Take an ack that waits, any or this; None when it does not."""
        groups = self._held.get(partition_id)
        held = groups.get(group_id) if groups else None
        if groups is None or held is None or (batch is not None and held.batch is not batch):
            return None
        del groups[group_id]
        if not groups:
            del self._held[partition_id]
        held.timer.cancel()
        return held.batch

    def _submit(self, batch: AckBatch) -> None:
        try:
            self._acker.submit([batch])
        except QueenError as error:
            batch.error, batch.is_settled = error, True
            self._acker.finish(batch)

    def _written(self, partitions: Iterable[Partition]) -> None:
        """There is more behind a lease that is done: its ack waits no longer."""
        if not self._held:
            return
        for partition in partitions:
            self.release([each.batch for each in self._held.get(partition.id, {}).values()])

    # ---- pushes ----

    def reserve(self, partition: Partition) -> Handoff | None:
        """Return a consumer that waits for what is appended to a partition, if there is one for
        which nothing else is in the way; nothing is claimed for it meanwhile."""
        if not _is_plain(partition):
            return None
        for feed in self._dispatcher.feeds_of(partition.queue.id):
            pop = feed.waiter_for(partition)
            if pop is None or pop.auto_ack or feed.is_shared or feed.is_paused(time.monotonic()):
                continue
            held = self._held.get(partition.id, {}).get(feed.group_id)
            done = held.batch if held is not None else None
            if _is_next(feed, partition, done):
                self._take_held(partition.id, feed.group_id)
                attempt = self._dispatcher.reserve(pop, feed, partition)
                return Handoff(self, attempt, self._holders.new_lease(pop.consumer), done)
        return None

    def finish_ack(self, batch: AckBatch, committed: int) -> None:
        """An ack is committed with the append."""
        batch.committed = committed
        batch.give(AckResult.DONE)
        batch.ended = batch.is_settled = True
        self._acker.finish(batch)

    def deliver(self, attempt: Attempt, grant: Grant, stored: StoredSegment) -> None:
        self._claims.deliver(attempt, grant, stored)

    def give_up(self, handoff: Handoff) -> None:
        """Nothing was leased: what the consumer has done and what it wants go their own ways."""
        attempt, partition = handoff.attempt, handoff.partition
        attempt.feed.claiming.discard(partition.id)
        if handoff.done is not None and not handoff.done.is_settled:
            self._submit(handoff.done)
        attempt.feed.offer(partition)
        self._dispatcher.try_next(attempt.pop)

    def end_unclear(self, handoff: Handoff) -> None:
        feed = handoff.attempt.feed
        self._give_back.unclear(handoff.partition, feed.group, feed.group_id, handoff.lease_id)


def _stop_if_refused(batch: OffsetBatch, pop: Pop, _: object) -> None:
    if not batch.is_taken:
        pop.answer_empty()


def _is_plain(partition: Partition) -> bool:
    """Whether nothing but the order of its messages decides who is given them, and when."""
    options = partition.queue.options
    return not (
        options.is_limited
        or options.breaker
        or options.delayed_processing
        or options.window_buffer
        or options.expiry_seconds
    )


def _is_next(feed: Feed, partition: Partition, done: AckBatch | None) -> bool:
    """Whether what is appended to a partition is what its group reads next."""
    if partition.id in feed.claiming or partition.id in feed.held:
        return False
    lease_id = feed.leased.get(partition.id)
    if done is None:
        return lease_id is None and feed.position_of(partition) == partition.head
    leased = done.covered
    return lease_id == done.lease_id and leased is not None and leased.stop == partition.head
