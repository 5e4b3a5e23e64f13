"""Messages are acknowledged, given back, set aside; leases are renewed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.originals.environments import READERS_OF_ACKS
from tests.originals.scene import Scene, only
from tests.waiting import spend_async

_POLL_MS = 300
# A message that was given back comes again at once; the original knows no other way.
_AT_ONCE = {"retry_delay": 0}


async def what_is_given_back_comes_again(scene: Scene) -> None:
    await scene.queue().config(_AT_ONCE).create()
    await scene.queue().push({"n": 1})
    (message,) = await scene.queue().wait(False).pop()
    answer = await scene.queen.ack(message, False, {"error": "no ink"})
    assert answer["success"] is True, answer
    (message,) = await scene.queue().wait(False).pop()
    assert message["retryCount"] == 1, "the original always says 0"
    assert (await scene.queen.ack(message))["success"]
    assert await scene.drain() == []


async def what_is_given_back_waits_for_its_delay(scene: Scene) -> None:
    await scene.queue().config({"retry_delay": 2000}).create()
    await scene.queue().push({"n": 1})
    (message,) = await scene.queue().wait(False).pop()
    started = time.monotonic()
    assert (await scene.queen.ack(message, False))["success"]
    assert await scene.queue().wait(False).pop() == []
    assert len(await scene.queue().timeout_millis(15_000).pop()) == 1
    assert time.monotonic() - started > 1.9


async def each_message_of_a_batch_has_its_own_verdict(scene: Scene) -> None:
    await scene.queue().config(_AT_ONCE).create()
    await scene.queue().push([{"n": n} for n in range(4)])
    messages = await scene.queue().batch(4).wait(False).pop()
    messages[1]["_status"] = False
    messages[1]["_error"] = "no ink"
    answer = await scene.queen.ack(messages)
    assert answer["success"] is True, answer
    # Only the failed one comes again; the original would skip it, or repeat the others.
    assert await scene.drain() == [{"n": 1}]


async def an_ack_of_a_lost_lease_is_refused_at_once(scene: Scene) -> None:
    await scene.queue().config(_AT_ONCE).create()
    await scene.queue().push({"n": 1})
    (stale,) = await scene.queue().wait(False).pop()
    await scene.queen.ack(stale, "retry")
    (current,) = await scene.queue().wait(False).pop()
    started = time.monotonic()
    answer = await scene.queen.ack(stale)
    assert answer["success"] is False, answer
    assert "lease" in answer["error"], answer
    assert time.monotonic() - started < 2.5, "the refusal was tried again"
    assert (await scene.queen.ack(current))["success"]


@only(*READERS_OF_ACKS)
async def acks_are_told_as_they_were_taken(scene: Scene) -> None:
    await scene.queue().config(_AT_ONCE).create()
    await scene.queue().push([{"n": n} for n in range(4)])
    stale = await scene.queue().batch(4).wait(False).pop()
    assert (await scene.queen.ack(stale, "retry"))["success"] is True
    current = await scene.queue().batch(3).wait(False).pop()
    for refused in (stale[0], stale[:1], stale, [*current[:1], stale[1]]):
        answer = await scene.queen.ack(refused)
        assert answer["success"] is False, (refused, answer)
        assert "lease" in answer["error"], answer
    # The good one of the mixed batch was taken; of that no failure can be told any more.
    answer = await scene.queen.ack(current[:1], False)
    assert answer["success"] is False and "already completed" in answer["error"], answer
    assert (await scene.queen.ack(current[1:]))["success"] is True
    (last,) = await scene.queue().batch(3).wait(False).pop()
    assert last["data"] == {"n": 3}
    assert (await scene.queen.ack(last))["success"] is True


async def a_handler_that_raises_is_retried_then_set_aside(scene: Scene) -> None:
    await scene.queue().config({**_AT_ONCE, "retry_limit": 2}).create()
    await scene.queue().push([{"data": {"n": 1}, "transactionId": "bad"}, {"data": {"n": 2}}])
    tried: list[int] = []
    done = asyncio.Event()

    async def handle(message: Any) -> None:
        tried.append(message["data"]["n"])
        if message["data"]["n"] == 1:
            raise ValueError("no ink")
        done.set()

    call = scene.queue().group("print").batch(1).timeout_millis(_POLL_MS)
    await call.consume(handle, signal=done)
    # Twice again after the first time, then out of the way.
    assert tried == [1, 1, 1, 2], tried
    letters = await scene.queue().dlq("print").get()
    assert letters["total"] == 1, letters
    (letter,) = letters["messages"]
    assert letter["transactionId"] == "bad"
    assert letter["data"] == {"n": 1}
    assert letter["consumerGroup"] == "print"
    assert letter["retryCount"] == 3, letter
    # 0.15.0 does not send what the handler raised.
    said = "no ink" if scene.version == "2.6.0" else "Message processing failed"
    assert letter["errorMessage"] == said, letter


async def a_batch_that_fails_twice_comes_whole_the_third_time(scene: Scene) -> None:
    await scene.queue().config({**_AT_ONCE, "retry_limit": 3}).create()
    await scene.queue().push([{"n": n} for n in range(10)])
    sizes: list[int] = []
    done = asyncio.Event()

    async def handle(messages: Any) -> None:
        sizes.append(len(messages))
        if len(sizes) < 3:
            raise ValueError("no ink")
        done.set()

    call = scene.queue().group("print").batch(10).timeout_millis(_POLL_MS)
    await call.consume(handle, signal=done)
    assert sizes == [10, 10, 10], sizes
    assert await scene.drain(group="print") == []


async def dead_letters_are_listed_by_page_time_and_partition(scene: Scene) -> None:
    for name in "ab":
        await scene.queue().partition(name).push([{"of": name}, {"of": name}])
        messages = await scene.queue().partition(name).batch(2).wait(False).pop()
        answer = await scene.queen.ack(messages, "dlq", {"error": f"bad {name}"})
        assert answer["success"], answer
    everything = await scene.queue().dlq().get()
    assert everything["total"] == 4 and len(everything["messages"]) == 4, everything
    assert {one["errorMessage"] for one in everything["messages"]} == {"bad a", "bad b"}
    page = await scene.queue().dlq().limit(3).offset(2).get()
    assert len(page["messages"]) == 2, page
    mine = await scene.queue().partition("b").dlq().get()
    assert {one["data"]["of"] for one in mine["messages"]} == {"b"}, mine
    none = await scene.queue().dlq().from_("2999-01-01T00:00:00Z").get()
    assert none["messages"] == [], none
    none = await scene.queue().dlq().to("2001-01-01T00:00:00Z").get()
    assert none["messages"] == [], none
    assert (await scene.queue().dlq("another group").get())["messages"] == []


async def renewing_a_lease(scene: Scene) -> None:
    await scene.queue().config({"lease_time": 5}).create()
    await scene.queue().push([{"n": 1}, {"n": 2}])
    messages = await scene.queue().batch(2).wait(False).pop()
    renewed = await scene.queen.renew(messages[0])
    assert renewed["success"] is True, renewed
    assert renewed["leaseId"] == messages[0]["leaseId"]
    assert renewed["newExpiresAt"].endswith("Z"), renewed
    # Both messages have one lease, so it is renewed once.
    assert [one["success"] for one in await scene.queen.renew(messages)] == [True]
    assert (await scene.queen.renew(messages[0]["leaseId"]))["success"] is True
    await scene.queen.ack(messages)
    started = time.monotonic()
    for gone in (messages[0], "not a lease at all"):
        answer = await scene.queen.renew(gone)
        assert answer["success"] is False and answer["error"], answer
    assert time.monotonic() - started < 2.5, "the refusal was tried again"


async def a_slow_handler_keeps_its_lease(scene: Scene) -> None:
    await scene.queue().config({"lease_time": 2}).create()
    await scene.queue().push({"n": 1})
    calls: list[Any] = []

    async def handle(message: Any) -> None:
        calls.append(message)
        await spend_async(2.5)
        # The lease of two seconds is over; only the renewal keeps the message ours.
        assert await scene.queue().wait(False).pop() == []

    call = scene.queue().batch(1).limit(1).renew_lease(True, 300).timeout_millis(_POLL_MS)
    await call.consume(handle)
    assert len(calls) == 1
    assert await scene.drain() == []


@only("0.15.0")
async def one_by_one_goes_on_after_a_failure(scene: Scene) -> None:
    """The failed message alone comes again: an ack of another one is not lost with it."""
    await scene.queue().config(_AT_ONCE).create()
    await scene.queue().push([{"n": n} for n in range(3)])
    tried: list[int] = []

    async def handle(message: Any) -> None:
        tried.append(message["data"]["n"])
        if tried == [0]:
            raise ValueError("once")

    call = scene.queue().batch(3).each().limit(4).timeout_millis(_POLL_MS)
    await call.consume(handle)
    assert tried == [0, 1, 2, 0], tried


@only("2.6.0")
async def one_by_one_leaves_the_partition_after_a_failure(scene: Scene) -> None:
    """This client drops the rest of a partition after a failure, because its broker has ended
    the lease. Ours ends when every message has its result, so the rest comes again after
    `lease_time`, with the failed one before it."""
    await scene.queue().config({**_AT_ONCE, "lease_time": 1}).create()
    await scene.queue().push([{"n": n} for n in range(3)])
    tried: list[int] = []

    async def handle(message: Any) -> None:
        tried.append(message["data"]["n"])
        if tried == [0]:
            raise ValueError("once")

    call = scene.queue().batch(3).each().limit(4).timeout_millis(_POLL_MS)
    await call.consume(handle)
    assert tried == [0, 0, 1, 2], tried
