"""A handler without asyncio gets messages one by one, several in one visit to its thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from queen import Queen, Received, SyncQueen, SyncReceived
from queen.client.leases.stretch import Stretch
from queen.client.queues.running import Runner
from tests.client.fake import Fake
from tests.client.framed import FrameBroker, run_of


@contextlib.asynccontextmanager
async def client_of(broker: FrameBroker) -> AsyncIterator[Queen]:
    async with Fake(broker).running() as fake, Queen(fake.url, retry_s=0) as queen:
        yield queen


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One number for each visit to a thread."""
    made: list[int] = []
    in_thread = Runner._in_thread

    async def note(self: Any, *arguments: Any, **named: Any) -> Any:
        made.append(len(made))
        return await in_thread(self, *arguments, **named)

    monkeypatch.setattr(Runner, "_in_thread", note)
    return made


async def test_many_messages_take_few_visits(visits: list[int]) -> None:
    broker, seen = FrameBroker(run_of(7, 0, 100)), []
    threads: set[int] = set()

    def handle(message: Received) -> None:
        threads.add(threading.get_ident())
        seen.append(message.data)

    async with client_of(broker) as queen:
        done = await queen.queue("q").batch(100).each().limit(100).consume(handle)
    assert seen == list(range(100))
    assert threading.get_ident() not in threads
    assert (done.handled, done.failed) == (100, 0)
    # As many as there are tenths of a second, on a machine that is slow.
    assert len(visits) < 50
    assert [run for spans in broker.spans for run in spans[0]["done"]][-1][1] == 100


async def test_each_failure_has_its_own_message() -> None:
    broker = FrameBroker(run_of(7, 0, 10))
    told: list[tuple[int, str]] = []

    def handle(message: Received) -> None:
        if message.data in (0, 4, 9):
            raise ValueError(message.data)

    def note(messages: list[Received], error: Exception) -> None:
        told.append((messages[0].data, str(error)))

    async with client_of(broker) as queen:
        wanted = queen.queue("q").batch(10).each().limit(10).on_error(note)
        done = await wanted.consume(handle)
    assert told == [(0, "0"), (4, "4"), (9, "9")]
    assert (done.handled, done.failed) == (7, 3)
    (span,) = broker.spans[0]
    assert [one["offset"] for one in span["failed"]] == [0, 4, 9]
    assert span["done"] == [[1, 4], [5, 9]]


async def test_in_turn_a_failure_gives_back_those_behind_it() -> None:
    broker = FrameBroker(run_of(7, 0, 1), run_of(7, 1, 2), run_of(7, 3, 4))
    seen: list[int] = []

    def handle(message: Received) -> None:
        seen.append(message.data)
        if message.data == 4:
            consumer.stop()
            raise ValueError("no")

    async with client_of(broker) as queen:
        consumer = queen.queue("q").consume(handle)
        await consumer
    assert seen == [0, 1, 2, 3, 4]
    span = broker.spans[-1][0]
    assert span["done"] == [[3, 4]]
    assert [(one["offset"], one["status"]) for one in span["failed"]] == [
        (4, "failed"),
        (5, "retry"),
        (6, "retry"),
    ]
    assert (consumer.received, consumer.handled, consumer.failed) == (5, 4, 1)


async def test_a_stop_ends_it_with_the_message_at_hand() -> None:
    broker = FrameBroker(run_of(7, 0, 10))
    seen: list[int] = []

    def handle(message: Received) -> None:
        seen.append(message.data)
        if message.data == 3:
            consumer.stop()

    async with client_of(broker) as queen:
        consumer = queen.queue("q").batch(10).each().consume(handle)
        await consumer
    assert seen == [0, 1, 2, 3]
    (span,) = broker.spans[0]
    assert span["done"] == [[0, 4]]
    assert {one["status"] for one in span["failed"]} == {"retry"}


async def test_a_cancelled_consumer_waits_for_the_message_at_hand_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FrameBroker(run_of(7, 0, 10))
    entered, go_on = threading.Event(), threading.Event()
    seen: list[int] = []
    cancel = Stretch.cancel

    def cancel_and_go_on(self: Stretch) -> None:
        cancel(self)
        go_on.set()

    monkeypatch.setattr(Stretch, "cancel", cancel_and_go_on)

    def handle(message: Received) -> None:
        seen.append(message.data)
        entered.set()
        go_on.wait(20)

    async with client_of(broker) as queen:
        running = asyncio.create_task(queen.queue("q").batch(10).each().consume(handle))
        await asyncio.to_thread(entered.wait, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert seen == [0]
    assert broker.spans == []


async def test_a_function_that_makes_coroutines_is_awaited() -> None:
    broker = FrameBroker(run_of(7, 0, 5))
    seen: list[int] = []

    async def handle(message: Received) -> None:
        await asyncio.sleep(0)
        if message.data == 2:
            raise ValueError("no")
        seen.append(message.data)

    def make(message: Received) -> Coroutine[Any, Any, None]:
        return handle(message)

    async with client_of(broker) as queen:
        wanted = queen.queue("q").batch(5).each().limit(5)
        done = await wanted.consume(make)
    assert seen == [0, 1, 3, 4]
    assert (done.handled, done.failed) == (4, 1)


async def test_no_handler_sees_what_another_has_set() -> None:
    broker = FrameBroker(run_of(7, 0, 3))
    of_request: contextvars.ContextVar[int] = contextvars.ContextVar("of_request", default=-1)
    seen: list[int] = []

    def handle(message: Received) -> None:
        seen.append(of_request.get())
        of_request.set(message.data)

    async with client_of(broker) as queen:
        of_request.set(100)
        await queen.queue("q").batch(3).each().limit(3).consume(handle)
    assert seen == [100, 100, 100]


async def test_what_is_given_back_by_hand_comes_before_the_next(visits: list[int]) -> None:
    broker = FrameBroker(run_of(7, 0, 1), run_of(7, 1, 2), run_of(7, 3, 4))
    seen: list[int] = []

    def work(url: str) -> None:
        def handle(message: SyncReceived) -> None:
            seen.append(message.data)
            if message.data == 4:
                message.give_back()

        with SyncQueen(url, retry_s=0) as queen:
            queen.queue("q").idle(0.3).wait(0.1).consume(handle)

    async with Fake(broker).running() as fake:
        await asyncio.to_thread(work, fake.url)
    assert seen == [0, 1, 2, 3, 4]
    by_hand, rest = broker.spans[-2:]
    assert by_hand[0]["failed"] == [{"offset": 4, "status": "retry"}]
    assert rest[0]["done"] == [[3, 4]]
    assert [one["offset"] for one in rest[0]["failed"]] == [5, 6]
