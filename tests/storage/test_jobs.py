"""Jobs end with their server, whatever they are doing."""

from __future__ import annotations

import asyncio

import asyncpg

from queen.service.upkeep.jobs import Jobs
from queen.storage.database import Database, Transaction
from tests.waiting import until_async


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


async def test_a_round_may_wait_for_the_server_that_is_at_it(
    database: Database, connection: asyncpg.Connection
) -> None:
    """As a step of time does: what it lets come due has happened when it returns."""
    name, rounds = "another job of the tests", []

    async def work(_transaction: Transaction) -> bool:
        rounds.append(1)
        return False

    jobs = Jobs(database)
    jobs.add(name, 1000.0, work)
    async with database.transaction() as other:
        assert await other.fetchval("try_job", name)
        assert await jobs.run_once(name) is False
        assert rounds == []
        waiting = asyncio.create_task(jobs.run_once(name, waits=True))
        waits = "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
        await until_async(lambda: connection.fetchval(waits))
        assert not waiting.done()
    await waiting
    assert rounds == [1]
