"""Requests and answers, as thin as they can be."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, unquote_plus

from queen.core.names import reason_against_name
from queen.errors import BadRequest
from queen.server.auth.access import TRUSTED, Caller

MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_QUERY = 64
_KEPT_CHARACTERS = 256
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")

Headers = tuple[tuple[str, str], ...]

JSON_HEADERS: Headers = (("content-type", "application/json"),)


class ClientConnection(Protocol):
    """The connection a request came on, for handlers that wait or stream."""

    @property
    def address(self) -> str: ...
    @property
    def is_gone(self) -> bool: ...
    @property
    def is_cut_off(self) -> bool: ...
    async def wait_until_gone(self) -> None: ...
    def start_stream(self, request: Request, response: Response) -> None: ...
    async def send(self, part: bytes) -> bool: ...
    def end_stream(self) -> None: ...


class Request(NamedTuple):
    method: str
    path: str
    query: str
    # Names in lower case.
    headers: dict[bytes, bytes]
    body: bytes
    connection: ClientConnection
    keep_alive: bool = True
    # Before HTTP/1.1 a streamed answer ends with the connection.
    knows_chunks: bool = True
    params: tuple[str, ...] = ()
    caller: Caller = TRUSTED


class Response(NamedTuple):
    status: int
    body: bytes = b""
    headers: Headers = JSON_HEADERS


class Begun(Protocol):
    """An answer that is on its way without a task: somebody calls when it can be given."""

    @property
    def then(self) -> Callable[[Callable[[], object]], object]:
        """Takes what is called, once, when that is so; perhaps in the same moment."""

    def answer(self) -> Response | Coroutine[Any, Any, Response | None]:
        """Return the answer, or what has still to be waited for; may raise like a handler."""

    def leave(self) -> None:
        """The client has hung up."""


# A handler that has answered for itself, by streaming, returns None.
Handler = Callable[[Request], Coroutine[Any, Any, Response | None]]
# The same for ordinary requests, without a task: it waits for nothing and streams nothing. None
# leaves a request to the handler; nothing has been done then.
QuickHandler = Callable[[Request], Response | Begun | None]
# What a connection asks about a request that is not large.
Begin = Callable[[Request], Response | Begun | Coroutine[Any, Any, Response | None]]

EMPTY = Response(204, headers=())


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
                name, value = _decode(unquote_plus, name), _decode(unquote_plus, value)
                # No text that PostgreSQL keeps, or is asked for, can hold one.
                if "\0" in value:
                    raise BadRequest(f"query parameter {name!r} has a NUL character")
            self._values[name] = value

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def flag(self, name: str) -> bool:
        return self._values.get(name) in ("true", "1")

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self._values.get(name)
        if not text:
            return default
        if not _WHOLE_NUMBER.fullmatch(text):
            raise BadRequest(f"query parameter {name!r} is not a whole number")
        value = int(text)
        if not low <= value <= high:
            raise BadRequest(f"query parameter {name!r} must be between {low} and {high}")
        return value


# Consumers ask the same again and again.
@lru_cache(maxsize=1024)
def _kept_query(text: str) -> Query:
    return Query(text)


def query_of(text: str) -> Query:
    """Return the parameters of a query; what is not long is taken apart once."""
    return _kept_query(text) if len(text) <= _KEPT_CHARACTERS else Query(text)


def path_parts(path: str) -> list[str]:
    """Return the decoded parts of a path; an encoded slash stays inside its part."""
    parts = path.split("/")[1:]
    return [_decode(unquote, part) for part in parts] if "%" in path else parts


def _decode(decode: Callable[..., str], text: str) -> str:
    try:
        return decode(text, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest("the URL is not valid UTF-8") from None


def check_name(kind: str, name: str) -> None:
    """Raise `BadRequest` when a name in a URL cannot name anything."""
    reason = reason_against_name(kind, name)
    if reason:
        raise BadRequest(reason)
