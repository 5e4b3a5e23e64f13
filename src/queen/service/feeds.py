"""Feeds: which partitions a group may find something in, and who waits for it.

Finding work must not cost more with 100,000 partitions than with ten, so nobody searches:
each server keeps, per queue and group, a set of partitions that are worth a claim. The set
is a hint. It is fed by

    own commits         at once
    other servers       by their notifications, and by asking what was written lately
    ended leases        acks, releases, and a timer for those that lapse
    the sweep           a slow walk over all partitions that finds whatever was missed

and the claim in the database decides. A hint too many costs a claim that finds nothing; a
hint too few is found by the next look or by the sweep, so it can delay a message, never
lose it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from typing import NamedTuple

from queen.service.catalog import FROM_BEGINNING, Partition, Queue, Subscription
from queen.service.segments import Stored

# What this server believes of a partition it has not read: nothing is done yet.
_UNREAD = -1


class Grant(NamedTuple):
    """Messages of one partition that were leased, or committed at once, for a pop."""

    partition: Partition
    group: str
    lease_id: uuid.UUID | None
    start: int
    stop: int
    epoch: int
    attempt: int
    acked: int
    stored: list[Stored]
    lease_ms: int


class Pop:
    """One pop request while it waits for messages."""

    __slots__ = (
        "auto_ack",
        "batch",
        "busy",
        "done",
        "feeds",
        "group",
        "named",
        "partitions",
        "subscription",
        "turn",
        "waits",
    )

    def __init__(
        self,
        group: str,
        batch: int,
        partitions: int = 1,
        *,
        auto_ack: bool = False,
        waits: bool = False,
        named: str | None = None,
        subscription: Subscription = FROM_BEGINNING,
    ) -> None:
        self.group = group
        self.batch = batch
        self.partitions = partitions
        self.auto_ack = auto_ack
        self.waits = waits
        # The partition asked for, None for any.
        self.named = named
        self.subscription = subscription
        self.feeds: list[Feed] = []
        # A claim for this pop is on its way.
        self.busy = False
        # Whoever looks for candidates wants to know when there is none left to try.
        self.turn: asyncio.Future[None] | None = None
        self.done: asyncio.Future[list[Grant]] = asyncio.get_running_loop().create_future()

    def finish(self, grants: list[Grant]) -> None:
        """Answer the pop, once. It leaves its feeds first: nothing may be claimed for it now."""
        for feed in self.feeds:
            feed.unpark(self)
        if not self.done.done():
            self.done.set_result(grants)
        self.end_turn()

    def end_turn(self) -> None:
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)


class Feed:
    """Ready partitions and waiting pops of one group in one queue."""

    __slots__ = (
        "_position",
        "_ready",
        "_ready_set",
        "claiming",
        "group",
        "group_id",
        "lease_ends",
        "leased",
        "named",
        "queue",
        "sweep_after",
        "swept_at",
        "used_at",
        "waiters",
    )

    def __init__(self, queue: Queue, group: str, group_id: int) -> None:
        self.queue = queue
        self.group = group
        self.group_id = group_id
        self._ready: deque[int] = deque()
        self._ready_set: set[int] = set()
        # How far this group has got, as far as this server knows: leased or done.
        self._position: dict[int, int] = {}
        self.claiming: set[int] = set()
        self.leased: dict[int, uuid.UUID] = {}
        self.lease_ends: dict[int, float] = {}
        self.waiters: OrderedDict[Pop, None] = OrderedDict()
        self.named: dict[str, OrderedDict[Pop, None]] = {}
        # Where the sweep goes on; None when it has come round.
        self.sweep_after: int | None = 0
        self.swept_at = time.monotonic()
        self.used_at = self.swept_at

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    def offer(self, partition: Partition, head: int) -> None:
        """Say that a partition reaches to `head`."""
        if head <= self._position.get(partition.id, _UNREAD):
            return
        self.offer_again(partition.id)

    def offer_again(self, partition_id: int, *, first: bool = False) -> None:
        """Put a partition among the ready ones, unless somebody is at work in it."""
        if (
            partition_id in self._ready_set
            or partition_id in self.leased
            or partition_id in self.claiming
        ):
            return
        self._ready_set.add(partition_id)
        if first:
            self._ready.appendleft(partition_id)
        else:
            self._ready.append(partition_id)

    def take(self, limit: int) -> list[int]:
        """Take the next ready partitions; each stands for one claim from now on."""
        taken: list[int] = []
        while self._ready and len(taken) < limit:
            partition_id = self._ready.popleft()
            self._ready_set.discard(partition_id)
            if partition_id not in self.claiming:
                self.claiming.add(partition_id)
                taken.append(partition_id)
        return taken

    def moved(self, partition_id: int, position: int) -> None:
        self._position[partition_id] = position

    def granted(self, partition_id: int, lease_id: uuid.UUID, batch_end: int) -> None:
        self.leased[partition_id] = lease_id
        self._position[partition_id] = batch_end

    def lease_ended(self, partition: Partition, lease_id: uuid.UUID | None, committed: int) -> bool:
        """Forget a lease; return whether the partition is worth another claim."""
        held = self.leased.get(partition.id)
        if held is not None and lease_id is not None and held != lease_id:
            return False
        self.leased.pop(partition.id, None)
        self._position[partition.id] = committed
        if partition.head > committed:
            self.offer_again(partition.id)
            return True
        return False

    def forget(self, partition_id: int) -> None:
        self._position.pop(partition_id, None)
        self.leased.pop(partition_id, None)

    def park(self, pop: Pop, *, first: bool = False) -> None:
        queue = (
            self.waiters if pop.named is None else self.named.setdefault(pop.named, OrderedDict())
        )
        queue[pop] = None
        if first:
            queue.move_to_end(pop, last=False)

    def unpark(self, pop: Pop) -> None:
        if pop.named is None:
            self.waiters.pop(pop, None)
            return
        queue = self.named.get(pop.named)
        if queue is not None:
            queue.pop(pop, None)
            if not queue:
                del self.named[pop.named]

    def waiting(self) -> list[Pop]:
        return [*self.waiters, *(pop for named in self.named.values() for pop in named)]

    @property
    def has_waiters(self) -> bool:
        return bool(self.waiters or self.named)
