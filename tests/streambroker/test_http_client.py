"""The client of streams over HTTP: what it repeats, what it does not, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from queen.errors import Forbidden, NotFound, OutcomeUnknown, Unauthenticated, Unreachable
from queen.service.admin.tokens import Tokens
from queen.storage.database import Database
from queen.streambroker import (
    Capability,
    HttpStreamBroker,
    RedisStreamBroker,
    StreamBroker,
    SyncStreamBroker,
    stream_broker_from_url,
)
from queen.streambroker.urls import sync_stream_broker_from_url
from tests.client.fake import CLOSE, Fake, answer
from tests.client.gate import gate_to
from tests.conftest import ServerProcess
from tests.integration.test_serve import Start
from tests.ports import free_port
from tests.streambroker.test_originals import ids_of
from tests.waiting import spend_async, until_async

_ADDED = answer("200 OK", b'{"status":"added","messageId":"1-1","stream":"s"}')
_AWAY = answer(
    "503 Service Unavailable",
    b'{"error":"away","code":"unavailable","retryable":true}',
)
_UNKNOWN = answer(
    "503 Service Unavailable",
    b'{"error":"broke off","code":"outcome_unknown","retryable":true,"outcome":"unknown"}',
)


@pytest.mark.parametrize("lost", [CLOSE, _UNKNOWN])
async def test_an_add_that_may_have_been_done_is_not_repeated(lost: bytes) -> None:
    async with Fake([_ADDED, lost]).running() as fake:
        broker = HttpStreamBroker(fake.url)
        await broker.xadd("s", 1)
        with pytest.raises(OutcomeUnknown):
            await broker.xadd("s", 2)
        await broker.close()
    assert len(fake.requests) == 2


async def test_a_redrive_that_may_have_been_done_is_not_repeated() -> None:
    async with Fake([CLOSE]).running() as fake:
        broker = HttpStreamBroker(fake.url)
        with pytest.raises(OutcomeUnknown):
            await broker.redrive("s")
        await broker.close()
    assert len(fake.requests) == 1


async def test_an_add_that_was_refused_is_repeated() -> None:
    async with Fake([_AWAY, _ADDED]).running() as fake:
        broker = HttpStreamBroker(fake.url)
        assert await broker.xadd("s", 1) == "1-1"
        await broker.close()
    assert len(fake.requests) == 2


@pytest.mark.parametrize("lost", [CLOSE, _UNKNOWN])
async def test_an_add_with_an_idempotency_key_is_repeated(lost: bytes) -> None:
    async with Fake([lost, _ADDED]).running() as fake:
        broker = HttpStreamBroker(fake.url)
        assert await broker.xadd("s", 1, idempotency_key="k", producer="p") == "1-1"
        await broker.close()
    first, second = fake.requests
    assert first == second
    assert b"idempotencyKey=k&producer=p" in first


async def test_an_ack_is_repeated() -> None:
    acked = answer("200 OK", b'{"status":"acknowledged","count":1}')
    async with Fake([CLOSE, acked]).running() as fake:
        broker = HttpStreamBroker(fake.url)
        assert await broker.xack("s", "g", ["1-1"]) == 1
        await broker.close()
    assert len(fake.requests) == 2


async def test_nobody_answers() -> None:
    broker = stream_broker_from_url(f"queen://127.0.0.1:{free_port()}?retry_s=0.1")
    with pytest.raises(Unreachable):
        await broker.xadd("s", 1)
    await broker.close()


async def test_who_waits_is_told_that_it_is_closed(stream_server: ServerProcess) -> None:
    broker = HttpStreamBroker(stream_server.url)
    await broker.create_group("closing", "g")
    waiting = asyncio.create_task(broker.xreadgroup("g", "c", "closing", 1, None))
    other = HttpStreamBroker(stream_server.url)
    await _wait_for_consumer(other, "closing")
    await broker.close()
    with pytest.raises(Unreachable, match="closed"):
        await waiting
    with pytest.raises(Unreachable, match="closed"):
        await broker.xlen("closing")
    await other.close()


async def test_a_wait_goes_on_when_the_server_is_started_again(
    start_server: Start, dsn: str, stream: str
) -> None:
    port = free_port()
    running = start_server("--database-url", dsn, port=port)
    broker = HttpStreamBroker(running.url)
    await broker.create_group(stream, "g")
    waiting = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
    await _wait_for_consumer(broker, stream)
    assert await asyncio.to_thread(running.stop) == 0
    assert not waiting.done()
    await asyncio.to_thread(start_server, "--database-url", dsn, port=port)
    added = await broker.xadd(stream, 1)
    assert ids_of(await waiting) == [added]
    await broker.close()


async def test_a_connection_that_breaks_late_in_a_wait_is_made_again(
    stream_server: ServerProcess, http_broker: StreamBroker, stream: str
) -> None:
    async with gate_to(stream_server.port) as gate:
        await gate.turn("open")
        broker = HttpStreamBroker(gate.url, retry_s=0.2)
        await broker.create_group(stream, "g")
        waiting = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
        await _wait_for_consumer(broker, stream)
        await spend_async(0.3)
        await gate.turn("open")
        added = []

        async def is_served() -> bool:
            # The first may go to the wait that was broken, before the server has noticed.
            added.append(await http_broker.xadd(stream, 1))
            await asyncio.wait([waiting], timeout=0.1)
            return waiting.done()

        await until_async(is_served)
        (message,) = await waiting
        assert message.id in added
        await broker.close()


async def _wait_for_consumer(broker: HttpStreamBroker, stream: str) -> None:
    await until_async(lambda: _has_consumers(broker, stream, 1))


async def _has_consumers(broker: HttpStreamBroker, stream: str, count: int) -> bool:
    info = await broker.get_stream_group_info(stream, "g")
    return info is not None and len(info.consumers) >= count


async def test_a_token_may_stand_in_the_url(
    start_server: Start, dsn: str, database: Database, stream: str
) -> None:
    running = start_server("--database-url", dsn, "--auth", "tokens")
    tokens = Tokens(database)
    writer = await tokens.create("writer", "read-write", None, None, "test")
    reader = await tokens.create("reader", "read-only", None, None, "test")
    limited = await tokens.create("limited", "read-write", ["elsewhere"], None, "test")
    address = f"127.0.0.1:{running.port}"
    async with stream_broker_from_url(f"queen://:{writer.text}@{address}") as broker:
        await broker.xadd(stream, 1)
    async with stream_broker_from_url(f"queen://{address}?token={reader.text}") as broker:
        assert await broker.xlen(stream) == 1
        with pytest.raises(Forbidden):
            await broker.xadd(stream, 2)
    async with stream_broker_from_url(f"queen://{address}?token={limited.text}") as broker:
        assert stream not in await broker.scan_streams()
        with pytest.raises(NotFound):
            await broker.xlen(stream)
        own = f"elsewhere.{stream}"
        await broker.xadd(own, 1)
        assert await broker.scan_streams("*") == [own]
    with pytest.raises(Unauthenticated):
        await stream_broker_from_url(f"queen://{address}").open()


async def test_a_server_may_have_its_streams_on_redis(
    start_server: Start, dsn: str, redis_url: str, redis_broker: StreamBroker, stream: str
) -> None:
    port = free_port()
    arguments = ("--database-url", dsn, "--resp-port", str(port), "--stream-backend", redis_url)
    running = start_server(*arguments)
    async with HttpStreamBroker(running.url) as broker:
        assert Capability.SHARED_DELIVERY_LIMIT not in broker.capabilities
        await broker.create_group(stream, "g")
        waiting = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
        await _wait_for_consumer(broker, stream)
        added = await redis_broker.xadd(stream, {"a": 1})
        assert ids_of(await waiting) == [added]
        async with RedisStreamBroker(f"redis://127.0.0.1:{port}") as by_port:
            assert ids_of(await by_port.xrange(stream)) == [added]
        waiting = asyncio.create_task(broker.xreadgroup("g", "d", stream, 1, 60_000))
        await until_async(lambda: _has_consumers(broker, stream, 2))
        assert await asyncio.to_thread(running.stop) == 0
        waiting.cancel()


def test_tls_is_asked_for_in_the_url() -> None:
    for url in ("queens://:t@host:1", "queen://host:1?tls=true&token=t"):
        broker = stream_broker_from_url(url)
        assert isinstance(broker, HttpStreamBroker)
        assert broker.urls == ["https://host:1"]


def test_without_asyncio(stream_server: ServerProcess, stream: str) -> None:
    url = stream_server.url.replace("http://", "queen://")
    with sync_stream_broker_from_url(url) as broker:
        assert isinstance(broker, SyncStreamBroker)
        added = broker.xadd(stream, {"a": 1})
        assert ids_of(broker.xrange(stream)) == [added]
