"""Epochs of leases: no number is given twice, whatever a crash has taken back."""

from __future__ import annotations

import uuid

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.catalog import FROM_BEGINNING
from queen.service.log.append import Append
from queen.storage.database import session_settings
from queen.storage.statements import statements


@pytest.fixture
async def place(dsn: str) -> tuple[int, int]:
    """A partition with something to read, and a group."""
    broker = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=3))
    name = f"epoch-{uuid.uuid4().hex[:8]}"
    _, partition = await broker.queues.configure(name, "", "", QueueOptions())
    await broker.pusher.push([Append(name, partition.name, [b"a"], [b"1"], 100)])
    group_id = await broker.catalog.group(partition.queue, "g", FROM_BEGINNING)
    await broker.stop()
    return partition.id, group_id


async def _claim(connection: asyncpg.Connection, place: tuple[int, int]) -> int:
    partition_id, group_id = place
    (row,) = await connection.fetch(
        statements()["claim"].sql,
        [partition_id], [group_id], [1], [uuid.uuid4()], [60_000], [False], [1], [None], [0],
        [0], [0], 100,
    )  # fmt: skip
    assert row["outcome"] == 0
    return int(row["epoch"])


async def _lose_grants(dsn: str, place: tuple[int, int], epoch: int) -> None:
    """What a crash does to grants that had not reached the disk."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "update queen.cursors set epoch = $3, lease_id = null, lease_until = null"
        " where partition_id = $1 and group_id = $2",
        *place,
        epoch,
    )
    await connection.close()


async def test_an_epoch_that_a_crash_has_taken_back_is_not_given_again(
    dsn: str, place: tuple[int, int]
) -> None:
    seen: list[int] = []
    for _ in range(3):
        # A crash ends every connection.
        connection = await asyncpg.connect(dsn, server_settings=session_settings())
        before = seen[-1] if seen else 0
        for _ in range(5):
            seen.append(await _claim(connection, place))
            await connection.execute(
                "update queen.cursors set lease_until = null where partition_id = $1", place[0]
            )
        await connection.close()
        await _lose_grants(dsn, place, before)
    assert seen == sorted(set(seen)), seen


async def test_a_generation_reaches_the_disk_and_later_grants_need_not(
    dsn: str, place: tuple[int, int]
) -> None:
    connection = await asyncpg.connect(dsn, server_settings=session_settings())
    settings = []
    for _ in range(2):
        async with connection.transaction():
            await _claim(connection, place)
            settings.append(await connection.fetchval("show synchronous_commit"))
        await connection.execute(
            "update queen.cursors set lease_until = null where partition_id = $1", place[0]
        )
    await connection.close()
    assert settings == ["on", "off"]
