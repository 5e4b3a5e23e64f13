"""Requests and answers, as thin as they can be.

The hot routes are plain functions from bytes to bytes behind a dictionary look-up; this
module is all that lies between them and Granian.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, unquote_plus

from queen.errors import BadRequest, PayloadTooLarge

MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_QUERY = 64

_JSON = [("content-type", "application/json")]


class Scope(Protocol):
    """The parts of Granian's request scope that we use."""

    method: str
    path: str
    query_string: str

    @property
    def headers(self) -> Any: ...


class Proto(Protocol):
    """The parts of Granian's protocol object that we use."""

    async def __call__(self) -> bytes: ...
    def __aiter__(self) -> Any: ...
    async def client_disconnect(self) -> None: ...
    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None: ...
    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None: ...
    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> Any: ...


class Request(NamedTuple):
    scope: Scope
    proto: Proto
    params: tuple[str, ...]


class Response(NamedTuple):
    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = _JSON


# A handler that has answered for itself, by streaming, returns None.
Handler = Callable[[Request], Awaitable[Response | None]]

EMPTY = Response(204)


async def read_body(request: Request) -> bytes:
    """Return the body, refusing one that is too large before it is all here."""
    length = request.scope.headers.get("content-length")
    if length is not None:
        if not length.isdigit():
            raise BadRequest("content-length is not a number")
        if int(length) > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"the body has {length} bytes, over {MAX_BODY_BYTES}")
        return await request.proto()
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.proto:
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


class Query:
    """Query parameters, decoded; a value that cannot be used is refused by its name."""

    __slots__ = ("_values",)

    def __init__(self, text: str) -> None:
        self._values: dict[str, str] = {}
        if not text:
            return
        parts = text.split("&")
        if len(parts) > _MAX_QUERY:
            raise BadRequest(f"more than {_MAX_QUERY} query parameters")
        escaped = "%" in text or "+" in text
        for part in parts:
            name, _, value = part.partition("=")
            if escaped:
                name, value = unquote_plus(name), unquote_plus(value)
            self._values[name] = value

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def flag(self, name: str) -> bool:
        return self._values.get(name) in ("true", "1")

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self._values.get(name)
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise BadRequest(f"query parameter {name!r} is not a whole number") from None
        if not low <= value <= high:
            raise BadRequest(f"query parameter {name!r} must be between {low} and {high}")
        return value


def path_parts(path: str) -> list[str]:
    """Return the decoded parts of a path; an encoded slash stays inside its part."""
    parts = path.split("/")[1:]
    return [unquote(part) for part in parts] if "%" in path else parts
