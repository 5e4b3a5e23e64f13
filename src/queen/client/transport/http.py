"""HTTP/1.1 as a client of Queen needs it: keep-alive, one request at a time per connection.

Why not a library? Importing one costs more than importing everything else here together, and
in the middle of a batch of a hundred messages it costs more than the messages. What is left
to write is small, because the other end is known: see `docs/decisions/0013-client-http.md`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from queen.errors import Unreachable

_MAX_HEAD_BYTES = 64 * 1024
# So much of a body waits for its reader; then the server has to.
_AHEAD_BYTES = 4 * 1024 * 1024
_NO_BODY = {204, 304}
_UNTIL_CLOSED = -1
_LAST_CHUNK = -1
_CRLF = b"\r\n"


class Answer(NamedTuple):
    status: int
    # Names in lower case.
    headers: dict[bytes, bytes]
    body: bytes
    # Whose answer it is; empty where there is only one server.
    server: str = ""


class Connection(asyncio.Protocol):
    """One connection. Its answer arrives whole, or in parts for those who stream."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: asyncio.Future[Answer] | None = None
        self._head: tuple[int, dict[bytes, bytes]] | None = None
        self._left = 0
        self._chunked = False
        # What is still to come of a chunk; None between two of them.
        self._chunk_left: int | None = None
        self._body: list[bytes] = []
        self._parts: asyncio.Queue[bytes | None] | None = None
        self._ahead_bytes = 0
        self.closed = False
        # The server will not take another request on it.
        self.spent = False
        # Something of the answer to the last request has arrived.
        self.has_answered = False
        # The server, or what lies between, has hung up.
        self.lost = False

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = self.lost = True
        if error is None and self._head is not None and self._left == _UNTIL_CLOSED:
            self._finish()
        self._fail(Unreachable(f"the connection was lost: {error or 'closed by the server'}"))

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            # Nobody has asked: whatever this answers, it is not our next request.
            self.close()
            return
        self.has_answered = True
        self._buffer += data
        try:
            while self._advance():
                pass
        except (ValueError, IndexError):
            self.close()
            self._fail(Unreachable("the server does not speak HTTP"))

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def end(self) -> None:
        """Say that nothing more is asked. What the server has answered by then still arrives;
        a server that has not answered hangs up, and knows that it need not."""
        if self._transport is not None and self._transport.can_write_eof() and not self.closed:
            self._transport.write_eof()
            self.spent = True
        else:
            self.close()

    # ---- asking ----

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its whole answer."""
        self._waiting = asyncio.get_running_loop().create_future()
        self.has_answered = False
        self._write(request)
        try:
            return await self._waiting
        except asyncio.CancelledError:
            # What comes back belongs to nobody; hanging up tells the server so.
            self.close()
            raise
        finally:
            if self._parts is None:
                self._waiting = None

    async def stream(self, request: bytes) -> tuple[Answer, AsyncIterator[bytes]]:
        """Send a request and return the head of its answer, and its body as it arrives."""
        self._parts = asyncio.Queue()
        head = await self.ask(request)
        return head, self._stream_parts()

    async def _stream_parts(self) -> AsyncIterator[bytes]:
        assert self._parts is not None
        while (part := await self._parts.get()) is not None:
            self._ahead_bytes -= len(part)
            if self._transport is not None and self._ahead_bytes < _AHEAD_BYTES:
                self._transport.resume_reading()
            yield part
        if self.closed and self._head is not None:
            raise Unreachable("the connection was lost in the middle of an answer")

    def _write(self, request: bytes) -> None:
        if self.closed or self._transport is None:
            self._fail(Unreachable("the connection was closed"))
        else:
            self._transport.write(request)

    def _fail(self, error: Unreachable) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        if self._parts is not None:
            self._parts.put_nowait(None)

    # ---- reading ----

    def _advance(self) -> bool:
        """Read the next piece of an answer; return whether there may be more to read."""
        if self._head is None:
            return self._read_head()
        if self._chunked:
            return self._read_chunk()
        return self._read_length()

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise ValueError("head too long")
            return False
        lines = bytes(self._buffer[:end]).split(_CRLF)
        del self._buffer[: end + 4]
        status = int(lines[0].split(b" ", 2)[1])
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in [line.partition(b":") for line in lines[1:]]
        }
        if status < 200:
            return True
        self._head = (status, headers)
        self._chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._left = _length_of(status, headers)
        self.spent = self.spent or _is_last(lines[0], headers)
        self.spent = self.spent or self._left == _UNTIL_CLOSED
        if self._parts is not None:
            self._answer(b"")
        if not self._chunked and self._left == 0:
            self._finish()
        return True

    def _read_length(self) -> bool:
        if self._left == _UNTIL_CLOSED:
            self._take(bytes(self._buffer))
            self._buffer.clear()
            return False
        if len(self._buffer) < self._left:
            return False
        self._take(bytes(self._buffer[: self._left]))
        del self._buffer[: self._left]
        self._finish()
        return bool(self._buffer)

    def _read_chunk(self) -> bool:
        if self._chunk_left is None:
            line_end = self._buffer.find(_CRLF)
            if line_end < 0:
                return False
            self._chunk_left = int(bytes(self._buffer[:line_end]).split(b";")[0], 16)
            del self._buffer[: line_end + 2]
            if self._chunk_left == 0:
                self._chunk_left = _LAST_CHUNK
        left = max(self._chunk_left, 0)
        if self._parts is not None and 0 < len(self._buffer) < left:
            # A chunk may be large; whoever reads it need not wait for its end.
            self._chunk_left -= len(self._buffer)
            self._take(bytes(self._buffer))
            self._buffer.clear()
        if len(self._buffer) < left + 2:
            return False
        if left:
            self._take(bytes(self._buffer[:left]))
        del self._buffer[: left + 2]
        is_last, self._chunk_left = self._chunk_left == _LAST_CHUNK, None
        if is_last:
            self._finish()
        return bool(self._buffer)

    def _take(self, part: bytes) -> None:
        if self._parts is not None:
            self._parts.put_nowait(part)
            self._ahead_bytes += len(part)
            if self._transport is not None and self._ahead_bytes >= _AHEAD_BYTES:
                self._transport.pause_reading()
        else:
            self._body.append(part)

    def _finish(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if self._parts is not None:
            self._head = None
            self._parts.put_nowait(None)
            return
        self._answer(body)
        self._head = None

    def _answer(self, body: bytes) -> None:
        assert self._head is not None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(Answer(*self._head, body))


def _length_of(status: int, headers: dict[bytes, bytes]) -> int:
    if status in _NO_BODY or b"transfer-encoding" in headers:
        return 0
    length = headers.get(b"content-length")
    return _UNTIL_CLOSED if length is None else int(length)


def _is_last(status_line: bytes, headers: dict[bytes, bytes]) -> bool:
    """Whether the server closes the connection after this answer."""
    asked = headers.get(b"connection", b"").lower()
    return b"close" in asked or (status_line.startswith(b"HTTP/1.0") and b"keep-alive" not in asked)


class Poll:
    """A request that can be given up without losing an answer that is on its way."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.is_given_up = False

    def give_up(self) -> None:
        self.is_given_up = True
        if self.connection is not None:
            self.connection.end()


def default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 6632


class Server:
    """One server and the connections to it that are free."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the URL of a server: {url!r}")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname
        self._port = parts.port or default_port(parts.scheme)
        self._tls = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self.host_header = parts.netloc.rpartition("@")[2].encode()
        self._free: deque[Connection] = deque()
        # Whether it takes pushes as frames; its answers say so.
        self.takes_frames = False

    def free_connection(self) -> Connection | None:
        """Return a connection that is open and that nobody uses, if there is one."""
        while self._free:
            # The one used last is the least likely to have been closed meanwhile.
            free = self._free.pop()
            if not free.closed:
                return free
        return None

    async def connect(self, timeout_s: float) -> Connection:
        """Open a connection."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, opened = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"cannot connect to {self.url}: {error or 'timed out'}") from error
        return opened

    def give_back(self, connection: Connection) -> None:
        if connection.spent or connection.closed:
            connection.close()
        else:
            self._free.append(connection)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()
