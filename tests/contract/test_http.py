"""HTTP itself: what proper and improper clients may send, and how a server ends."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack

import psutil  # type: ignore[import-untyped]
import pytest

from tests.api import Api, pop_path
from tests.conftest import ServerProcess
from tests.contract.conftest import Connect, Park, settle
from tests.contract.rawhttp import GET_HEALTH, RawConnection, request
from tests.waiting import until

StartServer = Callable[..., ServerProcess]


def push_request(queue: str, payload: object, headers: str = "", version: str = "1.1") -> bytes:
    body = json.dumps({"items": [{"queue": queue, "payload": payload}]}).encode()
    return request("POST", "/api/v1/push", body, headers, version)


# ---- health ----


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
def test_a_ready_server_says_so(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert answer.status == 200
    assert answer.json["status"] == "healthy"
    assert answer.json["database"] == "connected"


def test_a_server_that_lives_says_so(api: Api) -> None:
    assert api.call("GET", "/health/live").json == {"status": "healthy"}


# ---- routes ----


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/v1",
        "/api/v1/push/",
        "/api/v1/pop/queue",
        "/api/v1/pop/queue/q/partition",
        "/api/v1/pop/queue/q/partition/p/x",
        "/api/v1/lease/x",
        "/health/",
        "/nothing%20here",
        "//health",
        "/api/v1/push%2F",
    ],
)
def test_an_unknown_path_is_a_404_in_json(api: Api, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = api.call(method, path)
        assert answer.status == 404
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/v1/push", "POST"),
        ("PUT", "/api/v1/push", "POST"),
        ("POST", "/api/v1/pop", "GET"),
        ("PUT", "/api/v1/pop/queue/q", "GET"),
        ("DELETE", "/api/v1/pop/queue/q/partition/p", "GET"),
        ("GET", "/api/v1/ack", "POST"),
        ("GET", "/api/v1/ack/batch", "POST"),
        ("GET", "/api/v1/lease/x/extend", "POST"),
        ("POST", "/api/v1/resources/queues/q", "DELETE"),
        ("POST", "/health", "GET"),
    ],
)
def test_a_wrong_method_is_a_405_that_names_the_right_one(
    api: Api, method: str, path: str, allowed: str
) -> None:
    answer = api.call(method, path)
    assert answer.status == 405
    assert answer.json["code"] == "method_not_allowed"
    assert allowed in answer.headers["allow"]


@pytest.mark.parametrize("path", ["/health", "/health/live", "/api/v1/push", "/nothing"])
def test_the_answer_to_head_has_no_body(raw: RawConnection, path: str) -> None:
    raw.send(request("HEAD", path) + GET_HEALTH)
    raw.answer(to_head=True)
    assert raw.answer().json == {"status": "healthy"}


# ---- connections ----


def test_a_connection_serves_many_requests(raw: RawConnection, queue: str) -> None:
    for n in range(50):
        raw.send(push_request(queue, n))
        answer = raw.answer()
        assert (answer.version, answer.status) == ("HTTP/1.1", 201)
        assert answer.headers.get("connection") != "close"


def test_errors_do_not_end_a_connection(raw: RawConnection, queue: str) -> None:
    for broken in (
        request("GET", "/nothing"),
        request("PUT", "/api/v1/push", b"x"),
        request("POST", "/api/v1/push", b"{"),
        request("GET", f"/api/v1/pop/queue/{queue}?batch=x"),
        request("GET", "/api/v1/pop/queue/%ff"),
    ):
        raw.send(broken)
        assert 400 <= raw.answer().status < 500
        raw.send(GET_HEALTH)
        assert raw.answer().status == 200


def test_pipelined_requests_are_answered_in_order(raw: RawConnection, api: Api, queue: str) -> None:
    raw.send(
        b"".join(
            push_request(queue, n) + request("GET", f"/api/v1/pop/queue/{queue}?autoAck=true")
            for n in range(100)
        )
    )
    for n in range(100):
        assert raw.answer().status == 201
        assert [one["data"] for one in raw.answer().json["messages"]] == [n]
    assert api.pop(queue).status == 204


def test_a_request_behind_a_parked_poll_waits_its_turn(
    raw: RawConnection, api: Api, queue: str
) -> None:
    poll = request("GET", f"/api/v1/pop/queue/{queue}?wait=true&timeout=5000")
    raw.send(poll + GET_HEALTH)
    settle(api)
    api.push({"queue": queue, "payload": 1})
    assert [one["data"] for one in raw.answer().json["messages"]] == [1]
    assert raw.answer().json == {"status": "healthy"}


def test_what_came_before_a_broken_request_is_answered(raw: RawConnection, queue: str) -> None:
    raw.send(push_request(queue, 0) + push_request(queue, 1) + b"BROKEN\r\n\r\n")
    assert [raw.answer().status for _ in range(3)] == [201, 201, 400]
    assert raw.is_closed()


def test_a_request_may_come_byte_by_byte(raw: RawConnection, api: Api, queue: str) -> None:
    data = push_request(queue, "slow")
    for at in range(len(data)):
        raw.send(data[at : at + 1])
    assert raw.answer().status == 201
    assert api.data(queue) == ["slow"]


def test_connection_close_is_obeyed(raw: RawConnection, queue: str) -> None:
    raw.send(push_request(queue, 1, "Connection: close\r\n"))
    answer = raw.answer()
    assert answer.status == 201
    assert answer.headers["connection"] == "close"
    assert raw.is_closed()


def test_http_1_0_is_answered_and_closed(raw: RawConnection, api: Api, queue: str) -> None:
    raw.send(push_request(queue, 1, version="1.0"))
    assert raw.answer().status == 201
    assert raw.is_closed()
    assert api.data(queue) == [1]


def test_http_1_0_may_be_kept_alive(raw: RawConnection, queue: str) -> None:
    for _ in range(2):
        raw.send(push_request(queue, 1, "Connection: keep-alive\r\n", "1.0"))
        answer = raw.answer()
        assert answer.status == 201
        # Without this word a client of 1.0 has to take the connection for closed.
        assert answer.headers.get("connection", "").lower() == "keep-alive"


def test_a_chunked_request_is_read(raw: RawConnection, api: Api, queue: str) -> None:
    body = json.dumps({"items": [{"queue": queue, "payload": n} for n in range(50)]}).encode()
    raw.send(request("POST", "/api/v1/push", headers="Transfer-Encoding: chunked\r\n"))
    for at in range(0, len(body), 100):
        part = body[at : at + 100]
        raw.send(b"%x;extension=1\r\n%b\r\n" % (len(part), part))
    raw.send(b"0\r\nTrailer: x\r\n\r\n" + GET_HEALTH)
    assert raw.answer().status == 201
    assert raw.answer().status == 200
    assert api.data(queue, batch=100) == list(range(50))


def test_a_client_that_expects_100_is_told_to_go_on(
    raw: RawConnection, api: Api, queue: str
) -> None:
    head, _, body = push_request(queue, 1, "Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    raw.send(head + b"\r\n\r\n")
    assert raw.line() == "HTTP/1.1 100 Continue"
    assert raw.line() == ""
    raw.send(body)
    assert raw.answer().status == 201
    assert api.data(queue) == [1]


# Java's client offers HTTP/2 with its first request; a server may ignore that.
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"


def test_an_offer_to_upgrade_is_ignored(raw: RawConnection, api: Api, queue: str) -> None:
    raw.send(request("GET", "/health/live", headers=UPGRADE))
    assert raw.answer().status == 200
    for n in range(2):
        # In one piece with the next request, and the body behind the head.
        head, _, body = push_request(queue, n, UPGRADE).partition(b"\r\n\r\n")
        raw.send(head + b"\r\n\r\n")
        settle(api)
        raw.send(body + push_request(queue, n + 10, UPGRADE) + GET_HEALTH)
        assert [raw.answer().status for _ in range(3)] == [201, 201, 200]
    assert api.data(queue, batch=10) == [0, 10, 1, 11]


def test_an_offer_to_upgrade_with_a_chunked_body_is_ignored(
    raw: RawConnection, api: Api, queue: str
) -> None:
    _, _, body = push_request(queue, 1).partition(b"\r\n\r\n")
    raw.send(request("POST", "/api/v1/push", headers=UPGRADE + "Transfer-Encoding: chunked\r\n"))
    raw.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert raw.answer().status == 201
    assert api.data(queue) == [1]


# ---- what is not HTTP ----


@pytest.mark.parametrize(
    "data",
    [
        b"BROKEN\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost queen\r\n\r\n",
        b"GET /health HTTP/1.1\r\n: empty\r\n\r\n",
        b"GET /health HTTP/1.1\r\nA: b\x00c\r\n\r\n",
        b"GET /hea lth HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n12",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n"
        b"2\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_400_and_the_end(raw: RawConnection, api: Api, data: bytes) -> None:
    raw.send(data)
    answer = raw.answer()
    assert answer.status == 400
    assert answer.json["code"] == "bad_request"
    assert answer.headers["connection"] == "close"
    assert raw.is_closed()
    assert api.call("GET", "/health/live").status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health/live HTTP/1.1\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: queen\r\nHost: queen\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b"Content-Length: 2\r\n\r\n{}",
    ],
    ids=["none", "none and close", "two", "none and an upgrade"],
)
def test_a_request_has_one_host(raw: RawConnection, head: bytes) -> None:
    raw.send(head)
    answer = raw.answer()
    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert raw.is_closed()


def test_http_1_0_needs_no_host(raw: RawConnection) -> None:
    raw.send(b"GET /health/live HTTP/1.0\r\n\r\n")
    assert raw.answer().json == {"status": "healthy"}


def test_a_client_that_reads_nothing_of_its_answers_is_hung_up_on(
    start_server: StartServer, connect: Connect, dsn: str, queue: str
) -> None:
    running = start_server("--database-url", dsn, "--write-timeout", "1")
    api = connect(running)
    api.push({"queue": queue, "payload": "x" * 3_000_000})
    paths = [pop_path(queue, consumerGroup=f"g{n}") for n in range(100)]
    with RawConnection(running.url) as greedy:
        greedy.send(b"".join(request("GET", path) for path in paths))
        assert greedy.is_readable(20)
        process = psutil.Process(running.pid)
        until(lambda: not _clients(process, greedy))
        # What it had not asked in vain for, it has not taken.
        assert len(greedy.everything()) < 100 * 3_000_000
    assert api.call("GET", "/health/live").status == 200


def _clients(process: psutil.Process, client: RawConnection) -> list[int]:
    """Return the ports of a client that a server is still connected with."""
    return [
        one.raddr.port
        for one in process.net_connections(kind="tcp")
        if one.raddr and one.raddr.port == client.port
    ]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health?" + b"x=1&" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x" * 20_000 + b": 1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"".join(b"A%d: 1\r\n" % n for n in range(200)) + b"\r\n",
        b"GET /health HTTP/1.1\r\n" + b"Same: 1\r\n" * 5000 + b"\r\n",
    ],
    ids=["url", "query", "value", "name", "many", "many of one name"],
)
def test_headers_over_their_limit_are_a_431(raw: RawConnection, head: bytes) -> None:
    raw.send(head)
    answer = raw.answer()
    assert answer.status == 431
    assert answer.json["code"] == "headers_too_large"
    assert raw.is_closed()


@pytest.mark.parametrize(
    "start",
    [b"GET /", b"GET /health HTTP/1.1\r\nA: ", b"GET /health HTTP/1.1\r\n"],
    ids=["url", "value", "name"],
)
def test_a_header_without_end_is_refused_before_it_ends(raw: RawConnection, start: bytes) -> None:
    raw.send(start)
    raw.send_until_refused(b"x" * 1000, 200_000)
    assert raw.is_readable(2)
    assert raw.answer().status == 431


@pytest.mark.parametrize(
    "path", ["/api/v1/pop/queue/ü", "/api/v1/pop/queue/a b"], ids=["utf-8", "space"]
)
def test_a_path_that_is_not_encoded_is_read_right_or_refused(
    raw: RawConnection, api: Api, queue: str, path: str
) -> None:
    # Some clients put names into the path as they are.
    name = path.rpartition("/")[2]
    api.push({"queue": f"{queue}{name}", "payload": 1})
    raw.send(request("GET", path.replace(name, f"{queue}{name}")))
    answer = raw.answer()
    assert answer.status in (200, 400)


# ---- slow and greedy clients ----


def test_clients_that_send_slowly_block_nobody(server: ServerProcess, api: Api, queue: str) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            slow = stack.enter_context(RawConnection(server.url))
            slow.send(push_request(queue, 1)[:-10])
        started = time.monotonic()
        api.push_many(f"{queue}.x", 10)
        assert len(api.messages(f"{queue}.x", batch=10)) == 10
        # Less than the server waits for the rest of a request.
        assert time.monotonic() - started < 8
    settle(api)
    # Half a request is no request.
    assert api.pop(queue).status == 204


def test_a_client_that_does_not_read_its_answers_blocks_nobody(
    raw: RawConnection, api: Api, queue: str
) -> None:
    api.push({"queue": queue, "payload": "x" * 1_000_000})
    groups = [f"g{n}" for n in range(40)]
    raw.send(
        b"".join(request("GET", f"/api/v1/pop/queue/{queue}?consumerGroup={g}") for g in groups)
    )
    started = time.monotonic()
    api.push_many(f"{queue}.x", 10)
    assert len(api.messages(f"{queue}.x", batch=10)) == 10
    assert time.monotonic() - started < 20
    for _ in groups:
        assert len(raw.answer().json["messages"]) == 1


def test_a_client_that_does_not_read_its_answers_costs_little_memory(
    start_server: StartServer, connect: Connect, dsn: str, queue: str
) -> None:
    running = start_server("--database-url", dsn)
    api = connect(running)
    api.push({"queue": queue, "payload": "x" * 3_000_000})
    process = psutil.Process(running.pid)
    before = process.memory_info().rss
    with RawConnection(running.url) as greedy:
        paths = [pop_path(queue, consumerGroup=f"g{n}") for n in range(100)]
        greedy.send(b"".join(request("GET", path) for path in paths))
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            settle(api)
            assert process.memory_info().rss - before < 60 * 1024**2
        # Nothing is lost by that: when it reads, it gets them all.
        for _ in paths:
            assert len(greedy.answer().json["messages"]) == 1


def test_five_hundred_polls_can_be_parked_at_once(
    api: Api, server: ServerProcess, queue: str
) -> None:
    path = pop_path(queue, wait="true", timeout=60_000, autoAck="true")
    with ExitStack() as stack:
        polls = [stack.enter_context(RawConnection(server.url)) for _ in range(500)]
        for poll in polls:
            poll.send(request("GET", path))
        settle(api)
        started = time.monotonic()
        assert api.push_many(f"{queue}.x", 1)
        assert time.monotonic() - started < 20
        api.push(*[{"queue": queue, "payload": n} for n in range(500)])
        answers = [poll.answer() for poll in polls]
        assert [one for one in answers if one.status != 200] == []
        assert sorted(got["data"] for one in answers for got in one.json["messages"]) == list(
            range(500)
        )


# ---- the end ----


def waits(queue: str) -> dict[str, str]:
    query = "wait=true&timeout=20000"
    return {
        "a queue": f"/api/v1/pop/queue/{queue}?{query}",
        "a partition": f"/api/v1/pop/queue/{queue}/partition/p?{query}",
        "a queue that does not exist": f"/api/v1/pop/queue/{queue}.none?{query}",
        "a namespace": f"/api/v1/pop?namespace={queue}&{query}",
        "a namespace that does not exist": f"/api/v1/pop?namespace={queue}.none&{query}",
    }


def test_a_server_that_stops_answers_its_polls_and_ends_well(
    start_server: StartServer, connect: Connect, park: Park, dsn: str, queue: str
) -> None:
    running = start_server("--database-url", dsn)
    api = connect(running)
    api.configure(queue)
    polls = {name: park(api, queue, path=path) for name, path in waits(queue).items()}
    started = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    deaf = [name for name, poll in polls.items() if not poll.is_answered(10)]
    assert deaf == []
    for name, poll in polls.items():
        answer = poll.answer()
        assert answer.status == 204, name
        assert answer.headers["connection"] == "close"
    assert running.process.wait(timeout=15) == 0
    # Less than a poll would have waited.
    assert time.monotonic() - started < 15
    running.stop()


def test_a_server_that_stops_finishes_what_it_has_begun(
    start_server: StartServer, connect: Connect, dsn: str, api: Api, queue: str
) -> None:
    running = start_server("--database-url", dsn)
    # One is idle; it does not keep the server from ending.
    idle, *pushers = [connect(running) for _ in range(21)]
    assert idle.call("GET", "/health").status == 200
    for n, one in enumerate(pushers):
        items = [{"queue": queue, "partition": f"p{n}", "payload": m} for m in range(100)]
        one.send("POST", "/api/v1/push", {"items": items})
    running.process.send_signal(signal.SIGTERM)
    answered = 0
    for one in pushers:
        # One that was not read before the end has no answer, and is not stored either.
        with contextlib.suppress(OSError):
            answered += one.receive().status == 201
    assert running.process.wait(timeout=30) == 0
    running.stop()
    count = 0
    while batch := api.messages(queue, batch=10_000, partitions=100, autoAck="true"):
        count += len(batch)
    assert count == 100 * answered


def test_a_server_that_has_stopped_refuses_connections(
    start_server: StartServer, connect: Connect, dsn: str
) -> None:
    running = start_server("--database-url", dsn)
    assert running.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        connect(running).call("GET", "/health")
