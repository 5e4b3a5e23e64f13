"""The broker as Spark's Python processes see it: plain calls over connections that are kept.

A task is short, its process is not: Spark uses it for the next task, the next micro-batch and
the next query. So connections belong to the module, and a task takes one and gives it back. Threads
share them: a connection is taken and removed in one step, so no two threads ever use the same.
Calls block: a worker has one thing to do at a time, and no event loop.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from queen.client.queen import DEFAULT_URL
from queen.client.transport.errors_from_answer import error_of, is_worth_repeating
from queen.client.transport.http import Answer
from queen.errors import Forbidden, NotFound, QueenError, Unauthenticated, Unreachable

JSON = "application/json"
_CONNECT_S = 10.0
_ANSWER_S = 120.0
PATIENCE_S = 30.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_PART_BYTES = 1024 * 1024
_BROKEN = (OSError, http.client.HTTPException)


class BrokerAddress(NamedTuple):
    """Where the broker is and who asks; small, and may travel to other machines."""

    urls: tuple[str, ...]
    # None: each machine uses its own QUEEN_TOKEN.
    token: str | None = None


def address_of(options: Mapping[str, str]) -> BrokerAddress:
    """Return the broker that the options `url` and `token` name."""
    given = options.get("url") or os.environ.get("QUEEN_URL") or DEFAULT_URL
    urls = tuple(url.strip().rstrip("/") for url in given.split(",") if url.strip())
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"option url: {url!r} is not a URL; it looks like {DEFAULT_URL}")
    return BrokerAddress(urls, options.get("token") or None)


# So many connections are kept for each server while nobody uses them.
_MOST_IDLE = 16
# Idle connections by process and server, the one used last at the end; a fork starts with none.
# No lock: one that another thread holds during a fork would never be released in the child.
_idle: dict[tuple[int, str], deque[http.client.HTTPConnection]] = {}


class Broker:
    """Calls to one broker. Cheap to make; the connections behind it are shared."""

    def __init__(self, address: BrokerAddress, retry_s: float = PATIENCE_S) -> None:
        self._address = address
        self.retry_s = retry_s
        token = address.token or os.environ.get("QUEEN_TOKEN")
        self._headers = {"user-agent": "queen-spark"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a JSON body, if any, and return the decoded answer."""
        encoded = b"" if body is None else msgspec.json.encode(body)
        return msgspec.json.decode(self.call(method, path, encoded) or b"null")

    def call(self, method: str, path: str, body: bytes = b"", content_type: str = JSON) -> bytes:
        """Return the body of a successful answer, or raise the error that stayed."""
        response = self._open(method, path, body, content_type)
        try:
            content = response.read()
        except _BROKEN as error:
            _hang_up(response)
            raise Unreachable(f"the connection was lost in an answer: {error}") from None
        self._give_back(response)
        return content

    def stream(
        self, method: str, path: str, body: bytes, accept: str
    ) -> Generator[bytes, None, None]:
        """Yield the body of an answer as it arrives; a broken one raises `Unreachable`."""
        response = self._open(method, path, body, JSON, accept)
        is_whole = False
        try:
            while part := response.read1(_PART_BYTES):
                yield part
            is_whole = True
        except _BROKEN as error:
            raise Unreachable(f"the connection was lost in an answer: {error}") from None
        finally:
            # Also when nobody wants the rest.
            if is_whole:
                self._give_back(response)
            else:
                _hang_up(response)

    # ---- one request ----

    def _open(
        self, method: str, path: str, body: bytes, content_type: str, accept: str | None = None
    ) -> _Response:
        """Return an answer that is a success, its body unread."""
        deadline = time.monotonic() + self.retry_s
        pause_s = _FIRST_PAUSE_S
        while True:
            for url in self._address.urls:
                try:
                    return self._send(url, method, path, body, content_type, accept)
                except QueenError as error:
                    if not is_worth_repeating(error):
                        raise self._explain(error) from None
                    last = error
            if time.monotonic() + pause_s > deadline:
                raise self._explain(last)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _send(
        self,
        url: str,
        method: str,
        path: str,
        body: bytes,
        content_type: str,
        accept: str | None,
    ) -> _Response:
        """Ask one server, over a connection that is kept if there is one."""
        headers = dict(self._headers)
        if body:
            headers["content-type"] = content_type
        if accept is not None:
            headers["accept"] = accept
        while (connection := _idle_connection(url)) is not None:
            try:
                return _request(url, connection, method, path, body, headers)
            except Unreachable:
                # It may have been closed while it was idle; that says nothing of the server.
                continue
        return _request(url, _connection(url), method, path, body, headers)

    def _give_back(self, response: _Response) -> None:
        if response.will_close or not response.isclosed():
            _hang_up(response)
        else:
            _keep(response.url, response.connection)

    def _explain(self, error: QueenError) -> QueenError:
        """Say what to do about an error; this is the last line that a user of Spark sees."""
        match error:
            case Unreachable():
                urls = ", ".join(self._address.urls)
                return Unreachable(
                    f"no Queen server answers at {urls}: start one with `queen serve`, "
                    f"or give another one with option url ({error.message})"
                )
            case Unauthenticated():
                error.args = ("the server wants a good token: give one with option token",)
            case Forbidden():
                error.args = (f"the token does not allow this: {error.message}",)
            case NotFound():
                error.args = (f"{error.message}: `queen queue list` shows what there is",)
        return error


class _Response(http.client.HTTPResponse):
    """An answer that knows the connection it came by."""

    connection: http.client.HTTPConnection
    url: str


def _idle_connection(url: str) -> http.client.HTTPConnection | None:
    """Take a connection that nobody uses, if there is one."""
    try:
        return _idle.setdefault((os.getpid(), url), deque()).pop()
    except IndexError:
        return None


def _keep(url: str, connection: http.client.HTTPConnection) -> None:
    """Leave a connection to whoever asks next; the one unused for longest makes room for it."""
    idle = _idle.setdefault((os.getpid(), url), deque())
    idle.append(connection)
    while len(idle) > _MOST_IDLE:
        try:
            idle.popleft().close()
        except IndexError:
            return


def _hang_up(response: _Response) -> None:
    response.close()
    response.connection.close()


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_CONNECT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_CONNECT_S)
    connection.response_class = _Response
    return connection


def _allow_slow_answers(connection: http.client.HTTPConnection) -> None:
    """Wait longer for an answer than was waited for the connection."""
    assert connection.sock is not None
    connection.sock.settimeout(_ANSWER_S)


def _request(
    url: str,
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
) -> _Response:
    try:
        if connection.sock is None:
            connection.connect()
            _allow_slow_answers(connection)
        connection.request(method, path, body or None, headers)
        response = connection.getresponse()
        if response.length is None and not response.chunked:
            # Every answer says where it ends: this one was cut off inside of its headers.
            raise http.client.BadStatusLine("the connection was lost in the headers of an answer")
        refused = b"" if response.status < 300 else response.read()
    except _BROKEN as error:
        connection.close()
        raise Unreachable(f"{url}: {error or type(error).__name__}") from None
    assert isinstance(response, _Response)
    response.connection, response.url = connection, url
    if response.status >= 300:
        connection.close()
        raise error_of(Answer(response.status, {}, refused))
    return response
