"""Streams for programs without asyncio: the same, waited for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from queen import SyncQueen, SyncWindow
from queen.client.streams.sync import SyncStream
from queen.errors import LeaseLost, NotFound
from tests.waiting import spend


def counted(queen: SyncQueen, queue: str) -> SyncStream:
    stream = queen.stream(queue).sources(queue).count(2).grace_period(0).retry_delay(0)
    stream.define()
    return stream


def values(window: SyncWindow) -> list[Any]:
    return [one.data for one in window.all_messages]


def test_process(sync_queen: SyncQueen, queue: str) -> None:
    stream = counted(sync_queen, queue)
    sync_queen.queue(queue).push([1, 2, 3, 4])
    seen: list[list[int]] = []

    def handler(window: SyncWindow) -> None:
        window.push(f"{queue}-out", window.aggregate(sum="data")["sum"]["data"])
        seen.append(values(window))
        if window.attempt == 1:
            window.nack("again")

    done = sync_queen.consumer(queue, "g").limit(4).process(handler)
    assert (seen, done.handled) == ([[1, 2], [1, 2], [3, 4], [3, 4]], 4)
    assert [one.data for one in sync_queen.queue(f"{queue}-out").replay()] == [3, 7]
    assert stream.consumers()[0]["totalWindowsConsumed"] == 2
    assert stream.dead("g") == []
    assert stream.retry_dead("g") == 0


def test_a_loop(sync_queen: SyncQueen, queue: str) -> None:
    counted(sync_queen, queue)
    sync_queen.queue(queue).push([1, 2, 3, 4])
    assert [values(one) for one in sync_queen.consumer(queue, "all").idle(1)] == [[1, 2], [3, 4]]
    with pytest.raises(ZeroDivisionError):
        for window in sync_queen.consumer(queue, "g"):
            _ = 1 / (values(window)[0] - 1)
    (window,) = list(sync_queen.consumer(queue, "g").limit(1))
    assert (values(window), window.attempt) == ([1, 2], 2)


def test_a_window_by_hand(sync_queen: SyncQueen, queue: str) -> None:
    stream = counted(sync_queen, queue)
    stream.lease_timeout(2).define()
    sync_queen.queue(queue).push([1, 2])
    consumer = sync_queen.consumer(queue, "g").max_inline_bytes(0).large()
    window = consumer.poll_window(20)
    assert window is not None
    with window.kept_alive():
        spend(2.5)
    assert window.renew(60_000)
    assert [one.data for one in window.stream()] == [1, 2]
    assert values(window.load()) == [1, 2]
    window.give_back()
    again = consumer.poll_window(20)
    assert again is not None
    assert again.attempt == 1
    with pytest.raises(LeaseLost):
        window.ack()
    again.ack()
    assert consumer.poll_window(0) is None
    consumer.seek("beginning")
    third = consumer.poll_window(20)
    assert third is not None
    third.ack(False, "no")


def test_what_operators_ask(sync_queen: SyncQueen, queue: str) -> None:
    stream = counted(sync_queen, queue)
    sync_queen.queue(queue).push([1, 2])
    (window,) = list(sync_queen.consumer(queue, "g").limit(1))
    assert [one["id"] for one in stream.windows("g", state="done")] == [window.id]
    assert stream.explain("g")["stream"] == stream.show()["name"] == queue
    stream.pause("g")
    stream.resume("g")
    stream.seek("g", "now")
    assert stream.delete_group("g") is True
    assert queue in [one["name"] for one in sync_queen.admin.streams(limit=1000)["streams"]]
    assert stream.delete() is True
    with pytest.raises(NotFound):
        sync_queen.consumer(queue, "g").process(print)


def test_a_stop_from_another_thread(sync_queen: SyncQueen, queue: str) -> None:
    counted(sync_queen, queue)
    sync_queen.queue(queue).push([1, 2])
    consumer = sync_queen.consumer(queue, "g")
    handled = threading.Event()

    def stop() -> None:
        handled.wait(20)
        consumer.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    done = consumer.concurrency(2).process(lambda _: handled.set())
    stopper.join()
    assert done.handled == 1
