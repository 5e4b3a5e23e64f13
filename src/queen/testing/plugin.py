"""Fixtures for pytest. Installed with the package; nothing starts before a test asks for it.

queen_server       a broker for the session, with its own PostgreSQL in a temporary folder
queen              an asyncio client of it, for pytest-asyncio or anyio
sync_queen         a client of it for tests without asyncio
queue_name         a name that no other test has; the queue is deleted afterwards
queen_clock        lets time pass at the broker; `sync_queen_clock` without asyncio
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from queen.client import Queen, SyncQueen
    from queen.testing.clock import Clock, SyncClock
    from queen.testing.process import RunningServer


@pytest.fixture(scope="session")
def queen_server() -> Iterator[RunningServer]:
    """A broker for all tests of the session; `queen_server.url` is where it listens."""
    from queen.errors import MissingExtra, StartupError
    from queen.testing.process import RunningServer

    try:
        running = RunningServer()
    except (MissingExtra, StartupError) as error:
        pytest.fail(str(error), pytrace=False)
    with running:
        yield running


async def queen_client(queen_server: RunningServer) -> AsyncIterator[Queen]:
    """A client of the test's own, closed when the test ends."""
    from queen.client import Queen

    async with Queen(queen_server.url) as client:
        yield client


def pytest_configure(config: pytest.Config) -> None:
    """Give the fixture `queen` to whoever runs async tests.

    In its strict mode pytest-asyncio runs only the fixtures that are marked as its own; anyio
    takes these too. Only now is it known whether it is there.
    """
    fixture: Any = pytest.fixture
    if "pytest_asyncio" in sys.modules:
        import pytest_asyncio

        fixture = pytest_asyncio.fixture
    fixtures = ModuleType("queen_async_fixtures")
    fixtures.queen = fixture(queen_client, name="queen")  # type: ignore[attr-defined]
    config.pluginmanager.register(fixtures)


@pytest.fixture
def sync_queen(queen_server: RunningServer) -> Iterator[SyncQueen]:
    """A client of the test's own for code without asyncio."""
    from queen.client import SyncQueen

    with SyncQueen(queen_server.url) as client:
        yield client


@pytest.fixture
def queue_name(queen_server: RunningServer) -> Iterator[str]:
    """A queue name of the test's own; what is in the queue goes when the test ends."""
    from queen.client import SyncQueen

    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    with SyncQueen(queen_server.url) as client:
        client.queue(name).delete()


@pytest.fixture
def queen_clock(queen: Queen) -> Clock:
    """Lets time pass: `await queen_clock.advance(60, queue=queue_name)`."""
    from queen.testing.clock import Clock

    return Clock(queen)


@pytest.fixture
def sync_queen_clock(sync_queen: SyncQueen) -> SyncClock:
    """Lets time pass: `sync_queen_clock.advance(60, queue=queue_name)`."""
    from queen.testing.clock import SyncClock

    return SyncClock(sync_queen)
