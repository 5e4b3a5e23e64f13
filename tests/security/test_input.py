"""What strangers send. Most of it stands in `tests/contract`; this is the rest."""

from __future__ import annotations

import gzip
import json
import time
from contextlib import ExitStack

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.rawhttp import RawConnection, request
from tests.integration.test_serve import Start
from tests.waiting import until


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "GZIP", "identity, gzip"])
def test_a_compressed_body_is_not_inflated(server: ServerProcess, coding: str) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    with RawConnection(server.url) as raw:
        raw.send(request("POST", "/api/v1/push", bomb, f"Content-Encoding: {coding}\r\n"))
        answer = raw.answer()
        assert (answer.status, answer.json["code"]) == (415, "unsupported_media")


def test_an_identity_encoding_is_none(api: Api, queue: str) -> None:
    body = json.dumps({"items": [{"queue": queue, "payload": 1}]})
    answer = api.call("POST", "/api/v1/push", body, {"Content-Encoding": "identity"})
    assert answer.status == 201


def test_a_million_tiny_chunks_cost_little(server: ServerProcess, queue: str) -> None:
    body = json.dumps({"items": [{"queue": queue, "payload": "x" * 2_000_000}]}).encode()
    chunks = b"".join(b"2\r\n" + body[at : at + 2] + b"\r\n" for at in range(0, len(body) & ~1, 2))
    rest = b"1\r\n" + body[-1:] + b"\r\n" if len(body) & 1 else b""
    head = b"POST /api/v1/push HTTP/1.1\r\nHost: queen\r\nTransfer-Encoding: chunked\r\n\r\n"
    process = psutil.Process(server.pid)
    before, started = process.memory_info().rss, time.monotonic()
    with RawConnection(server.url, timeout_s=60) as raw:
        raw.send(head + chunks + rest)
        assert process.memory_info().rss - before < 100_000_000
        raw.send(b"0\r\n\r\n")
        assert raw.answer().status == 201
    assert time.monotonic() - started < 50


@pytest.mark.parametrize(
    "head",
    [
        b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: queen\n\n",
        b"GET /health HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : queen\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 0x2\r\n\r\n{}",
    ],
    ids=["coding", "last coding", "bare LF", "fold", "space", "two hosts", "plus", "hex"],
)
def test_what_two_readers_could_read_in_two_ways_is_refused(
    server: ServerProcess, head: bytes
) -> None:
    with RawConnection(server.url) as raw:
        raw.send(head)
        assert raw.answer().status == 400
        assert raw.is_closed()


@pytest.mark.parametrize(
    "query",
    ["batch=-1", "batch=1000000000", "timeout=1000000000000", "partitions=0", "batch=1e3"],
)
def test_numbers_have_limits(api: Api, queue: str, query: str) -> None:
    assert api.call("GET", f"/api/v1/pop/queue/{queue}?{query}").status == 400


# ---- slow clients and many of them ----


@pytest.mark.slow
def test_a_request_that_does_not_come_is_given_up(server: ServerProcess) -> None:
    starts = [
        b"GET /health HTTP/1.1\r\nHost: queen\r\nA:",
        b"GE",
        b"POST /api/v1/push HTTP/1.1\r\nHost: queen\r\nContent-Length: 100000\r\n\r\n{",
    ]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(RawConnection(server.url, timeout_s=60)) for _ in range(len(starts))
        ]
        began = time.monotonic()
        for raw, start in zip(clients, starts, strict=True):
            raw.send(start)
        for raw in clients:
            answer = raw.answer()
            assert (answer.status, answer.json["code"]) == (408, "request_timeout")
            assert 9 < time.monotonic() - began < 30
            assert raw.is_closed()


def test_connections_have_a_limit(start_server: Start, dsn: str) -> None:
    running = start_server("--database-url", dsn, "--max-connections", "5")
    opened = [RawConnection(running.url) for _ in range(5)]
    for one in opened:
        one.send(request("GET", "/health/live"))
        assert one.answer().status == 200
    with RawConnection(running.url) as sixth:
        answer = sixth.answer()
        assert (answer.status, answer.json["code"]) == (429, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert sixth.is_closed()
    opened.pop().__exit__()

    def is_let_in() -> bool:
        with RawConnection(running.url) as again:
            again.send(request("GET", "/health/live"))
            return again.answer().status == 200

    until(is_let_in)
    for one in opened:
        one.__exit__()


def test_one_address_cannot_take_them_all(start_server: Start, dsn: str) -> None:
    running = start_server("--database-url", dsn, "--max-connections-per-address", "2")
    with RawConnection(running.url) as one, RawConnection(running.url) as two:
        for connection in (one, two):
            connection.send(request("GET", "/health/live"))
            assert connection.answer().status == 200
        with RawConnection(running.url) as third:
            assert third.answer().status == 429


def test_a_caller_that_sends_too_much_is_told_to_wait(start_server: Start, dsn: str) -> None:
    # Two seconds of it may come at once.
    api = start_server("--database-url", dsn, "--rate-limit", "5").api()
    answers = [api.call("GET", "/health/live") for _ in range(30)]
    refused = [one for one in answers if one.status == 429]
    assert {one.status for one in answers} == {200, 429}
    assert answers[0].status == 200
    assert refused[0].json["code"] == "overloaded"
    assert "retry-after" in refused[0].headers
