"""First pops: what a group must look at before it is served does not grow with the partitions."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.service.admin.groups import BEGINNING, SeekTarget
from queen.service.broker import Broker, Limits
from queen.service.catalog import Subscription
from queen.service.consume import sweeper
from queen.service.consume.feeds import Grant, Pop
from queen.service.log.append import Append
from queen.storage.database import Database

_FEW, _MANY = 10, 3_000
_NEW = Subscription("new")


@pytest.fixture
async def broker(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    # Nothing but the pops of a test shall look.
    monkeypatch.setattr(sweeper, "_NET_INTERVAL_S", 3600)
    started = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=4))
    yield started
    await started.stop()


@pytest.fixture
def sent(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that consuming sends."""
    names: list[str] = []
    send = Database._send

    async def count(database: Database, name: str, sql: str, args: tuple[Any, ...]) -> Any:
        names.append(name)
        return await send(database, name, sql, args)

    monkeypatch.setattr(Database, "_send", count)
    return names


async def _queue(broker: Broker, connection: asyncpg.Connection, partitions: int) -> str:
    """A queue whose partitions hold a message each, written an hour ago."""
    name = f"first-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions())
    await connection.execute(
        """
        with made as (
            insert into partitions (queue_id, name, head, head_at)
            select q.id, 'p' || i, 1, now() - interval '1 hour'
              from queues q, generate_series(1, $2) i where q.name = $1
            returning id, queue_id, head_at
        )
        insert into segments
            (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
        select id, 0, 1, head_at, queue_id, 0, '', 'x' from made
        """,
        name,
        partitions,
    )
    return name


async def _pop(
    broker: Broker, name: str, group: str, subscription: Subscription = _NEW
) -> list[Grant]:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return await broker.popper.pop([queue], Pop(group, 100, subscription=subscription), 0)


async def _push(broker: Broker, name: str, partition: str) -> None:
    await broker.pusher.push([Append(name, partition, [uuid.uuid4().hex.encode()], [b"1"], 100)])


async def _cursors(connection: asyncpg.Connection, name: str) -> int:
    return int(
        await connection.fetchval(
            "select count(*) from cursors c join groups g on g.id = c.group_id"
            " join queues q on q.id = g.queue_id where q.name = $1",
            name,
        )
    )


async def test_a_group_of_new_messages_begins_with_as_many_statements_whatever_there_is(
    broker: Broker, connection: asyncpg.Connection, sent: list[str]
) -> None:
    counts = []
    for partitions in (_FEW, _MANY):
        name = await _queue(broker, connection, partitions)
        await broker.catalog.queue(name)
        sent.clear()
        assert await _pop(broker, name, "g") == []
        counts.append(sorted(sent))
        assert await _cursors(connection, name) == 0
    assert counts[0] == counts[1]
    assert "sweep_pages" not in counts[0] and "claim" not in counts[0]


async def test_what_is_written_behind_a_new_group_is_found(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    name = await _queue(broker, connection, _FEW)
    assert await _pop(broker, name, "g") == []
    await _push(broker, name, "p3")
    (grant,) = await _pop(broker, name, "g")
    assert (grant.partition.name, grant.start, grant.stop) == ("p3", 1, 2)


async def test_what_was_written_before_the_feed_was_there_is_found(
    broker: Broker, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is made, and pushed to, before the pop that made it has a feed to be told by."""
    name = await _queue(broker, connection, _FEW)
    join = broker.catalog.join

    async def join_late(*arguments: Any) -> Any:
        joined = await join(*arguments)
        await _push(broker, name, "p7")
        return joined

    monkeypatch.setattr(broker.catalog, "join", join_late)
    (grant,) = await _pop(broker, name, "g")
    assert grant.partition.name == "p7"


async def test_a_group_that_is_moved_back_before_it_has_looked_reads_from_there(
    broker: Broker, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await _queue(broker, connection, _FEW)
    await _push(broker, name, "fresh")
    queue = await broker.catalog.queue(name)
    assert queue is not None
    fresh = await broker.catalog.partition(queue, "fresh")
    begin = broker.sweeper._begin

    async def begin_late(feed: Any, begins_at: datetime) -> None:
        (group,) = await broker.groups.find("g", name)
        await broker.groups.seek(group, fresh, SeekTarget(BEGINNING), dry=False)
        await begin(feed, begins_at)

    monkeypatch.setattr(broker.sweeper, "_begin", begin_late)
    (grant,) = await _pop(broker, name, "g")
    assert (grant.partition.name, grant.start) == ("fresh", 0)


@pytest.mark.parametrize("mode", ["timestamp", "gone"])
async def test_partitions_with_nothing_for_a_group_are_not_claimed(
    broker: Broker, connection: asyncpg.Connection, sent: list[str], mode: str
) -> None:
    """Neither what was written before it starts, nor what retention has removed."""
    name = await _queue(broker, connection, _FEW)
    subscription = Subscription("timestamp", datetime.now(UTC) - timedelta(minutes=1))
    if mode == "gone":
        subscription = Subscription()
        await connection.execute(
            "update partitions p set tail = head from queues q"
            " where q.id = p.queue_id and q.name = $1",
            name,
        )
    sent.clear()
    assert await _pop(broker, name, "g", subscription) == []
    assert "sweep_pages" in sent and "claim" not in sent
    await _push(broker, name, "p5")
    (grant,) = await _pop(broker, name, "g", subscription)
    assert grant.partition.name == "p5"


async def test_another_server_finds_what_a_group_has_left(
    broker: Broker, connection: asyncpg.Connection, dsn: str
) -> None:
    """A cursor counts, though what is behind it was written before the subscription starts."""
    name = await _queue(broker, connection, _FEW)
    await _push(broker, name, "fresh")
    assert await _pop(broker, name, "g") == []
    (group,) = await broker.groups.find("g", name)
    queue = await broker.catalog.queue(name)
    assert queue is not None
    partition = await broker.catalog.partition(queue, "fresh")
    await broker.groups.seek(group, partition, SeekTarget(BEGINNING), dry=False)
    other = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=4))
    try:
        (grant,) = await _pop(other, name, "g")
        assert (grant.partition.name, grant.start) == ("fresh", 0)
    finally:
        await other.stop()
