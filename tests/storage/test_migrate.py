"""Migrations run once, notice tampering, and survive several servers starting together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from queen.errors import StartupError
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import migrate


@pytest.fixture
async def empty(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """The name of an empty database."""
    name = f"empty_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    yield name
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()


async def test_a_second_run_has_nothing_to_do(postgres: EmbeddedPostgres, empty: str) -> None:
    connection = await asyncpg.connect(postgres.dsn, database=empty)
    assert "0001_log.sql" in await migrate(connection)
    assert await migrate(connection) == []
    await connection.close()


async def test_servers_that_start_together_migrate_once(
    postgres: EmbeddedPostgres, empty: str
) -> None:
    connections = [await asyncpg.connect(postgres.dsn, database=empty) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(one) for one in connections))
    assert sorted(map(bool, applied)) == [False, False, False, True]
    for connection in connections:
        await connection.close()


async def test_a_changed_old_migration_is_refused(postgres: EmbeddedPostgres, empty: str) -> None:
    connection = await asyncpg.connect(postgres.dsn, database=empty)
    await migrate(connection)
    await connection.execute(
        "update queen.schema_files set checksum = 'x' where name = '0001_log.sql'"
    )
    with pytest.raises(StartupError, match="0001_log"):
        await migrate(connection)
    await connection.close()
