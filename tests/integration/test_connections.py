"""Connections of a server whose handlers the test writes: large bodies, large answers, ends."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest

from queen.core.frame import segment_of
from queen.core.options import QueueOptions
from queen.server.answers.pops import pop_bits
from queen.server.protocol import connection, held_bytes
from queen.server.protocol.answer_parts import PART_BYTES, answer_in_parts
from queen.server.protocol.connections import ConnectionLimits, Connections
from queen.server.protocol.http import Request, Response
from queen.service.catalog import Partition, Queue
from queen.service.consume.feeds import Grant
from queen.service.log.segment_cache import StoredSegment
from tests.waiting import spend_async, until_met

Handle = Callable[[Request], Awaitable[Response | None]]

GET = b"GET /%b HTTP/1.1\r\nHost: queen\r\n\r\n"


def post(size: int) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: queen\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


@asynccontextmanager
async def serving(handle: Handle, **limits: float) -> AsyncIterator[tuple[Connections, int]]:
    hub = Connections(handle, ConnectionLimits(**limits))  # type: ignore[arg-type]
    server = await asyncio.get_running_loop().create_server(hub.protocol, "127.0.0.1", 0)
    watching = asyncio.create_task(hub.watch())
    try:
        yield hub, server.sockets[0].getsockname()[1]
    finally:
        watching.cancel()
        server.close()
        await hub.stop(0)


@asynccontextmanager
async def client(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read an answer that has its length ahead."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return int(head.split(b" ")[1]), await reader.readexactly(length)


async def settled(value: Callable[[], int]) -> int:
    """Wait until a number has stopped growing."""
    last, same = value(), 0
    while same < 10:
        await spend_async(0.02)
        same = same + 1 if value() == last else 0
        last = value()
    return last


# ---- answers in parts ----


def large_grant(megabytes: int) -> Grant:
    queue = Queue(1, "q", "", "", QueueOptions())
    payloads = [b'"%b"' % (b"x" * (MB - 2))] * megabytes
    segment = segment_of([b"t%d" % n for n in range(megabytes)], payloads)
    grant = Grant(
        Partition(1, queue, "p", megabytes), "g", uuid.uuid4(), 0, megabytes, 1, 1, 0, 0, {}, 1000
    )
    grant.stored.append(StoredSegment(0, datetime.now(UTC), segment))
    return grant


MB = 1024 * 1024


class Rendering:
    """Answers with a large pop, and knows how much of it has been rendered."""

    def __init__(self, megabytes: int) -> None:
        self.bytes = 0
        self.ticks = 0
        # How often others had their turn before each bit.
        self.turns: list[int] = []
        self._megabytes = megabytes

    async def handle(self, request: Request) -> Response | None:
        return await answer_in_parts(request, self._bits())

    def _bits(self) -> Iterator[bytes]:
        for bit in pop_bits([large_grant(self._megabytes)], "g"):
            self.bytes += len(bit)
            self.turns.append(self.ticks)
            yield bit

    async def tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0)


async def test_others_have_their_turn_between_two_parts() -> None:
    rendering = Rendering(64)
    async with serving(rendering.handle) as (_, port), client(port) as (reader, writer):
        ticking = asyncio.create_task(rendering.tick())
        writer.write(GET % b"large")
        received = 0
        while received < 64 * MB:
            received += len(await reader.read(2**20))
        ticking.cancel()
    # Two bits make a part, and a part is looked at ahead.
    assert len(set(rendering.turns)) > 64 // 4


async def test_no_more_is_rendered_than_is_read() -> None:
    rendering = Rendering(64)
    async with serving(rendering.handle) as (_, port), client(port) as (_, writer):
        writer.write(GET % b"large")
        await until_met(lambda: rendering.bytes > PART_BYTES)
        # What the kernel holds on both sides is a few megabytes.
        assert await settled(lambda: rendering.bytes) < 32 * MB


async def test_an_answer_that_cannot_be_written_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(request: Request) -> Response | None:
        if request.path == "/header":
            return Response(200, b"{}", (("x-name", "\ud800"),))
        # One that says it has answered, and has not.
        return None

    for path in (b"header", b"silence"):
        async with serving(handle) as (hub, port), client(port) as (reader, writer):
            writer.write(GET % path)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            await until_met(lambda hub=hub: not hub.connections)  # type: ignore[misc]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == [
        "GET /header failed",
        "GET /silence was not answered",
    ]


async def test_an_error_in_a_part_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def bits() -> Iterator[bytes]:
        yield b"x" * 3 * PART_BYTES
        raise ZeroDivisionError

    async def handle(request: Request) -> Response | None:
        return await answer_in_parts(request, bits())

    async with serving(handle) as (_, port), client(port) as (reader, writer):
        writer.write(GET % b"broken")
        received = b""
        try:
            while part := await asyncio.wait_for(reader.read(2**20), 10):
                received += part
        except ConnectionResetError:
            pass
    assert not received.endswith(b"0\r\n\r\n")
    assert b"500" not in received
    assert "GET /broken failed" in caplog.text


# ---- clients that do not read ----


async def test_a_pipelining_client_that_reads_nothing_is_hung_up_on() -> None:
    async def handle(_request: Request) -> Response | None:
        return Response(200, b"x" * MB)

    async with serving(handle, write_timeout_s=1) as (hub, port), client(port) as (_, writer):
        writer.write(GET % b"x" * 100)
        await until_met(lambda: bool(hub.connections))
        await until_met(lambda: not hub.connections)


async def test_a_client_that_reads_slowly_is_not_hung_up_on() -> None:
    async def handle(_request: Request) -> Response | None:
        return Response(200, b"x" * 16 * MB)

    async with serving(handle, write_timeout_s=2) as (_, port), client(port) as (reader, writer):
        writer.write(GET % b"x" * 2)
        for _ in range(2):
            status, left = 0, 16 * MB
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ")[1])
            while left:
                left -= len(await reader.readexactly(min(left, MB)))
                await spend_async(0.2)
            assert status == 200


# ---- room for bodies ----


async def test_what_stands_behind_an_unanswered_request_is_not_taken_in() -> None:
    may_answer = asyncio.Event()

    async def handle(request: Request) -> Response | None:
        await may_answer.wait()
        return Response(200, b"%d" % len(request.body))

    async with serving(handle) as (hub, port), client(port) as (reader, writer):
        writer.write(GET % b"poll")
        for _ in range(10):
            writer.write(post(4 * MB))
        await until_met(lambda: hub.room.held_bytes > 0)
        assert await settled(lambda: hub.room.held_bytes) < 2 * MB
        may_answer.set()
        assert (await answer(reader))[1] == b"0"
        for _ in range(10):
            assert await answer(reader) == (200, b"%d" % (4 * MB))
        await until_met(lambda: hub.room.held_bytes == 0)


async def test_bodies_that_are_complete_count_until_they_are_answered() -> None:
    may_answer = asyncio.Event()

    async def handle(_request: Request) -> Response | None:
        await may_answer.wait()
        return Response(200, b"{}")

    async with serving(handle) as (hub, port), client(port) as (reader, writer):
        writer.write(post(MB))
        await until_met(lambda: hub.room.held_bytes == MB)
        await settled(lambda: hub.room.held_bytes)
        assert hub.room.held_bytes == MB
        may_answer.set()
        assert (await answer(reader))[0] == 200
        await until_met(lambda: hub.room.held_bytes == 0)


async def test_half_bodies_do_not_wait_for_each_other_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_bytes, "MAX_HELD_BYTES", MB)
    peak = 0

    async def handle(request: Request) -> Response | None:
        nonlocal peak
        peak = max(peak, hub.room.held_bytes)
        return Response(200, b"%d" % len(request.body))

    async def send(port: int) -> None:
        async with client(port) as (reader, writer):
            for _ in range(3):
                writer.write(post(2 * MB))
                assert await answer(reader) == (200, b"%d" % (2 * MB))

    async with serving(handle) as (hub, port):
        await asyncio.gather(*(send(port) for _ in range(8)))
        await until_met(lambda: hub.room.held_bytes == 0)
    # The held_bytes, one whole body, and a little of each.
    assert peak < 8 * MB


async def test_who_finds_no_room_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_bytes, "MAX_HELD_BYTES", MB)
    monkeypatch.setattr(connection, "PATIENCE_S", 1.0)

    async def handle(_request: Request) -> Response | None:
        return Response(200, b"{}")

    async with (
        serving(handle) as (hub, port),
        client(port) as (_, eldest),
        client(port) as (reader, writer),
    ):
        eldest.write(post(4 * MB)[:-1])
        await until_met(lambda: hub.room.held_bytes > 3 * MB)
        writer.write(post(4 * MB))
        status, body = await answer(reader)
        assert (status, b"overloaded" in body) == (429, True)
        # Small ones are never held up.
        async with client(port) as (other_reader, other):
            other.write(GET % b"small")
            assert (await answer(other_reader))[0] == 200


async def test_only_a_few_large_bodies_are_handled_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_bytes, "MAX_HANDLED_BYTES", 2 * MB)
    busy = most = 0

    async def handle(request: Request) -> Response | None:
        nonlocal busy, most
        if request.body:
            busy += 1
            most = max(most, busy)
            await spend_async(0.01)
            busy -= 1
        return Response(200, b"{}")

    async def send(port: int) -> None:
        async with client(port) as (reader, writer):
            writer.write(post(MB))
            assert (await answer(reader))[0] == 200

    async with serving(handle) as (_, port):
        await asyncio.gather(*(send(port) for _ in range(12)))
    assert most == 2
