"""Slow work never takes the connections that pushes, pops and acks need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from queen.storage.database import Database


@pytest.fixture
async def small(dsn: str) -> AsyncIterator[Database]:
    opened = await Database.connect(dsn, size=4)
    yield opened
    await opened.close()


async def test_slow_work_leaves_connections_for_the_rest(small: Database) -> None:
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(small.background.transaction())
        waiting = asyncio.create_task(small.background.fetchval("now"))
        async with small.transaction() as transaction:
            assert await transaction.fetchval("now")
            assert await small.fetchval("now")
        assert not waiting.done()
    assert await waiting


async def test_a_slot_comes_back_whatever_became_of_its_work(small: Database) -> None:
    for _ in range(10):
        with pytest.raises(RuntimeError):
            async with small.background.transaction():
                raise RuntimeError
        waiting = asyncio.create_task(small.background.fetchval("now"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await small.background.fetchval("now")


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_a_small_pool_serves_both(dsn: str, size: int) -> None:
    opened = await Database.connect(dsn, size=size)
    assert await opened.fetchval("now") and await opened.background.fetchval("now")
    await opened.close()
