"""Client-side buffering: nothing is lost, and order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from queen import Message, Queen
from queen.client.queues import buffers
from queen.errors import BadRequest, PayloadTooLarge, Unauthenticated
from tests.api import Api
from tests.client.fake import Fake, answer
from tests.conftest import ServerProcess
from tests.waiting import spend_async

HEALTH = answer("200 OK", b'{"server":"Queen"}')
STORED = answer("201 Created", b"[{}]")


async def test_push_returns_at_once_and_time_sends_it(queen: Queen, queue: str) -> None:
    (pushed,) = await queen.queue(queue).buffer(1000, 50).push("x")
    assert pushed.status == "buffered"
    (received,) = await queen.queue(queue).pop(wait_s=10)
    assert (received.data, received.transaction_id) == ("x", pushed.transaction_id)


async def test_number_sends_it(queen: Queen, queue: str) -> None:
    builder = queen.queue(queue).buffer(3, 3_600_000)
    await builder.push(1)
    await builder.push([2, 3])
    received = await queen.queue(queue).pop(wait_s=10, batch=10)
    assert [one.data for one in received] == [1, 2, 3]


async def test_flush_and_order(queen: Queen, queue: str, api: Api) -> None:
    builder = queen.queue(queue).buffer(500, 10)
    for n in range(5000):
        await builder.partition(f"p{n % 2}").push(n)
    await queen.flush()
    assert len(queen.buffers) == 0
    for odd in (0, 1):
        data = api.data(queue, partition=f"p{odd}", batch=5000)
        assert data == list(range(odd, 5000, 2))


async def test_close_flushes(server: ServerProcess, queue: str, api: Api) -> None:
    async with Queen(server.url) as queen:
        await queen.queue(queue).buffer(1000, 3_600_000).push([1, 2])
    assert api.data(queue, batch=9) == [1, 2]


async def test_what_does_not_fit_a_frame_overtakes_nothing(
    queen: Queen, queue: str, api: Api
) -> None:
    builder = queen.queue(queue).buffer(1000, 3_600_000)
    await builder.push(1)
    trace = "0f8fad5b-d9cb-469f-a165-70867728950e"
    (traced,) = await builder.push(Message(2, trace_id=trace))
    assert traced.status == "queued"
    assert api.data(queue, batch=9) == [1, 2]


@pytest.mark.slow
async def test_nothing_is_lost_while_the_server_is_away(
    start_server: Callable[..., ServerProcess], dsn: str, queue: str, api: Api
) -> None:
    first = start_server("--database-url", dsn)
    async with Queen(first.url, retry_s=0.5) as queen:
        builder = queen.queue(queue).buffer(100, 5)
        for n in range(3000):
            await builder.push(n)
            if n == 1000:
                await asyncio.to_thread(first.kill)
            if n % 100 == 0:
                await spend_async(0.01)
        assert len(queen.buffers) > 0
        await asyncio.to_thread(start_server, "--database-url", dsn, port=first.port)
        await asyncio.wait_for(queen.flush(), 30)
    assert api.data(queue, batch=5000) == list(range(3000))


async def test_an_error_that_stays_hands_the_messages_over(
    queen: Queen, queue: str, api: Api
) -> None:
    await queen.queue(queue).buffer(1000, 3_600_000).push("good")
    too_long = "x" * 2000
    await queen.queue(queue).partition(too_long).buffer(1000, 3_600_000).push(["a", "b"])
    with pytest.raises(BadRequest) as caught:
        await queen.flush()
    unsent = caught.value.details["unsent"]
    assert [(one["partition"], one["payload"]) for one in unsent] == [
        (too_long, b'"a"'),
        (too_long, b'"b"'),
    ]
    assert api.data(queue, batch=9) == ["good"]
    await queen.flush()
    assert len(queen.buffers) == 0


async def test_errors_add_up_and_do_not_hide_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_REQUEST_MESSAGES", 1)
    bad = answer("400 Bad", b'{"error":"bad","code":"bad_request"}')
    fake = Fake([HEALTH, bad, STORED, bad])
    async with fake.running(), Queen(fake.url) as queen:
        await queen.queue("q").buffer(1000, 3_600_000).push([1, 2, 3])
        with pytest.raises(BadRequest) as caught:
            await queen.close()
    assert [one["payload"] for one in caught.value.details["unsent"]] == [b"1", b"3"]
    assert len(fake.requests) == 4


async def test_a_retryable_refusal_is_sent_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_PAUSE_S", 0.01)
    down = answer("503 Down", b"{}")
    fake = Fake([HEALTH, down, down, STORED])
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        await queen.queue("q").buffer(1000, 3_600_000).push([1, 2, 3])
        await queen.flush()
    bodies = {text.partition(b"\r\n\r\n")[2] for text in fake.requests[1:]}
    assert len(fake.requests) == 4 and len(bodies) == 1


async def test_push_waits_when_too_much_is_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_MAX_WAITING", 10)
    fake = Fake([None])
    async with fake.running():
        queen = Queen(fake.url, timeout_s=60)
        builder = queen.queue("q").buffer(5, 3_600_000)
        await builder.push(list(range(10)))
        pushing = asyncio.create_task(builder.push("one more"))
        done, _ = await asyncio.wait((pushing,), timeout=0.3)
        assert not done
        pushing.cancel()
        closing = asyncio.create_task(queen.close())
        assert await asyncio.wait((closing,), timeout=0.3) == (set(), {closing})
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert len(queen.buffers) == 10


async def test_much_is_parted_by_its_size(queen: Queen, queue: str) -> None:
    builder = queen.queue(queue).buffer(100_000, 3_600_000)
    for n in range(100):
        await builder.push(str(n) + "x" * 1_500_000)
    await queen.flush()
    assert len(queen.buffers) == 0


async def test_one_message_that_is_too_large(queen: Queen, queue: str, api: Api) -> None:
    builder = queen.queue(queue).buffer(100_000, 3_600_000)
    await builder.push([1, "x" * 70_000_000, 2])
    with pytest.raises(PayloadTooLarge) as caught:
        await queen.flush()
    assert [len(one["payload"]) for one in caught.value.details["unsent"]] == [70_000_002]
    assert api.data(queue, batch=9) == [1, 2]


async def test_what_is_no_json_does_not_reach_the_buffer(queen: Queen, queue: str) -> None:
    with pytest.raises(TypeError):
        await queen.queue(queue).buffer().push([1, object()])
    assert len(queen.buffers) == 0


async def test_a_refused_token_hands_everything_over_at_once() -> None:
    refusal = answer("401 No", b'{"error":"no"}')
    fake = Fake([HEALTH, refusal])
    async with fake.running(), Queen(fake.url) as queen:
        await queen.queue("q").buffer(1000, 3_600_000).push([1, 2, 3])
        with pytest.raises(Unauthenticated) as caught:
            await queen.flush()
    assert len(caught.value.details["unsent"]) == 3
    assert len(fake.requests) == 2


async def test_a_bound_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_MAX_WAITING_BYTES", 100)
    fake = Fake([HEALTH, None])
    async with fake.running():
        queen = Queen(fake.url, timeout_s=60)
        builder = queen.queue("q").buffer(1000, 3_600_000)
        await builder.push("x" * 100)
        pushing = asyncio.create_task(builder.push("one more"))
        done, _ = await asyncio.wait((pushing,), timeout=0.3)
        assert not done
        pushing.cancel()
        closing = asyncio.create_task(queen.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing


async def test_a_full_buffer_is_sent_though_nobody_asked_for_it(
    queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "_MAX_WAITING", 10)
    builder = queen.queue(queue).buffer(1000, 3_600_000)
    await builder.push(list(range(10)))
    await asyncio.wait_for(builder.push(10), 30)


async def test_the_shortest_wait_counts(queen: Queen, queue: str) -> None:
    await queen.queue(f"{queue}-slow").buffer(1000, 3_600_000).push(1)
    await queen.queue(queue).buffer(1000, 20).push(2)
    (received,) = await queen.queue(queue).pop(wait_s=20)
    assert received.data == 2


async def test_a_message_by_itself_waits_for_its_own_partition_only(
    queen: Queen, queue: str
) -> None:
    full = queen.queue(f"{queue}-full").config(max_size=1)
    await full.create()
    await full.push("old")
    await full.buffer(1, 3_600_000).push("new")
    trace = "0f8fad5b-d9cb-469f-a165-70867728950e"
    pushing = queen.queue(queue).buffer().push(Message(1, trace_id=trace))
    (pushed,) = await asyncio.wait_for(pushing, 30)
    assert pushed.status == "queued"
    await full.pop(auto_ack=True)
