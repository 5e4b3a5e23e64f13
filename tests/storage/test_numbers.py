"""Numbers of rows are drawn for rows that are new, and never in vain.

A number that is an integer is gone after two thousand million: at a thousand a second, within
a month.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.core.streams import StreamDefinition
from queen.errors import Conflict
from queen.service.broker import Broker, Limits
from queen.service.catalog import FROM_BEGINNING, Queue
from queen.service.instants import instant_at

TABLES = ["queues", "partitions", "groups", "streams", "stream_groups", "pipelines"]
REPEATS = 5

Repeated = Callable[[Broker, Queue], Awaitable[object]]


async def report(broker: Broker, queue: Queue) -> object:
    return await broker.sealed_reads.progress("spark", {queue.id: 0}, instant_at(1))


async def pop(broker: Broker, queue: Queue) -> object:
    # As a server that has just started: it does not know the group.
    broker.catalog.forget_queue(queue.name)
    found = await broker.catalog.queue(queue.name)
    assert found is not None
    return await broker.catalog.group(found, "g", FROM_BEGINNING)


async def configure(broker: Broker, queue: Queue) -> object:
    return await broker.queues.configure(queue.name, "", "", QueueOptions())


async def push(broker: Broker, queue: Queue) -> None:
    broker.catalog.forget_queue(queue.name)
    await broker.catalog.ensure_queue(queue.name)
    # As when another server has made it between the look and this.
    await broker.database.execute("ensure_partitions", [queue.id], ["p"], None)


async def define(broker: Broker, queue: Queue) -> object:
    definition = StreamDefinition(window_type="tumbling", window_duration_ms=1000)
    stream = f"of-{queue.name}"
    defined = await broker.streams.define(stream, "", definition, [queue.name], recut=False)
    return await broker.work.group(defined.stream, "g", None)


async def pipeline(broker: Broker, queue: Queue) -> object:
    return await broker.database.findval("insert_pipeline", queue.name, "", "{}", "same")


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=3))
    yield started
    await started.stop()


async def drawn(connection: asyncpg.Connection) -> dict[str, int]:
    """Which number each table has drawn last."""
    return {
        table: await connection.fetchval(
            f"select last_value from {await sequence(connection, table)}"
        )
        for table in TABLES
    }


async def sequence(connection: asyncpg.Connection, table: str) -> str:
    name: str = await connection.fetchval(
        "select pg_get_serial_sequence('queen.' || $1::text, 'id')", table
    )
    return name


@pytest.mark.parametrize("repeated", [report, pop, configure, push, define, pipeline])
async def test_what_is_there_already_draws_no_number(
    broker: Broker, connection: asyncpg.Connection, repeated: Repeated
) -> None:
    await broker.queues.configure(name := uuid.uuid4().hex, "", "", QueueOptions())
    queue = await broker.catalog.queue(name)
    assert queue is not None
    await repeated(broker, queue)
    before = await drawn(connection)
    for _ in range(REPEATS):
        await repeated(broker, queue)
    assert await drawn(connection) == before
    # It says nothing that a list of them could show.
    await connection.execute("delete from queen.pipelines where name = $1", name)


async def test_a_report_for_a_group_of_consumers_is_refused_and_draws_no_number(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    await broker.queues.configure(name := uuid.uuid4().hex, "", "", QueueOptions())
    queue = await broker.catalog.queue(name)
    assert queue is not None
    await broker.catalog.group(queue, "spark", FROM_BEGINNING)
    before = await drawn(connection)
    with pytest.raises(Conflict):
        await report(broker, queue)
    assert await drawn(connection) == before
