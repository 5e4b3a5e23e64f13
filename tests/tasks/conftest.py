"""Two servers on a database of their own, whose clock can be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from queen import Queen
from queen.storage.embedded import EmbeddedPostgres
from queen.testing import Clock
from tests import databases
from tests.conftest import ServerProcess


@pytest.fixture(scope="package")
async def tasks_dsn(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    async with databases.own_database(postgres.dsn) as dsn:
        yield dsn


@pytest.fixture(scope="package")
def first_server(tasks_dsn: str) -> Iterator[ServerProcess]:
    running = ServerProcess("--database-url", tasks_dsn, "--test-clock")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="package")
def other_server(tasks_dsn: str) -> Iterator[ServerProcess]:
    """With several workers: what comes to it comes to any of them."""
    running = ServerProcess("--database-url", tasks_dsn, "--test-clock", "--workers", "2")
    yield running
    assert running.stop() == 0


@pytest.fixture
async def queen(first_server: ServerProcess) -> AsyncIterator[Queen]:
    async with Queen(first_server.url, retry_s=5) as made:
        yield made


@pytest.fixture
async def other_queen(other_server: ServerProcess) -> AsyncIterator[Queen]:
    async with Queen(other_server.url, retry_s=5) as made:
        yield made


@pytest.fixture
def clock(queen: Queen) -> Clock:
    return Clock(queen)


@pytest.fixture
async def connection(tasks_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(tasks_dsn)
    yield opened
    await opened.close()
