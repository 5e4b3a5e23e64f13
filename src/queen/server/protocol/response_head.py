"""The head of an answer: its status line and its headers."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus

from queen.server.protocol.http import Headers, Response

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_KEEP_ALIVE = b"\r\n"
_CLOSE = b"connection: close\r\n\r\n"

# On every answer, unless it says something else itself.
_SECURITY_HEADERS: Headers = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))


def response_head(response: Response, keep_alive: bool, length: bytes) -> bytes:
    if response.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        length = b""
    start = _head_start(response.status, response.headers)
    return b"".join((start, length, _KEEP_ALIVE if keep_alive else _CLOSE))


@lru_cache(maxsize=256)
def _head_start(status: int, headers: Headers) -> bytes:
    said = {name for name, _ in headers}
    more = tuple(pair for pair in _SECURITY_HEADERS if pair[0] not in said)
    lines = [f"{name}: {value}\r\n".encode() for name, value in headers + more]
    return b"".join((_STATUS_LINES[status], *lines))
