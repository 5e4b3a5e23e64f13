"""The work of stream groups in SQL: what may be in flight, what comes next, what never sticks.

Windows are written by hand, so that a test has exactly those it speaks of.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from queen.storage.database import Database, session_settings
from queen.storage.statements import statements


class Stream:
    """A stream with one group, and the verbs on them."""

    def __init__(self, connection: asyncpg.Connection, database: Database) -> None:
        self.connection = connection
        self.database = database
        self.id = 0
        self.group = 0

    async def make(self, in_flight: int = 1, windows: str = "") -> None:
        """Write a stream; `windows` are the keys of its windows, one a minute."""
        self.id = await self.connection.fetchval(
            "insert into queen.streams (name, definition, plan_at)"
            " values ($1, jsonb_build_object('maxInFlight', $2::int), 'infinity') returning id",
            f"s-{uuid.uuid4().hex[:12]}",
            in_flight,
        )
        await self.add(windows)
        ((self.group,),) = await self.fetch("open_stream_group", self.id, "g", None)

    async def add(self, windows: str) -> None:
        await self.connection.execute(
            "insert into queen.stream_windows (stream_id, key, starts_at, ends_at, partitions,"
            " from_offsets, to_offsets, messages, bytes)"
            " select $1, w.key, l.at + w.n * i.m, l.at + (w.n + 1) * i.m, '{}', '{}', '{}', 0, 0"
            " from unnest($2::text[]) with ordinality w (key, n),"
            " (select interval '1 minute' as m) i,"
            " (select coalesce(max(ends_at), '2026-01-01') as at from queen.stream_windows"
            "   where stream_id = $1) l order by w.n",
            self.id,
            list(windows),
        )

    async def fetch(self, name: str, *arguments: Any) -> list[Any]:
        """Run a named statement."""
        return await self.connection.fetch(statements()[name].sql, *arguments)

    async def windows(self) -> list[int]:
        rows = await self.connection.fetch(
            "select id from queen.stream_windows where stream_id = $1 order by id", self.id
        )
        return [row["id"] for row in rows]

    async def claim(self) -> Any:
        (row,) = await self.fetch("claim_window", self.group, uuid.uuid4().hex[:12], "", 60_000, 3)
        return row if row["outcome"] == 0 else None

    async def rows(self) -> AsyncIterator[Any]:
        """Claim all there is."""
        while (row := await self.claim()) is not None:
            yield row

    async def claim_all(self) -> list[int]:
        return [row["window_id"] async for row in self.rows()]

    async def settle(self, row: Any, *, success: bool = True, retries: int = 3) -> str:
        (row,) = await self.fetch(
            "settle_window",
            self.group,
            row["window_id"],
            row["lease_id"],
            success,
            None,
            retries,
            0,
        )
        return str(row[0])

    async def retry_dead(self) -> int:
        async with self.database.transaction() as transaction:
            await transaction.execute("lock_stream_group", self.group)
            retried: int = await transaction.fetchval(
                "retry_dead_windows", self.group, None, None, None, None
            )
            await transaction.execute("balance_group", self.group, None)
        return retried


@pytest.fixture
async def stream(connection: asyncpg.Connection, database: Database) -> AsyncIterator[Stream]:
    # Nothing is lost here that matters: the disk need not be waited for.
    await connection.execute("set synchronous_commit = off")
    made = Stream(connection, database)
    yield made
    await connection.execute("delete from queen.streams where id = $1", made.id)


async def test_a_window_that_comes_back_from_the_dead_waits_for_room(stream: Stream) -> None:
    await stream.make(windows="aaaa")
    first, second, third, fourth = await stream.windows()
    given_up = await stream.claim()
    assert await stream.settle(given_up, success=False, retries=0) == "dead"
    held = await stream.claim()
    assert held["window_id"] == second
    assert await stream.retry_dead() == 1
    assert await stream.claim() is None
    await stream.settle(held)
    again = await stream.claim()
    assert again["window_id"] == first
    assert await stream.claim() is None
    await stream.settle(again)
    assert await stream.claim_all() == [third]
    assert fourth == third + 1


async def test_dead_windows_ahead_of_a_seek_come_once(stream: Stream) -> None:
    await stream.make(windows="a" * 3)
    for _ in range(3):
        assert await stream.settle(await stream.claim(), success=False, retries=0) == "dead"
    await stream.connection.execute("select queen.seek_stream($1, '-infinity')", stream.group)
    assert await stream.retry_dead() == 0
    for window in await stream.windows():
        row = await stream.claim()
        assert row["window_id"] == window
        await stream.settle(row)
    assert await stream.claim() is None


async def test_what_ended_before_a_group_starts_is_passed_over_at_once(stream: Stream) -> None:
    await stream.make(windows="ab")
    await stream.connection.execute("select queen.seek_stream($1, '2027-01-01')", stream.group)
    await stream.add("ab" * 50)
    assert await stream.claim() is None
    frontier = await stream.connection.fetchval(
        "select frontier from queen.stream_groups where id = $1", stream.group
    )
    assert frontier == (await stream.windows())[-1]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
async def test_a_new_limit_of_windows_in_flight_holds_at_once(
    stream: Stream, before: int, after: int
) -> None:
    await stream.make(before, "a" * 8)
    held = [await stream.claim() for _ in range(before)]
    assert await stream.claim() is None
    await stream.connection.execute(
        "update queen.streams set definition = jsonb_build_object('maxInFlight', $2::int)"
        " where id = $1",
        stream.id,
        after,
    )
    async with stream.database.transaction() as transaction:
        await transaction.execute("lock_stream_groups", stream.id)
        await transaction.execute("balance_stream", stream.id, after)
    kept = [row for row in held if await stream.settle(row) == "done"]
    assert len(kept) == min(before, after)
    windows = await stream.windows()
    assert await stream.claim_all() == windows[len(kept) : len(kept) + after]


# ---- interleavings ----
#
# Sessions of two steps each, `begin; verb` and `commit`, in every order. A step that waits for
# a lock goes on when the other has committed. At the end nothing may be stuck and nothing may
# have been handed out twice.

VERBS = ("claim", "ack", "nack", "die", "seek")


class Session:
    def __init__(self, stream: Stream, connection: asyncpg.Connection, held: Any) -> None:
        self._stream = stream
        self._connection = connection
        self._transaction = connection.transaction()
        # The window that this session has leased before.
        self._held = held

    async def act(self, verb: str) -> None:
        await self._transaction.start()
        group = self._stream.group
        settle = "select queen.settle_window($1, $2, $3, $4, null, $5, 0)"
        if verb == "claim":
            statement = "select * from queen.claim_window($1, $2, '', 60000, 3)"
            await self._connection.fetch(statement, group, uuid.uuid4().hex[:12])
        elif verb == "seek":
            await self._connection.execute("select queen.seek_stream($1, '-infinity')", group)
        else:
            lease = (self._held["window_id"], self._held["lease_id"])
            retries = 0 if verb == "die" else 3
            await self._connection.execute(settle, group, *lease, verb == "ack", retries)

    async def commit(self) -> None:
        await self._transaction.commit()

    @property
    def pid(self) -> int:
        return self._connection.get_server_pid()


class Interleaving:
    """Runs the steps of sessions in an order; who waits for another's lock is left to wait."""

    def __init__(self, stream: Stream, sessions: list[Session], verbs: tuple[str, ...]) -> None:
        self._stream = stream
        self._sessions = sessions
        self._verbs = verbs
        self._acting: dict[int, asyncio.Task[None]] = {}

    async def run(self, order: list[int]) -> None:
        begun: set[int] = set()
        for number in order:
            if number not in begun:
                begun.add(number)
                act = self._sessions[number].act(self._verbs[number])
                self._acting[number] = asyncio.create_task(act)
                await self._until_done_or_blocked(number)
            elif self._acting[number].done():
                await self._commit(number)
        while self._acting:
            await asyncio.wait(self._acting.values(), return_when=asyncio.FIRST_COMPLETED)
            for number in [number for number, task in self._acting.items() if task.done()]:
                await self._commit(number)

    async def _commit(self, number: int) -> None:
        await self._acting.pop(number)
        await self._sessions[number].commit()

    async def _until_done_or_blocked(self, number: int) -> None:
        asks = "select cardinality(pg_blocking_pids($1)) > 0"
        pid = self._sessions[number].pid
        while not self._acting[number].done():
            if await self._stream.connection.fetchval(asks, pid):
                return


@pytest.fixture
async def connections(dsn: str) -> AsyncIterator[list[asyncpg.Connection]]:
    settings = session_settings() | {"synchronous_commit": "off"}
    opened = [await asyncpg.connect(dsn, server_settings=settings) for _ in range(2)]
    yield opened
    for connection in opened:
        await connection.close()


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("verbs", list(itertools.combinations_with_replacement(VERBS, 2)))
async def test_no_order_of_two_sessions_leaves_a_window_stuck(
    connections: list[asyncpg.Connection], stream: Stream, verbs: tuple[str, ...], in_flight: int
) -> None:
    # Begin and commit of each in every order; the mirror image of an order is the other's.
    for order in sorted(set(itertools.permutations([0, 0, 1, 1]))):
        await stream.make(in_flight, "aabab" if in_flight == 1 else "aaaab")
        await stream.connection.execute("select queen.fill_work($1, 3)", stream.group)
        held = [await stream.claim() for _ in verbs]
        sessions = [
            Session(stream, connection, row)
            for connection, row in zip(connections, held, strict=True)
        ]
        await Interleaving(stream, sessions, verbs).run(list(order))
        await _check_nothing_is_stuck(stream, in_flight)


async def _check_nothing_is_stuck(stream: Stream, in_flight: int) -> None:
    """End all leases; then every window that is not done or dead must come, in order."""
    unfinished = await stream.connection.fetch(
        "select w.key, w.id from queen.stream_windows w where w.stream_id = $1"
        " and not exists (select 1 from queen.stream_work k"
        "                  where k.group_id = $2 and k.window_id = w.id and k.state = 2)"
        " and not exists (select 1 from queen.stream_dead d"
        "                  where d.group_id = $2 and d.window_id = w.id) order by w.id",
        stream.id,
        stream.group,
    )
    await stream.connection.execute(
        "update queen.stream_work set lease_id = null, available_at = '-infinity'"
        " where group_id = $1 and state = 1",
        stream.group,
    )
    came: list[int] = []
    while rows := [row async for row in stream.rows()]:
        for key in {row["key"] for row in rows}:
            assert len([row for row in rows if row["key"] == key]) <= in_flight
        for row in rows:
            assert await stream.settle(row) == "done"
        came += [row["window_id"] for row in rows]
    assert sorted(came) == [row["id"] for row in unfinished]
    assert len(set(came)) == len(came)
