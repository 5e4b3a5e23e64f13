"""Tasks in a user's tests: at once, and with a broker and its clock."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from queen import Queen, SyncQueen
from queen.errors import JobFailed
from queen.testing import Clock, eager, run_jobs


@dataclass
class Order:
    number: int


async def test_eager_jobs_are_done_before_they_are_returned() -> None:
    async with Queen("http://127.0.0.1:9") as queen:
        jobs = queen.queue("jobs")

        @jobs.task
        async def bill(order: Order) -> Order:
            # It travels as JSON, also here.
            return Order(order.number + 1)

        @jobs.task
        def fail() -> None:
            raise ValueError("no")

        with eager(queen) as done:
            job = await bill.delay(Order(1))
            assert await job.result() == Order(2)
            assert (await job.status()).state == "done"
            failed = await fail.after(600)
            with pytest.raises(JobFailed, match="ValueError: no"):
                await failed.result()
            assert not await failed.cancel()
        assert [made.id for made in done.jobs] == [job.id, failed.id]
        assert queen.eager_jobs is None


def test_eager_jobs_without_asyncio() -> None:
    with SyncQueen("http://127.0.0.1:9") as queen:
        double = queen.queue("jobs").task(name="double")(lambda n: 2 * n)
        with eager(queen):
            assert double.delay(4).result() == 8


async def test_jobs_are_run_until_none_is_left(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    done: list[int] = []
    task = queen.queue(queue_name).task(name="t")(done.append)
    for number in range(5):
        await task.delay(number)
    await task.after(600, 5)
    assert await run_jobs(queen) == 5
    await queen_clock.advance(601, queue=queue_name)
    assert await run_jobs(queen) == 1
    assert sorted(done) == [0, 1, 2, 3, 4, 5]
