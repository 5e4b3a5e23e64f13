"""The broker as Spark's processes see it: connections that threads share."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from queen.core.frame import CONTENT_TYPE
from queen.errors import Unreachable
from queen.spark import broker
from queen.spark.broker import Broker, BrokerAddress
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.test_slices import Brittle
from tests.waiting import spend

THREADS, CALLS = 24, 40


@pytest.fixture
def hurried() -> Iterator[None]:
    """Let threads interrupt each other wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_threads_share_connections_and_none_has_anothers(server: ServerProcess, queue: str) -> None:
    address = BrokerAddress((server.url,))
    start = threading.Barrier(THREADS)

    def work(number: int) -> list[str]:
        start.wait(60)
        # Each answer names what was asked: an answer of another's request would show.
        asked = [f"q-{number}-{call}" for call in range(CALLS)]
        body = [
            {"items": [{"queue": queue, "payload": name, "transactionId": name}]} for name in asked
        ]
        told = [Broker(address).ask("POST", "/api/v1/push", one) for one in body]
        return [one["transaction_id"] for (one,) in told]

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(work, range(THREADS)))
    assert found == [[f"q-{n}-{call}" for call in range(CALLS)] for n in range(THREADS)]
    # Threads that give one back in the same moment may each find room.
    assert sum(map(len, broker._idle.values())) < broker._MOST_IDLE + THREADS


class Contended(deque[Any]):
    """Lets other threads in between the question whether there is something and the taking."""

    def __bool__(self) -> bool:
        found = len(self) > 0
        spend(0.001)
        return found


@pytest.mark.usefixtures("hurried")
def test_a_connection_is_taken_once() -> None:
    url = "http://127.0.0.1:9"
    start = threading.Barrier(8)

    def call(_number: int) -> type[BaseException] | None:
        start.wait(60)
        try:
            Broker(BrokerAddress((url,)), retry_s=0).call("GET", "/health")
        except Exception as error:
            return type(error)
        return None

    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            # Nobody answers there, so each call takes one after the other.
            idle = broker._idle[os.getpid(), url] = Contended()
            idle.extend(broker._connection(url) for _ in range(4))
            assert set(threads.map(call, range(8))) == {Unreachable}
            assert not idle


# Inside of the status line, after it, and inside of the headers that say how the answer ends.
@pytest.mark.parametrize("after", [10, 17, 40, 100, 110])
def test_an_answer_that_is_cut_off_in_its_headers_is_none(
    api: Api, queue: str, server: ServerProcess, after: int
) -> None:
    api.push_many(queue, 3)
    brittle = Brittle(server.port, after)
    asked = Broker(BrokerAddress((brittle.url,)), retry_s=0)
    try:
        with pytest.raises(Unreachable):
            list(asked.stream("GET", f"/api/v1/fetch/queue/{queue}", b"", CONTENT_TYPE))
    finally:
        brittle.close()
