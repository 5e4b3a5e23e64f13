"""Answers that are begun without a task: in order, once, and whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queen.errors import NotFound
from queen.server.protocol.connections import Connections
from queen.server.protocol.http import Request, Response
from tests.integration.test_connections import GET, answer, client
from tests.waiting import until_met


class Waiting:
    """An answer that is given when the test says so."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.call: Callable[[], object] | None = None

    def then(self, call: Callable[[], object]) -> None:
        self.call = call

    def leave(self) -> None:
        if self.request.path == "/pop":
            # What is left got nothing, and that is so at once.
            assert self.call is not None
            self.call()

    def answer(self) -> Response | Coroutine[Any, Any, Response | None]:
        kind = self.request.path
        if kind == "/broken":
            raise ZeroDivisionError
        if kind == "/missing":
            raise NotFound("no such thing")
        if kind == "/later":
            return self._later()
        return Response(200, kind.encode())

    async def _later(self) -> Response | None:
        await asyncio.sleep(0)
        return Response(200, b"later")


class Handlers:
    def __init__(self) -> None:
        self.begun: list[Waiting] = []

    async def handle(self, request: Request) -> Response | None:
        return Response(200, b"task")

    def begin(self, request: Request) -> Response | Waiting | Coroutine[Any, Any, Response | None]:
        if request.path == "/now":
            return Response(200, b"now")
        if request.path == "/raises":
            raise NotFound("no such thing")
        if request.path == "/task":
            return self.handle(request)
        self.begun.append(Waiting(request))
        return self.begun[-1]

    def go_on(self) -> None:
        waiting = self.begun.pop(0)
        assert waiting.call is not None
        waiting.call()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Handlers, Connections, int]]:
    handlers = Handlers()
    hub = Connections(handlers.handle, begin=handlers.begin)
    server = await asyncio.get_running_loop().create_server(hub.protocol, "127.0.0.1", 0)
    try:
        yield handlers, hub, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await hub.stop(0)


async def test_pipelined_requests_are_answered_in_order_however_each_is() -> None:
    kinds = [b"now", b"x", b"task", b"later", b"raises", b"now", b"missing", b"y", b"now"]
    async with serving() as (handlers, _, port), client(port) as (reader, writer):
        writer.write(b"".join(GET % kind for kind in kinds))
        bodies = []
        for kind in kinds:
            if kind in (b"x", b"later", b"missing", b"y"):
                await until_met(lambda: bool(handlers.begun))
                # Those behind it wait.
                assert len(handlers.begun) == 1
                handlers.go_on()
            bodies.append(await answer(reader))
    assert [status for status, _ in bodies] == [200, 200, 200, 200, 404, 200, 404, 200, 200]
    assert [body for status, body in bodies if status == 200] == [
        b"now", b"/x", b"task", b"later", b"now", b"/y", b"now",
    ]  # fmt: skip


async def test_an_answer_that_fails_is_a_500_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as (handlers, _, port), client(port) as (reader, writer):
        writer.write(GET % b"broken" + GET % b"now")
        await until_met(lambda: bool(handlers.begun))
        handlers.go_on()
        assert (await answer(reader))[0] == 500
        assert await answer(reader) == (200, b"now")
    assert "GET /broken failed" in caplog.text


async def test_who_has_hung_up_is_not_answered() -> None:
    async with serving() as (handlers, hub, port):
        async with client(port) as (_, writer):
            writer.write(b"POST /x HTTP/1.1\r\nHost: q\r\nContent-Length: 2\r\n\r\nxx")
            await until_met(lambda: bool(handlers.begun))
            assert hub.room.held_bytes == 2
        await until_met(lambda: not hub.connections)
        handlers.go_on()
        # What it held is held no longer.
        await until_met(lambda: hub.room.held_bytes == 0)


async def test_who_will_send_nothing_more_is_not_told_that_there_was_nothing() -> None:
    async with serving() as (handlers, hub, port), client(port) as (reader, writer):
        writer.write(b"POST /pop HTTP/1.1\r\nHost: q\r\nContent-Length: 2\r\n\r\nxx")
        await until_met(lambda: bool(handlers.begun))
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 30) == b""
        await until_met(lambda: not hub.connections)
        assert hub.room.held_bytes == 0


async def test_a_server_that_stops_waits_for_what_was_begun() -> None:
    async with serving() as (handlers, hub, port), client(port) as (reader, writer):
        writer.write(GET % b"x")
        await until_met(lambda: bool(handlers.begun))
        stopping = asyncio.create_task(hub.stop(30))
        await asyncio.sleep(0)
        assert len(hub.connections) == 1
        handlers.go_on()
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" in head
        await stopping
        assert not hub.connections
