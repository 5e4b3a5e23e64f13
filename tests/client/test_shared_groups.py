"""Shared groups through the client: workers of one consumer side by side on one partition."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter

import pytest

from queen import Queen, Received
from queen.client.queues.one_partition import OnePartition
from queen.client.sync import SyncQueen
from queen.testing import expect
from tests.waiting import spend, spend_async

WARNING = ".shared()"
SLOW_S = 0.3


async def test_eight_workers_work_at_once_on_one_partition(queen: Queen, queue: str) -> None:
    """Sixteen jobs of a second take about two: each of eight waits until all eight have begun."""
    await queen.queue(queue).push([{"n": n} for n in range(16)])
    meet = asyncio.Barrier(8)
    done: list[int] = []

    async def handle(message: Received) -> None:
        async with asyncio.timeout(60):
            await meet.wait()
        # Of quick ones a worker would take several at once.
        await spend_async(SLOW_S)
        done.append(message.data["n"])

    jobs = queen.queue(queue).group("workers").shared().concurrency(8).limit(16)
    consumer = await jobs.consume(handle, signals=False)
    assert sorted(done) == list(range(16))
    assert (consumer.handled, consumer.failed) == (16, 0)
    await expect(queen, queue).to_be_empty(group="workers")


def test_the_same_without_asyncio(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).push([{"n": n} for n in range(8)])
    meet = threading.Barrier(4, timeout=60)
    done: list[int] = []

    def handle(message: object) -> None:
        meet.wait()
        spend(SLOW_S)
        done.append(message.data["n"])  # type: ignore[attr-defined]

    jobs = sync_queen.queue(queue).group("workers").shared().concurrency(4).limit(8)
    jobs.consume(handle)
    assert sorted(done) == list(range(8))


async def test_a_job_that_fails_or_is_slow_holds_up_no_other(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_delay=3_600_000).create()
    await queen.queue(queue).push([{"n": n} for n in range(30)])
    others = asyncio.Event()
    done: list[int] = []

    async def handle(message: Received) -> None:
        if message.data["n"] == 0:
            # As long as all others take.
            await others.wait()
        if message.data["n"] == 1:
            raise ValueError("no")
        done.append(message.data["n"])
        if len(done) == 28:
            others.set()

    jobs = queen.queue(queue).group("workers").shared().concurrency(2).limit(30)
    async with asyncio.timeout(60):
        consumer = await jobs.consume(handle, signals=False)
    assert sorted(done) == [0, *range(2, 30)]
    assert done[-1] == 0
    assert consumer.failed == 1


async def test_a_group_is_shared_by_whom_the_admin_says(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([{"n": n} for n in range(4)])
    ordered = queen.queue(queue).group("workers").partition("Default").wait(0)
    path = f"/api/v1/pop/queue/{queue}/partition/Default?consumerGroup=workers"
    first = (await queen.request("GET", path))["messages"]
    assert len(first) == 1
    assert (await queen.admin.share("workers", queue))["shared"] is True
    assert [one.data["n"] for one in await ordered.pop()] == [1]
    assert (await queen.admin.order("workers", queue))["shared"] is False


async def test_every_message_is_handled_once_by_quick_workers(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([{"n": n} for n in range(2000)])
    seen: Counter[int] = Counter()

    async def handle(message: Received) -> None:
        seen[message.data["n"]] += 1

    jobs = queen.queue(queue).group("workers").shared().concurrency(4).limit(2000)
    await jobs.consume(handle, signals=False)
    assert seen == Counter(range(2000))
    await expect(queen, queue).to_be_empty(group="workers")


# ---- the warning ----


def test_one_busy_worker_on_one_partition_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = OnePartition(8, "jobs group='workers'")
    with caplog.at_level(logging.WARNING, "queen.client"):
        for second in range(10):
            watched.end(watched.begin("Default", second), second + 0.99)
    (record,) = caplog.records
    assert WARNING in record.getMessage()
    assert "'Default'" in record.getMessage() and "several partitions" in record.getMessage()


@pytest.mark.parametrize("reason", ["alone", "idle", "spread", "overlap", "brief"])
def test_nobody_is_told_without_a_reason(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    watched = OnePartition(1 if reason == "alone" else 8, "jobs")
    works_s = 0.5 if reason == "idle" else 0.99
    unit_s = 0.01 if reason == "brief" else 1.0
    with caplog.at_level(logging.WARNING, "queen.client"):
        for number in range(10):
            began = number * unit_s
            partition = f"p{number % 2}" if reason == "spread" else "Default"
            workers = 3 if reason == "overlap" else 1
            for _ in range(workers):
                watched.begin(partition, began)
            for _ in range(workers):
                watched.end(began, began + works_s * unit_s)
    assert caplog.records == []


@pytest.mark.parametrize("shared", [False, True], ids=["ordered", "shared"])
async def test_a_consumer_warns_that_order_keeps_its_workers_idle(
    queen: Queen, queue: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await queen.queue(queue).push([{"n": n} for n in range(6)])

    async def handle(_message: Received) -> None:
        await spend_async(0.4)

    jobs = queen.queue(queue).group("workers").concurrency(4).limit(6)
    with caplog.at_level(logging.WARNING, "queen.client"):
        await (jobs.shared() if shared else jobs).consume(handle, signals=False)
    told = [record for record in caplog.records if WARNING in record.getMessage()]
    assert len(told) == (0 if shared else 1)
