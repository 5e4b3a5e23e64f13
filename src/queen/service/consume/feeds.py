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
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from queen.errors import QueenError
from queen.service.catalog import FROM_BEGINNING, Partition, Queue, Subscription
from queen.service.log.segment_cache import StoredSegment

# What this server believes of a partition it has not read: nothing is done yet.
_UNREAD = -1
# Partitions of which a feed remembers how far its group has got, twice: those of late, and those
# before them. Of any other it finds out by a claim too many.
_POSITIONS = 50_000


@dataclass(slots=True)
class Grant:
    """Messages of one partition that were leased, or committed at once, for a pop."""

    partition: Partition
    group: str
    lease_id: uuid.UUID | None
    start: int
    stop: int
    epoch: int
    attempt: int
    # What lies before this was delivered by the lease before, which lapsed.
    seen: int
    # Bit i is set when offset start + i is not delivered: done before, or hidden.
    skip: int
    # How often messages were given back.
    failures: dict[int, int]
    lease_ms: int
    stored: list[StoredSegment] = field(default_factory=list)
    # Nothing more of it is going to be read.
    is_read: bool = False
    # It ends earlier than was leased.
    is_cut: bool = False
    # It does because what follows cannot be read.
    is_unreadable: bool = False
    # What its messages weigh until they are sent.
    held_bytes: int = 0
    # Its lease is one of several in the partition.
    is_shared: bool = False

    @property
    def shown(self) -> int:
        """How many messages are delivered."""
        count = self.stop - self.start
        return count - (self.skip & ((1 << count) - 1)).bit_count() if self.skip else count

    @property
    def read_to(self) -> int:
        return self.stored[-1].end_offset if self.stored else self.start

    def cut(self) -> None:
        """Let it end where it was read to."""
        self.stop = self.read_to
        self.is_cut = True

    def attempt_of(self, offset: int) -> int:
        """Return the how-manyth delivery of a message this is, as far as it is known."""
        attempt = self.failures.get(offset, 0) + 1
        if offset == self.start or offset < self.seen:
            return max(attempt, self.attempt)
        return attempt


class Pop:
    """One pop request while it waits for messages."""

    __slots__ = (
        "auto_ack",
        "batch",
        "busy",
        "consumer",
        "done",
        "error",
        "feeds",
        "group",
        "is_framed",
        "named",
        "namespaces",
        "over",
        "partitions",
        "shared",
        "subscription",
        "told",
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
        consumer: str | None = None,
        shared: bool | None = None,
    ) -> None:
        self.group = group
        # The name by which the consumer wants to be known.
        self.consumer = consumer
        self.batch = batch
        self.partitions = partitions
        self.auto_ack = auto_ack
        self.waits = waits
        # The partition asked for, None for any.
        self.named = named
        self.subscription = subscription
        # Whether its group is to be shared; None leaves it as it is.
        self.shared = shared
        # The only namespaces it may be served from; None means all.
        self.namespaces: frozenset[str] | None = None
        # It is answered with stored segments, and acked by offsets.
        self.is_framed = False
        self.feeds: list[Feed] = []
        # Its time is over, or the server stops: whatever comes now is its answer.
        self.over = False
        # A claim for this pop is on its way.
        self.busy = False
        # What went wrong with a partition; told when nothing else can be given.
        self.error: QueenError | None = None
        # Whoever looks for candidates wants to know when there is none left to try.
        self.turn: asyncio.Future[None] | None = None
        self.done: asyncio.Future[list[Grant]] = asyncio.get_running_loop().create_future()
        # Is called when it is done; see `then`.
        self.told: Callable[[], object] | None = None

    def then(self, told: Callable[[], object]) -> None:
        """Have something called, once, when it is done and the event loop is free."""
        self.told = told
        self.done.add_done_callback(lambda _: self.tell())

    def tell(self) -> None:
        """Call it now, if it is done and that did not happen yet."""
        told, self.told = self.told, None
        if told is not None:
            told()

    def answer_empty(self) -> None:
        """Wait no longer: answer with nothing, or with what a claim under way brings."""
        self.waits = False
        self.over = True
        if not self.busy:
            self.finish([])

    def finish(self, grants: list[Grant]) -> None:
        """Answer the pop, once. It leaves its feeds first: nothing may be claimed for it now."""
        if not grants and self.error is not None:
            self.fail(self.error)
            return
        for feed in self.feeds:
            feed.unpark(self)
        if not self.done.done():
            self.done.set_result(grants)
        self.end_turn()

    def fail(self, error: QueenError) -> None:
        for feed in self.feeds:
            feed.unpark(self)
        if not self.done.done():
            self.done.set_exception(error)
        self.end_turn()

    def end_turn(self) -> None:
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)


class Feed:
    """Ready partitions and waiting pops of one group in one queue."""

    __slots__ = (
        "_named_ready",
        "_older",
        "_position",
        "_ready",
        "begins_at",
        "claiming",
        "generation",
        "group",
        "group_id",
        "held",
        "is_shared",
        "leased",
        "named",
        "paused_until",
        "pops",
        "queue",
        "said",
        "sweep_after",
        "swept_at",
        "used_at",
        "waiters",
        "waits_for_room",
    )

    def __init__(
        self, queue: Queue, group: str, group_id: int, begins_at: datetime | None = None
    ) -> None:
        self.queue = queue
        self.group = group
        self.group_id = group_id
        # Of a group that was just made and reads nothing from before: it need not sweep.
        self.begins_at = begins_at
        # Many hold a partition at once. A hint as well: the claim finds out.
        self.is_shared = queue.options.shared_groups
        # What pops have said of that, and the database knows.
        self.said: bool | None = None
        # Counts how often all that was believed turned out to be void.
        self.generation = 0
        self._ready: OrderedDict[int, Partition] = OrderedDict()
        # Ready partitions that a pop asks for by name; it comes before those that take any.
        self._named_ready: deque[Partition] = deque()
        # How far this group has got, as far as this server knows: leased or done.
        self._position: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self.claiming: set[int] = set()
        self.leased: dict[int, uuid.UUID] = {}
        # Partitions that other servers have leased, as far as this one knows.
        self.held: dict[int, Partition] = {}
        # Every pop that is here, parked or with a claim on its way.
        self.pops: set[Pop] = set()
        self.waiters: OrderedDict[Pop, None] = OrderedDict()
        self.named: dict[str, OrderedDict[Pop, None]] = {}
        # The group is paused; asked again after this instant, or when it is resumed.
        self.paused_until = 0.0
        # It is left alone because as much is on leases as may be.
        self.waits_for_room = False
        # Where the sweep goes on; None when it has come round.
        self.sweep_after: int | None = 0
        self.swept_at = time.monotonic()
        self.used_at = self.swept_at

    # ---- partitions ----

    @property
    def is_new(self) -> bool:
        """Whether the sweep has not looked at it at all."""
        return self.sweep_after == 0

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def is_paused(self, now: float) -> bool:
        """Whether the group is left alone for a while."""
        return self.paused_until > now

    def offer(self, partition: Partition) -> None:
        """Say that a partition reaches as far as its head now says."""
        if partition.head > self.position_of(partition):
            self.offer_again(partition)

    def position_of(self, partition: Partition) -> int:
        """Return how far the group has got in a partition, as far as this server knows."""
        position = self._position.get(partition.id)
        return self._older.get(partition.id, _UNREAD) if position is None else position

    def offer_again(self, partition: Partition, *, first: bool = False) -> None:
        """Put a partition among the ready ones, unless somebody is at work in it."""
        if (
            partition.id in self._ready
            or partition.id in self.leased
            or partition.id in self.claiming
        ):
            return
        self._ready[partition.id] = partition
        if first:
            self._ready.move_to_end(partition.id, last=False)
        if partition.name in self.named:
            self._named_ready.append(partition)

    def take(self, limit: int) -> list[Partition]:
        """Take the next ready partitions; each stands for one claim from now on."""
        taken: list[Partition] = []
        while self._ready and len(taken) < limit:
            _, partition = self._ready.popitem(last=False)
            self.claiming.add(partition.id)
            taken.append(partition)
        if not self._ready:
            # A new one: it keeps the memory of all that it ever had at one time.
            self._ready = OrderedDict()
        return taken

    def take_named(self) -> tuple[Pop, Partition] | None:
        """Take a ready partition that a pop asks for by name."""
        while self._named_ready:
            partition = self._named_ready.popleft()
            waiting = self.named.get(partition.name)
            if waiting and self._ready.pop(partition.id, None) is not None:
                self.claiming.add(partition.id)
                return next(iter(waiting)), partition
        return None

    def set_position(self, partition: Partition, position: int) -> None:
        """Note how far the group has got there: no other server holds it any more."""
        self._position[partition.id] = position
        if len(self._position) > _POSITIONS:
            self._older, self._position = self._position, {}
        self.held.pop(partition.id, None)

    def note_grant(self, partition: Partition, lease_id: uuid.UUID, batch_end: int) -> None:
        self.leased[partition.id] = lease_id
        self.set_position(partition, batch_end)

    def note_shared_grant(self, partition: Partition, handed: int) -> None:
        """Somebody holds messages before an offset; what lies behind it is for the next pop."""
        self.set_position(partition, handed)
        self.held[partition.id] = partition
        if partition.head > handed:
            self.offer_again(partition, first=True)

    def turn(self, *, is_shared: bool) -> None:
        """The group is of the other kind from now on: who holds what is found out by claims."""
        if self.is_shared != is_shared:
            self.is_shared = is_shared
            self.leased.clear()

    def lease_ended(
        self,
        partition: Partition,
        lease_id: uuid.UUID | None,
        committed: int,
        *,
        offer: bool = True,
    ) -> bool:
        """Forget a lease; return whether the partition has more."""
        if self.is_shared:
            position = self.position_of(partition)
            if offer and partition.head > position:
                self.offer_again(partition)
            return not offer or partition.head > position
        ours = self.leased.get(partition.id)
        if ours is not None and lease_id is not None and ours != lease_id:
            return False
        self.leased.pop(partition.id, None)
        self.set_position(partition, committed)
        if partition.head <= committed:
            return False
        if offer:
            self.offer_again(partition)
        return True

    def reset(self) -> None:
        """Believe nothing: the group was moved and its leases have ended."""
        self.generation += 1
        self._position.clear()
        self._older.clear()
        self.leased.clear()
        self.held.clear()

    def look_again(self) -> None:
        """Let the sweep begin anew; partitions that somebody waits for by name come first."""
        self.sweep_after = 0
        self.begins_at = None
        for name in self.named:
            partition = self.queue.partitions.get(name)
            if partition is not None:
                self.offer_again(partition)

    def forget(self, partition_id: int) -> None:
        self._position.pop(partition_id, None)
        self._older.pop(partition_id, None)
        self.leased.pop(partition_id, None)
        self.held.pop(partition_id, None)

    # ---- pops ----

    def park(self, pop: Pop, *, first: bool = False) -> None:
        if pop.named is None:
            queue = self.waiters
        else:
            queue = self.named.setdefault(pop.named, OrderedDict())
            partition = self.queue.partitions.get(pop.named)
            if partition is not None and partition.id in self._ready:
                self._named_ready.append(partition)
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

    def waiter_for(self, partition: Partition) -> Pop | None:
        """Return who waits the longest for a partition: by its name, or else for any."""
        waiters = self.named.get(partition.name) or self.waiters
        return next(iter(waiters), None)

    @property
    def waiting(self) -> int:
        """How many polls wait."""
        return len(self.waiters) + sum(map(len, self.named.values()))

    @property
    def has_waiters(self) -> bool:
        return bool(self.waiters or self.named)
