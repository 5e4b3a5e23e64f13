"""A consumer acks one batch while it fetches the next, and runs no more handlers for it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from queen import Queen, Received
from queen.testing import expect


async def _fill(queen: Queen, queue: str, partitions: int, each: int) -> None:
    for number in range(partitions):
        await queen.queue(queue).partition(f"p{number}").push([{"n": n} for n in range(each)])


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_handlers_run_at_once_than_were_asked_for(
    queen: Queen, queue: str, concurrency: int
) -> None:
    await _fill(queen, queue, 10, 20)
    running = most = 0
    all_run = asyncio.Event()
    seen: Counter[tuple[str, int]] = Counter()

    async def handle(batch: list[Received]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == concurrency:
            all_run.set()
        await all_run.wait()
        await asyncio.sleep(0)
        seen.update((one.partition, one.offset) for one in batch)
        running -= 1

    wanted = queen.queue(queue).group("g").batch(5).concurrency(concurrency).limit(200)
    consumer = await wanted.consume(handle, signals=False)
    assert most == concurrency
    assert seen == Counter((f"p{p}", n) for p in range(10) for n in range(20))
    assert consumer.handled == consumer.received == 200
    await expect(queen, queue).to_be_empty(group="g")


async def test_nothing_is_leased_that_no_handler_is_free_for(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 3, 1)
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_message: Received) -> None:
        entered.set()
        await go_on.wait()

    consumer = queen.queue(queue).group("g").limit(3).consume(handle, signals=False)
    running = asyncio.create_task(consumer.run())
    await entered.wait()
    # Whatever the other worker might ask for would be answered before this.
    for _ in range(5):
        await queen.admin.health()
    assert consumer.received == 1
    go_on.set()
    await running
    await expect(queen, queue).to_be_empty(group="g")


async def test_one_partition_stays_in_order(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 1, 100)
    seen: list[int] = []

    async def handle(message: Received) -> None:
        seen.append(message.offset)

    wanted = queen.queue(queue).group("g").each().batch(3).concurrency(4).limit(100)
    await wanted.consume(handle, signals=False)
    assert seen == list(range(100))


async def test_a_stop_settles_what_was_handled_and_gives_the_rest_back(
    queen: Queen, queue: str
) -> None:
    await _fill(queen, queue, 4, 50)
    seen: Counter[tuple[str, int]] = Counter()

    async def handle(message: Received) -> None:
        seen[message.partition, message.offset] += 1
        await asyncio.sleep(0)
        if sum(seen.values()) == 75:
            first.stop()

    wanted = queen.queue(queue).group("g").each().batch(20).concurrency(2)
    first = wanted.consume(handle, signals=False)
    await first
    assert sum(seen.values()) < 200
    await wanted.limit(200 - sum(seen.values())).consume(handle, signals=False)
    assert seen == Counter((f"p{p}", n) for p in range(4) for n in range(50))
    await expect(queen, queue).to_be_empty(group="g")


async def test_idle_counts_for_the_whole_consumer(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 1, 10)
    handled: list[Received] = []
    wanted = queen.queue(queue).group("g").concurrency(3).idle(0.3)
    await wanted.consume(handled.append, signals=False)
    assert len(handled) == 10
