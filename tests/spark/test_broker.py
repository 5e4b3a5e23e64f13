"""The broker as Spark's processes see it: connections that threads share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from queen.spark import broker
from queen.spark.broker import Broker, Place
from tests.conftest import ServerProcess

THREADS, CALLS = 24, 40


@pytest.fixture
def hurried() -> Iterator[None]:
    """Let threads interrupt each other wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_threads_share_connections_and_none_has_anothers(server: ServerProcess) -> None:
    place = Place((server.url,))
    start = threading.Barrier(THREADS)

    def work(number: int) -> list[str]:
        start.wait(60)
        # Each answer names what was asked: an answer of another's request would show.
        asked = [f"q-{number}-{call}" for call in range(CALLS)]
        body = [
            {"items": [{"queue": name, "payload": name, "transactionId": name}]} for name in asked
        ]
        told = [Broker(place).ask("POST", "/api/v1/push", one) for one in body]
        return [one["transaction_id"] for (one,) in told]

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(work, range(THREADS)))
    assert found == [[f"q-{n}-{call}" for call in range(CALLS)] for n in range(THREADS)]
    assert sum(map(len, broker._idle.values())) <= broker._MOST_IDLE


@pytest.mark.usefixtures("hurried")
def test_a_connection_is_taken_once() -> None:
    url, many = "http://127.0.0.1:9", broker._MOST_IDLE
    taken: list[int] = []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait(60)
        while (found := broker._idle_connection(url)) is not None:
            taken.append(id(found))

    for _ in range(50):
        made = [broker._connection(url) for _ in range(many)]
        for one in made:
            broker._keep(url, one)
        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(taken) == sorted(id(one) for one in made)
        taken.clear()
