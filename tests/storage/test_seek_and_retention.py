"""A group that is moved back at the moment of a clean-up.

Whichever of the two comes first, what the answer of the move speaks of is there afterwards.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from queen.storage.database import session_settings
from queen.storage.statements import statements

MESSAGES = 10
DAY_S = 24 * 3600
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class Log:
    """One partition whose messages its group has done long ago."""

    def __init__(self, dsn: str, connection: asyncpg.Connection) -> None:
        self._dsn = dsn
        self.connection = connection
        self.queue = self.partition = self.group = 0

    async def make(self, *, by_time: bool) -> None:
        name = f"q-{uuid.uuid4().hex[:12]}"
        self.queue = await self.fetchval(
            "insert into queen.queues (name) values ($1) returning id", name
        )
        self.partition = await self.fetchval(
            "insert into queen.partitions (queue_id, name, head, head_at)"
            " values ($1, 'p', $2, clock_timestamp() - interval '1 hour') returning id",
            self.queue,
            MESSAGES,
        )
        await self.connection.execute(
            "insert into queen.segments (partition_id, base_offset, end_offset, created_at,"
            " queue_id, codec, body) select $1, n, n + 1, clock_timestamp() - interval '1 hour',"
            " $2, 0, '' from generate_series(0, $3::bigint - 1) n",
            self.partition,
            self.queue,
            MESSAGES,
        )
        self.group = await self.fetchval(
            "insert into queen.groups (queue_id, name, reads_by_time, starts_at)"
            " values ($1, 'g', $2, case when $2 then clock_timestamp() end) returning id",
            self.queue,
            by_time,
        )
        if not by_time:
            await self.connection.execute(
                "insert into queen.cursors (partition_id, group_id, committed) values ($1, $2, $3)",
                self.partition,
                self.group,
                MESSAGES,
            )

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        return await self.connection.fetchval(sql, *arguments)

    @asynccontextmanager
    async def other(self) -> AsyncIterator[asyncpg.Connection]:
        """Another connection with a transaction of its own, which is committed at the end."""
        opened = await asyncpg.connect(self._dsn, server_settings=session_settings())
        try:
            async with opened.transaction():
                yield opened
        finally:
            await opened.close()

    async def retain(self, connection: asyncpg.Connection) -> None:
        """Remove what living groups have done and is older than a minute."""
        arguments = self.queue, 60, BEGINNING, 7 * DAY_S, 1000
        await connection.fetch(statements()["expire_segments"].sql, *arguments)

    async def seek(self, connection: asyncpg.Connection) -> int:
        """Move the group to the beginning; how many messages it is told to get again."""
        arguments = self.group, self.partition, BEGINNING, None, False
        (row,) = await connection.fetch(statements()["seek"].sql, *arguments)
        return int(row["again"])

    async def subscribe(self, connection: asyncpg.Connection) -> int:
        await connection.execute(statements()["subscribe_groups"].sql, [self.group], BEGINNING)
        return MESSAGES

    async def kept(self) -> int:
        return int(
            await self.fetchval(
                "select head - tail from queen.partitions where id = $1", self.partition
            )
        )

    async def settle(self, task: asyncio.Task[Any], pid: int) -> None:
        """Wait until a statement of another connection has ended, or waits for a lock."""
        waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
        while not task.done() and not await self.fetchval(waits, pid):
            pass


Move = Callable[[Log, asyncpg.Connection], Coroutine[Any, Any, int]]


@pytest.fixture(params=["seek", "subscribe"])
async def log(
    dsn: str, connection: asyncpg.Connection, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Log, Move]]:
    """A log, and the way in which its group is moved back."""
    made = Log(dsn, connection)
    await made.make(by_time=request.param == "subscribe")
    yield made, getattr(Log, request.param)
    await connection.execute("delete from queen.segments where queue_id = $1", made.queue)


async def test_a_move_while_a_clean_up_is_under_way_waits_for_it(log: tuple[Log, Move]) -> None:
    made, move = log
    async with made.other() as cleaner, made.other() as mover:
        async with made.other() as writer:
            # The clean-up has read what groups have done and waits for the partition.
            await writer.execute(
                "select 1 from queen.partitions where id = $1 for no key update", made.partition
            )
            cleaning = asyncio.create_task(made.retain(cleaner))
            await made.settle(cleaning, cleaner.get_server_pid())
            moving = asyncio.create_task(move(made, mover))
            await made.settle(moving, mover.get_server_pid())
            assert not moving.done()
        await cleaning
        await cleaner.execute("commit")
        await cleaner.execute("begin")
        told = await moving
    if move is Log.seek:
        assert told == await made.kept() == 0


async def test_a_clean_up_waits_for_a_move_that_is_not_committed(log: tuple[Log, Move]) -> None:
    made, move = log
    async with made.other() as cleaner:
        async with made.other() as mover:
            told = await move(made, mover)
            cleaning = asyncio.create_task(made.retain(cleaner))
            await made.settle(cleaning, cleaner.get_server_pid())
        await cleaning
    assert told == await made.kept() == MESSAGES


async def test_an_abandoned_group_that_is_moved_is_alive_again(log: tuple[Log, Move]) -> None:
    made, move = log
    await made.connection.execute(
        "insert into queen.groups (queue_id, name, reads_by_time, starts_at)"
        " values ($1, 'lives', true, clock_timestamp())",
        made.queue,
    )
    await made.connection.execute(
        "update queen.groups set used_at = used_at - interval '30 days' where id = $1", made.group
    )
    told = await move(made, made.connection)
    await made.retain(made.connection)
    assert told == await made.kept() == MESSAGES


async def test_windows_that_a_stream_gets_again_keep_their_messages(
    log: tuple[Log, Move],
) -> None:
    made, _ = log
    stream, group = await _done_stream(made)
    async with made.other() as cleaner:
        async with made.other() as mover:
            assert await mover.fetchval("select queen.seek_stream($1, $2)", group, BEGINNING)
            cleaning = asyncio.create_task(made.retain(cleaner))
            await made.settle(cleaning, cleaner.get_server_pid())
        await cleaning
    assert await made.kept() == MESSAGES
    await made.connection.execute("delete from queen.streams where id = $1", stream)


async def _done_stream(made: Log) -> tuple[int, int]:
    """Write a stream over the queue with one window that its group has done."""
    stream = await made.fetchval(
        "insert into queen.streams (name, definition, plan_at, planned_until) values ($1,"
        " jsonb_build_object('maxInFlight', 1, 'windowType', 'tumbling'), 'infinity',"
        " clock_timestamp()) returning id",
        f"s-{uuid.uuid4().hex[:12]}",
    )
    await made.connection.execute(
        "insert into queen.stream_sources (stream_id, queue_id) values ($1, $2)",
        stream,
        made.queue,
    )
    window = await made.fetchval(
        "insert into queen.stream_windows (stream_id, key, starts_at, ends_at, partitions,"
        " from_offsets, to_offsets, messages, bytes) values ($1, 'k', clock_timestamp()"
        " - interval '2 hours', clock_timestamp() - interval '30 minutes', array[$2::bigint],"
        " '{0}', array[$3::bigint], $3, 0) returning id",
        stream,
        made.partition,
        MESSAGES,
    )
    group = await made.fetchval(
        "insert into queen.stream_groups (stream_id, name, frontier) values ($1, 'g', $2)"
        " returning id",
        stream,
        window,
    )
    return stream, group
