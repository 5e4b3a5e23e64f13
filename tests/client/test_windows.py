"""Consumers of streams: windows are handled, settled, kept and lost."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from collections import Counter
from typing import Any

import msgspec
import pytest

from queen import Message, Queen, Window
from queen.client.streams.builder import Stream
from queen.errors import BadRequest, LeaseLost, NotFound
from tests.client.fake import CLOSE, Fake, answer
from tests.conftest import ServerProcess
from tests.waiting import spend, spend_async, until, until_async

# Renewed at half of its time, so that a machine may pause for a second; and longer than that.
LEASE_S, LONGER_S = 2, 2.5


async def counted(queen: Queen, queue: str, size: int = 2) -> Stream:
    """A stream whose windows close by themselves once they are full, whatever the clock says."""
    stream = queen.stream(queue).sources(queue).count(size).grace_period(0)
    stream = stream.retry_delay(0.05).lease_timeout(30)
    await stream.define()
    return stream


def values(window: Window) -> list[Any]:
    return [one.data for one in window.all_messages]


async def test_windows_are_handled_in_order_and_done(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2, 3, 4, 5])
    seen: list[list[int]] = []

    async def handler(window: Window) -> None:
        assert (window.key, window.count, window.lost) == ("__GLOBAL__", 2, 0)
        assert window.stream_name == queue
        assert window.consumer_group == "g"
        assert window.start <= window.all_messages[0].created_at < window.end
        seen.append(values(window))

    done = await queen.consumer(queue, "g").limit(2).process(handler)
    assert seen == [[1, 2], [3, 4]]
    assert (done.received, done.handled, done.failed, done.lost) == (2, 2, 0, 0)
    assert await queen.consumer(queue, "g").poll_window(0) is None
    (group,) = await queen.stream(queue).consumers()
    assert group["totalWindowsConsumed"] == 2


async def test_a_sync_handler_runs_in_a_thread(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2])
    threads: list[bool] = []

    def handler(_window: Window) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    await queen.consumer(queue, "g").limit(1).process(handler)
    assert threads == [False]


async def test_a_failure_is_retried_and_in_the_end_a_dead_window(queen: Queen, queue: str) -> None:
    stream = await counted(queen, queue)
    await stream.retry_limit(1).define()
    await queen.queue(queue).push([1, 2])
    attempts: list[int] = []
    told: list[str] = []

    async def handler(window: Window) -> None:
        attempts.append(window.attempt)
        raise ValueError("no such user")

    consumer = queen.consumer(queue, "g").on_error(lambda window, error: told.append(str(error)))
    done = await consumer.limit(2).process(handler)
    assert (attempts, done.failed, done.handled) == ([1, 2], 2, 0)
    assert told == ["no such user"] * 2
    (dead,) = await stream.dead("g")
    assert (dead["error"], dead["attempts"]) == ("ValueError: no such user", 2)
    assert await queen.consumer(queue, "g").poll_window(0) is None
    assert await stream.retry_dead("g", dead["id"]) == 1
    again = await queen.consumer(queue, "g").poll_window(20)
    assert again is not None
    assert (again.id, values(again)) == (dead["id"], [1, 2])
    await again.ack()
    assert await stream.dead("g") == []


async def test_what_a_handler_says_itself_has_the_last_word(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2, 3, 4])

    async def handler(window: Window) -> None:
        if values(window) == [1, 2]:
            await window.ack()
            raise ValueError("after the fact")
        if window.attempt == 1:
            await window.nack("not yet")

    done = await queen.consumer(queue, "g").limit(3).process(handler)
    assert (done.handled, done.failed) == (2, 1)
    assert await queen.consumer(queue, "g").poll_window(0.2) is None


async def test_pushes_are_stored_with_the_ack_and_only_then(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2])
    out = f"{queue}-out"

    async def handler(window: Window) -> None:
        total = window.aggregate(sum="data")["sum"]["data"]
        window.push(out, {"total": total}, partition="p", trace_id=None)
        window.push(out, [Message("a", transaction_id=f"{queue}-a"), "b"])
        if window.attempt == 1:
            raise ValueError("after the pushes")

    await queen.consumer(queue, "g").limit(2).process(handler)
    stored = [(one.partition, one.data) async for one in queen.queue(out).replay()]
    assert sorted(stored, key=str) == [("Default", "a"), ("Default", "b"), ("p", {"total": 3})]


async def test_an_ack_says_what_became_of_its_pushes(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2])
    window = await queen.consumer(queue, "g").poll_window(20)
    assert window is not None
    window.push(f"{queue}-out", "x", transaction_id="x")
    (pushed,) = await window.ack()
    assert (pushed.status, pushed.transaction_id) == ("queued", "x")
    # The same ack again is answered, and does nothing.
    assert await window.ack() == []
    assert len([one async for one in queen.queue(f"{queue}-out").replay()]) == 1
    with pytest.raises(BadRequest):
        window.push(f"{queue}-out", "x", partition="x" * 2000)
        await window.ack()


async def test_four_consumers_share_the_windows(queen: Queen, queue: str) -> None:
    stream = (await counted(queen, queue, 5)).partitioned()
    await stream.define(recut=True)
    for number in range(8):
        await queen.queue(queue).partition(f"p{number}").push(list(range(20)))
    seen: Counter[tuple[str, int]] = Counter()
    workers: set[int] = set()
    all_at_work = asyncio.Event()

    async def run(worker: int) -> None:
        async def handler(window: Window) -> None:
            workers.add(worker)
            if len(workers) == 4:
                all_at_work.set()
            await all_at_work.wait()
            seen.update((window.key, value) for value in values(window))
            if sum(seen.values()) == 160:
                for one in consumers:
                    one.stop()

        await consumers[worker].process(handler, signals=False)

    consumers = [queen.consumer(queue, "g").named(f"w{number}") for number in range(4)]
    await asyncio.gather(*map(run, range(4)))
    assert seen == Counter((f"p{p}", n) for p in range(8) for n in range(20))
    assert workers == {0, 1, 2, 3}


async def test_no_more_handlers_run_at_once_than_were_asked_for(queen: Queen, queue: str) -> None:
    stream = (await counted(queen, queue)).max_in_flight(10)
    await stream.define()
    await queen.queue(queue).push(list(range(20)))
    running = most = 0
    all_run = asyncio.Event()

    async def handler(_window: Window) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            all_run.set()
        await all_run.wait()
        await asyncio.sleep(0)
        running -= 1

    done = await queen.consumer(queue, "g").concurrency(3).limit(10).process(handler)
    assert (most, done.handled) == (3, 10)


async def test_a_lease_is_renewed_while_a_handler_works(queen: Queen, queue: str) -> None:
    await (await counted(queen, queue)).lease_timeout(LEASE_S).define()
    await queen.queue(queue).push([1, 2])
    attempts: list[int] = []

    def handler(window: Window) -> None:
        attempts.append(window.attempt)
        spend(LONGER_S)
        assert not window.is_lost

    done = await queen.consumer(queue, "g").concurrency(2).idle(1).process(handler)
    assert (attempts, done.handled, done.lost) == ([1], 1, 0)


async def test_without_renewal_it_is_delivered_again(queen: Queen, queue: str) -> None:
    await (await counted(queen, queue)).lease_timeout(0.5).define()
    await queen.queue(queue).push([1, 2])
    attempts: list[int] = []
    again = asyncio.Event()

    async def handler(window: Window) -> None:
        attempts.append(window.attempt)
        if window.attempt > 1:
            again.set()
        await again.wait()

    consumer = queen.consumer(queue, "g").renew_lease(False).concurrency(2).limit(2)
    assert (await consumer.process(handler)).lost == 1
    assert attempts == [1, 2]


async def test_a_handler_whose_lease_is_lost_is_cancelled(queen: Queen, queue: str) -> None:
    stream = (await counted(queen, queue)).lease_timeout(0.6)
    await stream.define()
    await queen.queue(queue).push([1, 2])
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(window: Window) -> None:
        if window.attempt > 1 or cancelled.is_set():
            return
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert window.is_lost
            cancelled.set()
            raise

    running = asyncio.ensure_future(queen.consumer(queue, "g").limit(2).process(handler))
    await entered.wait()
    # An operator moves the group: its leases end.
    await stream.seek("g", "beginning")
    await asyncio.wait_for(cancelled.wait(), 10)
    done = await running
    assert (done.lost, done.handled, done.failed) == (1, 1, 0)


async def test_a_thread_whose_lease_is_lost_can_see_it(queen: Queen, queue: str) -> None:
    stream = (await counted(queen, queue)).lease_timeout(0.6)
    await stream.define()
    await queen.queue(queue).push([1, 2])
    entered = threading.Event()
    seen: list[bool] = []

    def handler(window: Window) -> None:
        if entered.is_set():
            return
        entered.set()
        until(lambda: window.is_lost)
        seen.append(window.is_lost)

    running = asyncio.ensure_future(queen.consumer(queue, "g").limit(2).process(handler))
    await asyncio.to_thread(entered.wait, 10)
    await stream.seek("g", "beginning")
    done = await running
    assert (seen, done.lost) == ([True], 1)


async def test_a_cancelled_consumer_gives_its_window_back(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2])
    entered = asyncio.Event()

    async def handler(_window: Window) -> None:
        entered.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(queen.consumer(queue, "g").process(handler, signals=False))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = await queen.consumer(queue, "g").poll_window(20)
    assert again is not None
    assert again.attempt == 1


async def test_a_stop_ends_a_poll_and_leaves_nothing_leased(queen: Queen, queue: str) -> None:
    stream = await counted(queen, queue)
    consumer = queen.consumer(queue, "g").concurrency(3)
    running = asyncio.ensure_future(consumer.limit(100).process(print, signals=False))
    await _until_group(stream, "g")
    began = time.monotonic()
    consumer.stop()
    assert (await running).received == 0
    assert time.monotonic() - began < 10
    await queen.queue(queue).push([1, 2])
    window = await queen.consumer(queue, "g").poll_window(20)
    assert window is not None
    assert window.attempt == 1


async def _until_group(stream: Stream, group: str) -> None:
    async def is_there() -> bool:
        return group in [one["consumerGroup"] for one in await stream.consumers()]

    await until_async(is_there)


async def test_a_stop_finishes_the_window_at_hand(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push(list(range(10)))
    consumer = queen.consumer(queue, "g")
    seen: list[list[int]] = []

    async def handler(window: Window) -> None:
        consumer.stop()
        await spend_async(0.05)
        seen.append(values(window))

    assert (await consumer.process(handler, signals=False)).handled == 1
    following = await queen.consumer(queue, "g").poll_window(20)
    assert following is not None
    assert (seen, values(following), following.attempt) == ([[0, 1]], [2, 3], 1)


async def test_a_loop_acks_the_last_window_when_it_asks_for_the_next(
    queen: Queen, queue: str
) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2, 3, 4])
    assert [values(window) async for window in queen.consumer(queue, "g").idle(1)] == [
        [1, 2],
        [3, 4],
    ]
    assert await queen.consumer(queue, "g").poll_window(0) is None


async def test_a_loop_that_is_left_gives_the_window_back_as_failed(
    queen: Queen, queue: str
) -> None:
    stream = await counted(queen, queue)
    await queen.queue(queue).push([1, 2])
    async for _ in queen.consumer(queue, "g"):
        break
    gc.collect()
    again = await queen.consumer(queue, "g").poll_window(20)
    assert again is not None
    assert again.attempt == 2
    (row,) = await stream.windows("g", state="leased")
    assert row["error"] == "the loop was left before it was done"
    await again.ack()


async def test_a_loop_keeps_the_lease_of_its_window(queen: Queen, queue: str) -> None:
    await (await counted(queen, queue)).lease_timeout(LEASE_S).define()
    await queen.queue(queue).push([1, 2])
    async for window in queen.consumer(queue, "g").limit(1):
        await spend_async(LONGER_S)
        assert not window.is_lost
    assert await queen.consumer(queue, "g").poll_window(0.2) is None


async def test_a_polled_window_is_settled_by_hand(queen: Queen, queue: str) -> None:
    await (await counted(queen, queue)).lease_timeout(LEASE_S).define()
    await queen.queue(queue).push([1, 2])
    consumer = queen.consumer(queue, "g")
    window = await consumer.poll_window(20)
    assert window is not None
    async with window.kept_alive():
        await spend_async(LONGER_S)
        assert await consumer.poll_window(0) is None
    until = await window.renew(60_000)
    assert (until - window.end).total_seconds() > 50
    await window.give_back()
    again = await consumer.poll_window(20)
    assert again is not None
    assert (again.attempt, again.id) == (1, window.id)
    with pytest.raises(LeaseLost):
        await window.renew()
    with pytest.raises(LeaseLost):
        await window.ack()
    await again.ack()


async def test_a_poll_waits_longer_than_other_requests_may(
    server: ServerProcess, queen: Queen, queue: str
) -> None:
    await counted(queen, queue)
    async with Queen(server.url, timeout_s=1, retry_s=0) as impatient:
        assert await impatient.consumer(queue, "g").poll_window(1.5) is None


async def test_a_stream_that_is_not_there(queen: Queen, queue: str) -> None:
    with pytest.raises(NotFound):
        await queen.consumer(queue, "g").process(print)
    with pytest.raises(NotFound):
        await queen.consumer(queue, "g").seek("now")
    assert await queen.stream(queue).delete() is False


async def test_a_new_group_begins_where_it_is_told(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2])
    assert await queen.consumer(queue, "late").subscription_mode("new").poll_window(0) is None
    first = await queen.consumer(queue, "all").poll_window(20)
    assert first is not None
    assert values(first) == [1, 2]
    await queen.queue(queue).push([3, 4])
    window = await queen.consumer(queue, "late").poll_window(20)
    assert window is not None
    assert values(window) == [3, 4]
    await queen.consumer(queue, "late").seek("beginning")
    window = await queen.consumer(queue, "late").poll_window(20)
    assert window is not None
    assert values(window) == [1, 2]


class Order(msgspec.Struct):
    total: int


async def test_payloads_are_decoded_to_a_type(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([{"total": 1}, {"total": 2}])
    window = await queen.consumer(queue, "g").into(Order).poll_window(20)
    assert window is not None
    assert values(window) == [Order(1), Order(2)]
    assert window.aggregate(sum="data.total")["sum"]["data.total"] == 3


async def test_registered_handlers_are_run_together(queen: Queen, queue: str) -> None:
    await counted(queen, queue)
    await queen.queue(queue).push([1, 2])
    seen: list[Any] = []

    @queen.consumer(queue, "g").limit(1).handler
    async def handle(window: Window) -> None:
        seen.extend(values(window))

    @queen.queue(queue).group("h").limit(2).consumer
    async def handle_one(message: Any) -> None:
        seen.append(message.data)

    await queen.run()
    assert sorted(seen) == [1, 1, 2, 2]


# ---- large windows ----


async def test_a_large_window_is_the_same_as_a_small_one(queen: Queen, queue: str) -> None:
    stream = queen.stream(queue).sources(queue, f"{queue}-b").count(600).grace_period(0)
    await stream.define()
    await queen.queue(f"{queue}-b").config(encryption_enabled=True).create()
    for number in range(3):
        payloads: list[Any] = [{"n": n, "text": "x" * 50} for n in range(99)]
        payloads.append(Message({"n": 99}, trace_id=str(uuid.uuid4())))
        await queen.queue(queue).partition(f"p{number}").push(payloads)
        await queen.queue(f"{queue}-b").partition(f"p{number}").push(payloads)
    small = await queen.consumer(queue, "small").poll_window(10)
    large = await queen.consumer(queue, "large").max_inline_bytes(0).poll_window(10)
    assert small is not None
    assert large is not None
    assert small.count == large.count == 600
    assert [_fields(one) for one in large.all_messages] == [
        _fields(one) for one in small.all_messages
    ]


def _fields(one: Any) -> list[Any]:
    names = ("id", "transaction_id", "trace_id", "created_at", "queue", "partition", "offset")
    return [*(one[name] for name in names), one.data]


async def test_a_large_window_of_lone_messages_is_the_same_as_a_small_one(
    queen: Queen, queue: str
) -> None:
    await counted(queen, queue, 50)
    for number in range(60):
        message = Message({"n": number}, trace_id=str(uuid.uuid4()) if number % 7 == 0 else None)
        await queen.queue(queue).partition(f"p{number % 2}").push(message)
    small = await queen.consumer(queue, "small").poll_window(10)
    large = await queen.consumer(queue, "large").max_inline_bytes(0).poll_window(10)
    assert small is not None
    assert large is not None
    assert [_fields(one) for one in large.all_messages] == [
        _fields(one) for one in small.all_messages
    ]
    stored = {one.transaction_id: one async for one in queen.queue(queue).replay()}
    for one in small.all_messages:
        replayed = stored[one.transaction_id]
        assert (replayed.created_at, replayed.offset) == (one.created_at, one.offset)
        assert (replayed.partition, replayed.trace_id) == (one.partition, one.trace_id)
        assert replayed.data == one.data


async def test_a_large_window_can_be_streamed(queen: Queen, queue: str) -> None:
    await counted(queen, queue, 500)
    for _ in range(3):
        await queen.queue(queue).push([{"n": n} for n in range(400)])
    seen: list[list[int]] = []

    async def handler(window: Window) -> None:
        assert not window.is_loaded
        seen.append([one.data["n"] async for one in window.stream()])

    await queen.consumer(queue, "g").max_inline_bytes(0).large().limit(2).process(handler)
    everything = [n for _ in range(3) for n in range(400)]
    assert seen == [everything[:500], everything[500:1000]]


# ---- a network that is not there ----

LEASED = {
    "id": "s:__GLOBAL__:0:1",
    "leaseId": "lease",
    "key": "__GLOBAL__",
    "start": "2026-03-01T12:00:00Z",
    "end": "2026-03-01T12:01:00Z",
    "leaseTimeoutMs": 400,
    "messages": [{"id": "m", "created_at": "2026-03-01T12:00:01Z", "data": 1}],
}
POLLED = answer("200 OK", msgspec.json.encode({"window": LEASED}))
ACKED = answer("200 OK", b'{"success":true,"acked":true,"pushed":[]}')


async def test_a_lease_that_cannot_be_renewed_in_time_is_lost_by_our_own_clock() -> None:
    async with Fake([POLLED, *[CLOSE] * 100]).running() as fake, Queen(fake.url) as queen:
        cancelled = asyncio.Event()

        async def handler(_window: Window) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        began = time.monotonic()
        done = await queen.consumer("s", "g").limit(1).process(handler, signals=False)
        assert cancelled.is_set()
        assert done.lost == 1
        assert time.monotonic() - began < 10
        assert not [one for one in fake.requests if b"stream/ack" in one]


async def test_an_ack_is_repeated_word_for_word() -> None:
    async with Fake([POLLED, CLOSE, ACKED]).running() as fake, Queen(fake.url) as queen:

        async def handler(window: Window) -> None:
            window.push("out", {"n": 1})

        done = await queen.consumer("s", "g").limit(1).process(handler, signals=False)
        assert done.handled == 1
        first, second = (one for one in fake.requests if b"stream/ack" in one)
        assert first == second
        assert b'"payload":{"n":1}' in first
