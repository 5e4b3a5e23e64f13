"""A gate before a real server: open, shut so that connections are refused, or silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Literal

from tests.ports import free_port

Mode = Literal["open", "shut", "silent"]


class Gate:
    """Forwards connections of its own port to a server, as long as it is open."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mode: Mode = "shut"
        # Connections since it was last turned.
        self.connections = 0
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def turn(self, mode: Mode) -> None:
        """Be open, shut or silent from now on; who is connected is hung up on, but by a gate
        that falls silent."""
        self.mode, self.connections = mode, 0
        if mode != "silent":
            await self._hang_up()
        if mode == "shut":
            if self._listener is not None:
                self._listener.close()
                self._listener = None
        elif self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _hang_up(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                await self._forward(reader, writer)
            finally:
                self._tasks.discard(task)
                writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, far_writer))
                both.create_task(self._copy(far_reader, writer))
        except* OSError:
            pass
        finally:
            far_writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.mode == "silent":
                continue
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def gate_to(server_port: int) -> AsyncIterator[Gate]:
    """A gate that is shut at first, and in the end."""
    gate = Gate(server_port)
    try:
        yield gate
    finally:
        await gate.turn("shut")
