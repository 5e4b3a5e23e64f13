"""Timers of leases: as many as leases live, not as there were pops."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator

import pytest

from queen.core.options import QueueOptions
from queen.service.catalog import Partition, Queue
from queen.service.consume import timers as timers_module
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.feeds import Feed
from queen.service.consume.lease_book import LeaseBook
from queen.service.events import Events
from tests.waiting import PATIENCE_S

PARTITIONS = 50
HOUR_MS = 3_600_000
# A pop and its ack, a scaled hour of them.
POPS = 200_000
# What may be left beside the live ones.
FEW = 2 * timers_module._FEW


class Group:
    """A feed of fifty partitions and the dispatcher it belongs to."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(LeaseBook(), Events())
        self.queue = Queue(1, "q", "", "", QueueOptions())
        self.feed = Feed(self.queue, "g", 1)
        self.dispatcher.add(self.feed)
        self.partitions = [Partition(n, self.queue, f"p{n}", 0) for n in range(PARTITIONS)]
        for partition in self.partitions:
            partition.saw_head(10)

    def grant(self, partition: Partition, ms: int = HOUR_MS) -> uuid.UUID:
        lease_id = uuid.uuid4()
        self.feed.note_grant(partition, lease_id, 10)
        self.dispatcher.set_timer(self.feed, partition, lease_id, ms)
        return lease_id

    def ack(self, partition: Partition, lease_id: uuid.UUID, committed: int = 10) -> None:
        self.dispatcher.lease_ended(partition, "g", lease_id, committed)

    def ready(self) -> list[str]:
        return [partition.name for partition in self.feed.take(PARTITIONS)]


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, which stands until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    yield now


def test_leases_that_ended_leave_no_timers(group: Group) -> None:
    most = 0
    for number in range(POPS):
        partition = group.partitions[number % PARTITIONS]
        group.ack(partition, group.grant(partition))
        most = max(most, len(group.dispatcher.timers))
    assert most <= PARTITIONS + FEW
    # Whatever is left of them goes with the first that are set anew.
    for partition in group.partitions:
        group.grant(partition)
    assert len(group.dispatcher.timers) <= 2 * PARTITIONS + FEW


def test_a_lease_that_is_extended_again_and_again_has_one_timer(group: Group) -> None:
    (partition, *_) = group.partitions
    lease_id = group.grant(partition)
    for _ in range(POPS // 10):
        group.dispatcher.set_timer(group.feed, partition, lease_id, HOUR_MS)
    assert len(group.dispatcher.timers) <= 1 + FEW


def test_partitions_that_others_hold_have_one_timer_each(group: Group) -> None:
    for number in range(POPS // 10):
        partition = group.partitions[number % PARTITIONS]
        group.dispatcher.set_timer(group.feed, partition, None, HOUR_MS)
    assert len(group.dispatcher.timers) <= 2 * PARTITIONS + FEW


def test_a_lease_that_lapses_offers_its_partition(group: Group, clock: list[float]) -> None:
    first, second, *_ = group.partitions
    group.grant(first, 1000)
    lease_id = group.grant(second, 1000)
    group.dispatcher.set_timer(group.feed, second, lease_id, 5000)
    clock[0] += 2
    group.dispatcher.ring()
    assert group.ready() == [first.name]
    clock[0] += 4
    group.dispatcher.ring()
    assert group.ready() == [second.name]


def test_the_timer_of_a_lease_that_was_acked_does_not_end_the_next(
    group: Group, clock: list[float]
) -> None:
    (partition, *_) = group.partitions
    group.ack(partition, group.grant(partition, 1000))
    group.grant(partition, 10_000)
    clock[0] += 2
    group.dispatcher.ring()
    assert group.ready() == []
    assert partition.id in group.feed.leased


def test_what_others_extend_is_looked_at_when_it_ends(group: Group, clock: list[float]) -> None:
    (partition, *_) = group.partitions
    group.dispatcher.set_timer(group.feed, partition, None, 1000)
    # The lease of another server is extended through this one.
    group.dispatcher.set_timer(group.feed, partition, uuid.uuid4(), 5000)
    clock[0] += 6
    group.dispatcher.ring()
    assert group.ready() == [partition.name]


def test_a_group_that_is_gone_leaves_no_timers(group: Group) -> None:
    for partition in group.partitions:
        group.grant(partition)
    assert len(group.dispatcher.timers) == PARTITIONS
    group.dispatcher.remove(group.feed)
    other = Feed(group.queue, "h", 2)
    for _ in range(FEW):
        group.dispatcher.set_timer(other, group.partitions[0], None, HOUR_MS)
    assert len(group.dispatcher.timers) <= FEW


async def test_nobody_wakes_before_a_timer_is_due(group: Group) -> None:
    timers = group.dispatcher.timers
    waiting = asyncio.create_task(timers.wait_until_due())
    late, early = group.partitions[:2]
    await turns_of_the_loop()
    assert not waiting.done()

    group.grant(late)
    # The first of all: it is known from here on when to wake.
    await asyncio.wait_for(waiting, PATIENCE_S)
    waiting = asyncio.create_task(timers.wait_until_due())
    group.grant(early, 2 * HOUR_MS)
    await turns_of_the_loop()
    assert not waiting.done()

    group.grant(early, 1)
    await asyncio.wait_for(waiting, PATIENCE_S)
    await asyncio.wait_for(timers.wait_until_due(), PATIENCE_S)
    group.dispatcher.ring()
    assert group.ready() == [early.name]


async def turns_of_the_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
