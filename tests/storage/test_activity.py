"""Activity: written again and again, counted once, and forgotten in time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.errors import Unavailable
from queen.service.catalog import Queue
from queen.service.stats.activity import FIELDS, Activity, ServerName
from queen.service.stats.activity_report import ActivityReport
from queen.storage.database import Database, session_settings
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.statements import statements
from tests.databases import own_database


@pytest.fixture
async def own(postgres: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection]:
    """A database of the test's own: it forgets what others would miss."""
    async with own_database(postgres.dsn) as dsn:
        opened = await asyncpg.connect(dsn, server_settings=session_settings())
        yield opened
        await opened.close()


async def _queue(connection: asyncpg.Connection, name: str) -> Queue:
    queue_id = await connection.fetchval(
        "insert into queen.queues (name) values ($1) returning id", name
    )
    return Queue(queue_id, name, "", "", QueueOptions())


async def _count_pushed(connection: asyncpg.Connection, queue: Queue) -> int:
    count: int = await connection.fetchval(
        "select coalesce(sum(push_messages), 0)::bigint from queen.activity where queue_id = $1",
        queue.id,
    )
    return count


async def test_a_report_that_is_repeated_counts_once(
    database: Database, connection: asyncpg.Connection, queue: str
) -> None:
    made = await _queue(connection, queue)
    activity = Activity(ServerName("here", 1, 0))
    report = ActivityReport(database, activity)
    activity.of(made).push_messages += 5
    await report.flush()
    activity.of(made).push_messages += 2
    await report.flush()
    activity.of(made)
    await report.flush()
    assert await _count_pushed(connection, made) == 7
    assert activity.totals()["push_messages"] == 7
    totals = await connection.fetchval(
        "select totals from queen.servers where id = $1", report.server_id
    )
    assert totals[FIELDS.index("push_messages")] == 7


async def test_what_could_not_be_written_is_written_later(
    database: Database, connection: asyncpg.Connection, queue: str
) -> None:
    made = await _queue(connection, queue)
    activity = Activity(ServerName("here", 1, 0))
    is_refused = True

    async def fail(*_: object) -> None:
        if is_refused:
            raise Unavailable

    report = ActivityReport(database, activity, more=fail)
    activity.of(made).push_messages += 5
    with pytest.raises(Unavailable):
        await report.flush()
    assert await _count_pushed(connection, made) == 0
    is_refused = False
    activity.of(made).push_messages += 1
    await report.flush()
    activity.of(made).push_messages += 1
    await report.flush()
    assert await _count_pushed(connection, made) == 7
    assert activity.totals()["push_messages"] == 7


async def test_the_next_minute_starts_at_zero(
    database: Database, connection: asyncpg.Connection, queue: str
) -> None:
    made = await _queue(connection, queue)
    activity = Activity(ServerName("here", 1, 0))
    report = ActivityReport(database, activity)
    activity.of(made).push_messages += 5
    await report.flush()
    # As if the minute that was written to were the one before.
    for table in ("activity", "worker_samples"):
        await connection.execute(
            f"update queen.{table} set bucket = bucket - interval '1 minute' where server_id = $1",
            report.server_id,
        )
    counters = activity.of(made)
    assert counters.bucket is not None
    counters.bucket = counters.bucket.replace(year=2020)
    counters.push_messages += 2
    await report.flush()
    rows = await connection.fetch(
        "select push_messages from queen.activity where queue_id = $1 order by bucket", made.id
    )
    assert [row[0] for row in rows] == [5, 2]


async def test_a_queue_that_is_gone_is_forgotten(
    database: Database, connection: asyncpg.Connection, queue: str
) -> None:
    made = await _queue(connection, queue)
    activity = Activity(ServerName("here", 1, 0))
    report = ActivityReport(database, activity)
    activity.of(made).push_messages += 5
    await report.flush()
    await connection.execute("select queen.delete_queue($1)", queue)
    activity.of(made).push_messages += 1
    await report.flush()
    assert activity.by_queue() == []
    assert activity.totals()["push_messages"] == 6


async def test_old_numbers_go_and_the_totals_stay(own: asyncpg.Connection) -> None:
    await own.execute(
        """
        insert into queues (name) values ('q');
        insert into servers (hostname, port, worker, seen_at, totals) values
            ('a', 1, 0, now() - interval '100 days', '{1,2}'),
            ('b', 1, 0, now() - interval '95 days', '{10}'),
            ('c', 1, 0, now(), '{100,200}');
        insert into worker_samples
            select now() - make_interval(days => d), 3, 1, 0, 0, '{}', '{}', '{}', '{}'
            from generate_series(1, 100, 33) d;
        insert into retention_history (queue_id, kind, executed_at)
            select 1, 'ttl', now() - make_interval(days => d) from generate_series(1, 100, 33) d;
        """
    )
    values = ", ".join("0" for _ in range(18))
    await own.execute(
        f"insert into activity select 1, now() - make_interval(days => d), 3, {values}"
        " from generate_series(1, 100, 33) d"
    )
    sql = {name: statements()[name].sql for name in ("forget_activity", "forget_servers")}
    (gone,) = await own.fetch(sql["forget_activity"], 90, 1000)
    assert tuple(gone) == (1, 1, 1)
    await own.execute(sql["forget_servers"], 90)
    rows = await own.fetch("select hostname, totals from servers order by id")
    assert [tuple(row) for row in rows] == [("a", [11, 2]), ("c", [100, 200])]
    # Again changes nothing.
    await own.execute(sql["forget_servers"], 90)
    assert await own.fetch("select hostname, totals from servers order by id") == rows
    totals = await own.fetch(statements()["cluster_totals"].sql)
    assert [row["total"] for row in totals] == [111, 202]
