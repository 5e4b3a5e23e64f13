"""Clients of the shared server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from queen import Queen, SyncQueen
from tests.client.gate import Gate, gate_to
from tests.conftest import ServerProcess


@pytest.fixture
async def queen(server: ServerProcess) -> AsyncIterator[Queen]:
    async with Queen(server.url, retry_s=5) as made:
        yield made


@pytest.fixture
def sync_queen(server: ServerProcess) -> Iterator[SyncQueen]:
    with SyncQueen(server.url, retry_s=5) as made:
        yield made


@pytest.fixture
async def gate(server: ServerProcess) -> AsyncIterator[Gate]:
    """A gate before the shared server; it is shut at first."""
    async with gate_to(server.port) as made:
        yield made
