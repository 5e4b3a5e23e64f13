"""Looks: what was pushed before a pop began is seen by it, on every server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from queen.core.cursor import AckStatus
from queen.core.options import QueueOptions
from queen.service.acks.ack_batch import AckBatch
from queen.service.broker import Broker, Limits
from queen.service.consume import sweeper
from queen.service.consume.feeds import Grant, Pop
from queen.service.log.append import Append
from queen.service.signals import Signals
from queen.storage.database import session_settings
from tests.waiting import until_async


@pytest.fixture
async def brokers(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Broker]]:
    """Two servers that tell each other nothing."""
    monkeypatch.setattr(Signals, "written", lambda *_: None)
    monkeypatch.setattr(sweeper, "_NET_INTERVAL_S", 3600)
    limits = Limits(dedup_hashes=100_000, connections=4)
    started = [await Broker.start(dsn, limits) for _ in range(2)]
    yield started
    for broker in started:
        await broker.stop()


async def _queue(broker: Broker) -> str:
    name = f"look-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions())
    return name


async def _pop(broker: Broker, name: str, *, wait_s: float = 0) -> list[Grant]:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    pop = Pop("g", 100, auto_ack=True, waits=wait_s > 0)
    return await broker.popper.pop([queue], pop, wait_s)


async def test_a_push_is_seen_by_the_very_next_pop_beside_others_that_look(
    brokers: list[Broker],
) -> None:
    one, other = brokers
    name = await _queue(one)
    stop = asyncio.Event()

    async def look() -> None:
        queue = await other.catalog.queue(name)
        assert queue is not None
        while not stop.is_set():
            await other.sweeper.look([queue])

    looking = [asyncio.create_task(look()) for _ in range(4)]
    for n in range(300):
        await one.pusher.push([Append(name, f"{n % 10}", [f"{n}".encode()], [b"1"], 100)])
        assert sum(grant.shown for grant in await _pop(other, name)) == 1, n
    stop.set()
    await asyncio.gather(*looking)


async def test_a_commit_that_takes_long_is_seen_when_it_is_done(
    brokers: list[Broker], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages carry the time of their writing, and looks went by meanwhile."""
    monkeypatch.setattr(sweeper, "_MARGIN", timedelta())
    one, other = brokers
    name = await _queue(one)
    await one.pusher.push([Append(name, "p", [b"0"], [b"1"], 100)])
    assert len(await _pop(other, name)) == 1
    queue = await one.catalog.queue(name)
    assert queue is not None
    partition = queue.partitions["p"]
    slow = await asyncpg.connect(dsn, server_settings=session_settings())
    async with slow.transaction():
        await slow.fetch(
            "select * from queen.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            [queue.id], [partition.id], [1], [None], [False], [1], [0], [1], [0], [None], [b""],
        )  # fmt: skip
        for _ in range(5):
            assert await _pop(other, name) == []
    await slow.close()
    await other.sweeper.look([queue])
    feed = other.dispatcher.feed(queue.id, "g")
    assert feed is not None and feed.has_ready


def test_a_clock_that_was_set_back_hides_nothing() -> None:
    before = datetime(2030, 1, 1, 12, tzinfo=UTC)
    last = sweeper.Horizon(before, before, 100.0)
    set_back = before - timedelta(hours=1)
    # Three seconds later, and two of them were written by the new clock.
    since = sweeper.Horizon(set_back, set_back, 103.0).reaching_back_to(last)
    assert since <= set_back - timedelta(seconds=3)


async def test_a_lease_that_ended_elsewhere_hides_nothing_from_the_very_next_pop(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was granted here and acked there, and nobody has told us yet."""
    one, other = brokers
    monkeypatch.setattr(other.wakeups, "released_elsewhere", lambda *_: None)
    name = await _queue(one)
    appends = [Append(name, f"{n}", [b"a", b"b"], [b"1", b"2"], 100) for n in range(8)]
    await one.pusher.push(appends)
    queue = await other.catalog.queue(name)
    assert queue is not None
    for _ in range(8):
        (grant,) = await other.popper.pop([queue], Pop("g", 1), 0)
        group_id = await one.catalog.find_group(queue, "g")
        assert group_id is not None
        partition = (await one.catalog.partitions([grant.partition.id]))[grant.partition.id]
        statuses = {"a": AckStatus.DONE}
        await one.acker.ack([AckBatch(partition, "g", group_id, grant.lease_id, statuses)])
    seen = [await other.popper.pop([queue], Pop("g", 1), 0) for _ in range(8)]
    assert sorted(grant.partition.name for (grant,) in seen) == [f"{n}" for n in range(8)]


async def test_a_poll_ends_when_another_server_deletes_its_queue(brokers: list[Broker]) -> None:
    one, other = brokers
    name = await _queue(one)
    waiting = asyncio.create_task(_pop(other, name, wait_s=30))
    await until_async(lambda: _are_parked(other, 1))
    assert await one.queues.delete(name)
    async with asyncio.timeout(10):
        assert await waiting == []
    # Whoever comes back finds the queue that has its name now.
    await one.pusher.push([Append(name, "p", [b"0"], [b"1"], 100)])
    assert len(await _pop(other, name)) == 1


async def _are_parked(broker: Broker, count: int) -> bool:
    return broker.popper.parked_count == count
