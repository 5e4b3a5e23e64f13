"""Partitions and cursors are there once, although no index of theirs is unique."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NamedTuple

import asyncpg
import pytest

from queen.errors import Unavailable
from queen.storage.database import session_settings, translate
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import Schema, migrate
from queen.storage.statements import statements

_PARTITION = "insert into partitions (queue_id, name) values ($1, $2) returning id"
_CURSOR = "insert into cursors (partition_id, group_id, committed) values ($1, $2, $3) returning *"
_OPEN = "select * from queen.open_cursor($1, $2)"
_CURSORS_OF = "select * from queen.cursors where group_id = $1"
# Rows without a key, keys without a row, and keys that rows share.
_ODD = """
select 'partition', id::text, name
  from queen.partitions p full join queen.partition_keys k using (id, queue_id, name)
 where p.ctid is null or k.ctid is null
union all
select 'cursor', partition_id::text, group_id::text
  from queen.cursors c full join queen.cursor_keys k using (partition_id, group_id)
 where c.ctid is null or k.ctid is null
union all
select 'twin of a partition', queue_id::text, name from queen.partitions
 group by queue_id, name having count(*) > 1
union all
select 'twin of a cursor', partition_id::text, group_id::text from queen.cursors
 group by partition_id, group_id having count(*) > 1
"""
_LAST_MIGRATION_BEFORE = "0027"


class Log(NamedTuple):
    queue_id: int
    group_id: int


async def _make_log(connection: asyncpg.Connection) -> Log:
    name = f"keys-{uuid.uuid4().hex[:8]}"
    queue_id = await connection.fetchval("insert into queues (name) values ($1) returning id", name)
    group_id = await connection.fetchval(
        "insert into groups (queue_id, name) values ($1, 'g') returning id", queue_id
    )
    return Log(queue_id, group_id)


@pytest.fixture
async def log(connection: asyncpg.Connection) -> Log:
    return await _make_log(connection)


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(dsn, server_settings=session_settings())
    yield opened
    await opened.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[asyncpg.Pool]:
    settings = session_settings()
    async with asyncpg.create_pool(dsn, min_size=8, max_size=8, server_settings=settings) as opened:
        yield opened


async def _waits(connection: asyncpg.Connection, waiter: asyncpg.Connection) -> None:
    """Return when `waiter` waits for somebody's transaction."""
    looks = "select cardinality(pg_blocking_pids($1)) > 0 from pg_sleep(0.01)"
    async with asyncio.timeout(10):
        while not await connection.fetchval(looks, waiter.get_server_pid()):
            pass


# ---- one row for each key ----


@pytest.mark.parametrize("first_commits", [True, False])
async def test_of_two_that_create_a_partition_one_does(
    connection: asyncpg.Connection, other: asyncpg.Connection, log: Log, first_commits: bool
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    first = await connection.fetchval(_PARTITION, log.queue_id, "p")
    waiting = asyncio.create_task(other.fetchval(_PARTITION, log.queue_id, "p"))
    await _waits(connection, other)
    await (transaction.commit() if first_commits else transaction.rollback())
    second = await waiting
    assert (second is None) is first_commits
    rows = await connection.fetch("select id from partitions where queue_id = $1", log.queue_id)
    assert [row["id"] for row in rows] == [first if first_commits else second]
    assert await connection.fetch(_ODD) == []


@pytest.mark.parametrize("first_commits", [True, False])
async def test_of_two_that_create_a_cursor_one_does_and_both_lock_it(
    connection: asyncpg.Connection, other: asyncpg.Connection, log: Log, first_commits: bool
) -> None:
    partition = await connection.fetchval(_PARTITION, log.queue_id, "p")
    transaction, of_second = connection.transaction(), other.transaction()
    await transaction.start()
    await of_second.start()
    await connection.fetchrow(_CURSOR, partition, log.group_id, 1)
    waiting = asyncio.create_task(other.fetchrow(_CURSOR, partition, log.group_id, 2))
    await _waits(connection, other)
    await (transaction.commit() if first_commits else transaction.rollback())
    second = await waiting
    assert (second is None) is first_commits
    if first_commits:
        locked = connection.execute(
            "select 1 from cursors where partition_id = $1 for no key update nowait", partition
        )
        with pytest.raises(asyncpg.LockNotAvailableError):
            await locked
    await of_second.commit()
    places = await connection.fetch(
        "select committed from cursors where partition_id = $1", partition
    )
    assert [row["committed"] for row in places] == [1 if first_commits else 2]
    assert await connection.fetch(_ODD) == []


async def test_a_list_with_names_that_are_there_creates_the_others(
    connection: asyncpg.Connection, log: Log
) -> None:
    await connection.fetchval(_PARTITION, log.queue_id, "b")
    rows = await connection.fetch(
        "insert into partitions (queue_id, name) select $1, n from unnest($2::text[]) n"
        " returning name",
        log.queue_id,
        ["a", "b", "c", "a"],
    )
    assert [row["name"] for row in rows] == ["a", "c"]
    assert await connection.fetch(_ODD) == []


async def test_many_that_create_the_same_partitions_and_cursors_agree(
    pool: asyncpg.Pool, connection: asyncpg.Connection, log: Log
) -> None:
    names = [f"p{number}" for number in range(40)]
    ensure, by_name = statements()["ensure_partitions"].sql, statements()["partitions_by_name"].sql

    async def create() -> set[int]:
        queues = [log.queue_id] * len(names)
        await pool.execute(ensure, queues, names, None)
        ids = {row["id"] for row in await pool.fetch(by_name, queues, names)}
        for partition in sorted(ids):
            await pool.execute("select queen.open_cursor($1, $2)", partition, log.group_id)
        return ids

    seen = await asyncio.gather(*(create() for _ in range(8)))
    assert all(ids == seen[0] for ids in seen) and len(seen[0]) == len(names)
    assert await connection.fetch(_ODD) == []


async def test_no_index_compares_versions_of_what_is_updated_all_the_time(
    connection: asyncpg.Connection,
) -> None:
    rows = await connection.fetch(
        "select indexrelid::regclass::text as name, indisunique from pg_index"
        " where indrelid in ('queen.partitions'::regclass, 'queen.cursors'::regclass)"
    )
    assert len(rows) == 4
    assert not any(row["indisunique"] for row in rows)


async def test_a_server_of_before_is_told_that_it_cannot_make_partitions(
    connection: asyncpg.Connection, log: Log
) -> None:
    """As it says it; servers from now on pass such a thing on as 503."""
    before = f"{_PARTITION.removesuffix(' returning id')} on conflict (queue_id, name) do nothing"
    with pytest.raises(asyncpg.InvalidColumnReferenceError) as refused:
        await connection.execute(before, log.queue_id, "p")
    assert isinstance(translate(refused.value), Unavailable)


# ---- what is deleted gives its key up ----


async def test_a_key_is_free_when_its_row_is_gone(connection: asyncpg.Connection, log: Log) -> None:
    before = await connection.fetchval(_PARTITION, log.queue_id, "p")
    await connection.fetchrow(_CURSOR, before, log.group_id, 1)
    async with connection.transaction():
        await connection.execute("delete from cursors where partition_id = $1", before)
        await connection.execute("delete from partitions where id = $1", before)
        after = await connection.fetchval(_PARTITION, log.queue_id, "p")
        assert after is not None and after != before
        assert await connection.fetchrow(_CURSOR, after, log.group_id, 2)
    assert await connection.fetch(_ODD) == []


@pytest.mark.parametrize("deletion_commits", [True, False])
async def test_who_creates_what_is_being_deleted_waits_for_it(
    connection: asyncpg.Connection, other: asyncpg.Connection, log: Log, deletion_commits: bool
) -> None:
    before = await connection.fetchval(_PARTITION, log.queue_id, "p")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("delete from partitions where id = $1", before)
    waiting = asyncio.create_task(other.fetchval(_PARTITION, log.queue_id, "p"))
    await _waits(connection, other)
    await (transaction.commit() if deletion_commits else transaction.rollback())
    after = await waiting
    assert (after is not None) is deletion_commits
    assert await connection.fetch(_ODD) == []


async def test_a_queue_that_is_deleted_takes_all_keys_with_it(
    connection: asyncpg.Connection, log: Log
) -> None:
    partition = await connection.fetchval(_PARTITION, log.queue_id, "p")
    await connection.fetchrow(_CURSOR, partition, log.group_id, 1)
    await connection.execute(
        "insert into paced_partitions (group_id, partition_id) values ($1, $2)",
        log.group_id,
        partition,
    )
    name = await connection.fetchval("select name from queues where id = $1", log.queue_id)
    assert await connection.fetchval("select queen.delete_queue($1)", name)
    for table in ("partition_keys", "cursor_keys", "paced_partitions"):
        column = "id" if table == "partition_keys" else "partition_id"
        count = f"select count(*) from {table} where {column} = $1"
        assert await connection.fetchval(count, partition) == 0
    assert await connection.fetch(_ODD) == []


async def test_a_key_that_has_no_row_is_told_of(connection: asyncpg.Connection, log: Log) -> None:
    """As after a restore of the data alone: nothing is left out silently."""
    async with connection.transaction():
        await connection.execute(
            "insert into partition_keys (id, queue_id, name)"
            " select coalesce(max(id), 0) + 1000, $1, 'p' from partitions",
            log.queue_id,
        )
        with pytest.raises(asyncpg.RaiseError, match="a key and no row"):
            async with connection.transaction():
                await connection.fetchval(_PARTITION, log.queue_id, "p")
        partition = await connection.fetchval(_PARTITION, log.queue_id, "q")
        await connection.execute("insert into cursor_keys values ($1, $2)", partition, log.group_id)
        with pytest.raises(asyncpg.RaiseError, match="a key and no row"):
            async with connection.transaction():
                await connection.fetchrow(_CURSOR, partition, log.group_id, 1)
        await connection.execute(
            "delete from partition_keys where queue_id = $1 and name = 'p'", log.queue_id
        )
        await connection.execute("delete from cursor_keys where partition_id = $1", partition)


async def test_rows_without_a_primary_key_can_be_published(
    connection: asyncpg.Connection, log: Log
) -> None:
    """Logical replication of all tables, as CDC and upgrades of PostgreSQL have it."""
    partition = await connection.fetchval(_PARTITION, log.queue_id, "p")
    await connection.fetchrow(_CURSOR, partition, log.group_id, 1)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("create publication everything for all tables")
    for update in (
        "update partitions set head = 1 where id = $1",
        "update cursors set committed = 1 where partition_id = $1",
        "delete from cursors where partition_id = $1",
        "delete from partitions where id = $1",
    ):
        assert (await connection.execute(update, partition)).endswith(" 1")
    await transaction.rollback()


_DELETIONS = {
    "group": "select queen.delete_group(g.id, true) from queen.groups g where g.queue_id = $1",
    "queue": "select queen.delete_queue(q.name) from queen.queues q where q.id = $1",
}


@pytest.mark.parametrize("deletion", _DELETIONS.values(), ids=_DELETIONS)
async def test_a_deletion_waits_for_cursors_that_are_being_created(
    connection: asyncpg.Connection, other: asyncpg.Connection, log: Log, deletion: str
) -> None:
    partition = await connection.fetchval(_PARTITION, log.queue_id, "p")
    async with connection.transaction():
        opened = await connection.fetchrow(_OPEN, partition, log.group_id)
        assert opened is not None and opened["committed"] == 0
        waiting = asyncio.create_task(other.execute(deletion, log.queue_id))
        await _waits(connection, other)
    await waiting
    assert await connection.fetch(_CURSORS_OF, log.group_id) == []


@pytest.mark.parametrize("deletion", _DELETIONS.values(), ids=_DELETIONS)
async def test_no_cursor_is_created_for_a_group_that_is_being_deleted(
    connection: asyncpg.Connection, other: asyncpg.Connection, log: Log, deletion: str
) -> None:
    partition = await connection.fetchval(_PARTITION, log.queue_id, "p")
    async with connection.transaction():
        await connection.execute(deletion, log.queue_id)
        opened = await other.fetchrow(_OPEN, partition, log.group_id)
        assert opened is not None and opened["committed"] is None
    assert await connection.fetch(_CURSORS_OF, log.group_id) == []


# ---- seeks beside others ----


async def test_seeks_and_claims_of_the_same_partitions_do_not_lock_each_other_out(
    pool: asyncpg.Pool, connection: asyncpg.Connection, log: Log
) -> None:
    """Some cursors are there and some are not; seeks go over all, claims over some, in order."""
    rows = await connection.fetch(
        "insert into partitions (queue_id, name, head) select $1, i::text, 5"
        " from generate_series(1, 60) i returning id",
        log.queue_id,
    )
    ids = sorted(row["id"] for row in rows)

    async def seek(turn: int) -> None:
        at = "-infinity" if turn % 2 else "infinity"
        await pool.fetch(
            f"select * from queen.seek($1, null, '{at}'::timestamptz, null, false)", log.group_id
        )

    async def claim(turn: int) -> None:
        async with pool.acquire() as own, own.transaction():
            for partition in ids[turn % 7 :: 7]:
                await own.execute("select queen.open_cursor($1, $2)", partition, log.group_id)

    for turn in range(6):
        half = ids[turn % 3 :: 2]
        await connection.execute("delete from cursors where partition_id = any ($1)", half)
        works = [seek(turn), claim(turn), seek(turn + 1), claim(turn + 3), claim(turn + 5)]
        await asyncio.gather(*works)
    assert await connection.fetchval(
        "select count(*) from cursors where group_id = $1", log.group_id
    ) == len(ids)
    assert await connection.fetch(_ODD) == []


# ---- databases from before ----


@pytest.fixture
async def old(postgres: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection]:
    """A database of the version before, which knows nothing of keys."""
    name = f"old_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    settings = {**session_settings(), "statement_timeout": "60s"}
    opened = await asyncpg.connect(postgres.dsn, database=name, server_settings=settings)
    packaged = Schema.packaged()
    known = [m for m in packaged.migrations if m[0][:4] <= _LAST_MIGRATION_BEFORE]
    await migrate(opened, replace(packaged, version="0.0.1", migrations=known, functions=[]))
    yield opened
    await opened.close()
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()


async def test_a_database_from_before_gets_its_keys(old: asyncpg.Connection) -> None:
    log = await _make_log(old)
    await old.execute(
        "insert into partitions (queue_id, name) select $1, i::text from generate_series(1, 50) i",
        log.queue_id,
    )
    await old.execute(
        "insert into cursors (partition_id, group_id, committed)"
        " select id, $1, 3 from partitions where id % 2 = 0",
        log.group_id,
    )
    await old.execute(
        "insert into paced_partitions (group_id, partition_id) select $1, min(id) from partitions",
        log.group_id,
    )
    paced = await old.fetchval("select partition_id from paced_partitions")
    await migrate(old)
    assert await old.fetchval("select count(*) from partition_keys") == 50
    assert await old.fetchval("select count(*) from cursor_keys") == 25
    assert await old.fetch(_ODD) == []
    assert await old.fetchval(_PARTITION, log.queue_id, "7") is None
    await old.execute("delete from partitions where id = $1", paced)
    assert await old.fetchval("select count(*) from paced_partitions") == 0
    assert await old.fetch(_ODD) == []
