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


# ---- batches, taken ahead ----


async def test_quick_batches_are_taken_ahead_and_handled_one_at_a_time(
    queen: Queen, queue: str
) -> None:
    await _fill(queen, queue, 1, 300)
    seen: list[list[int]] = []
    epochs: set[int] = set()
    running = 0

    async def handle(batch: list[Received]) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append([one.offset for one in batch])
        epochs.add(batch[0].epoch)
        running -= 1

    consumer = queen.queue(queue).group("g").batch(10).limit(295).consume(handle, signals=False)
    await consumer
    assert seen == [list(range(at, min(at + 10, 295))) for at in range(0, 295, 10)]
    assert (consumer.received, consumer.handled, consumer.failed) == (295, 295, 0)
    # Far fewer leases than batches.
    assert len(epochs) < 15
    (following,) = await queen.queue(queue).group("g").pop()
    assert (following.offset, following.attempt) == (295, 1)


@pytest.mark.parametrize("by", ["raising", "nacking"])
async def test_a_batch_that_fails_comes_again_before_those_taken_with_it(
    queen: Queen, queue: str, by: str
) -> None:
    await queen.queue(queue).config(retryLimit=5, retryDelay=0).create()
    await _fill(queen, queue, 1, 200)
    seen: list[tuple[int, int]] = []

    async def handle(batch: list[Received]) -> None:
        seen.extend((one.offset, one.attempt) for one in batch)
        if batch[-1].offset == 149 and batch[-1].attempt == 1:
            if by == "raising":
                raise ValueError("not yet")
            await batch[-1].nack("not yet")

    again = 10 if by == "raising" else 1
    wanted = queen.queue(queue).group("g").batch(10).limit(200 + again)
    consumer = await wanted.consume(handle, signals=False)
    repeated = [(offset, 2) for offset in range(150 - again, 150)]
    firsts = [(offset, 1) for offset in range(200)]
    assert seen == firsts[:150] + repeated + firsts[150:]
    assert (consumer.received, consumer.failed) == (200 + again, 10 if by == "raising" else 0)
    await expect(queen, queue).to_be_empty(group="g")


async def test_a_stop_gives_back_the_batches_that_were_taken_ahead(
    queen: Queen, queue: str
) -> None:
    await _fill(queen, queue, 1, 400)
    seen: list[int] = []

    async def handle(batch: list[Received]) -> None:
        seen.extend(one.offset for one in batch)
        if len(seen) == 150:
            consumer.stop()

    consumer = queen.queue(queue).group("g").batch(10).consume(handle, signals=False)
    await consumer
    assert seen == list(range(150))
    assert consumer.received == consumer.handled == 150
    (following,) = await queen.queue(queue).group("g").pop()
    assert (following.offset, following.attempt) == (150, 1)


async def test_whoever_acks_by_hand_gets_no_more_than_one_batch_at_a_time(
    queen: Queen, queue: str
) -> None:
    await _fill(queen, queue, 1, 60)
    epochs: list[int] = []

    async def handle(batch: list[Received]) -> None:
        epochs.append(batch[0].epoch)
        await queen.ack(batch)

    wanted = queen.queue(queue).group("g").auto_ack(False).batch(10).limit(60)
    await wanted.consume(handle, signals=False)
    assert len(set(epochs)) == 6


async def test_with_each_a_failure_holds_up_nothing_that_was_taken_ahead(
    queen: Queen, queue: str
) -> None:
    await queen.queue(queue).config(retryLimit=5, retryDelay=0).create()
    await _fill(queen, queue, 1, 200)
    seen: list[tuple[int, int]] = []
    epochs: set[int] = set()

    async def handle(message: Received) -> None:
        seen.append((message.offset, message.attempt))
        epochs.add(message.epoch)
        if message.offset % 50 == 49 and message.attempt == 1:
            raise ValueError("not yet")

    wanted = queen.queue(queue).group("g").each().batch(5).limit(204)
    consumer = await wanted.consume(handle, signals=False)
    assert [offset for offset, attempt in seen if attempt == 1] == list(range(200))
    assert [one for one in seen if one[1] > 1] == [(offset, 2) for offset in range(49, 200, 50)]
    assert (consumer.handled, consumer.failed) == (200, 4)
    assert len(epochs) < 40
    await expect(queen, queue).to_be_empty(group="g")


async def test_a_batch_of_one_is_taken_alone(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 1, 20)
    epochs: list[int] = []

    async def handle(message: Received) -> None:
        epochs.append(message.epoch)

    await queen.queue(queue).group("g").batch(1).limit(20).consume(handle, signals=False)
    assert len(set(epochs)) == 20
