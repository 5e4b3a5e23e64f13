"""Who is woken when a window is free: one who can have it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from queen.service.broker import Broker, Limits
from queen.service.streams import work as work_module
from queen.service.streams.definitions import Stream
from queen.service.streams.work import LeasedWindow

# Nobody finds anything by looking again after a while: only by being woken.
NET_S = 600.0
WAIT_S = 300.0
PATIENCE_S = 30.0


@pytest.fixture
async def broker(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(work_module, "_NET_S", NET_S)
    started = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=6))
    yield started
    await started.stop()


class Waiting:
    """Groups of one stream that wait for its windows."""

    def __init__(self, broker: Broker, stream: Stream) -> None:
        self.broker = broker
        self.stream = stream
        self._looks: asyncio.Queue[None] = asyncio.Queue()
        self._claim = broker.work._claim

    async def watched_claim(self, *arguments: Any) -> Any:
        """Look for a window, and say that the look is over."""
        found = await self._claim(*arguments)
        self._looks.put_nowait(None)
        return found

    async def poll(self, group: str, timeout_s: float) -> LeasedWindow | None:
        group_id = await self.broker.work.group(self.stream, group, None)
        return await self.broker.work.poll(self.stream, group, group_id, "", timeout_s)

    async def take(self, group: str) -> LeasedWindow:
        granted = await self.poll(group, 0)
        await self._looks.get()
        assert granted is not None
        return granted

    async def wait(self, group: str) -> asyncio.Task[LeasedWindow | None]:
        """Begin a poll; return when it has found nothing and waits."""
        task = asyncio.create_task(self.poll(group, WAIT_S))
        await self._looks.get()
        return task

    async def ack(self, granted: LeasedWindow) -> None:
        owner = await self.broker.work.owner(granted.lease)
        await self.broker.work.settle(
            owner, granted.lease, success=True, error=None, appends=[], scheduled=[]
        )


@pytest.fixture
async def waiting(
    broker: Broker, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> Waiting:
    """A stream with three windows of one key, of which one at a time is in flight."""
    name = f"s-{uuid.uuid4().hex[:12]}"
    stream_id = await connection.fetchval(
        "insert into queen.streams (name, definition, plan_at)"
        " values ($1, jsonb_build_object('maxInFlight', 1, 'windowLeaseTimeoutMs', 3600000),"
        " 'infinity') returning id",
        name,
    )
    await connection.execute(
        "insert into queen.stream_windows (stream_id, key, starts_at, ends_at, partitions,"
        " from_offsets, to_offsets, messages, bytes)"
        " select $1, 'k', timestamptz '2026-01-01' + n * interval '1 minute',"
        " timestamptz '2026-01-01' + (n + 1) * interval '1 minute', '{}', '{}', '{}', 0, 0"
        " from generate_series(1, 3) n order by n",
        stream_id,
    )
    stream = await broker.streams.find(name)
    assert stream is not None
    made = Waiting(broker, stream)
    monkeypatch.setattr(broker.work, "_claim", made.watched_claim)
    return made


async def test_an_ack_wakes_the_group_whose_next_window_it_frees(waiting: Waiting) -> None:
    mine, others = await waiting.take("mine"), await waiting.take("others")
    # The other group waits for longer.
    first = await waiting.wait("others")
    second = await waiting.wait("mine")
    await waiting.ack(mine)
    async with asyncio.timeout(PATIENCE_S):
        granted = await second
    assert granted is not None
    assert granted.lease.window_id == mine.lease.window_id + 1
    assert not first.done()
    await waiting.ack(others)
    async with asyncio.timeout(PATIENCE_S):
        assert await first is not None


async def test_whoever_leaves_unread_what_it_was_told_lets_the_next_one_look(
    waiting: Waiting,
) -> None:
    mine = await waiting.take("mine")
    leaving = await waiting.wait("mine")
    staying = await waiting.wait("mine")
    # It is woken and goes in the same moment, as when its client has hung up.
    await waiting.ack(mine)
    leaving.cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert await staying is not None
