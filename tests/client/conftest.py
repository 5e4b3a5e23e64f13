"""Clients of the shared server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from queen import Queen, SyncQueen
from tests.conftest import ServerProcess


@pytest.fixture
async def queen(server: ServerProcess) -> AsyncIterator[Queen]:
    async with Queen(server.url, retry_s=5) as made:
        yield made


@pytest.fixture
def sync_queen(server: ServerProcess) -> Iterator[SyncQueen]:
    with SyncQueen(server.url, retry_s=5) as made:
        yield made
