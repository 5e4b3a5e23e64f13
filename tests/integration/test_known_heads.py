"""Requests whose heads came before: read without the parser, and read the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queen.server.protocol import known_heads
from queen.server.protocol.connections import Connections
from queen.server.protocol.http import Request, Response

PUSH = b"POST /api/v1/push?a=b HTTP/1.1\r\nHost: queen\r\nContent-Length: %d\r\n\r\n%b"
GET = b"GET /health HTTP/1.1\r\nhost: queen\r\n\r\n"


class Transport:
    """Takes what is written, and says nothing."""

    def __init__(self) -> None:
        self.written = b""

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def write(self, data: bytes) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Server:
    """Connections whose requests are answered at once, and noted."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []
        self.hub = Connections(self._never, None, None, self._note)

    async def _never(self, _request: Request) -> Response:
        raise AssertionError

    def _note(self, request: Request) -> Response:
        headers = {name: text for name, text in request.headers.items() if name != LENGTH}
        self.requests.append((*request[:3], headers, request.body, *request[6:]))
        return Response(200, request.body)

    def receive(self, *parts: bytes) -> bytes:
        """Return what a new connection answers to what is sent in some parts."""
        connection, transport = self.hub.protocol(), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for part in parts:
            connection.data_received(part)
        return transport.written


LENGTH = b"content-length"


class Forgetful(Server):
    """The same, and the parser reads every head."""

    def receive(self, *parts: bytes) -> bytes:
        self.hub.heads.learn = lambda _key, _head: None  # type: ignore[method-assign, assignment]
        return super().receive(*parts)


async def test_a_head_is_learnt_once_whatever_the_length_of_the_body() -> None:
    server = Server()
    for size in (0, 1, 10, 3000):
        body = b"x" * size
        assert server.receive(PUSH % (size, body)).endswith(b"\r\n\r\n" + body)
    assert len(server.hub.heads) == 1
    assert [(path, query, body) for _, path, query, _, body, *_ in server.requests] == [
        ("/api/v1/push", "a=b", b"x" * size) for size in (0, 1, 10, 3000)
    ]
    assert all(request[3] == {b"host": b"queen"} for request in server.requests)


async def test_a_request_may_be_cut_anywhere() -> None:
    server = Server()
    request = PUSH % (5, b"hello")
    server.receive(request)
    for at in range(1, len(request)):
        server.receive(request[:at], request[at:] + GET)
    assert [body for *_, body, _, _, _, _ in server.requests[1::2]] == [b"hello"] * (
        len(request) - 1
    )
    assert server.hub.room.held_bytes == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nhost: q\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: q\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx",
        b"GET / HTTP/1.1\r\nhost: q\r\nconnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: q\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
        b"content-length: 1\r\n\r\nx",
        b"GET / HTTP/1.1\r\nhost: q\r\nx: " + b"y" * 1100 + b"\r\n\r\n",
    ],
    ids=["chunked", "expects", "closes", "1.0", "upgrade", "long"],
)
async def test_what_is_unlike_others_is_not_learnt(request_bytes: bytes) -> None:
    server = Server()
    for _ in range(2):
        assert b"HTTP/1.1 200 OK" in server.receive(request_bytes)
    assert len(server.requests) == 2
    assert len(server.hub.heads) == 0


async def test_heads_are_bounded_and_forgotten() -> None:
    server = Server()
    for number in range(known_heads.MOST + 10):
        server.receive(b"GET /%d HTTP/1.1\r\nhost: q\r\n\r\n" % number)
        assert len(server.hub.heads) <= known_heads.MOST
    server.hub.heads.forget_old(1e9)
    assert len(server.hub.heads) == 0
    server.receive(GET)
    server.hub.heads.forget_old(1e9 + 1)
    # Not before its time.
    assert len(server.hub.heads) == 1


PIECES = [
    PUSH % (3, b"abc"),
    PUSH % (11, b"\r\n\r\nabc\r\n\r\n"),
    PUSH % (0, b""),
    PUSH.replace(b": %d", b":%d") % (2, b"xy"),
    PUSH.replace(b": %d", b": 00%d") % (2, b"xy"),
    GET,
    GET.replace(b"health", b"other?x=%20y"),
    b"POST / HTTP/1.1\nhost: q\ncontent-length: 27\n\n\r\ncontent-length: 5\r\n\r\nABCDE",
    b"POST / HTTP/1.1\r\nhost: q\r\nCONTENT-LENGTH: 1\r\n\r\nx",
    b"POST / HTTP/1.1\r\nhost: q\r\nx-content-length: 9\r\ncontent-length: 1\r\n\r\nx",
    b"POST / HTTP/1.1\r\nhost: q\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"\r\n",
    b"POST / HTTP/1.1\r\nhost: q\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
    b"POST / HTTP/1.1\r\nhost: q\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxy",
    b"GET / HTTP/1.1\r\n\r\n",
    b"BROKEN\r\n\r\n",
]
# The first ones say nothing wrong; after the others a connection takes no more.
GOOD = 12


async def test_what_is_known_is_read_as_the_parser_reads_it() -> None:
    rng = random.Random(1)
    knowing, parsing = Server(), Forgetful()
    for _ in range(1500):
        chosen = rng.choices(PIECES[:GOOD], k=rng.randint(1, 5)) + rng.choices(PIECES, k=1)
        data = b"".join(chosen)
        ends = sorted(rng.sample(range(len(data)), rng.randint(0, 2)))
        parts = [
            data[start:stop] for start, stop in zip([0, *ends], [*ends, len(data)], strict=True)
        ]
        assert knowing.receive(*parts) == parsing.receive(*parts), parts
        assert knowing.requests == parsing.requests, parts
        knowing.requests.clear()
        parsing.requests.clear()
    assert len(knowing.hub.heads) > 3
    assert len(parsing.hub.heads) == 0
