"""What became of a batch is said in the request for the next one, with nothing lost by that."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from queen import Queen, Received, SyncQueen
from queen.testing import expect
from tests.client.fake import Fake, answer
from tests.client.framed import NO_CONTENT, FrameBroker, run_of
from tests.client.gate import Gate
from tests.waiting import spend_async, until_met


def counting(queen: Queen, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return what is asked, by method and the beginning of the path."""
    asked: Counter[str] = Counter()
    call = queen.cluster.call

    async def note(method: str, path: str, *rest: Any, **more: Any) -> Any:
        asked[f"{method} {'/'.join(urlsplit(path).path.split('/')[3:5])}"] += 1
        return await call(method, path, *rest, **more)

    monkeypatch.setattr(queen.cluster, "call", note)
    return asked


async def test_a_message_that_is_waited_for_costs_one_request(
    queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.queue(queue).create()
    seen: list[Any] = []

    async def handle(message: Received) -> None:
        seen.append(message.data)

    consumer = queen.queue(queue).group("g").consume(handle, signals=False)
    asked = counting(queen, monkeypatch)
    consuming = asyncio.create_task(consumer.run())
    for number in range(20):
        await queen.queue(queue).push(number)
        await until_met(lambda: len(seen) == number + 1)  # noqa: B023
    # The last one is acked although nothing comes after it.
    await expect(queen, queue).to_be_empty(group="g")
    assert asked["POST pop/queue"] == 20 and asked["POST ack/spans"] == 0
    consumer.stop()
    await consuming
    assert (seen, consumer.handled) == (list(range(20)), 20)


async def test_a_backlog_in_batches(
    queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await queen.queue(queue).partition(f"p{number}").push(list(range(100)))
    seen: dict[str, list[int]] = {}
    asked = counting(queen, monkeypatch)

    async def handle(messages: list[Received]) -> None:
        for message in messages:
            seen.setdefault(message.partition, []).append(message.offset)

    wanted = queen.queue(queue).group("g").batch(10).concurrency(3).limit(300)
    await wanted.consume(handle, signals=False)
    assert seen == {f"p{number}": list(range(100)) for number in range(3)}
    assert asked["POST ack/spans"] <= 3 and asked["POST pop/queue"]
    await expect(queen, queue).to_be_empty(group="g")


async def test_what_failed_comes_again_before_what_follows(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retryDelay=0).create()
    await queen.queue(queue).push([1, 2, 3])
    seen: list[tuple[int, int]] = []

    async def handle(message: Received) -> None:
        seen.append((message.data, message.attempt))
        if message.attempt < message.data:
            raise ValueError

    await queen.queue(queue).group("g").limit(6).consume(handle, signals=False)
    assert seen == [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)]
    await expect(queen, queue).to_be_empty(group="g")


async def test_a_loop_says_it_with_the_next_pop(
    queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.queue(queue).push([1, 2])
    asked = counting(queen, monkeypatch)
    seen = []
    async for message in queen.queue(queue).group("g").idle(0.3).consume(signals=False):
        seen.append(message.data)
    assert seen == [1, 2]
    assert asked["POST pop/queue"] == 2 and asked["POST ack/spans"] == 0
    await expect(queen, queue).to_be_empty(group="g")


def test_the_sync_face_says_it_with_the_next_pop(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).push([1, 2, 3])
    seen: list[int] = []
    wanted = sync_queen.queue(queue).group("g").limit(3)
    wanted.consume(lambda message: seen.append(message.data))
    assert seen == [1, 2, 3]
    expect(sync_queen, queue).to_be_empty(group="g")


async def test_a_lease_that_was_lost_is_told(
    queen: Queen, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await queen.queue(queue).config(leaseTime=1).create()
    await queen.queue(queue).push("slow")
    seen: list[int] = []

    async def handle(message: Received) -> None:
        seen.append(message.attempt)
        if len(seen) == 1:
            await spend_async(1.5)

    wanted = queen.queue(queue).group("g").renew_lease(False).batch(1).limit(2)
    await wanted.consume(handle, signals=False)
    assert seen == [1, 2]
    assert "1 messages were no longer leased to us; they come again" in caplog.messages
    await expect(queen, queue).to_be_empty(group="g")


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "hung up"])
async def test_what_may_not_have_arrived_is_said_again(
    gate: Gate, queen: Queen, queue: str, *, is_silent: bool
) -> None:
    """The connection breaks when the message is handled: the ack goes with a later request."""
    await queen.queue(queue).push("first")
    await gate.turn("open")
    seen: list[tuple[str, int]] = []

    async def handle(message: Received) -> None:
        seen.append((message.data, message.attempt))
        if len(seen) == 1:
            await gate.turn("silent" if is_silent else "shut")

    async with Queen(gate.url, retry_s=30, timeout_s=0.5) as reader:
        consumer = reader.queue(queue).group("g").wait(0.5).limit(2).consume(handle, signals=False)
        consuming = asyncio.create_task(consumer.run())
        await until_met(lambda: reader.cluster._down_until)
        await gate.turn("open")
        await expect(queen, queue).to_be_empty(group="g")
        await queen.queue(queue).push("second")
        await consuming
    assert seen == [("first", 1), ("second", 1)]


async def test_a_stop_while_the_pop_waits_loses_no_ack(
    queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.queue(queue).push("only")
    asked = counting(queen, monkeypatch)
    consumer = queen.queue(queue).group("g").consume(_nothing, signals=False)
    consuming = asyncio.create_task(consumer.run())
    await until_met(lambda: asked["POST pop/queue"])
    consumer.stop()
    await consuming
    # Said again only where nobody knows whether it was heard.
    assert asked["POST ack/spans"] <= 1
    await expect(queen, queue).to_be_empty(group="g")


async def _nothing(_message: Received) -> None:
    pass


# ---- servers as they may be ----


async def run_against(broker: Callable[[bytes], bytes], limit: int, **settings: Any) -> list[int]:
    seen: list[int] = []

    async def handle(message: Received) -> None:
        seen.append(message.data)

    async with Fake(broker).running() as fake, Queen(fake.url, **settings) as queen:
        await queen.queue("q").group("g").limit(limit).consume(handle, signals=False)
    return seen


async def test_a_server_that_does_not_say_so_gets_acks_by_themselves() -> None:
    broker = FrameBroker(run_of(7, 0, 1), run_of(7, 1, 1))
    assert await run_against(broker, 2) == [0, 1]
    assert {head.split(b" ")[0] for head in broker.asked} == {b"GET"}
    assert [[span["done"] for span in said] for said in broker.spans] == [[[[0, 1]]], [[[1, 2]]]]


async def test_a_server_that_says_so_gets_them_with_pops() -> None:
    broker = FrameBroker(*(run_of(7, at, 1, takes_acks=True) for at in range(3)))
    assert await run_against(broker, 3) == [0, 1, 2]
    assert [head.split(b" ")[0] for head in broker.asked] == [b"GET", b"POST", b"POST"]
    # The last ones by themselves: nothing is asked for after them.
    assert [[span["done"] for span in said] for said in broker.spans] == [
        [[[at, at + 1]]] for at in range(3)
    ]


@pytest.mark.parametrize(
    "refusal",
    [
        answer("404 Not Found", b'{"error":"no such route","code":"not_found"}'),
        answer("405 Method Not Allowed", b'{"error":"GET","code":"method_not_allowed"}'),
        answer("400 Bad Request", b'{"error":"what?","code":"bad_request"}'),
    ],
    ids=["404", "405", "400"],
)
async def test_a_server_that_took_the_place_of_one_that_knew_gets_acks_by_themselves(
    refusal: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    later = [run_of(7, 0, 1, takes_acks=True), refusal, run_of(7, 1, 1)]
    broker = FrameBroker(*later)
    assert await run_against(broker, 2) == [0, 1]
    done = [span["done"] for said in broker.spans for span in said]
    # Said with the pop that was refused, and then by itself.
    assert done == [[[0, 1]], [[0, 1]], [[1, 2]]]


async def test_a_server_that_is_away_gets_them_later(caplog: pytest.LogCaptureFixture) -> None:
    away = answer("503 Service Unavailable", b'{"error":"away","code":"unavailable"}')
    broker = FrameBroker(run_of(7, 0, 1, takes_acks=True), away, away, NO_CONTENT, run_of(7, 1, 1))
    assert await run_against(broker, 2, retry_s=10) == [0, 1]
    done = [span["done"] for said in broker.spans for span in said]
    assert done == [*[[[0, 1]]] * 3, [[1, 2]]]


async def test_a_refused_ack_is_told_and_the_pop_is_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spans = [{"success": False, "error": "Invalid or expired lease", "lost": 1}]
    said = {"error": "refused", "code": "lease_lost", "retryable": False, "spans": spans}
    refused = answer("409 Conflict", msgspec.json.encode(said))
    broker = FrameBroker(run_of(7, 0, 1, takes_acks=True), refused, run_of(7, 0, 1))
    assert await run_against(broker, 2) == [0, 0]
    assert "1 messages were no longer leased to us; they come again" in caplog.messages
    assert [head.split(b" ")[0] for head in broker.asked] == [b"GET", b"POST", b"GET"]
