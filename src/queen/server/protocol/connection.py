"""HTTP/1.1 on the event loop: one protocol object a connection, no thread, no copy more than
needed.

Parsing is done by httptools (llhttp). What is ours is what surrounds it: limits on
everything a client can send, one request at a time and in order, an answer for every
request, and an orderly end. See `docs/decisions/0003-http-server.md` for why.

    reading ──complete──▶ queue ──▶ handling ──answer──▶ reading
       │                    └── more than a few, or much, waiting: the socket is not read
       └── all connections hold too much together: neither; see `queen.server.protocol.held_bytes`
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools

from queen.errors import (
    BadRequest,
    HeadersTooLarge,
    Overloaded,
    PayloadTooLarge,
    QueenError,
    RequestTimeout,
    UnsupportedMedia,
)
from queen.server.api.failures import failure
from queen.server.protocol.held_bytes import PATIENCE_S, SMALL_BODY_BYTES, Room
from queen.server.protocol.http import MAX_BODY_BYTES, Headers, Request, Response
from queen.server.protocol.origins import Origins

_log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 100
MAX_URL_BYTES = 8 * 1024
# What a connection may hold behind a request that is not answered yet.
MAX_BEHIND_BYTES = 1024 * 1024
HEADER_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 120.0
# A body may take as long as the headers, and more for what has come of it at this rate.
MIN_BODY_BYTES_PER_S = 1024
# The same while others wait for room.
MIN_CROWDED_BYTES_PER_S = 64 * 1024
# What is written to a connection that is being closed must be read within this time.
CLOSING_TIMEOUT_S = 30.0
_MAX_WAITING = 16
# From this size on, a head and a body are not put together first.
_LARGE_BYTES = 64 * 1024
# A body in more parts than this is put together as it comes: tiny parts cost more than they hold.
_MAX_PARTS = 512
# A header that means something to us must not mean two things.
_ONLY_ONCE = frozenset((b"authorization", b"content-type", b"host", b"origin"))

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_KEEP_ALIVE = b"\r\n"
_CLOSE = b"connection: close\r\n\r\n"

# On every answer, unless it says something else itself.
_SECURITY_HEADERS: Headers = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))

Handle = Callable[[Request], Awaitable[Response | None]]


class ConnectionLimits(NamedTuple):
    """How many connections a server process takes, of all clients and of one address, and how
    long one may read nothing of what is written to it."""

    total: int = 10_000
    per_address: int = 5_000
    write_timeout_s: float = 60.0


class Connections:
    """What the connections of one server share."""

    def __init__(
        self,
        handle: Handle,
        limits: ConnectionLimits | None = None,
        origins: Origins | None = None,
    ) -> None:
        self.handle = handle
        self.origins = origins or Origins()
        self.connections: set[Connection] = set()
        self.limits = limits or ConnectionLimits()
        self._by_address: Counter[str] = Counter()
        self.room = Room()
        self.stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    def protocol(self) -> Connection:
        return Connection(self)

    def joined(self, connection: Connection) -> bool:
        """Count a connection; false when it is one too many."""
        self.connections.add(connection)
        self._by_address[connection.address] += 1
        self._empty.clear()
        return (
            len(self.connections) <= self.limits.total
            and self._by_address[connection.address] <= self.limits.per_address
        )

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        if not self.connections:
            self._empty.set()

    async def stop(self, grace_s: float) -> None:
        """Close idle connections now, the others after their answer, all after the grace."""
        self.stopping = True
        for connection in list(self.connections):
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        for connection in list(self.connections):
            connection.abort()

    async def watch(self) -> None:
        """Close connections that send or read too slowly or not at all."""
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for connection in list(self.connections):
                try:
                    connection.check_time(now)
                except Exception:
                    # The others are watched on, whatever is wrong with this one.
                    _log.exception("a connection could not be checked")
                    connection.abort()


class _Stream(Enum):
    """How far an answer in parts is."""

    NONE = "not begun"
    OPEN = "begun"
    ENDED = "ended"


class _Head(NamedTuple):
    """What the parser knows of a request beside its parts."""

    method: str
    keep_alive: bool
    knows_chunks: bool


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_start",
        "_chunked",
        "_closing",
        "_drained",
        "_gone",
        "_has_ended",
        "_head_bytes",
        "_header_bytes",
        "_headers",
        "_hub",
        "_in_head",
        "_parser",
        "_paused_at",
        "_reading_since",
        "_refusal",
        "_stream",
        "_task",
        "_transport",
        "_unread_bytes",
        "_unread_since",
        "_upgraded",
        "_url",
        "_waiting",
        "_waiting_bytes",
        "address",
    )

    def __init__(self, hub: Connections) -> None:
        self._hub = hub
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._chunked = True
        self._drained: asyncio.Event | None = None
        self._gone: asyncio.Event | None = None
        self._stream = _Stream.NONE
        # What the client had left unread of its answers, and since when.
        self._unread_bytes = 0
        self._unread_since = 0.0
        # Since when nothing is read because there is no room for it.
        self._paused_at: float | None = None
        # The client has said that nothing more comes; the transport closes after this.
        self._has_ended = False
        self._reading_since: float | None = None
        self._refusal: QueenError | None = None
        self._in_head = False
        self._head_bytes = 0
        # A request that offered an upgrade and whose body is still to come.
        self._upgraded: _Head | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        # What came before those parts, when there were many.
        self._body_start = bytearray()
        self._body_bytes = 0

    # ---- what asyncio calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self._reading_since = time.monotonic()
        if not self._hub.joined(self):
            self._answer(failure(Overloaded("too many connections")), keep_alive=False)
            self._close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._hub.left(self)
        self._closing = True
        self._hub.room.leave(self)
        self._hub.room.give(self._body_bytes + self._waiting_bytes)
        self._body_bytes = self._waiting_bytes = 0
        self._waiting.clear()
        if self._gone is not None:
            self._gone.set()
        if self._drained is not None:
            self._drained.set()

    def eof_received(self) -> None:
        self._has_ended = True
        if self._gone is not None:
            self._gone.set()

    def data_received(self, data: bytes) -> None:
        if self._closing or self._refusal is not None:
            return
        try:
            self._parser.feed_data(data)
            if self._in_head:
                # The parser tells of a header when it is complete; this one may never be.
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEADER_BYTES + MAX_URL_BYTES:
                    raise HeadersTooLarge
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            reason = error.__context__
            self._refuse(reason if isinstance(reason, QueenError) else BadRequest("malformed HTTP"))
        except QueenError as error:
            self._refuse(error)
        self.heed_room()

    # ---- requests that offer an upgrade ----
    #
    # Some clients offer HTTP/2 with every request. The parser then takes the message for
    # complete after its headers. We do not upgrade: a fresh parser gets a head that says how
    # the body is sent, reads the body, and the request is put together again.

    def _ignore_upgrade(self, rest: bytes) -> None:
        self._parser = httptools.HttpRequestParser(self)
        if self._upgraded is not None:
            length = self._headers.get(b"content-length")
            sent = b"transfer-encoding: chunked" if length is None else b"content-length: " + length
            rest = b"POST / HTTP/1.1\r\n" + sent + b"\r\n\r\n" + rest
        if rest:
            self.data_received(rest)

    def pause_writing(self) -> None:
        self._drained = asyncio.Event()
        self._unread_since = time.monotonic()

    def resume_writing(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None
        self._go_on()
        self.heed_room()

    # ---- what the parser calls ----

    def on_message_begin(self) -> None:
        if self._upgraded is not None:
            return
        self._reading_since = time.monotonic()
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        if self._upgraded is not None:
            return
        self._url += url
        if len(self._url) > MAX_URL_BYTES:
            raise HeadersTooLarge(f"the URL is longer than {MAX_URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._upgraded is not None:
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES or len(self._headers) >= MAX_HEADERS:
            raise HeadersTooLarge
        name = name.lower()
        if name in self._headers and name in _ONLY_ONCE:
            raise BadRequest("a header stands twice")
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        needs_host = self._upgraded is None and self._parser.get_http_version() != "1.0"
        if needs_host and b"host" not in self._headers:
            raise BadRequest("the Host header is missing")
        length = self._headers.get(b"content-length")
        if length is not None:
            _check_size(int(length))
        if self._headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UnsupportedMedia
        expects = self._headers.get(b"expect", b"").lower() == b"100-continue"
        if expects and self._upgraded is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        self._hub.room.take(len(part))
        _check_size(self._body_bytes)
        self._body.append(part)
        if len(self._body) > _MAX_PARTS:
            self._body_start += b"".join(self._body)
            self._body.clear()

    def on_message_complete(self) -> None:
        if self._upgraded is not None:
            head, self._upgraded = self._upgraded, None
            self._complete(head)
            return
        head = _Head(
            self._parser.get_method().decode(),
            self._parser.should_keep_alive(),
            self._parser.get_http_version() != "1.0",
        )
        if self._parser.should_upgrade():
            head = head._replace(keep_alive=head.knows_chunks)
            length = self._headers.get(b"content-length", b"0")
            if length != b"0" or b"transfer-encoding" in self._headers:
                self._upgraded = head
                return
        self._complete(head)

    def _complete(self, head: _Head) -> None:
        body = self._whole_body()
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            head.method,
            path,
            query,
            self._headers,
            body,
            self,
            keep_alive=head.keep_alive,
            knows_chunks=head.knows_chunks,
        )
        self._reset()
        self._reading_since = None
        self._waiting.append(request)
        self._waiting_bytes += len(body)
        self._hub.room.leave(self)
        self._go_on()

    def _whole_body(self) -> bytes:
        if self._body_start:
            # A body of many parts is a large one: no more copies of it than there must be.
            for part in self._body:
                self._body_start += part
            return bytes(self._body_start)
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    # ---- room for what is read ----

    def heed_room(self) -> None:
        """Read no further while what has come must wait, and go on when it need not."""
        if self._closing or self._refusal is not None:
            return
        must_wait = self._has_much_behind() or self._is_crowded_out()
        if must_wait and self._paused_at is None:
            self._paused_at = time.monotonic()
            self._transport.pause_reading()
        elif not must_wait and self._paused_at is not None:
            if self._reading_since is not None:
                # A client is not slow while nobody reads what it sends.
                self._reading_since += time.monotonic() - self._paused_at
            self._paused_at = None
            self._transport.resume_reading()

    def _has_much_behind(self) -> bool:
        """Whether enough waits behind a request of this connection that is not answered."""
        if self._task is None and not self._waiting:
            return False
        behind = self._waiting_bytes + self._body_bytes
        has_much = len(self._waiting) > _MAX_WAITING or behind > MAX_BEHIND_BYTES
        if has_much:
            # The eldest must be able to go on, and this one is not.
            self._hub.room.leave(self)
        return has_much

    def _is_crowded_out(self) -> bool:
        return self._body_bytes > SMALL_BODY_BYTES and not self._hub.room.may_read(self)

    # ---- handling ----

    def _go_on(self) -> None:
        """Start with the next request, unless one is under way or its answer would pile up."""
        if self._task is None and self._waiting and self._drained is None and not self._closing:
            request = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            self._task = asyncio.get_running_loop().create_task(self._handle(request))

    async def _handle(self, request: Request) -> None:
        self._stream = _Stream.NONE
        try:
            response = await self._response(request)
            keep_alive = request.keep_alive and not self._hub.stopping
            if response is not None:
                self._answer(response, keep_alive, request)
            elif self._stream is not _Stream.ENDED:
                self._hang_up_on(request)
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception as error:
            # Too late for another answer; a client must not take a part for the whole.
            self._log_failure(request, error)
            keep_alive = False
            self.abort()
        finally:
            self._hub.room.give(len(request.body))
        self._next(keep_alive)

    async def _response(self, request: Request) -> Response | None:
        """Return the answer of a handler, or of what went wrong before it began to answer."""
        try:
            if len(request.body) > SMALL_BODY_BYTES:
                return await self._in_turn(request)
            return await self._hub.handle(request)
        except Exception as error:
            if self._stream is not _Stream.NONE:
                raise
            if isinstance(error, QueenError):
                return failure(error)
            self._log_failure(request, error)
            return failure(QueenError())

    async def _in_turn(self, request: Request) -> Response | None:
        room, size = self._hub.room, len(request.body)
        await room.enter(size)
        try:
            return await self._hub.handle(request)
        finally:
            room.exit(size)

    def _hang_up_on(self, request: Request) -> None:
        """End a connection whose client would wait for an answer, or for the rest of one."""
        if not self._closing:
            _log.error("%s %s was not answered", request.method, request.path)
        self.abort()

    def _log_failure(self, request: Request, error: Exception) -> None:
        if isinstance(error, QueenError):
            _log.warning("%s %s broke off: %s", request.method, request.path, error)
        else:
            _log.error("%s %s failed", request.method, request.path, exc_info=error)

    def _next(self, keep_alive: bool) -> None:
        self._task = None
        if self._closing:
            return
        if not keep_alive:
            self._close()
        elif self._waiting:
            self._go_on()
        elif self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self._reading_since = time.monotonic()
        self.heed_room()

    def _answer(self, response: Response, keep_alive: bool, request: Request | None = None) -> None:
        if self._closing:
            return
        length = b"content-length: %d\r\n" % len(response.body)
        if request is not None and keep_alive and not request.knows_chunks:
            # Before HTTP/1.1 a connection is kept only if both sides say so.
            length += b"connection: keep-alive\r\n"
        head = _head(self._dressed(response, request), keep_alive, length)
        body = b"" if request is not None and request.method == "HEAD" else response.body
        if len(body) > _LARGE_BYTES:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)

    def _dressed(self, response: Response, request: Request | None) -> Response:
        """Return an answer with what a browser wants to know of it."""
        if request is None or b"origin" not in request.headers:
            return response
        more = self._hub.origins.headers_for(request)
        return response._replace(headers=response.headers + more)

    def _refuse(self, error: QueenError) -> None:
        """Answer a request that could not be read, and hang up: what follows is not HTTP."""
        self._refusal = error
        if self._task is None and not self._waiting:
            self._answer(failure(error), keep_alive=False)
            if self._body_bytes:
                self._close_behind_body()
            else:
                self._close()
        else:
            # Earlier requests are still being answered; their answers come first.
            self._transport.pause_reading()

    # ---- for handlers that take long or stream ----

    @property
    def is_gone(self) -> bool:
        """Whether an answer that is written now reaches nobody."""
        return self._closing or self._has_ended

    @property
    def is_cut_off(self) -> bool:
        """Whether an answer in parts has begun and will not end."""
        return self._stream is _Stream.OPEN and self._closing

    async def gone(self) -> None:
        """Return when the client has hung up."""
        if self.is_gone:
            return
        if self._gone is None:
            self._gone = asyncio.Event()
        await self._gone.wait()

    def start_stream(self, request: Request, response: Response) -> None:
        """Send the head of an answer whose body follows in parts."""
        self._chunked = request.knows_chunks
        self._stream = _Stream.OPEN
        if not self._closing:
            keep_alive = self._chunked and request.keep_alive and not self._hub.stopping
            coding = b"transfer-encoding: chunked\r\n" if self._chunked else b""
            self._transport.write(_head(self._dressed(response, request), keep_alive, coding))

    async def send(self, part: bytes) -> bool:
        """Send a part of a streamed body; waits for a slow client. False when it has gone."""
        if not self._closing and part:
            framed = b"%x\r\n" % len(part) + part + b"\r\n" if self._chunked else part
            self._transport.write(framed)
        while self._drained is not None and not self._closing:
            await self._drained.wait()
        return not self._closing

    def end_stream(self) -> None:
        self._stream = _Stream.ENDED
        if self._closing:
            return
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._close()

    # ---- the end ----

    def check_time(self, now: float) -> None:
        if self._reads_nothing(now):
            _log.info("a client at %s reads nothing of its answers", self.address)
            self.abort()
            return
        if self._task is not None or self._reading_since is None:
            return
        if self._paused_at is not None and not self._closing:
            if now - self._paused_at > PATIENCE_S and not self._waiting:
                self._refuse(Overloaded())
            return
        elapsed_s = now - self._reading_since
        if self._closing:
            # It does not read what was written to it; closing would wait for that.
            if elapsed_s > CLOSING_TIMEOUT_S:
                self.abort()
        elif self._in_head or self._url:
            is_full = self._hub.room.is_full
            rate = MIN_CROWDED_BYTES_PER_S if is_full else MIN_BODY_BYTES_PER_S
            allowed_s = HEADER_TIMEOUT_S + self._body_bytes / rate
            if elapsed_s > allowed_s and self._refusal is None:
                self._refuse(RequestTimeout())
        elif elapsed_s > IDLE_TIMEOUT_S:
            self._close()

    def _reads_nothing(self, now: float) -> bool:
        """Whether for too long nothing has left of what was written."""
        if self._drained is None:
            return False
        left = self._transport.get_write_buffer_size()
        if left != self._unread_bytes:
            self._unread_bytes, self._unread_since = left, now
        return now - self._unread_since > self._hub.limits.write_timeout_s

    def close_when_idle(self) -> None:
        if self._task is None:
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._reading_since = time.monotonic()
        self._transport.close()

    def _close_behind_body(self) -> None:
        """Close when the client has, or after a while. Until then what it still sends is dropped:
        to hang up on a client that sends is to take the answer away from it."""
        if not self._transport.can_write_eof():
            self._close()
            return
        self._closing = True
        self._reading_since = time.monotonic()
        self._hub.room.leave(self)
        self._hub.room.give(self._body_bytes)
        self._reset()
        self._transport.write_eof()
        self._transport.resume_reading()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")


def _head(response: Response, keep_alive: bool, length: bytes) -> bytes:
    if response.status == HTTPStatus.NO_CONTENT:
        length = b""
    start = _head_start(response.status, response.headers)
    return b"".join((start, length, _KEEP_ALIVE if keep_alive else _CLOSE))


@lru_cache(maxsize=256)
def _head_start(status: int, headers: Headers) -> bytes:
    said = {name for name, _ in headers}
    more = tuple(pair for pair in _SECURITY_HEADERS if pair[0] not in said)
    lines = [f"{name}: {value}\r\n".encode() for name, value in headers + more]
    return b"".join((_STATUS_LINES[status], *lines))
