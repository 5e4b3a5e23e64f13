"""What clients send, and leave unread, costs a server a bounded amount of memory.

The default sizes show each bound in seconds. `QUEEN_TEST_MEMORY=full` runs them at full size.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from queen.core.frame import encode_frame
from tests.api import Api, pop_path
from tests.conftest import ServerProcess
from tests.contract.rawhttp import RawConnection, request
from tests.waiting import spend

FULL = os.environ.get("QUEEN_TEST_MEMORY") == "full"
MB = 1024 * 1024
LIMIT_BYTES = 400 * MB
BODIES = 10 if FULL else 3
CONNECTIONS = 5
FETCH_BYTES = 1024 * MB if FULL else 240 * MB
POPS = 20 if FULL else 8

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def running(start_server: StartServer, dsn: str) -> ServerProcess:
    """A server whose memory is the test's alone."""
    return start_server("--database-url", dsn)


@pytest.fixture
def api(running: ServerProcess) -> Iterator[Api]:
    opened = Api(running.url, timeout_s=120)
    yield opened
    opened.close()


def peak_bytes(running: ServerProcess) -> int:
    """The most that a server has held since it was started."""
    status = Path(f"/proc/{running.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def held_bytes(running: ServerProcess) -> int:
    status = Path(f"/proc/{running.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def wait_until_still(running: ServerProcess, api: Api) -> None:
    """Wait until what a server holds has stopped growing; it answers others all the time."""
    last, since = held_bytes(running), time.monotonic()
    deadline = time.monotonic() + 60
    while time.monotonic() - since < 2 and time.monotonic() < deadline:
        assert api.call("GET", "/health/live").status == 200
        now = held_bytes(running)
        if now > last + MB:
            last, since = now, time.monotonic()
        spend(0.05)


def push_of(queue: str, size: int) -> bytes:
    """A push of one body, compressible, in messages that are not huge by themselves."""
    item = b'{"queue":"%b","payload":"%b"}' % (queue.encode(), b"x" * (MB - 100))
    body = b'{"items":[' + b",".join([item] * (size // MB)) + b"]}"
    return request("POST", "/api/v1/push", body)


def send_all_it_takes(raw: RawConnection, data: bytes, times: int) -> None:
    """Send the same until it is sent, or the server reads no more."""
    raw.set_timeout(3)
    try:
        for _ in range(times):
            raw.send(data)
    except TimeoutError:
        pass


def test_bodies_behind_a_poll_are_not_taken_in(
    running: ServerProcess, api: Api, queue: str
) -> None:
    api.configure(queue)
    poll = request("GET", pop_path(queue, wait="true", timeout=60_000))
    push = push_of(f"{queue}.x", 30 * MB)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            raw = stack.enter_context(RawConnection(running.url))
            raw.send(poll)
            send_all_it_takes(raw, push, BODIES)
        wait_until_still(running, api)
    assert peak_bytes(running) < LIMIT_BYTES


def test_pipelined_bodies_are_all_stored_in_little_memory(
    running: ServerProcess, api: Api, queue: str
) -> None:
    push = push_of(queue, 30 * MB)
    with ExitStack() as stack:
        opened = [stack.enter_context(RawConnection(running.url, 300)) for _ in range(CONNECTIONS)]
        senders = [raw.send_in_background(push, BODIES) for raw in opened]
        answers = [raw.answer() for raw in opened for _ in range(BODIES)]
        for sender in senders:
            sender.join()
    assert {one.status for one in answers} == {201}
    assert api.call("GET", "/health/live").status == 200
    assert peak_bytes(running) < LIMIT_BYTES


def store_large(api: Api, queue: str, size: int) -> None:
    """Store so many bytes that do not compress, so that the frames are as large."""
    for n in count():
        if n * 8 * MB >= size:
            return
        payloads = [b'"' + os.urandom(512 * 1024).hex().encode() + b'"' for _ in range(8)]
        frame = encode_frame(queue, "p", [f"{n}-{at}" for at in range(8)], payloads)
        assert api.push_frames(frame).status == 201


def test_a_fetch_that_nobody_reads_costs_little(
    running: ServerProcess, api: Api, queue: str
) -> None:
    store_large(api, queue, FETCH_BYTES)
    with RawConnection(running.url) as raw:
        raw.send(request("GET", f"/api/v1/fetch/queue/{queue}"))
        wait_until_still(running, api)
        with RawConnection(running.url) as other:
            other.send(request("GET", f"/api/v1/fetch/queue/{queue}/partition/p"))
            wait_until_still(running, api)
    assert peak_bytes(running) < LIMIT_BYTES


def test_pops_that_are_read_slowly_cost_little(
    running: ServerProcess, api: Api, queue: str
) -> None:
    payload = '"' + "x" * 100_000 + '"'
    item = f'{{"queue":"{queue}","partition":"%d","payload":{payload}}}'
    for n in range(POPS):
        items = ",".join([item % n] * 200)
        assert api.call("POST", "/api/v1/push", f'{{"items":[{items}]}}').status == 201
    with ExitStack() as stack:
        for _ in range(POPS):
            raw = stack.enter_context(RawConnection(running.url))
            raw.send(request("GET", pop_path(queue, batch=10_000)))
            assert raw.is_readable(60)
        wait_until_still(running, api)
    assert peak_bytes(running) < LIMIT_BYTES


@pytest.mark.parametrize("auto", ["true", "false"])
def test_what_compresses_well_is_weighed_as_it_is_sent(
    running: ServerProcess, api: Api, queue: str, auto: str
) -> None:
    """Sixty messages of 4 MB, each a few kilobytes as it is stored."""
    payload = '"' + "x" * (4 * MB - 100) + '"'
    item = f'{{"queue":"{queue}","partition":"p","payload":{payload}}}'
    for _ in range(10):
        body = f'{{"items":[{",".join([item] * 6)}]}}'
        assert api.call("POST", "/api/v1/push", body).status == 201
    seen = 0
    for _ in range(60):
        messages = api.messages(queue, batch=10_000, autoAck=auto, wait="true", timeout=20_000)
        seen += len(messages)
        if auto == "false" and messages:
            assert api.ack_batch(messages).status == 200
        if seen == 60:
            break
    assert seen == 60
    assert peak_bytes(running) < LIMIT_BYTES


def test_a_pop_over_many_partitions_is_bounded_as_a_whole(
    running: ServerProcess, api: Api, queue: str
) -> None:
    """Twenty partitions of 12 MB under one lease."""
    payload = '"' + "x" * (MB - 100) + '"'
    for n in range(20):
        item = f'{{"queue":"{queue}","partition":"{n}","payload":{payload}}}'
        body = f'{{"items":[{",".join([item] * 12)}]}}'
        assert api.call("POST", "/api/v1/push", body).status == 201
    seen = 0
    for _ in range(240):
        messages = api.messages(
            queue, batch=10_000, partitions=20, autoAck="true", wait="true", timeout=20_000
        )
        assert messages, "nothing is held back"
        seen += len(messages)
        if seen == 240:
            break
    assert seen == 240
    assert peak_bytes(running) < LIMIT_BYTES
