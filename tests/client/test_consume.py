"""Consumers: what they hand out, and what becomes of it."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from queen import Queen, Received
from queen.errors import BadRequest, Unauthenticated
from tests.client.fake import Fake, answer
from tests.conftest import ServerProcess
from tests.waiting import spend, spend_async


async def left(queen: Queen, queue: str) -> list[Any]:
    """What nobody has finished and nobody has leased."""
    return [one.data for one in await queen.queue(queue).partitions(100).pop(wait_s=0, batch=1000)]


async def test_a_batch_for_an_async_handler(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(list(range(25)))
    seen: list[list[int]] = []

    async def handler(messages: list[Received]) -> None:
        seen.append([one.data for one in messages])

    done = await queen.queue(queue).batch(10).limit(25).consume(handler)
    assert [len(one) for one in seen] == [10, 10, 5]
    assert [n for one in seen for n in one] == list(range(25))
    assert (done.received, done.handled, done.failed) == (25, 25, 0)
    assert await left(queen, queue) == []


async def test_one_message_for_a_sync_handler(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([1, 2, 3])
    seen: list[int] = []
    threads: set[bool] = set()

    def handler(message: Received) -> None:
        threads.add(threading.current_thread() is threading.main_thread())
        seen.append(message.data)

    await queen.queue(queue).limit(3).consume(handler)
    await queen.queue(queue).push([4])
    await queen.queue(queue).batch(10).each().limit(1).consume(handler)
    assert seen == [1, 2, 3, 4]
    assert threads == {False}


async def test_other_callables(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([1, 2])
    seen: list[tuple[str, int]] = []

    class Callable:
        async def __call__(self, message: Received) -> None:
            seen.append(("object", message.data))

    async def named(name: str, message: Received) -> None:
        seen.append((name, message.data))

    await queen.queue(queue).limit(1).consume(Callable())
    await queen.queue(queue).limit(1).consume(functools.partial(named, "partial"))
    assert seen == [("object", 1), ("partial", 2)]


async def test_the_limit_is_exact_over_all_workers(queen: Queen, queue: str) -> None:
    for name in "abcdefgh":
        await queen.queue(queue).partition(name).push(list(range(10)))
    seen: list[int] = []

    async def handler(messages: list[Received]) -> None:
        await spend_async(0.01)
        seen.extend(one.data for one in messages)

    consumer = queen.queue(queue).batch(7).concurrency(4).limit(53).consume(handler)
    assert (await consumer).received == len(seen) == 53
    assert len(await left(queen, queue)) == 80 - 53


async def test_sync_handlers_run_as_concurrently_as_asked(queen: Queen, queue: str) -> None:
    workers = 16
    for n in range(workers):
        await queen.queue(queue).partition(str(n)).push(n)
    together = threading.Barrier(workers)

    def handler(_message: Received) -> None:
        together.wait(timeout=20)

    await queen.queue(queue).concurrency(workers).idle(3).consume(handler)
    assert not together.broken


async def test_idle_ends_it(queen: Queen, queue: str) -> None:
    began = time.monotonic()
    consumer = await queen.queue(queue).idle(0.3).concurrency(2).consume(print)
    assert consumer.received == 0
    assert 0.25 < time.monotonic() - began < 20


async def test_without_auto_ack_the_handler_says(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([1, 2])

    async def handler(message: Received) -> None:
        if message.data == 1:
            await message.ack()
        else:
            await message.give_back()

    base = queen.queue(queue).auto_ack(False).batch(2).each()
    await base.limit(2).consume(handler)
    assert await left(queen, queue) == [2]


async def test_a_lease_is_renewed_while_a_handler_works(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(lease_time=3).create()
    await queen.queue(queue).push("slow")
    attempts: list[int] = []

    def handler(message: Received) -> None:
        attempts.append(message.attempt)
        spend(4)

    consumer = queen.queue(queue).idle(1).concurrency(2).consume(handler)
    assert (await consumer).handled == 1
    assert attempts == [1]
    assert await left(queen, queue) == []


async def test_without_renewal_it_is_delivered_again(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(lease_time=2).create()
    await queen.queue(queue).push("slow")
    attempts: list[int] = []
    again = asyncio.Event()

    async def handler(message: Received) -> None:
        attempts.append(message.attempt)
        if message.attempt > 1:
            again.set()
        await again.wait()

    base = queen.queue(queue).renew_lease(False)
    await base.limit(2).concurrency(2).consume(handler)
    assert attempts == [1, 2]
    assert await left(queen, queue) == []


async def test_an_exception_is_a_nack_and_in_the_end_a_dead_letter(
    queen: Queen, queue: str
) -> None:
    await queen.queue(queue).config(retry_limit=1, retry_delay=0).create()
    await queen.queue(queue).push(["good", "bad"])
    told: list[Any] = []

    async def handler(message: Received) -> None:
        if message.data == "bad":
            raise ValueError("too bad")

    async def on_success(messages: list[Received]) -> None:
        told.append([one.data for one in messages])

    def on_error(messages: list[Received], error: Exception) -> None:
        told.append((messages[0].data, str(error)))

    base = queen.queue(queue).batch(2).each().idle(1)
    await base.on_success(on_success).on_error(on_error).consume(handler)
    assert told == [["good"], ("bad", "too bad"), ("bad", "too bad")]
    (letter,) = (await queen.queue(queue).dlq().get()).messages
    assert (letter.data, letter.error_message) == ("bad", "ValueError: too bad")


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


def _look_into_nothing() -> None:
    next(iter(()))


def _name_a_file() -> None:
    raise ValueError("cannot open " + os.fsdecode(b"caf\xe9"))


def _say_nothing() -> None:
    raise Mute


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (_look_into_nothing, "StopIteration"),
        (_name_a_file, r"ValueError: cannot open caf\udce9"),
        (_say_nothing, "Mute: <its text cannot be had>"),
    ],
    ids=["stop iteration", "no text", "no words"],
)
async def test_odd_errors_are_failures_like_any_other(
    queen: Queen,
    queue: str,
    broken: Callable[[], None],
    said: str,
    is_async: bool,
    size: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is logged here is no text either, and those who collect reports of tests take only text.
    monkeypatch.setattr(logging.getLogger("queen.client"), "disabled", True)
    await queen.queue(queue).config(retry_limit=0).create()
    await queen.queue(queue).push([1])

    async def in_the_loop(_given: Any) -> None:
        broken()

    def in_a_thread(_given: Any) -> None:
        broken()

    builder = queen.queue(queue).limit(1)
    if size is not None:
        builder = builder.batch(size)
    consuming = builder.consume(in_the_loop if is_async else in_a_thread)
    consumer = await asyncio.wait_for(consuming, 20)
    assert consumer.failed == 1
    (letter,) = (await queen.queue(queue).dlq().get()).messages
    assert said in (letter.error_message or "")


async def test_a_failing_callback_changes_nothing(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([1, 2])

    def on_success(_messages: list[Received]) -> None:
        raise RuntimeError("the callback is broken")

    async def handler(_message: Received) -> None:
        pass

    consumer = await queen.queue(queue).on_success(on_success).limit(2).consume(handler)
    assert consumer.handled == 2
    assert await left(queen, queue) == []


async def test_stop_finishes_the_message_and_gives_the_rest_back(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(list(range(10)))
    seen: list[int] = []

    async def handler(message: Received) -> None:
        seen.append(message.data)
        if len(seen) == 3:
            consumer.stop()

    consumer = queen.queue(queue).batch(10).each().consume(handler)
    await consumer
    assert seen == [0, 1, 2]
    again = await queen.queue(queue).pop(wait_s=0, batch=100)
    assert [one.data for one in again] == list(range(3, 10))
    assert {one.attempt for one in again} == {1}


async def test_stop_ends_a_long_poll_at_once(queen: Queen, queue: str) -> None:
    consumer = queen.queue(queue).wait(30).consume(print)
    running = asyncio.create_task(consumer.run())
    # What the consumer has asked for is with the server before these are answered.
    for _ in range(5):
        await queen.admin.health()
    began = time.monotonic()
    consumer.stop()
    await running
    assert time.monotonic() - began < 15
    await queen.queue(queue).push("later")
    assert await left(queen, queue) == ["later"]


async def test_what_arrives_while_stopping_is_given_back(queen: Queen, queue: str) -> None:
    """Stops at many moments around a delivery; no message may stay leased by nobody."""
    await queen.queue(queue).config(lease_time=60).create()
    for round_number in range(40):
        seen: list[int] = []

        def note(message: Any, seen: list[int] = seen) -> None:
            seen.append(message.data)

        consumer = queen.queue(queue).wait(30).batch(5).each().consume(note)
        running = asyncio.create_task(consumer.run())
        await spend_async(0.01)
        pushing = asyncio.create_task(queen.queue(queue).push(round_number))
        await spend_async(round_number / 4000)
        consumer.stop()
        await asyncio.gather(running, pushing)
        # The server may still be about to notice that nobody listens any more.
        rest = [] if seen else await queen.queue(queue).pop(wait_s=10)
        assert len(seen) + len(rest) == 1, round_number
        assert not rest or rest[0].attempt == 1
        await queen.ack(rest)


async def test_an_error_that_stays_is_raised_as_it_is(queen: Queen, queue: str) -> None:
    base = queen.queue(queue).subscription_from("not a time").group("g")
    with pytest.raises(BadRequest):
        await base.concurrency(3).consume(print)
    with pytest.raises(BadRequest):
        async for _ in base.consume():
            pass


async def test_a_refused_token(start_server: Any, dsn: str, queue: str) -> None:
    running: ServerProcess = start_server("--database-url", dsn, "--auth", "tokens")
    async with Queen(running.url, token="wrong", retry_s=1) as queen:  # noqa: S106
        with pytest.raises(Unauthenticated):
            await queen.queue(queue).consume(print)


async def test_consume_needs_a_handler(queen: Queen, queue: str) -> None:
    with pytest.raises(ValueError, match="no handler"):
        await queen.queue(queue).consume()


# ---- as a loop ----


async def test_a_loop_over_everything(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(list(range(10)))
    base = queen.queue(queue).batch(4)
    seen = [one.data async for one in base.limit(7).consume()]
    assert seen == list(range(7))
    seen = [one.data async for one in base.idle(0.3).consume()]
    assert seen == [7, 8, 9]
    assert await left(queen, queue) == []


@pytest.mark.parametrize("done", [True, False])
async def test_a_loop_that_is_left_gives_back_what_is_not_done(
    server: ServerProcess, queen: Queen, queue: str, done: bool
) -> None:
    await queen.queue(queue).push(list(range(10)))
    async with Queen(server.url) as other:
        async for message in other.queue(queue).batch(10).consume():
            if message.data == 3:
                if done:
                    await message.ack()
                break
    # Closing the client waits for it; nothing else has to happen.
    again = await queen.queue(queue).pop(wait_s=20, batch=100)
    assert [one.data for one in again] == list(range(4 if done else 3, 10))
    assert again[0].attempt == (1 if done else 2)


@pytest.mark.parametrize("guarded", [True, False])
async def test_an_exception_in_the_loop_is_no_ack(
    server: ServerProcess, queen: Queen, queue: str, guarded: bool
) -> None:
    async def fails(client: Queen) -> None:
        async for message in client.queue(queue).batch(10).consume():
            if message.data == 1:
                raise ZeroDivisionError

    async def fails_and_says_so(client: Queen) -> None:
        try:
            async for message in client.queue(queue).batch(10).consume():
                _ = 1 / (message.data - 1)
        except ZeroDivisionError:
            return

    await queen.queue(queue).push([0, 1, 2])
    async with Queen(server.url) as other:
        if guarded:
            await fails_and_says_so(other)
        else:
            with pytest.raises(ZeroDivisionError):
                await fails(other)
    gc.collect()
    again = await queen.queue(queue).pop(wait_s=20, batch=100)
    assert [(one.data, one.attempt) for one in again] == [(1, 2), (2, 1)]


async def test_a_cancelled_loop_is_no_ack(server: ServerProcess, queen: Queen, queue: str) -> None:
    at_work = asyncio.Event()

    async def works(client: Queen) -> None:
        async for _ in client.queue(queue).consume():
            at_work.set()
            await asyncio.Event().wait()

    await queen.queue(queue).push(1)
    async with Queen(server.url) as other:
        working = asyncio.create_task(works(other))
        await at_work.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
    assert [one.data for one in await queen.queue(queue).pop(wait_s=20)] == [1]


async def test_a_loop_renews_its_lease(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(lease_time=3).create()
    await queen.queue(queue).push([1, 2])
    attempts: list[int] = []
    async for message in queen.queue(queue).batch(2).idle(1).consume():
        attempts.append(message.attempt)
        # Together longer than the lease.
        await spend_async(2)
    assert attempts == [1, 1]


# ---- registered ----


async def test_registered_consumers_run_together(server: ServerProcess, queue: str) -> None:
    async with Queen(server.url) as queen:
        seen: list[str] = []

        @queen.queue(f"{queue}-a").limit(2).consumer
        async def one(message: Received) -> None:
            seen.append(message.data)

        @queen.queue(f"{queue}-b").limit(1).consumer
        def other(message: Received) -> None:
            seen.append(message.data)

        await queen.queue(f"{queue}-a").push(["a", "a"])
        await queen.queue(f"{queue}-b").push("b")
        await queen.run()
        assert sorted(seen) == ["a", "a", "b"]


async def test_one_registered_consumer_that_fails_stops_the_others(
    server: ServerProcess, queue: str
) -> None:
    async with Queen(server.url) as queen:
        queen.queue(queue).consumer(print)
        queen.queue(queue).group("g").subscription_from("not a time").consumer(print)
        with pytest.raises(BadRequest):
            await asyncio.wait_for(queen.run(), 10)


# ---- types ----


class Order(msgspec.Struct):
    total: int


@dataclasses.dataclass
class Line:
    name: str
    order: dict[str, int]


async def test_structs_and_dataclasses(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([Order(7), Line("a", {"b": 1})])
    one, two = await queen.queue(queue).pop(batch=2)
    assert one.data == {"total": 7}
    assert one.into(Order) == Order(7)
    assert two.into(Line) == Line("a", {"b": 1})


async def test_pydantic_models(queen: Queen, queue: str) -> None:
    pydantic = pytest.importorskip("pydantic")
    kind: Any = pydantic.create_model("Paid", amount=(int, ...))
    await queen.queue(queue).push(kind(amount=3))
    (one,) = await queen.queue(queue).into(kind).pop()
    assert one.data == kind(amount=3)
    assert one.into(dict[str, int]) == {"amount": 3}


async def test_a_payload_of_the_wrong_type_is_a_failure(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=0).create()
    await queen.queue(queue).push([{"total": "many"}, Order(1)])
    seen: list[Order] = []

    async def handler(message: Received) -> None:
        seen.append(message.data)

    await queen.queue(queue).into(Order).batch(2).each().idle(1).consume(handler)
    assert seen == [Order(1)]
    (letter,) = (await queen.queue(queue).dlq().get()).messages
    assert letter.data == {"total": "many"}
    assert "ValidationError" in str(letter.error_message)


# ---- servers that do not wait ----


@pytest.mark.parametrize("of", ["queue", "stream"])
async def test_a_server_that_answers_at_once_is_not_asked_without_a_pause(of: str) -> None:
    async def handler(_work: Any) -> None:
        raise AssertionError("there is nothing to handle")

    async with Fake(lambda _: answer("204 No Content", b"")).running() as fake:
        async with Queen(fake.url) as queen:
            if of == "queue":
                await queen.queue("q").idle(1).consume(handler)
            else:
                await queen.consumer("s", "g").idle(1).process(handler)
        # Ten in a second, and as many again for a clock that others use too.
        assert len(fake.requests) <= 20


async def test_a_task_can_be_made_of_it(queen: Queen, queue: str) -> None:
    """What everybody types first works, and so does everything else that wants a coroutine."""
    await queen.queue(queue).push([1, 2, 3])
    seen: list[int] = []

    async def handler(message: Received) -> None:
        seen.append(message.data)

    task = asyncio.create_task(queen.queue(queue).limit(1).consume(handler))
    done = await asyncio.wait_for(task, 30)
    assert done.handled == 1
    async with asyncio.TaskGroup() as group:
        group.create_task(queen.queue(queue).limit(1).consume(handler))
    await asyncio.gather(queen.queue(queue).limit(1).consume(handler))
    assert seen == [1, 2, 3]


async def test_a_task_of_it_is_cancelled_and_stopped(queen: Queen, queue: str) -> None:
    def handler(_: Received) -> None:
        raise AssertionError("nothing was pushed")

    task = asyncio.create_task(queen.queue(queue).consume(handler))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    consumer = queen.queue(queue).consume(handler)
    stopped = asyncio.create_task(consumer)
    await asyncio.sleep(0)
    consumer.stop()
    assert await asyncio.wait_for(stopped, 30) is consumer


async def test_one_that_is_never_started_says_nothing(queen: Queen, queue: str) -> None:
    consumer = queen.queue(queue).group("g").consume(print)
    assert repr(consumer) == (f"<Consumer {queue} group='g' open received=0 handled=0 failed=0>")
    consumer.close()


async def test_a_failure_is_logged_with_where_it_happened(
    queen: Queen, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback, and which message it was; what was in it stays out."""
    (pushed,) = await queen.queue(queue).partition("p7").push({"card": "4111-1111"})

    def charge(_: Received) -> None:
        raise RuntimeError("the bank is closed")

    await queen.queue(queue).partition("p7").limit(1).consume(charge)
    (record,) = [one for one in caplog.records if "a handler failed" in one.message]
    for part in (queue, "p7", "offset 0", pushed.transaction_id, "RuntimeError"):
        assert part in record.message
    # Not the text of the log, which Spark writes as JSON where it was loaded before.
    assert record.exc_info is not None
    trace = "".join(traceback.format_exception(*record.exc_info))
    assert "in charge" in trace
    assert "the bank is closed" in trace
    assert "4111" not in caplog.text + trace


# ---- one at a time, taken ahead ----


async def _fill(queen: Queen, queue: str, count: int) -> None:
    await queen.queue(queue).partition("p").push([{"n": n} for n in range(count)])


async def test_quick_messages_are_taken_ahead_and_handled_one_at_a_time(
    queen: Queen, queue: str
) -> None:
    await _fill(queen, queue, 300)
    seen: list[int] = []
    running = 0

    async def handle(message: Received) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append(message.data["n"])
        running -= 1

    consumer = queen.queue(queue).group("g").limit(300).consume(handle)
    await consumer
    assert seen == list(range(300))
    assert (consumer.received, consumer.handled, consumer.failed) == (300, 300, 0)
    # Far fewer leases than messages.
    assert consumer._ahead.size > 10


async def test_a_slow_handler_gets_no_more_than_it_can_do(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 6)
    epochs: list[int] = []

    async def handle(message: Received) -> None:
        epochs.append(message.epoch)
        await spend_async(0.3)

    await queen.queue(queue).group("g").limit(6).consume(handle)
    assert len(set(epochs)) == 6


async def test_a_message_that_fails_comes_again_before_those_taken_with_it(
    queen: Queen, queue: str
) -> None:
    await queen.queue(queue).config(retryLimit=5).create()
    await _fill(queen, queue, 200)
    seen: list[tuple[int, int]] = []
    fails = {20: 2, 60: 1, 61: 1}

    async def handle(message: Received) -> None:
        number = message.data["n"]
        seen.append((number, message.attempt))
        if fails.get(number, 0) >= message.attempt:
            raise ValueError("not yet")

    # Each failure is a delivery more.
    consumer = queen.queue(queue).group("g").limit(204).consume(handle)
    await consumer
    expected: list[tuple[int, int]] = []
    for number in range(200):
        expected += [(number, attempt) for attempt in range(1, fails.get(number, 0) + 2)]
    assert seen == expected
    assert (consumer.received, consumer.handled, consumer.failed) == (204, 200, 4)


async def test_what_a_handler_gives_back_itself_comes_again_first(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 50)
    seen: list[int] = []

    async def handle(message: Received) -> None:
        seen.append(message.data["n"])
        if message.data["n"] == 30 and seen.count(30) == 1:
            await message.give_back()

    await queen.queue(queue).group("g").limit(51).consume(handle)
    assert seen == [*range(31), *range(30, 50)]


async def test_a_loop_takes_ahead_and_gives_back_in_turn(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 120)
    seen: list[int] = []
    async for message in queen.queue(queue).group("g").limit(121).consume():
        seen.append(message.data["n"])
        if message.data["n"] == 90 and seen.count(90) == 1:
            await message.nack("not yet")
    assert seen == [*range(91), *range(90, 120)]


async def test_a_stop_gives_back_what_was_taken_ahead(queen: Queen, queue: str) -> None:
    await _fill(queen, queue, 400)
    seen: list[int] = []

    async def handle(message: Received) -> None:
        seen.append(message.data["n"])
        if len(seen) == 100:
            consumer.stop()

    consumer = queen.queue(queue).group("g").consume(handle)
    await consumer
    assert seen == list(range(100))
    (next_one,) = await queen.queue(queue).group("g").pop()
    assert (next_one.data["n"], next_one.attempt) == (100, 1)
