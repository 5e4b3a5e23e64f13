"""One or several servers, seen as one.

Requests about one thing (a queue, a partition, a group) go to the same server as long as it
answers: it has the partition's latest transaction ids and the group's ready partitions in memory.
A server that does not answer is left alone for a while, and its requests go to the next one in
an order that every client agrees on (highest random weight), so no client has to be told.

What was leased is an exception: the server that granted a lease has it in memory, so acks and
renewals name that server and it is asked first. The others serve them too, when it is away.

A request that failed in a way that may pass is sent again, with the same ids, after a pause
that grows and is never the same for two clients.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from queen.client.queues.partial_requests import is_partly_done
from queen.client.transport.errors_from_answer import error_of, is_worth_repeating, retry_after_s
from queen.client.transport.http import Answer, Connection, Poll, Server
from queen.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    OutcomeUnknown,
    QueenError,
    Unauthenticated,
    Unreachable,
)

_log = logging.getLogger("queen.client")

JSON = b"application/json"
# As `queen.core.frame` has it, which is loaded by those who have frames to send.
SEGMENT = b"application/vnd.queen.segment"
_OK = range(200, 300)
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_LEFT_ALONE_S = 2.0


class Patience(NamedTuple):
    """How long a client waits, and how long it tries again."""

    connect_s: float = 5.0
    answer_s: float = 30.0
    retry_s: float = 30.0


class EitherBody(Protocol):
    """A body that can be sent as frames or as JSON; it is told how it went."""

    went_as_frames: bool

    def as_frames(self) -> bytes | None: ...

    def as_json(self) -> bytes: ...


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes
    content_type: bytes
    accept: bytes = b""
    is_repeatable: bool = True

    def text(self, server: Server, headers: bytes) -> bytes:
        """Return the request as it is sent to a server."""
        about = b"accept: %b\r\n" % self.accept if self.accept else b""
        if self.body:
            sizes = (self.content_type, len(self.body))
            about += b"content-type: %b\r\ncontent-length: %d\r\n" % sizes
        head = f"{self.method} {self.path} HTTP/1.1\r\nhost: ".encode()
        return b"".join((head, server.host_header, b"\r\n", headers, about, b"\r\n", self.body))


class Cluster:
    def __init__(
        self,
        urls: Sequence[str],
        token: str | None,
        patience: Patience,
        context: ssl.SSLContext | None = None,
    ) -> None:
        if not urls:
            raise ValueError("at least one URL is needed")
        self._servers = [Server(url, context) for url in urls]
        self.token = token
        self._down_until: dict[str, float] = {}
        self._patience = patience
        self._headers = b"user-agent: queen-python\r\n"
        reason = reason_against_token(token)
        if reason is not None:
            raise ValueError(reason)
        if token:
            self._headers += b"authorization: Bearer " + token.encode() + b"\r\n"

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self._servers]

    @property
    def retry_s(self) -> float:
        """How long a request that failed is sent again."""
        return self._patience.retry_s

    def close(self) -> None:
        for server in self._servers:
            server.close()

    # ---- asking ----

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | EitherBody = b"",
        *,
        key: str = "",
        first: str = "",
        content_type: bytes = JSON,
        wait_s: float = 0.0,
        retry_s: float | None = None,
        answer_s: float | None = None,
        poll: Poll | None = None,
        give_up_after: Callable[[QueenError], bool] | None = None,
        is_repeatable: bool = True,
        accept: bytes = b"",
    ) -> Answer:
        """Return a successful answer, or raise the error that stayed.

        `key` names what the request is about, `first` the server to ask first, `wait_s` how long
        the server may take because it was asked to wait, `poll` lets its sender give it up, and
        `give_up_after` says after which errors no server is asked a second time. What was done
        in part is not repeated: its sender knows what is left of it. What is not repeatable raises
        `OutcomeUnknown` when it was sent and nobody knows what became of it.
        """
        retry_s = self._patience.retry_s if retry_s is None else retry_s
        deadline = time.monotonic() + retry_s
        pause_s = _FIRST_PAUSE_S
        either = None if isinstance(body, bytes) else body
        plain = body if isinstance(body, bytes) else b""
        request = _Request(method, path, plain, content_type, accept, is_repeatable)
        patience_s = self._patience.answer_s
        timeout_s = wait_s + (patience_s if answer_s is None else min(patience_s, answer_s))
        poll = poll or Poll()
        attempt = 0
        while True:
            attempt += 1
            for server in self._in_order(key, first):
                try:
                    if either is not None:
                        return await self._ask_either(
                            server, request, either, timeout_s, poll, attempt
                        )
                    return await self._ask(server, request, timeout_s, poll, attempt)
                except QueenError as error:
                    if poll.is_given_up or _is_final(error, is_repeatable):
                        raise
                    last = error
            if give_up_after is not None and give_up_after(last):
                raise last
            pause_s = _pause_after(last, pause_s)
            if time.monotonic() + pause_s > deadline:
                raise last
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _ask_either(
        self,
        server: Server,
        request: _Request,
        either: EitherBody,
        timeout_s: float,
        poll: Poll,
        attempt: int,
    ) -> Answer:
        """Ask with frames a server that has said it takes them, and with JSON if it does not
        take these. An answer to JSON says what else the server takes."""
        frames = either.as_frames() if server.takes_frames else None
        either.went_as_frames = frames is not None
        if frames is not None:
            framed = request._replace(body=frames, content_type=SEGMENT)
            try:
                return await self._ask(server, framed, timeout_s, poll, attempt)
            except QueenError as error:
                if not _is_refusal_of_frames(error):
                    raise
                # Ours names its errors; another one has taken its place.
                server.takes_frames = "code" in error.details
            either.went_as_frames = False
        plain = request._replace(body=either.as_json())
        answer = await self._ask(server, plain, timeout_s, poll, attempt)
        server.takes_frames = SEGMENT in answer.headers.get(b"accept-post", b"")
        return answer

    async def _ask(
        self, server: Server, request: _Request, timeout_s: float, poll: Poll, attempt: int
    ) -> Answer:
        began = time.monotonic()
        text = request.text(server, self._headers)
        try:
            ask = self._ask_reusing if request.is_repeatable else self._ask_once
            answer = await ask(server, text, timeout_s, poll)
        except OutcomeUnknown:
            _log_request(server, request, "no answer", began, attempt)
            raise
        except Unreachable as error:
            _log_request(server, request, "no answer", began, attempt)
            if not poll.is_given_up:
                if server.url not in self._down_until:
                    _log.warning("%s", error)
                self._leave_alone(server)
            raise
        _log_request(server, request, answer.status, began, attempt)
        self._down_until.pop(server.url, None)
        if answer.status not in _OK:
            raise error_of(answer)
        return answer if len(self._servers) == 1 else answer._replace(server=server.url)

    def _leave_alone(self, server: Server) -> None:
        self._down_until[server.url] = time.monotonic() + _LEFT_ALONE_S

    async def _ask_reusing(
        self, server: Server, text: bytes, timeout_s: float, poll: Poll
    ) -> Answer:
        while (used := server.free_connection()) is not None:
            try:
                return await _ask_on(server, used, text, timeout_s, poll)
            except Unreachable:
                # It may have been closed while it was idle; that says nothing of the server.
                if used.has_answered or not used.lost or poll.is_given_up:
                    raise
        opened = await server.connect(min(self._patience.connect_s, timeout_s))
        return await _ask_on(server, opened, text, timeout_s, poll)

    async def _ask_once(self, server: Server, text: bytes, timeout_s: float, poll: Poll) -> Answer:
        """Ask, and never again once something may have been sent."""
        connection = server.free_connection()
        if connection is None:
            connection = await server.connect(min(self._patience.connect_s, timeout_s))
        try:
            return await _ask_on(server, connection, text, timeout_s, poll)
        except Unreachable as error:
            raise OutcomeUnknown(f"nobody knows whether it was done: {error}") from error

    @asynccontextmanager
    async def stream(
        self, path: str, *, key: str = "", first: str = "", accept: bytes = b""
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Ask for a body that is read as it arrives; a broken one raises `Unreachable`."""
        request = _Request("GET", path, b"", JSON, accept)
        connection, head, parts = await self._open_stream(request, key, first)
        try:
            if head.status not in _OK:
                body = b"".join([part async for part in parts])
                raise error_of(head._replace(body=body))
            yield parts
        finally:
            connection.close()

    async def _open_stream(
        self, request: _Request, key: str, first: str
    ) -> tuple[Connection, Answer, AsyncIterator[bytes]]:
        """Ask the first server that answers."""
        answer_s = self._patience.answer_s
        for server in self._in_order(key, first):
            try:
                connection = await server.connect(self._patience.connect_s)
                async with _limit_time(server, answer_s):
                    head, parts = await connection.stream(request.text(server, self._headers))
            except Unreachable as error:
                self._leave_alone(server)
                last = error
            else:
                return connection, head, _limit_each_part(server, parts, answer_s)
        raise last

    # ---- choosing ----

    def first_for(self, key: str) -> str:
        """Return the server that is asked first about something; empty where there is only one."""
        return "" if len(self._servers) == 1 else self._in_order(key)[0].url

    def _in_order(self, key: str, first: str = "") -> list[Server]:
        """Return the servers: the one that was named first, or else the best one for a key, and
        those that are down last."""
        if len(self._servers) == 1:
            return self._servers
        now = time.monotonic()
        return sorted(
            self._servers,
            key=lambda server: (
                self._down_until.get(server.url, 0.0) > now,
                server.url != first,
                _weight(server.url, key),
            ),
        )


def reason_against_token(token: str | None) -> str | None:
    """Return why a token cannot be sent, or None. A line break in it would end the header, and
    what follows be another."""
    if token and not (token.isascii() and token.isprintable()):
        return "a token is one line of printable ASCII"
    return None


def _log_request(
    server: Server, request: _Request, outcome: int | str, began: float, attempt: int
) -> None:
    """Say what was asked and what came of it. What is asked for may be somebody's secret, so
    neither the query nor the body is said."""
    if _log.isEnabledFor(logging.DEBUG):
        path = request.path.partition("?")[0]
        took_ms = (time.monotonic() - began) * 1000
        host = server.host_header.decode()
        again = f", attempt {attempt}" if attempt > 1 else ""
        _log.debug(
            "%s %s at %s: %s, %.1f ms%s", request.method, path, host, outcome, took_ms, again
        )


def _is_final(error: QueenError, is_repeatable: bool) -> bool:
    """Whether a request is not sent again after an error."""
    if isinstance(error, OutcomeUnknown) and not is_repeatable:
        return True
    return not is_worth_repeating(error) or is_partly_done(error)


def _is_refusal_of_frames(error: QueenError) -> bool:
    """Whether frames were refused before anything of them was stored, by a server that does not
    know them or because of a message that it can name when it reads JSON."""
    if is_worth_repeating(error) or "results" in error.details:
        return False
    is_of_another = "code" not in error.details
    return isinstance(error, BadRequest | NotFound) or (
        is_of_another and not isinstance(error, Unauthenticated | Forbidden)
    )


def _weight(url: str, key: str) -> bytes:
    return hashlib.blake2b(f"{url} {key}".encode(), digest_size=8).digest()


def _pause_after(error: QueenError, pause_s: float) -> float:
    """Return how long to wait. A server without its database says when to come again; a queue
    that is full is not empty a moment later, and what was contended may be free at once."""
    if error.code in ("queue_full", "overloaded"):
        return max(pause_s, 0.25)
    if error.code in ("unavailable", "maintenance"):
        return max(pause_s, min(retry_after_s(error), _LONGEST_PAUSE_S))
    return pause_s


async def _ask_on(
    server: Server, connection: Connection, text: bytes, timeout_s: float, poll: Poll
) -> Answer:
    poll.connection = connection
    try:
        async with asyncio.timeout(timeout_s):
            answer = await connection.ask(text)
    except TimeoutError:
        raise _no_answer(server, timeout_s) from None
    finally:
        poll.connection = None
    server.give_back(connection)
    return answer


@asynccontextmanager
async def _limit_time(server: Server, timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise _no_answer(server, timeout_s) from None


def _no_answer(server: Server, timeout_s: float) -> Unreachable:
    return Unreachable(f"{server.url} did not answer in {timeout_s:.0f} s")


async def _limit_each_part(
    server: Server, parts: AsyncIterator[bytes], timeout_s: float
) -> AsyncIterator[bytes]:
    while True:
        async with _limit_time(server, timeout_s):
            part = await anext(parts, None)
        if part is None:
            return
        yield part
