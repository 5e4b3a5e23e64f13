"""What is done is said in time, however long the handler of the next message takes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from queen import Queen, Received, SyncQueen, SyncReceived
from queen.client.queues.queue import Queue
from queen.errors import Forbidden, HandlerTimeout
from tests.client.fake import Fake, answer
from tests.client.framed import FrameBroker, claim, frame, framed, run_of
from tests.waiting import spend_async, until, until_met

# In a batch of six, this one takes long: as long as nothing is said of those before it.
SLOW = 4
LOST = answer("409 Conflict", b'{"error":"no","code":"lease_lost","retryable":false}')
FORBIDDEN = answer("403 Forbidden", b'{"error":"no","code":"forbidden","retryable":false}')


@contextlib.asynccontextmanager
async def client_of(broker: Callable[[bytes], bytes]) -> AsyncIterator[Queen]:
    async with Fake(broker).running() as fake, Queen(fake.url, retry_s=0) as queen:
        yield queen


def said_of(broker: FrameBroker) -> list[list[tuple[int, str]]]:
    """Return what was said of each offset, request by request."""
    said = []
    for spans in broker.spans:
        done = [
            (at, "completed")
            for span in spans
            for run in span.get("done", [])
            for at in range(*run)
        ]
        failed = [
            (one["offset"], one["status"]) for span in spans for one in span.get("failed", [])
        ]
        said.append(done + failed)
    return said


def all_of(first: int, end: int, status: str = "completed") -> list[tuple[int, str]]:
    return [(offset, status) for offset in range(first, end)]


def first_of(given: Any) -> int:
    """Return the offset of a message, or of the first of a list."""
    offset: int = (given[0] if isinstance(given, list) else given).offset
    return offset


_WAYS: dict[str, Callable[[Queue], Queue]] = {
    "default": lambda queue: queue,
    "each": lambda queue: queue.batch(10).each(),
    "lists": lambda queue: queue.batch(2),
}
ways = pytest.mark.parametrize("way", _WAYS.values(), ids=_WAYS)


# ---- handlers ----


@ways
async def test_a_slow_async_handler_holds_up_no_ack(way: Callable[[Queue], Queue]) -> None:
    broker = FrameBroker(run_of(7, 0, 6))

    async def handle(given: Any) -> None:
        if first_of(given) == SLOW:
            await until_met(lambda: broker.spans, within_s=10)

    async with client_of(broker) as queen:
        done = await way(queen.queue("q").group("g")).limit(6).consume(handle, signals=False)
    assert (done.handled, done.failed) == (6, 0)
    assert said_of(broker) == [all_of(0, 4), all_of(4, 6)]


@ways
async def test_a_slow_handler_in_a_thread_holds_up_no_ack(way: Callable[[Queue], Queue]) -> None:
    broker = FrameBroker(run_of(7, 0, 6))

    def handle(given: Any) -> None:
        if first_of(given) == SLOW:
            until(lambda: broker.spans, within_s=10)

    async with client_of(broker) as queen:
        done = await way(queen.queue("q").group("g")).limit(6).consume(handle, signals=False)
    assert (done.handled, done.failed) == (6, 0)
    assert said_of(broker) == [all_of(0, 4), all_of(4, 6)]


async def test_each_slow_handler_is_looked_at_again() -> None:
    broker = FrameBroker(run_of(7, 0, 6))

    async def handle(message: Received) -> None:
        await until_met(lambda: len(broker.spans) >= message.offset, within_s=10)

    async with client_of(broker) as queen:
        await queen.queue("q").group("g").limit(6).consume(handle, signals=False)
    assert said_of(broker) == [[(at, "completed")] for at in range(6)]


async def test_what_failed_is_told_in_time_where_it_holds_up_no_other() -> None:
    broker = FrameBroker(run_of(7, 0, 6))

    async def handle(message: Received) -> None:
        if message.offset == 3:
            raise ValueError
        if message.offset == SLOW:
            await until_met(lambda: broker.spans, within_s=10)

    async with client_of(broker) as queen:
        wanted = queen.queue("q").group("g").batch(10).each().limit(6)
        done = await wanted.consume(handle, signals=False)
    assert (done.handled, done.failed) == (5, 1)
    assert said_of(broker) == [[*all_of(0, 3), (3, "failed")], all_of(4, 6)]


async def test_in_turn_a_failure_is_told_with_what_it_holds_up() -> None:
    """Between the two, the broker would lease to somebody else what follows."""
    broker = FrameBroker(run_of(7, 0, 6))

    async def handle(message: Received) -> None:
        if message.offset == SLOW:
            consumer.stop()
            raise ValueError

    async def note(_messages: list[Received], _error: Exception) -> None:
        await until_met(lambda: broker.spans, within_s=10)

    async with client_of(broker) as queen:
        consumer = queen.queue("q").group("g").on_error(note).consume(handle, signals=False)
        await consumer
    assert said_of(broker) == [all_of(0, 4), [(4, "failed"), (5, "retry")]]


async def test_a_handler_whose_time_is_over_has_failed_and_those_before_it_are_said() -> None:
    broker, errors = FrameBroker(run_of(7, 0, 6)), []

    def handle(message: Received) -> None:
        if message.offset == SLOW:
            # Its time is over long before; its thread ends when it ends.
            until(lambda: len(broker.spans) == 2, within_s=10)

    def note(_messages: list[Received], error: Exception) -> None:
        errors.append(type(error))
        consumer.stop()

    async with client_of(broker) as queen:
        wanted = queen.queue("q").group("g").batch(10).each().handler_timeout(0.5).on_error(note)
        consumer = wanted.consume(handle, signals=False)
        await consumer
    assert errors == [HandlerTimeout]
    assert said_of(broker) == [all_of(0, 4), [(4, "failed"), (5, "retry")]]


# ---- loops ----


async def test_a_slow_body_of_a_loop_holds_up_no_ack() -> None:
    broker = FrameBroker(run_of(7, 0, 6))
    async with client_of(broker) as queen:
        async for message in queen.queue("q").group("g").limit(6).consume(signals=False):
            if message.offset == SLOW:
                await until_met(lambda: broker.spans, within_s=10)
    assert said_of(broker) == [all_of(0, 4), all_of(4, 6)]


async def test_a_loop_that_is_left_says_the_rest_behind_that() -> None:
    broker = FrameBroker(run_of(7, 0, 6))
    async with client_of(broker) as queen:
        async for message in queen.queue("q").group("g").consume(signals=False):
            if message.offset == SLOW:
                await until_met(lambda: broker.spans, within_s=10)
                break
    assert said_of(broker) == [all_of(0, 4), [(4, "failed"), (5, "retry")]]


async def test_the_sync_face() -> None:
    broker = FrameBroker(run_of(7, 0, 6), run_of(7, 6, 6))

    def handle(message: SyncReceived) -> None:
        if message.offset == SLOW:
            until(lambda: broker.spans, within_s=10)

    def work(url: str) -> None:
        with SyncQueen(url, retry_s=0) as queen:
            queue = queen.queue("q").group("g").limit(6)
            queue.consume(handle)
            for message in queue:
                if message.offset == 6 + SLOW:
                    until(lambda: len(broker.spans) == 3, within_s=10)

    async with Fake(broker).running() as fake:
        await asyncio.to_thread(work, fake.url)
    assert said_of(broker) == [all_of(0, 4), all_of(4, 6), all_of(6, 10), all_of(10, 12)]


# ---- how it ends ----


class Held:
    """Acks of a client that go out when the test says so."""

    def __init__(self, queen: Queen, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settle = queen.settle
        self.go = asyncio.Event()
        self.waiting = self.most = self.ended = 0
        monkeypatch.setattr(queen, "settle", self._hold)

    async def _hold(self, *arguments: Any) -> Any:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.go.wait()
            return await self._settle(*arguments)
        finally:
            self.waiting -= 1
            self.ended += 1


async def test_what_is_said_waits_for_what_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FrameBroker(run_of(7, 0, 6))
    async with client_of(broker) as queen:
        held = Held(queen, monkeypatch)

        async def handle(message: Received) -> None:
            if message.offset == SLOW:
                await until_met(lambda: held.waiting, within_s=10)
            elif message.offset == SLOW + 1:
                # Time for another look, while the first still waits.
                await spend_async(0.3)
                asyncio.get_running_loop().call_later(0.1, held.go.set)

        await queen.queue("q").group("g").limit(6).consume(handle, signals=False)
    assert held.most == 1
    assert said_of(broker) == [all_of(0, 4), all_of(4, 6)]


async def test_a_stop_says_the_rest_behind_what_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FrameBroker(run_of(7, 0, 6))
    async with client_of(broker) as queen:
        held = Held(queen, monkeypatch)

        async def handle(message: Received) -> None:
            if message.offset == SLOW:
                await until_met(lambda: held.waiting, within_s=10)
                consumer.stop()
                asyncio.get_running_loop().call_later(0.1, held.go.set)

        consumer = queen.queue("q").group("g").consume(handle, signals=False)
        await consumer
    assert (held.most, consumer.handled, consumer.received) == (1, 5, 5)
    assert said_of(broker) == [all_of(0, 4), [(4, "completed"), (5, "retry")]]


async def test_who_is_cancelled_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FrameBroker(run_of(7, 0, 6))
    async with client_of(broker) as queen:
        held = Held(queen, monkeypatch)

        async def handle(message: Received) -> None:
            if message.offset == SLOW:
                await asyncio.Event().wait()

        before = asyncio.all_tasks()
        consuming = asyncio.create_task(queen.queue("q").group("g").consume(handle).run())
        await until_met(lambda: held.waiting, within_s=10)
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        assert held.waiting == 0
        assert not {task for task in asyncio.all_tasks() - before if "_say" in str(task)}
    assert broker.spans == []


async def test_a_lost_lease_ends_the_batch_and_nothing_is_said_that_is_not_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    claims = [claim(7, 0, 6, leaseMs=1_000)]
    batch = framed(claims, [frame(7, 0, list(range(6)))])
    broker = FrameBroker(batch, renewal=lambda: LOST)
    lost = "the lease of a batch was lost; its messages come again"

    async def handle(message: Received) -> None:
        if message.offset == SLOW:
            await until_met(lambda: lost in caplog.messages, within_s=10)
            consumer.stop()

    async with client_of(broker) as queen:
        consumer = queen.queue("q").group("g").consume(handle, signals=False)
        await consumer
    assert said_of(broker) == [all_of(0, 4), all_of(4, 5)]


@pytest.mark.parametrize("is_loop", [False, True], ids=["handler", "loop"])
async def test_an_error_is_raised_before_another_message_is_begun(
    monkeypatch: pytest.MonkeyPatch, *, is_loop: bool
) -> None:
    inner, seen = FrameBroker(run_of(7, 0, 6)), list[Any]()

    def broker(request: bytes) -> bytes:
        return FORBIDDEN if b"/ack/spans" in request else inner(request)

    async with client_of(broker) as queen:
        held = Held(queen, monkeypatch)
        held.go.set()

        async def handle(message: Received) -> None:
            seen.append(message.offset)
            if message.offset == SLOW:
                await until_met(lambda: held.ended, within_s=10)
                seen.append("refused meanwhile")

        queue = queen.queue("q").group("g")
        with pytest.raises(Forbidden):
            await (_loop_over(queue, handle) if is_loop else queue.consume(handle, signals=False))
    assert (seen, held.ended) == ([0, 1, 2, 3, 4, "refused meanwhile"], 2 if is_loop else 1)


async def _loop_over(queue: Queue, handle: Callable[[Received], Awaitable[None]]) -> None:
    messages = queue.consume(signals=False).__aiter__()
    try:
        async for message in messages:
            await handle(message)
    finally:
        # What is left of the batch is refused like all before it.
        with pytest.raises(Forbidden):
            await messages.aclose()


# ---- against a server ----


async def test_what_was_done_before_a_slow_message_does_not_come_again(
    queen: Queen, queue: str
) -> None:
    await queen.queue(queue).config(leaseTime=1, retryDelay=0).create()
    await queen.queue(queue).push(list(range(6)))
    group = queen.queue(queue).group("g")
    begun = asyncio.Event()

    async def handle(message: Received) -> None:
        if message.offset == SLOW:
            begun.set()
            await asyncio.Event().wait()

    wanted = group.batch(10).each().renew_lease(False)
    consuming = asyncio.create_task(wanted.consume(handle, signals=False).run())
    await begun.wait()
    again: list[Received] = []
    while not again:
        # As if it was killed: what it has is free when its lease is over.
        again = await group.batch(10).pop(wait_s=5)
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    assert [message.offset for message in again] == [4, 5]
    await queen.ack(again)
