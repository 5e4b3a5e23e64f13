"""One or several servers, seen as one.

Requests about one thing (a queue, a partition, a group) go to the same server as long as it
answers: it has the partition's dedup window and the group's ready partitions in memory. A
server that does not answer is left alone for a while, and its requests go to the next one in
an order that every client agrees on (highest random weight), so no client has to be told.

A request that failed in a way that may pass is sent again, with the same ids, after a pause
that grows and is never the same for two clients.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from queen.client.http import Answer, Connection, Server
from queen.client.refusals import error_of, is_worth_repeating
from queen.errors import QueenError, Unreachable

JSON = b"application/json"
_OK = range(200, 300)
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_LEFT_ALONE_S = 2.0


class Patience(NamedTuple):
    """How long a client waits, and how long it tries again."""

    connect_s: float = 5.0
    answer_s: float = 30.0
    retry_s: float = 30.0


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
        self._down_until: dict[str, float] = {}
        self._patience = patience
        self._headers = b"user-agent: queen-python\r\n"
        if token:
            self._headers += b"authorization: Bearer " + token.encode() + b"\r\n"

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self._servers]

    def close(self) -> None:
        for server in self._servers:
            server.close()

    # ---- asking ----

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        key: str = "",
        content_type: bytes = JSON,
        wait_s: float = 0.0,
        retry_s: float | None = None,
    ) -> Answer:
        """Return a successful answer, or raise the error that stayed.

        `key` names what the request is about, `wait_s` how long the server may take because
        it was asked to wait.
        """
        retry_s = self._patience.retry_s if retry_s is None else retry_s
        deadline = time.monotonic() + retry_s
        pause_s = _FIRST_PAUSE_S
        request = self._request(method, path, body, content_type)
        timeout_s = self._patience.answer_s + wait_s
        while True:
            for server in self._in_order(key):
                try:
                    return await self._ask(server, request, timeout_s)
                except QueenError as error:
                    if not is_worth_repeating(error):
                        raise
                    last = error
            pause_s = _pause_after(last, pause_s)
            if time.monotonic() + pause_s > deadline:
                raise last
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _ask(self, server: Server, request: bytes, timeout_s: float) -> Answer:
        async with self._connection(server) as connection:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await connection.ask(request)
            except TimeoutError:
                raise Unreachable(f"{server.url} did not answer in {timeout_s:.0f} s") from None
        if answer.status not in _OK:
            raise error_of(answer)
        return answer

    @asynccontextmanager
    async def stream(self, path: str, *, key: str = "") -> AsyncIterator[AsyncIterator[bytes]]:
        """Ask for a body that is read as it arrives; a broken one raises `Unreachable`."""
        request = self._request("GET", path, b"", JSON)
        server = self._in_order(key)[0]
        connection = await server.connection(self._patience.connect_s)
        try:
            head, parts = await connection.stream(request)
            if head.status not in _OK:
                body = b"".join([part async for part in parts])
                raise error_of(head._replace(body=body))
            yield parts
        finally:
            connection.close()

    @asynccontextmanager
    async def _connection(self, server: Server) -> AsyncIterator[Connection]:
        try:
            connection = await server.connection(self._patience.connect_s)
            yield connection
        except Unreachable:
            self._down_until[server.url] = time.monotonic() + _LEFT_ALONE_S
            raise
        else:
            self._down_until.pop(server.url, None)
            server.give_back(connection)

    def _request(self, method: str, path: str, body: bytes, content_type: bytes) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\n".encode()
        about = b""
        if body:
            about = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))
        # Which server gets it is not known yet; they all serve under any name.
        host = b"host: " + self._servers[0].host_header + b"\r\n"
        return b"".join((head, host, self._headers, about, b"\r\n", body))

    # ---- choosing ----

    def _in_order(self, key: str) -> list[Server]:
        """Return the servers, the best one for a key first and those that are down last."""
        if len(self._servers) == 1:
            return self._servers
        now = time.monotonic()
        return sorted(
            self._servers,
            key=lambda server: (
                self._down_until.get(server.url, 0.0) > now,
                _weight(server.url, key),
            ),
        )


def _weight(url: str, key: str) -> bytes:
    return hashlib.blake2b(f"{url} {key}".encode(), digest_size=8).digest()


def _pause_after(error: QueenError, pause_s: float) -> float:
    """Return how long to wait; a queue that is full is not empty a moment later."""
    return max(pause_s, 0.25) if error.code in ("queue_full", "overloaded") else pause_s
