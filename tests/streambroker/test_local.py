"""Streams in memory: limits that hold, and threads that share them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from queen.errors import BadRequest, Unreachable
from queen.streambroker import Capability, LocalStreamBroker
from tests.streambroker.test_originals import ids_of, wait_for_consumer


async def test_a_stream_is_no_longer_than_it_may_be() -> None:
    async with LocalStreamBroker() as broker:
        assert Capability.BOUNDED in broker.capabilities
        added = [await broker.xadd("s", number) for number in range(10_050)]
        assert await broker.xlen("s") == 10_000
        assert ids_of(await broker.xrange("s", count=1)) == [added[50]]


async def test_a_consumer_at_its_limit_gets_no_more_until_it_acks() -> None:
    async with LocalStreamBroker(max_pending_messages=10) as broker:
        await broker.create_group("s", "g")
        added = [await broker.xadd("s", number) for number in range(25)]
        assert ids_of(await broker.xreadgroup("g", "a", "s", 100)) == added[:10]
        assert await broker.xreadgroup("g", "a", "s", 100) == []
        # Others have a limit of their own.
        assert ids_of(await broker.xreadgroup("g", "b", "s", 0)) == added[10:20]
        await broker.xack("s", "g", added[:3])
        assert ids_of(await broker.xreadgroup("g", "a", "s", 100)) == added[20:23]


async def test_a_consumer_at_its_limit_waits_until_it_acks() -> None:
    async with LocalStreamBroker(max_pending_messages=2) as broker:
        await broker.create_group("s", "g")
        added = [await broker.xadd("s", number) for number in range(3)]
        await broker.xreadgroup("g", "a", "s", 2)
        reading = asyncio.create_task(broker.xreadgroup("g", "a", "s", 1, None))
        await asyncio.wait([reading], timeout=0.05)
        assert not reading.done()
        await broker.xack("s", "g", added[:1])
        assert ids_of(await reading) == added[2:]


async def test_the_default_limit_of_pending_entries_is_a_thousand() -> None:
    async with LocalStreamBroker() as broker:
        await broker.create_group("s", "g")
        for number in range(1_500):
            await broker.xadd("s", number)
        assert len(await broker.xreadgroup("g", "a", "s", 3_000)) == 1_000
        assert len(await broker.xpending("s", "g")) == 1_000


@pytest.mark.parametrize("name", ["max_stream_length", "max_pending_messages"])
def test_limits_are_numbers(name: str) -> None:
    for wrong in (0, -1, True):
        with pytest.raises(BadRequest, match=name):
            LocalStreamBroker(**{name: wrong})


async def test_two_brokers_do_not_share_streams() -> None:
    async with LocalStreamBroker() as first, LocalStreamBroker() as second:
        await first.xadd("s", 1)
        assert await second.xlen("s") == 0


async def test_threads_with_loops_of_their_own_share_a_group() -> None:
    broker = LocalStreamBroker()
    await broker.create_group("s", "g")
    done: list[str] = []
    failed: list[BaseException] = []

    def work(consumer: str) -> None:
        async def consume() -> None:
            while messages := await broker.xreadgroup("g", consumer, "s", 5, 1_000):
                done.extend(ids_of(messages))
                await broker.xack("s", "g", ids_of(messages))

        try:
            asyncio.run(consume())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    added = [await broker.xadd("s", number) for number in range(400)]
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert failed == []
    assert Counter(done) == Counter(added)
    await broker.close()


async def test_those_who_wait_are_told_that_it_is_closed() -> None:
    broker = LocalStreamBroker()
    await broker.create_group("s", "g")
    reading = asyncio.create_task(broker.xreadgroup("g", "c", "s", 1, None))
    await wait_for_consumer(broker, "s", "g", "c")
    await broker.close()
    for call in (reading, broker.xlen("s")):
        with pytest.raises(Unreachable, match="closed"):
            await call
