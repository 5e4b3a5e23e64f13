"""A snapshot that somebody holds: the dead versions that it keeps are not walked over."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg
import pytest

from queen.storage.database import session_settings
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.statements import statements
from tests.databases import own_database

_PARTITIONS = 4
_ROUNDS = 400
_LOOKS = 40
# Pages that a call touches however many versions there are.
_FEW_PAGES = 150


class Log(NamedTuple):
    queue_id: int
    group_id: int
    ids: list[int]


async def _make_log(connection: asyncpg.Connection) -> Log:
    name = uuid.uuid4().hex
    queue_id = await connection.fetchval("insert into queues (name) values ($1) returning id", name)
    group_id = await connection.fetchval(
        "insert into groups (queue_id, name) values ($1, 'g') returning id", queue_id
    )
    rows = await connection.fetch(
        "insert into partitions (queue_id, name) select $1, i::text from generate_series(1, $2) i"
        " returning id",
        queue_id,
        _PARTITIONS,
    )
    return Log(queue_id, group_id, [row["id"] for row in rows])


@pytest.fixture
async def log(connection: asyncpg.Connection) -> Log:
    return await _make_log(connection)


@asynccontextmanager
async def _holding(dsn: str) -> AsyncIterator[None]:
    holder = await asyncpg.connect(dsn)
    await holder.execute("begin isolation level repeatable read")
    await holder.fetchval("select count(*) from queen.queues")
    yield
    await holder.execute("rollback")
    await holder.close()


@pytest.fixture
async def held(dsn: str, log: Log) -> AsyncIterator[None]:
    async with _holding(dsn):
        yield


async def _call(connection: asyncpg.Connection, name: str, *arguments: object) -> list[int]:
    """Call a function by its statement; return how many pages it touched."""
    explain = f"explain (analyze, buffers, timing off, format json) {statements()[name].sql}"
    (plan,) = json.loads(await connection.fetchval(explain, *arguments))
    return [plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]]


async def _round(connection: asyncpg.Connection, log: Log, number: int) -> dict[str, list[int]]:
    """Append a message, claim it, and ack it."""
    partition, lease = log.ids[number % _PARTITIONS], uuid.uuid4()
    end = number // _PARTITIONS + 1
    one: list[object] = [[1], [0], [1], [0], [b"12345678"], [b"body"], None, None, None, None]
    append = await _call(
        connection, "append", [log.queue_id], [partition], [1], [None], [False], *one
    )
    ask: list[object] = [[1], [lease], [60_000], [False], [1], [3], [0], [0], [0], None]
    claim = await _call(connection, "claim", [partition], [log.group_id], *ask)
    whole: list[object] = [[partition], [log.group_id], [lease], [end], [False], None]
    ack = await _call(connection, "ack_spans", *whole)
    return {"append": append, "claim": claim, "ack": ack}


async def test_what_a_call_touches_does_not_grow_with_dead_versions(
    connection: asyncpg.Connection, log: Log, held: None
) -> None:
    touched: dict[str, list[int]] = {"append": [], "claim": [], "ack": []}
    for number in range(_ROUNDS):
        for name, pages in (await _round(connection, log, number)).items():
            touched[name] += pages
    committed = await connection.fetch(
        "select committed from cursors where group_id = $1", log.group_id
    )
    assert [row["committed"] for row in committed] == [_ROUNDS // _PARTITIONS] * _PARTITIONS
    for name, pages in touched.items():
        late = sorted(pages[-_LOOKS:])
        assert late[len(late) // 2] < _FEW_PAGES, (name, late)
        early = sorted(pages[:_LOOKS])
        assert late[len(late) // 2] < 2 * early[len(early) // 2] + 20, (name, early, late)


async def _lone_round(
    connection: asyncpg.Connection, log: Log, number: int
) -> dict[str, list[int]]:
    """The same by the statements for a lone message."""
    partition, lease = log.ids[number % _PARTITIONS], uuid.uuid4()
    end = number // _PARTITIONS + 1
    append = await _call(
        connection, "append_lone", log.queue_id, partition, 1, None, None, 0, b"12345678", b"body",
        None, None,
    )  # fmt: skip
    claim = await _call(connection, "claim_lone", partition, log.group_id, lease, 60_000, 1)
    lock = await _call(connection, "lock_cursors", [partition], [log.group_id])
    ack = await _call(connection, "ack_lone", partition, log.group_id, lease, end)
    return {"append_lone": append, "claim_lone": claim, "lock_cursors": lock, "ack_lone": ack}


async def test_what_a_lone_message_touches_does_not_grow_either(
    connection: asyncpg.Connection, log: Log, held: None
) -> None:
    # The first claim of a connection, and of each cursor, is the ordinary one.
    for number in range(_PARTITIONS):
        await _round(connection, log, number)
    touched: dict[str, list[int]] = {}
    for number in range(_PARTITIONS, _ROUNDS):
        for name, pages in (await _lone_round(connection, log, number)).items():
            touched.setdefault(name, []).extend(pages)
    committed = await connection.fetch(
        "select committed from cursors where group_id = $1", log.group_id
    )
    assert [row["committed"] for row in committed] == [_ROUNDS // _PARTITIONS] * _PARTITIONS
    for name, pages in touched.items():
        early, late = sorted(pages[:_LOOKS]), sorted(pages[-_LOOKS:])
        assert late[len(late) // 2] < 2 * early[len(early) // 2] + 20, (name, early, late)


# As pushes and acks leave them: ten thousand versions of each row.
_GROW = """
do $$
begin
    for i in 1 .. 40000 loop
        update queen.partitions p
           set head_at = p.head_at, hops = p.hops + queen.hop(p.ctid, p.page),
               page = queen.page_of(p.ctid)
         where p.id = 1 + i % 4;
        update queen.cursors k
           set epoch = k.epoch, hops = k.hops + queen.hop(k.ctid, k.page),
               page = queen.page_of(k.ctid)
         where k.partition_id = 1 + i % 4;
        commit;
    end loop;
end $$
"""


async def test_plans_that_are_made_meanwhile_find_the_latest_too(
    postgres: EmbeddedPostgres,
) -> None:
    """Small tables that grow large, and what the planner then knows of them."""
    async with own_database(postgres.dsn) as dsn:
        settings = {**session_settings(), "statement_timeout": "60s"}
        connection = await asyncpg.connect(dsn, server_settings=settings)
        log, numbers = await _make_log(connection), itertools.count()
        for _ in range(_PARTITIONS):
            await _round(connection, log, next(numbers))
        await connection.execute("vacuum analyze")
        # Which plans them while they are small.
        await _check_all(connection, log, numbers)
        await connection.execute("set synchronous_commit = off")
        async with _holding(dsn):
            await connection.execute(_GROW)
            await _check_all(connection, log, numbers)
            await connection.execute("analyze queen.partitions; analyze queen.cursors")
            await _check_all(connection, log, numbers)
        await connection.close()


async def _check_all(connection: asyncpg.Connection, log: Log, numbers: Iterator[int]) -> None:
    # Who plans reads the catalog.
    await _round(connection, log, next(numbers))
    await _lone_round(connection, log, next(numbers))
    touched = await _round(connection, log, next(numbers))
    touched |= await _lone_round(connection, log, next(numbers))
    assert all(pages < _FEW_PAGES for (pages,) in touched.values()), touched
