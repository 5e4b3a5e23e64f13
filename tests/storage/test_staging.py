"""The outbox: what `queen.push` takes, and the order in which it is taken out again.

The tests run on a database that no server works on, so that the staged rows stay.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from queen.core.names import reason_against_name
from queen.core.payload import MAX_DEPTH, MAX_PAYLOAD_BYTES
from queen.service.broker import Broker, Limits
from queen.service.log.flush_share import Share
from queen.storage.database import session_settings
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import migrate
from queen.storage.statements import statements
from tests.waiting import until_async

_BAD_ARGUMENT = "22023"
_NO_RIGHTS = "42501"


@pytest.fixture(scope="module")
async def quiet(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """The name of a migrated database without a relay."""
    name = f"quiet_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    opened = await asyncpg.connect(postgres.dsn, database=name)
    await migrate(opened)
    await opened.close()
    yield name
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()


@pytest.fixture
async def one(postgres: EmbeddedPostgres, quiet: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to an empty outbox."""
    opened = await asyncpg.connect(postgres.dsn, database=quiet, server_settings=session_settings())
    await opened.execute("truncate queen.staged, queen.staged_commits, queen.staged_refused")
    yield opened
    await opened.close()


@pytest.fixture
async def two(postgres: EmbeddedPostgres, quiet: str) -> AsyncIterator[asyncpg.Connection]:
    """Another producer."""
    opened = await asyncpg.connect(postgres.dsn, database=quiet)
    yield opened
    await opened.close()


async def push(connection: asyncpg.Connection, number: int, partition: str = "p") -> None:
    await connection.execute("select queen.push('q', $1, to_jsonb($2::integer))", partition, number)


async def take(
    connection: asyncpg.Connection, limit: int = 1000, size_bytes: int = 1 << 23
) -> list[Any]:
    """Take what is due out of the outbox; return the payloads."""
    rows = await connection.fetch(statements()["take_outbox"].sql, limit, size_bytes)
    return [int(row["payload"]) for row in rows]


# ---- if and only if ----


async def test_a_push_appears_when_its_transaction_commits(
    one: asyncpg.Connection, two: asyncpg.Connection
) -> None:
    async with two.transaction():
        await push(two, 1)
        assert await take(one) == []
    assert await take(one) == [1]
    assert await take(one) == []


async def test_a_rolled_back_push_never_was(
    one: asyncpg.Connection, two: asyncpg.Connection
) -> None:
    outer = two.transaction()
    await outer.start()
    await push(two, 1)
    await outer.rollback()
    async with two.transaction():
        await push(two, 2)
        inner = two.transaction()
        await inner.start()
        await push(two, 3)
        await inner.rollback()
        await push(two, 4)
    assert await take(one) == [2, 4]
    assert await one.fetchval("select count(*) from queen.staged_commits") == 0


# ---- the order of commits ----


async def test_the_order_is_that_of_commits_not_of_pushes(
    one: asyncpg.Connection, two: asyncpg.Connection
) -> None:
    async with one.transaction():
        await push(one, 3)
        async with two.transaction():
            await push(two, 1)
            await push(one, 4)
            await push(two, 2)
        await push(one, 5)
    assert await take(one) == [1, 2, 3, 4, 5]


async def test_one_transaction_draws_one_number(one: asyncpg.Connection) -> None:
    async with one.transaction():
        for number in range(50):
            await push(one, number)
    await push(one, 50)
    first, second = await one.fetch("select seq from queen.staged_commits order by seq")
    assert second["seq"] == first["seq"] + 1


async def test_many_transactions_at_once_keep_each_producers_order(
    one: asyncpg.Connection, postgres: EmbeddedPostgres, quiet: str
) -> None:
    async def produce(producer: int) -> None:
        own = await asyncpg.connect(postgres.dsn, database=quiet)
        for number in range(25):
            async with own.transaction():
                await push(own, producer * 1000 + number)
        await own.close()

    await asyncio.gather(*(produce(producer) for producer in range(8)))
    taken = await take(one)
    assert len(taken) == 200
    for producer in range(8):
        mine = [number for number in taken if number // 1000 == producer]
        assert mine == [producer * 1000 + number for number in range(25)]


async def test_push_many_keeps_the_order_of_the_array(one: asyncpg.Connection) -> None:
    sql = (
        "select queen.push_many('q', 'p', array(select to_jsonb(i) from generate_series(1, 300) i))"
    )
    ids = await one.fetchval(sql)
    assert len(set(ids)) == 300
    assert await take(one) == list(range(1, 301))


async def test_what_is_due_later_comes_by_the_clock(one: asyncpg.Connection) -> None:
    sql = (
        "select queen.push('q', 'p', to_jsonb($1::integer),"
        " deliver_at => now() + $2 * interval '1 hour')"
    )
    for number, hours in ((1, 3), (2, 1), (3, 2)):
        await one.execute(sql, number, hours)
    await one.execute(sql, 4, -1)
    assert await take(one) == [4]
    assert 3500 < await one.fetchval(statements()["next_due"].sql) <= 3600
    await one.execute("update queen.staged set deliver_at = deliver_at - interval '4 hours'")
    assert await take(one) == [2, 3, 1]


# ---- rounds ----


async def test_a_round_is_bounded_in_messages(one: asyncpg.Connection) -> None:
    async with one.transaction():
        for number in range(5):
            await push(one, number)
    assert [await take(one, limit=2) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


async def test_a_round_is_bounded_in_bytes_but_takes_one(one: asyncpg.Connection) -> None:
    for number in range(1, 4):
        await one.execute(
            "select queen.push('q', 'p', to_jsonb(lpad($1::text, 1000, '1')::numeric))", str(number)
        )
    rounds = [await take(one, size_bytes=size) for size in (1, 1500, 1500)]
    assert [len(taken) for taken in rounds] == [1, 2, 0]


async def test_no_kind_starves_the_other(one: asyncpg.Connection) -> None:
    for number in range(4):
        await push(one, number)
        await one.execute("select queen.push('q', 'p', '9', deliver_at => now() + interval '1 h')")
    await one.execute("update queen.staged set deliver_at = deliver_at - interval '2 h'")
    assert await take(one, size_bytes=4) == [0, 9, 1, 9]


async def test_what_somebody_cancels_is_left_to_them(
    one: asyncpg.Connection, two: asyncpg.Connection
) -> None:
    sql = (
        "select queen.push('q', 'p', to_jsonb($1::integer), $1::integer::text,"
        " deliver_at => now() + interval '1 h')"
    )
    await one.execute(sql, 1)
    await one.execute(sql, 2)
    await one.execute("update queen.staged set deliver_at = deliver_at - interval '2 h'")
    async with two.transaction():
        assert len(await two.fetch(statements()["cancel_scheduled"].sql, "q", "1", None)) == 1
        assert await take(one) == [2]
    assert await take(one) == []


async def test_numbers_without_rows_are_cleaned_up(one: asyncpg.Connection) -> None:
    for number in range(3):
        await push(one, number)
    await one.execute("delete from queen.staged")
    assert await take(one, limit=2) == []
    assert await take(one, limit=2) == []
    assert await one.fetchval("select count(*) from queen.staged_commits") == 0


async def test_a_round_reads_what_it_takes_whatever_else_is_there(one: asyncpg.Connection) -> None:
    """Without statistics, as the tables fill and drain faster than anybody analyses them."""
    await one.execute(
        """
        insert into queen.staged
            (transaction, queue, partition, transaction_id, payload, deliver_at)
        select (1 + i / 100)::text::xid8, 'q', 'p', i::text, '1',
               case when i % 2 = 0 then now() - interval '1 day' end
          from generate_series(0, 39999) i;
        """
    )
    await one.execute("select pg_stat_force_next_flush()")
    before = await _rows_read(one)
    assert len(await take(one, limit=100)) == 200
    assert await _rows_read(one) - before < 2000


async def _rows_read(connection: asyncpg.Connection) -> int:
    await connection.execute("select pg_stat_force_next_flush()")
    read: int = await connection.fetchval(
        "select sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::bigint"
        " from pg_stat_user_tables where relname in ('staged', 'staged_commits')"
    )
    return read


# ---- wake-ups ----


async def test_a_commit_wakes_once_and_a_distant_time_does_not(
    one: asyncpg.Connection, two: asyncpg.Connection
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    await two.add_listener("queen_staged", lambda *heard_: heard.put_nowait(heard_[3]))
    later = "select queen.push('q', 'p', '1', deliver_at => now() + $1 * interval '1 second')"
    await one.execute(later, 3600)
    async with one.transaction():
        await push(one, 1)
        await push(one, 2)
        await two.fetchval("select 1")
        assert heard.empty()
    await asyncio.wait_for(heard.get(), 5)
    await one.execute(later, 1)
    await asyncio.wait_for(heard.get(), 5)
    await two.fetchval("select 1")
    assert heard.empty()


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("'', '1'", "queue"),
        ("null, '1'", "queue"),
        ("repeat('q', 256), '1'", "queue"),
        ("repeat('ü', 128), '1'", "queue"),
        ("E'a\\nb', '1'", "queue"),
        ("'q', '', '1'", "partition"),
        ("'q', E'a\\u200bb', '1'", "partition"),
        ("'q', null::jsonb", "payload"),
        ("'q', 'p', null", "payload"),
        ("'q', 'p', '1', ''", "transaction_id"),
        ("'q', 'p', '1', repeat('x', 256)", "transaction_id"),
        ("'q', 'p', '1', null, 'trace'", "trace_id"),
        ("'q', 'p', '1', deliver_at => 'infinity'", "deliver_at"),
        ("'q', 'p', '1', deliver_at => now() + interval '11 years'", "deliver_at"),
    ],
)
async def test_a_bad_argument_is_named(one: asyncpg.Connection, arguments: str, names: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=rf"^queen\.push: {names} ") as refused:
        await one.execute(f"select queen.push({arguments})")
    assert refused.value.sqlstate == _BAD_ARGUMENT
    assert await one.fetchval("select count(*) from queen.staged") == 0


async def test_the_limits_of_a_payload_are_those_of_http(one: asyncpg.Connection) -> None:
    push_text = "select queen.push('q', $1::text::jsonb)"
    await one.execute(push_text, "[" * MAX_DEPTH + "]" * MAX_DEPTH)
    await one.execute(push_text, '{"a": ' * MAX_DEPTH + '"[[["' + "}" * MAX_DEPTH)
    await one.execute(push_text, "[" + "[]," * 500 + "1]")
    for deep in ("[" * 129 + "]" * 129, '{"a": ' * 128 + "[]" + "}" * 128):
        with pytest.raises(asyncpg.PostgresError, match="deeper than 128"):
            await one.execute(push_text, deep)
    await one.execute(push_text, f'"{"x" * (MAX_PAYLOAD_BYTES - 2)}"')
    with pytest.raises(asyncpg.PostgresError, match="larger than 16777216"):
        await one.execute(push_text, f'"{"x" * (MAX_PAYLOAD_BYTES - 1)}"')


async def test_push_many_refuses_all_for_one(one: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.PostgresError, match="payload is null"):
        await one.execute("select queen.push_many('q', 'p', array['1', null, '2']::jsonb[])")
    assert await one.fetchval("select queen.push_many('q', 'p', '{}')") == []
    assert await take(one) == []


async def test_names_are_judged_as_over_http(one: asyncpg.Connection) -> None:
    """All characters there are."""
    points = [at for at in range(1, sys.maxunicode + 1) if not 0xD800 <= at <= 0xDFFF]
    refused = await one.fetch(
        "select at from unnest($1::integer[]) at"
        " where queen.reason_against_name('queue', chr(at)) is not null",
        points,
    )
    by_sql = {row["at"] for row in refused}
    by_python = {at for at in points if reason_against_name("queue", chr(at))}
    assert by_sql == by_python
    # Whatever Unicode will make of it.
    assert 0x1FFFD not in by_sql


async def test_an_encrypted_queue_is_refused(one: asyncpg.Connection) -> None:
    await one.execute(
        "select queen.configure_queue('secret', '', '', '{\"encryptionEnabled\": true}')"
    )
    with pytest.raises(asyncpg.PostgresError, match="encrypted"):
        await one.execute("select queen.push('secret', '1')")
    assert await one.fetchval("select count(*) from queen.staged") == 0


async def test_who_sees_some_namespaces_sees_their_messages_only(one: asyncpg.Connection) -> None:
    await one.execute("select queen.configure_queue('plain', 'shop', '', '{}')")
    for queue in ("plain", "shop.orders", "bank.orders"):
        await one.execute(
            "select queen.push($1, 'p', '1', 't', deliver_at => now() + interval '1 h')", queue
        )

    async def seen(name: str, *arguments: object) -> list[str]:
        rows = await one.fetch(statements()[name].sql, *arguments)
        return [row["queue"] for row in rows]

    assert await seen("scheduled_among", 9, 0, ["shop"]) == ["plain", "shop.orders"]
    assert len(await seen("scheduled_everywhere", 9, 0)) == 3
    assert await seen("scheduled", "bank.orders", 9, 0, ["shop"]) == []
    assert await seen("scheduled", "bank.orders", 9, 0, ["bank"]) == ["bank.orders"]
    cancel = statements()["cancel_scheduled"].sql
    assert await one.fetch(cancel, "bank.orders", "t", ["shop"]) == []
    assert len(await one.fetch(cancel, "bank.orders", "t", ["shop", "bank"])) == 1


# ---- rights ----


@pytest.fixture
async def role(
    one: asyncpg.Connection, postgres: EmbeddedPostgres, quiet: str
) -> AsyncIterator[asyncpg.Connection]:
    """A connection of an application that was given the two grants and no more."""
    name = f"app_{uuid.uuid4().hex[:8]}"
    await one.execute(
        f"""
        create role {name};
        grant usage on schema queen to {name};
        grant execute on function queen.push(text, text, jsonb, text, text, timestamptz) to {name};
        """
    )
    opened = await asyncpg.connect(postgres.dsn, database=quiet)
    await opened.execute(f"set role {name}")
    yield opened
    await opened.close()
    await one.execute(f"drop owned by {name}; drop role {name}")


async def test_an_application_needs_two_grants(
    one: asyncpg.Connection, role: asyncpg.Connection
) -> None:
    async with role.transaction():
        await push(role, 1)
        await push(role, 2)
    assert await take(one) == [1, 2]


@pytest.mark.parametrize(
    "sql",
    [
        "select queen.push('q', '1')",
        "select queen.push_many('q', 'p', array['1']::jsonb[])",
        "select queen.stage('q', 'p', array['1']::jsonb[], array['a'], null, null, null)",
        "select * from queen.take_staged(1, 1)",
        "select * from queen.take_outbox(1, 1)",
        "select queen.delete_queue('q')",
        "select queen.configure_queue('q', '', '', '{}')",
        "select * from queen.append(" + ", ".join(["'{}'"] * 11) + ")",
        "select * from queen.staged",
        "select * from queen.segments",
        "delete from queen.staged_commits",
        "insert into queen.staged (queue, partition, transaction_id, payload)"
        " values ('q', 'p', 't', '1')",
        "create temp table bait (deliver_at timestamptz, transaction xid8);"
        "create trigger t after insert on bait execute function queen.take_place()",
    ],
)
async def test_it_may_do_nothing_else(role: asyncpg.Connection, sql: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await role.execute(sql)
    assert refused.value.sqlstate == _NO_RIGHTS


# ---- who waits for an open transaction ----


async def test_an_open_transaction_holds_no_lock_that_another_wants(
    one: asyncpg.Connection, two: asyncpg.Connection
) -> None:
    await one.execute("set lock_timeout = '1s'")
    await two.execute("select queen.configure_queue('held', '', '', '{}')")
    async with two.transaction():
        await two.execute("select queen.push('held', 'p', '1', 'same-id')")
        await one.execute("select queen.push('held', 'p', '2', 'same-id')")
        assert await take(one) == [2]
        await one.execute("select queen.configure_queue('held', '', '', '{\"leaseTime\": 5}')")
        assert await one.fetchval("select queen.delete_queue('held')")
        await one.execute("vacuum queen.staged")
    assert await take(one) == [1]


async def test_a_deleted_queue_takes_what_is_staged_with_it(one: asyncpg.Connection) -> None:
    await push(one, 1)
    async with one.transaction():
        await push(one, 2)
        await one.execute("select queen.push('other', 'p', '3')")
    await one.execute("select queen.push('q', 'p', '4', deliver_at => now() + interval '1 h')")
    await one.fetchval("select queen.delete_queue('q')")
    assert await one.fetchval("select count(*) from queen.staged_commits") == 1
    assert await take(one) == [3]
    assert await one.fetchval("select count(*) from queen.staged") == 0


# ---- time that passes meanwhile ----


async def test_time_passes_before_a_round_of_the_relay_or_after_it(
    one: asyncpg.Connection, two: asyncpg.Connection, postgres: EmbeddedPostgres, quiet: str
) -> None:
    """A round has locked what is staged and comes to the partition: neither waits for ever."""
    queue_id = await one.fetchval("insert into queen.queues (name) values ('timed') returning id")
    insert = "insert into queen.partitions (queue_id, name) values ($1, 'p') returning id"
    partition = await one.fetchval(insert, queue_id)
    await one.execute("select queen.push('timed', 'p', '1')")
    watcher = await asyncpg.connect(postgres.dsn, database=quiet)

    async def is_waiting() -> bool:
        waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
        return bool(await watcher.fetchval(waits, two.get_server_pid()))

    async with one.transaction():
        assert await one.fetchval(statements()["try_job"].sql, "relay")
        assert await take(one) == [1]
        passing = asyncio.create_task(two.fetch("select queen.pass_time('timed', 60)"))
        await until_async(is_waiting)
        await one.fetch("select from queen.partitions where id = $1 for update", partition)
    assert [row[0] for row in await passing] == [queue_id]
    await watcher.close()


# ---- a message that nobody can append ----


async def test_what_fails_for_an_unknown_reason_is_found_and_put_back(
    postgres: EmbeddedPostgres,
    quiet: str,
    one: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dsn = urlsplit(postgres.dsn)._replace(path=f"/{quiet}").geturl()
    broker = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=3))
    build = broker.appender.build

    def refuse(shares: list[Share]) -> list[Share]:
        if any(share.partition.name == "bad" for share in shares):
            raise RuntimeError("nobody has thought of this")
        return build(shares)

    try:
        monkeypatch.setattr(broker.appender, "build", refuse)
        for number, partition in enumerate(("p", "p", "bad", "p")):
            await push(one, number, partition)
        async with asyncio.timeout(60):
            while await one.fetchval("select coalesce(sum(head), 0) from queen.partitions") < 3:
                broker.relay.wake()
        assert await one.fetchval(
            "select partition = 'bad' and deliver_at > clock_timestamp() from queen.staged"
        )
    finally:
        await broker.stop()
