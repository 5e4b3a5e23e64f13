"""What is removed, when, and what never is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import asyncpg
import pytest

from queen.service.upkeep.jobs import Jobs
from queen.service.upkeep.retention import Retention
from queen.storage.database import Database, Transaction
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import age

DAY_S = 24 * 3600


async def run(database: Database, retention: Retention | None = None) -> None:
    """Run the clean-up to its end, as a server's job does."""
    retention, jobs = retention or Retention(7, 30), Jobs(database)
    rounds: list[bool] = []

    async def work(transaction: Transaction) -> bool:
        rounds.append(await retention.remove_old(transaction))
        return rounds[-1]

    jobs.add("retention", 1, work)
    # The servers of the tests run the same job; then it is not our turn.
    while not rounds or rounds[-1]:
        await jobs.run_once("retention")


async def stored(connection: asyncpg.Connection, queue: str) -> tuple[int, int]:
    """How many messages are stored, and how many the partitions say there are."""
    row = await connection.fetchrow(
        """
        select (select coalesce(sum(s.end_offset - s.base_offset), 0) from queen.segments s
                where s.queue_id = q.id) as stored,
               (select sum(p.head - p.tail) from queen.partitions p where p.queue_id = q.id) as told
        from queen.queues q where q.name = $1
        """,
        queue,
    )
    assert row is not None
    return int(row["stored"]), int(row["told"])


async def test_what_is_too_old_goes_read_or_not(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, retentionSeconds=60)
    api.push_many(queue, 10)
    assert len(api.messages(queue, consumerGroup="g", batch=3)) == 3
    await age(connection, queue, 61)
    api.push_many(queue, 5)
    await run(database)
    assert await stored(connection, queue) == (5, 5)
    # A group that stood in what is gone goes on with what is there.
    assert [one["n"] for one in api.data(queue, consumerGroup="new", batch=100)] == [0, 1, 2, 3, 4]


async def test_a_queue_whose_options_cannot_be_read_holds_up_no_other(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    other = f"{queue}-0"
    await connection.execute(
        "insert into queen.queues (name, options) values"
        ' ($1 || \'-1\', \'{"ttl": 5, "leaseTime": "long"}\'),'
        ' ($1 || \'-2\', \'{"ttl": "long", "retentionEnabled": "maybe"}\')',
        queue,
    )
    api.configure(other, ttl=60)
    api.push_many(other, 3)
    await age(connection, other, 61)
    await run(database)
    assert await stored(connection, other) == (0, 0)
    await connection.execute("delete from queen.queues where name ~ ('^' || $1 || '-[12]$')", queue)


async def test_without_the_switch_nothing_goes(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionSeconds=60, completedRetentionSeconds=60)
    api.push_many(queue, 10)
    await age(connection, queue, 3600)
    await run(database)
    assert await stored(connection, queue) == (10, 10)


async def test_what_a_living_group_still_needs_stays(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, completedRetentionSeconds=60)
    for n in range(10):
        api.push({"queue": queue, "payload": n})
    for group, batch in (("fast", 10), ("slow", 4)):
        messages = api.messages(queue, consumerGroup=group, batch=batch)
        api.ack_batch(messages, group=group)
    await run(database)
    assert await stored(connection, queue) == (10, 10)
    await age(connection, queue, 61)
    await run(database)
    assert await stored(connection, queue) == (6, 6)
    assert api.data(queue, consumerGroup="slow", batch=100) == [4, 5, 6, 7, 8, 9]
    # A group that has not opened the partition yet needs all that is left.
    assert await stored(connection, queue) == (6, 6)


async def test_without_a_group_nothing_is_completed(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
    api.push_many(queue, 10)
    await age(connection, queue, 3600)
    await run(database)
    assert await stored(connection, queue) == (10, 10)


async def test_an_abandoned_group_holds_nothing_back(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
    api.push_many(queue, 10)
    api.ack_batch(api.messages(queue, consumerGroup="lives", batch=10), group="lives")
    assert len(api.messages(queue, consumerGroup="gone", batch=1)) == 1
    await age(connection, queue, 3600)
    await run(database)
    assert await stored(connection, queue) == (10, 10)
    await connection.execute(
        "update queen.groups set used_at = used_at - interval '8 days' where name = 'gone'"
    )
    await run(database)
    assert await stored(connection, queue) == (0, 0)


@pytest.mark.parametrize("option", ["ttl", "maxWaitTimeSeconds"])
async def test_what_is_of_no_use_is_passed_over_at_once_and_removed_later(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection, option: str
) -> None:
    api.configure(queue, **{option: 60})
    api.push_many(queue, 3)
    assert len(api.messages(queue, consumerGroup="early", batch=1)) == 1
    await age(connection, queue, 61)
    api.push_many(queue, 2)
    assert [one["n"] for one in api.data(queue, batch=100)] == [0, 1]
    assert await stored(connection, queue) == (5, 5)
    await run(database)
    assert await stored(connection, queue) == (2, 2)


async def test_many_partitions_and_segments_are_cleaned_in_rounds(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, retentionSeconds=60)
    for _ in range(12):
        api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(300)])
    await age(connection, queue, 61)
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(300)])
    await run(database)
    assert await stored(connection, queue) == (300, 300)
    kept = await connection.fetchval(
        "select count(*) from queen.partitions p join queen.queues q on q.id = p.queue_id"
        " where q.name = $1 and p.tail = 12 and p.head = 13",
        queue,
    )
    assert kept == 300


async def test_an_id_that_is_gone_may_come_again(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, dedup="forever", retentionEnabled=True, retentionSeconds=60)
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    api.push(item)
    assert api.push(item).json[0]["status"] == "duplicate"
    await age(connection, queue, 61)
    await run(database)
    assert api.push(item).json[0]["status"] == "queued"


async def test_a_lease_on_what_is_removed_can_still_be_acked(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, retentionSeconds=60)
    for n in range(4):
        api.push({"queue": queue, "payload": n})
    messages = api.messages(queue, batch=2)
    await age(connection, queue, 61)
    await run(database)
    results = api.ack_batch(messages).json["results"]
    assert [one["success"] for one in results] == [True, True]
    assert api.messages(queue, batch=10) == []


async def test_partitions_that_are_empty_and_unused_are_removed(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, retentionSeconds=60)
    for name in ("idle", "full", "Default"):
        api.push({"queue": queue, "partition": name, "payload": 1})
    assert len(api.messages(queue, "idle")) == 1
    await age(connection, queue, 31 * DAY_S)
    api.push({"queue": queue, "partition": "full", "payload": 2})
    await run(database)
    await connection.execute(
        "update queen.partitions p set created_at = p.created_at - interval '31 days'"
        " from queen.queues q where q.id = p.queue_id and q.name = $1",
        queue,
    )
    retention = Retention(7, 30)
    async with database.transaction() as transaction:
        while await retention.drop_idle(transaction) or retention._partition:
            pass
    names = await connection.fetch(
        "select p.name from queen.partitions p join queen.queues q on q.id = p.queue_id"
        " where q.name = $1 order by p.name",
        queue,
    )
    assert [row["name"] for row in names] == ["Default", "full"]
    history = await connection.fetch(
        "select h.segments, h.messages from queen.retention_history h"
        " join queen.queues q on q.id = h.queue_id"
        " where q.name = $1 and h.kind = 'partition_cleanup'",
        queue,
    )
    assert [tuple(row) for row in history] == [(1, 0)]
    # It comes back when it is needed.
    assert api.push({"queue": queue, "partition": "idle", "payload": 3}).status == 201
    assert api.data(queue, "idle") == [3]


@pytest.fixture
def eager(dsn: str) -> Iterator[ServerProcess]:
    running = ServerProcess("--database-url", dsn, "--retention-interval", "20")
    yield running
    running.stop()


async def test_servers_clean_up_by_themselves(
    eager: ServerProcess, queue: str, connection: asyncpg.Connection
) -> None:
    api = eager.api()
    api.configure(queue, ttl=1)
    api.push_many(queue, 10)
    deadline = time.monotonic() + 30
    while await stored(connection, queue) != (0, 0):
        assert time.monotonic() < deadline
    history = await connection.fetchrow(
        "select h.kind, h.segments, h.messages from queen.retention_history h"
        " join queen.queues q on q.id = h.queue_id where q.name = $1",
        queue,
    )
    assert history is not None
    assert tuple(history) == ("ttl", 1, 10)
