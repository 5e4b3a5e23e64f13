"""Streams on PostgreSQL without a server: they last, and are the same for all who have them."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from queen.errors import StartupError, Unavailable, Unreachable
from queen.streambroker import Capability, DurableStreamBroker, StreamBroker, stream_broker_from_url
from queen.streambroker.urls import sync_stream_broker_from_url
from tests.conftest import ENCRYPTION_KEY
from tests.ports import free_port
from tests.streambroker.test_originals import ids_of
from tests.waiting import until_async


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", ENCRYPTION_KEY)


async def test_streams_last(dsn: str, stream: str) -> None:
    async with stream_broker_from_url(dsn) as broker:
        assert isinstance(broker, DurableStreamBroker)
        assert Capability.LASTING in broker.capabilities
        await broker.create_group(stream, "g")
        added = [await broker.xadd(stream, number) for number in range(2)]
        assert len(await broker.xreadgroup("g", "c", stream)) == 1
    async with stream_broker_from_url(dsn) as broker:
        assert ids_of(await broker.xrange(stream)) == added
        assert ids_of(await broker.xpending(stream, "g")) == added[:1]
        assert ids_of(await broker.xreadgroup("g", "d", stream, 10)) == added[1:]


async def test_an_add_elsewhere_wakes_who_waits(
    dsn: str, http_broker: StreamBroker, stream: str
) -> None:
    async with DurableStreamBroker(dsn) as broker:
        await broker.create_group(stream, "g")
        waiting = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
        await _wait_for_consumer(http_broker, stream)
        added = await http_broker.xadd(stream, {"from": "a server"})
        assert ids_of(await waiting) == [added]


async def test_who_waits_is_told_that_it_is_closed(
    dsn: str, durable_broker: StreamBroker, stream: str
) -> None:
    broker = DurableStreamBroker(dsn)
    await broker.create_group(stream, "g")
    waiting = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
    await _wait_for_consumer(durable_broker, stream)
    await broker.close()
    with pytest.raises(Unreachable, match="closed"):
        await waiting
    with pytest.raises(Unreachable, match="closed"):
        await broker.xlen(stream)
    await broker.close()


async def test_what_is_under_way_is_finished(
    dsn: str, durable_broker: StreamBroker, stream: str
) -> None:
    broker = DurableStreamBroker(dsn)
    await broker.open()
    adding = [asyncio.create_task(broker.xadd(stream, number)) for number in range(50)]
    # They are taken as one batch, which is being committed now.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await broker.close()
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
    added = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert all(isinstance(outcome, str | Unreachable) for outcome in outcomes)
    assert added
    assert ids_of(await durable_broker.xrange(stream)) == added


async def _wait_for_consumer(broker: StreamBroker, stream: str) -> None:
    async def is_there() -> bool:
        info = await broker.get_stream_group_info(stream, "g")
        return info is not None and bool(info.consumers)

    await until_async(is_there)


async def test_a_database_that_is_not_there_is_told() -> None:
    broker = DurableStreamBroker(f"postgresql://127.0.0.1:{free_port()}/none")
    with pytest.raises(Unavailable, match="cannot connect"):
        await broker.xlen("s")
    await broker.close()
    with pytest.raises(StartupError, match="hexadecimal"):
        DurableStreamBroker("postgresql://host", encryption_key="short")


def test_without_asyncio(dsn: str, stream: str) -> None:
    with sync_stream_broker_from_url(dsn) as broker:
        added = broker.xadd(stream, {"a": 1})
        assert ids_of(broker.xrange(stream)) == [added]


PROGRAM = """
import sys
import queen.streambroker
assert not any(name.startswith(("queen.service", "redis", "asyncpg")) for name in sys.modules)
sys.modules["asyncpg"] = None
try:
    queen.streambroker.stream_broker_from_url("postgresql://host")
except ImportError as error:
    print(error)
try:
    from queen.streambroker import DurableStreamBroker
except ImportError as error:
    print(error)
"""


def test_what_is_not_installed_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True
    )
    first, second = done.stdout.splitlines()
    assert first == second
    assert "(asyncpg): pip install 'queen[server]'" in first
