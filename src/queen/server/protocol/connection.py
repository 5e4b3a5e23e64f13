"""HTTP/1.1 on the event loop: one protocol object a connection, no thread, no copy more than
needed.

Parsing is done by httptools (llhttp). What is ours is what surrounds it: limits on
everything a client can send, one request at a time and in order, an answer for every
request, and an orderly end. See `docs/decisions/0003-http-server.md` for why.

    reading ──complete──▶ queue ──▶ handling ──answer──▶ reading
       │                    └── more than a few, or much, waiting: the socket is not read
       └── all connections hold too much together: neither; see `queen.server.protocol.held_bytes`

The reading half is the base class, because the parser calls its methods directly: two objects
would call each other for every request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from enum import Enum
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from queen.errors import Overloaded, QueenError, RequestTimeout
from queen.server.api.failures import failure
from queen.server.protocol.held_bytes import PATIENCE_S, SMALL_BODY_BYTES
from queen.server.protocol.http import Begun, Request, Response
from queen.server.protocol.known_heads import KnownHead
from queen.server.protocol.request_reader import RequestHead, RequestReader, path_and_query
from queen.server.protocol.response_head import response_head

if TYPE_CHECKING:
    from queen.server.protocol.connections import Connections

_log = logging.getLogger(__name__)

HEADER_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 120.0
# A body may take as long as the headers, and more for what has come of it at this rate.
MIN_BODY_BYTES_PER_S = 1024
# The same while others wait for room.
MIN_CROWDED_BYTES_PER_S = 64 * 1024
# What is written to a connection that is being closed must be read within this time.
CLOSING_TIMEOUT_S = 30.0
# From this size on, a head and a body are not put together first.
_LARGE_BYTES = 64 * 1024


class _Stream(Enum):
    """How far an answer in parts is."""

    NONE = "not begun"
    OPEN = "begun"
    ENDED = "ended"


class Connection(RequestReader):
    __slots__ = (
        "_chunked",
        "_connections",
        "_drained",
        "_gone",
        "_has_ended",
        "_request",
        "_stream",
        "_unread_bytes",
        "_unread_since",
    )

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections.room, connections.heads)
        self._connections = connections
        self._chunked = True
        self._drained: asyncio.Event | None = None
        self._gone: asyncio.Event | None = None
        self._stream = _Stream.NONE
        # Whose answer was begun without a task.
        self._request: Request | None = None
        # What the client had left unread of its answers, and since when.
        self._unread_bytes = 0
        self._unread_since = 0.0
        # The client has said that nothing more comes; the transport closes after this.
        self._has_ended = False

    # ---- what asyncio calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self._reading_since = time.monotonic()
        if not self._connections.add(self):
            self._answer(failure(Overloaded("too many connections")), keep_alive=False)
            self._close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._connections.remove(self)
        self._closing = True
        self._room.leave(self)
        self._room.give(self._body_bytes + self._waiting_bytes)
        self._body_bytes = self._waiting_bytes = 0
        self._waiting.clear()
        self._tell_gone()
        if self._drained is not None:
            self._drained.set()

    def eof_received(self) -> None:
        self._has_ended = True
        self._tell_gone()

    def _tell_gone(self) -> None:
        if self._gone is not None:
            self._gone.set()
        if self._request is not None:
            cast("Begun", self._under_way).leave()

    def pause_writing(self) -> None:
        self._drained = asyncio.Event()
        self._unread_since = time.monotonic()

    def resume_writing(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None
        self._go_on()
        self.heed_room()

    # ---- handling ----

    def _complete(self, head: RequestHead) -> None:
        body = self._whole_body()
        path, query = path_and_query(self._url)
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
        self._room.leave(self)
        self._take(request)

    def _complete_known(self, head: KnownHead, body: bytes) -> None:
        method, path, query, headers = head
        self._take(Request(method, path, query, headers, body, self))

    def _take(self, request: Request) -> None:
        self._reading_since = None
        self._waiting.append(request)
        self._waiting_bytes += len(request.body)
        self._go_on()

    def _go_on(self) -> None:
        """Start with the next request, unless one is under way or its answer would pile up."""
        if (
            self._under_way is None
            and self._waiting
            and self._drained is None
            and not self._closing
        ):
            request = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            self._begin(request)

    def _begin(self, request: Request) -> None:
        """Answer a request at once, or when it has been done, or else from a task."""
        self._stream = _Stream.NONE
        if len(request.body) > SMALL_BODY_BYTES:
            self._handle_later(request, self._in_turn(request))
            return
        try:
            begun = self._connections.begin(request)
        except Exception as error:
            begun = self._failure_of(request, error)
        if isinstance(begun, Response):
            self._end(request, begun)
        elif isinstance(begun, CoroutineType):
            self._handle_later(request, begun)
        else:
            self._under_way = on_its_way = cast("Begun", begun)
            self._request = request
            on_its_way.then(self._finish)

    def _finish(self) -> None:
        """Give the answer that was begun without a task."""
        request, begun = self._request, cast("Begun", self._under_way)
        assert request is not None
        self._request = None
        try:
            response = begun.answer()
        except Exception as error:
            response = self._failure_of(request, error)
        if isinstance(response, Response):
            self._end(request, response)
        else:
            self._handle_later(request, response)

    def _end(self, request: Request, response: Response) -> None:
        """Write an answer that is there whole, and go on."""
        keep_alive = request.keep_alive and not self._connections.stopping
        try:
            self._answer(response, keep_alive, request)
        except Exception as error:
            self._log_failure(request, error)
            keep_alive = False
            self.abort()
        self._room.give(len(request.body))
        self._next(keep_alive)

    def _handle_later(self, request: Request, work: Coroutine[Any, Any, Response | None]) -> None:
        self._under_way = self._connections.loop.create_task(self._handle(request, work))

    async def _handle(self, request: Request, work: Coroutine[Any, Any, Response | None]) -> None:
        try:
            response = await self._response(request, work)
            keep_alive = request.keep_alive and not self._connections.stopping
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
            self._room.give(len(request.body))
        self._next(keep_alive)

    async def _response(
        self, request: Request, work: Coroutine[Any, Any, Response | None]
    ) -> Response | None:
        """Return the answer of a handler, or of what went wrong before it began to answer."""
        try:
            return await work
        except Exception as error:
            if self._stream is not _Stream.NONE:
                raise
            return self._failure_of(request, error)

    def _failure_of(self, request: Request, error: Exception) -> Response:
        if isinstance(error, QueenError):
            return failure(error)
        self._log_failure(request, error)
        return failure(QueenError())

    async def _in_turn(self, request: Request) -> Response | None:
        room, size = self._room, len(request.body)
        await room.enter(size)
        try:
            return await self._connections.handle(request)
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
        self._under_way = None
        if self._closing:
            return
        if not keep_alive:
            self._close()
        elif self._waiting:
            # Whoever called may be in the middle of something.
            self._connections.loop.call_soon(self._go_on)
        elif self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self._reading_since = time.monotonic()
        self.heed_room()

    def _answer(self, response: Response, keep_alive: bool, request: Request | None = None) -> None:
        if self.is_gone:
            # A pop that was left got nothing; that must not look as if there was nothing.
            return
        length = b"content-length: %d\r\n" % len(response.body)
        if request is not None and keep_alive and not request.knows_chunks:
            # Before HTTP/1.1 a connection is kept only if both sides say so.
            length += b"connection: keep-alive\r\n"
        head = response_head(self._with_origin_headers(response, request), keep_alive, length)
        body = b"" if request is not None and request.method == "HEAD" else response.body
        if len(body) > _LARGE_BYTES:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)

    def _with_origin_headers(self, response: Response, request: Request | None) -> Response:
        """Return an answer with what a browser wants to know of it."""
        if request is None or b"origin" not in request.headers:
            return response
        more = self._connections.origins.headers_for(request)
        return response._replace(headers=response.headers + more)

    def _refuse(self, error: QueenError) -> None:
        """Answer a request that could not be read, and hang up: what follows is not HTTP."""
        self._refusal = error
        if self._under_way is None and not self._waiting:
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

    async def wait_until_gone(self) -> None:
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
            keep_alive = self._chunked and request.keep_alive and not self._connections.stopping
            coding = b"transfer-encoding: chunked\r\n" if self._chunked else b""
            self._transport.write(
                response_head(self._with_origin_headers(response, request), keep_alive, coding)
            )

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
        if self._under_way is not None or self._reading_since is None:
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
            is_full = self._room.is_full
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
        return now - self._unread_since > self._connections.limits.write_timeout_s

    def close_when_idle(self) -> None:
        if self._under_way is None:
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
        self._room.leave(self)
        self._room.give(self._body_bytes)
        self._reset()
        self._transport.write_eof()
        self._transport.resume_reading()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()
