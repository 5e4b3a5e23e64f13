"""A server that answers what a test tells it to: another broker, a proxy, a broken network."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

CLOSE = b""


class Fake:
    """Answers requests one after the other, or as a function says; `CLOSE` hangs up instead, None
    never answers."""

    def __init__(
        self,
        answers: Iterable[bytes | None] | Callable[[bytes], bytes | None],
        *,
        closes: bool = False,
    ) -> None:
        self._respond = answers if callable(answers) else _one_after_the_other(answers)
        self._closes = closes
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Fake]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        except asyncio.CancelledError:
            return
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        self.asked.set()
        self.requests.append(head + await reader.readexactly(length))
        answer = self._respond(self.requests[-1])
        if answer is None:
            await reader.readexactly(1)
        if not answer:
            return False
        writer.write(answer)
        await writer.drain()
        return not self._closes


def _one_after_the_other(answers: Iterable[bytes | None]) -> Callable[[bytes], bytes | None]:
    left = deque(answers)
    return lambda _request: left.popleft()


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in headers)
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body


OK = answer("200 OK", b'{"n":1}', "content-type: application/json")
