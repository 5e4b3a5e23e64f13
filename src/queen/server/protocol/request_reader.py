"""Requests as they arrive: from bytes to a queue of requests, with a limit on everything.

Parsing is done by httptools (llhttp), which calls the `on_…` methods. A request whose head it
has read before is cut out without it; see `queen.server.protocol.known_heads`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple

import httptools

from queen.errors import (
    BadRequest,
    HeadersTooLarge,
    PayloadTooLarge,
    QueenError,
    UnsupportedMedia,
)
from queen.server.protocol.held_bytes import SMALL_BODY_BYTES, Room
from queen.server.protocol.http import MAX_BODY_BYTES, Begun, Request
from queen.server.protocol.known_heads import Cut, KnownHead, KnownHeads, cut

MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 100
MAX_URL_BYTES = 8 * 1024
# What a connection may hold behind a request that is not answered yet.
MAX_BEHIND_BYTES = 1024 * 1024
_MAX_WAITING = 16
# A body in more parts than this is put together as it comes: tiny parts cost more than they hold.
_MAX_PARTS = 512
# A header that means something to us must not mean two things.
_ONLY_ONCE = frozenset((b"authorization", b"content-type", b"host", b"origin"))
# A request with one of these is more than a head and a body of the length that it says.
_UNLIKE_OTHERS = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


class RequestHead(NamedTuple):
    """What the parser knows of a request beside its parts."""

    method: str
    keep_alive: bool
    knows_chunks: bool


class _Parsed(NamedTuple):
    """A request that the parser has read, while its head is learnt."""

    head: RequestHead
    url: bytes
    headers: dict[bytes, bytes]
    body_bytes: int


class RequestReader(asyncio.Protocol):
    """The half of a connection that reads; `Connection` is the half that answers."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_start",
        "_closing",
        "_head_bytes",
        "_header_bytes",
        "_headers",
        "_heads",
        "_in_head",
        "_parsed",
        "_parser",
        "_paused_at",
        "_reading_since",
        "_refusal",
        "_room",
        "_transport",
        "_under_way",
        "_upgraded",
        "_url",
        "_waiting",
        "_waiting_bytes",
        "address",
    )

    # Set when the connection is made.
    _transport: asyncio.Transport
    address: str

    def __init__(self, room: Room, heads: KnownHeads) -> None:
        self._room = room
        self._heads = heads
        # What the parser has read of a request whose head is learnt; None at other times.
        self._parsed: list[_Parsed] | None = None
        self._parser = httptools.HttpRequestParser(self)
        # Requests that are whole and not handled yet.
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        # What answers the one that is handled: a task, or less.
        self._under_way: asyncio.Task[None] | Begun | None = None
        self._closing = False
        # Since when nothing is read because there is no room for it.
        self._paused_at: float | None = None
        self._reading_since: float | None = None
        self._refusal: QueenError | None = None
        self._in_head = False
        self._head_bytes = 0
        # A request that offered an upgrade and whose body is still to come.
        self._upgraded: RequestHead | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        # What came before those parts, when there were many.
        self._body_start = bytearray()
        self._body_bytes = 0

    def _complete(self, head: RequestHead) -> None:
        """A request has come whole: its head, and what `_whole_body` puts together."""
        raise NotImplementedError

    def _complete_known(self, head: KnownHead, body: bytes) -> None:
        """A request has come whole whose head is known."""
        raise NotImplementedError

    def _refuse(self, error: QueenError) -> None:
        """Answer a request that could not be read."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        if self._takes_nothing:
            return
        if self._is_between:
            data = self._take_whole(data)
        if data:
            self._parse(data)
        self.heed_room()

    @property
    def _takes_nothing(self) -> bool:
        return self._closing or self._refusal is not None

    @property
    def _is_between(self) -> bool:
        """Whether nothing of the next request has come yet."""
        return not self._in_head and not self._url and self._upgraded is None

    def _take_whole(self, data: bytes) -> bytes:
        """Take the requests that have come whole; return what is left for the parser."""
        start = 0
        while start < len(data):
            whole = cut(data, start)
            if whole is None:
                break
            known = self._heads.get(whole.key)
            if known is not None:
                self._room.take(whole.end - whole.body_at)
                self._complete_known(known, data[whole.body_at : whole.end])
            else:
                self._learn(data[start : whole.end], whole)
            start = whole.end
            if self._takes_nothing:
                return b""
            if not self._is_between:
                break
        return data[start:] if start else data

    def _learn(self, request: bytes, whole: Cut) -> None:
        """Have a request parsed; its head is known if the parser sees the same in it."""
        self._parsed = []
        self._parse(request)
        parsed, self._parsed = self._parsed, None
        if self._takes_nothing or not self._is_between or len(parsed) != 1:
            return
        head, url, headers, body_bytes = parsed[0]
        is_alike = head.keep_alive and head.knows_chunks and _UNLIKE_OTHERS.isdisjoint(headers)
        if is_alike and body_bytes == whole.end - whole.body_at:
            path, query = path_and_query(url)
            same = {name: text for name, text in headers.items() if name != b"content-length"}
            self._heads.learn(whole.key, KnownHead(head.method, path, query, same))

    def _parse(self, data: bytes) -> None:
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
        if rest and not self._takes_nothing:
            self._parse(rest)

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
        self._room.take(len(part))
        _check_size(self._body_bytes)
        self._body.append(part)
        if len(self._body) > _MAX_PARTS:
            self._body_start += b"".join(self._body)
            self._body.clear()

    def on_message_complete(self) -> None:
        if self._upgraded is not None:
            head, self._upgraded = self._upgraded, None
            self._note(head)
            self._complete(head)
            return
        head = RequestHead(
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
        self._note(head)
        self._complete(head)

    def _note(self, head: RequestHead) -> None:
        if self._parsed is not None:
            self._parsed.append(_Parsed(head, self._url, self._headers, self._body_bytes))

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
        if self._under_way is None and not self._waiting:
            return False
        behind = self._waiting_bytes + self._body_bytes
        has_much = len(self._waiting) > _MAX_WAITING or behind > MAX_BEHIND_BYTES
        if has_much:
            # The eldest must be able to go on, and this one is not.
            self._room.leave(self)
        return has_much

    def _is_crowded_out(self) -> bool:
        return self._body_bytes > SMALL_BODY_BYTES and not self._room.may_read(self)


def path_and_query(url: bytes) -> tuple[str, str]:
    path, _, query = url.decode("latin-1").partition("?")
    return path, query


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
