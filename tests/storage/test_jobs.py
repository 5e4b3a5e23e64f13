"""Jobs end with their server, whatever they are doing."""

from __future__ import annotations

import asyncio

from queen.service.upkeep.jobs import Jobs
from queen.storage.database import Database, Transaction


async def test_a_job_that_was_just_woken_can_be_ended(database: Database) -> None:
    ran = asyncio.Event()

    async def work(_transaction: Transaction) -> bool:
        ran.set()
        return False

    jobs = Jobs(database)
    jobs.add("a job of the tests", 1000.0, work)
    running = asyncio.create_task(jobs.run())
    await ran.wait()
    # Its round is over when its lock is free; then it waits for the next.
    async with database.transaction() as transaction:
        while not await transaction.fetchval("try_job", "a job of the tests"):
            pass
    for _ in range(3):
        await database.fetchval("now")
    jobs.wake("a job of the tests")
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=5)
    assert done and running.cancelled()
