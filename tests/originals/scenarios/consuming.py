"""Messages are popped and consumed, alone and in groups."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

from tests.originals.scene import Scene, only
from tests.waiting import spend_async

# How long one long poll lasts, and so how long a consumer takes to see that it shall end.
_POLL_MS = 300


async def pop_leases_until_acknowledged(scene: Scene) -> None:
    await scene.queue().push([{"n": n} for n in range(3)])
    first = await scene.queue().wait(False).pop()
    assert [one["data"] for one in first] == [{"n": 0}]
    message = first[0]
    assert message["queue"] == scene.name
    assert message["partition"] == "Default"
    assert message["leaseId"] and message["partitionId"] and message["transactionId"]
    assert message["retryCount"] == 0
    assert message["createdAt"].endswith("Z"), message
    # The partition is leased: nobody else of the group gets anything.
    assert await scene.queue().wait(False).pop() == []
    answer = await scene.queen.ack(message)
    assert answer["success"] is True, answer
    rest = await scene.queue().batch(10).wait(False).pop()
    assert [one["data"] for one in rest] == [{"n": 1}, {"n": 2}]


async def pop_of_an_unknown_queue_is_empty(scene: Scene) -> None:
    assert await scene.queue("-unknown").wait(False).pop() == []


async def pop_from_several_partitions_shares_a_lease(scene: Scene) -> None:
    for name in "abc":
        await scene.queue().partition(name).push([{"of": name}, {"of": name}])
    messages = await scene.queue().batch(5).partitions(3).wait(False).pop()
    # `batch` is the limit over all partitions.
    assert len(messages) == 5, messages
    assert {one["partition"] for one in messages} == set("abc")
    assert len({one["leaseId"] for one in messages}) == 1
    answer = await scene.queen.ack(messages)
    assert answer["success"] is True, answer
    assert len(await scene.drain()) == 1


async def pop_by_namespace_and_task(scene: Scene) -> None:
    label = f"ns-{scene.name}"
    for suffix, task in (("-a", "mail"), ("-b", "print")):
        await scene.queue(suffix).namespace(label).task(task).create()
        await scene.queue(suffix).push({"for": task})
    messages = await scene.queen.queue().namespace(label).task("print").wait(False).pop()
    assert [one["data"] for one in messages] == [{"for": "print"}]
    await scene.queen.ack(messages)
    messages = await scene.queen.queue().namespace(label).batch(5).wait(False).pop()
    assert [one["data"] for one in messages] == [{"for": "mail"}]


async def names_with_spaces_and_umlauts_work(scene: Scene) -> None:
    await scene.queue(" für & alle").partition("Kunde 7 + Söhne").push({"n": 1})
    call = scene.queue(" für & alle").partition("Kunde 7 + Söhne").group("Gruppe 1 & 2")
    messages = await call.wait(False).pop()
    assert [one["partition"] for one in messages] == ["Kunde 7 + Söhne"]
    assert (await scene.queen.ack(messages[0], True, {"group": "Gruppe 1 & 2"}))["success"]
    assert (await scene.queue(" für & alle").delete())["existed"] is True


async def a_partition_with_a_slash_is_read_with_the_others(scene: Scene) -> None:
    """The client puts names into the path as they are, so it cannot ask for this one alone."""
    await scene.queue().partition("a/b").push({"n": 1})
    assert await scene.queue().partition("a/b").wait(False).pop() == []
    messages = await scene.queue().wait(False).pop()
    assert [one["partition"] for one in messages] == ["a/b"]


async def a_waiting_pop_is_woken_by_a_push(scene: Scene) -> None:
    await scene.queue().create()
    waiting = asyncio.create_task(scene.queue().timeout_millis(10_000).pop())
    assert await asyncio.wait([waiting], timeout=0.2) == (set(), {waiting})
    await scene.queue().push({"n": 1})
    messages = await asyncio.wait_for(waiting, 5)
    assert [one["data"] for one in messages] == [{"n": 1}]


async def each_message_is_consumed_once(scene: Scene) -> None:
    expected = set(range(40))
    for n in expected:
        await scene.queue().partition(f"p{n % 8}").push({"n": n})
    seen: list[int] = []
    done = asyncio.Event()

    async def handle(message: Any) -> None:
        seen.append(message["data"]["n"])
        if len(seen) == len(expected):
            done.set()

    call = scene.queue().group("workers").concurrency(4).batch(1).timeout_millis(_POLL_MS)
    await call.consume(handle, signal=done)
    assert sorted(seen) == sorted(expected), seen
    # Within a partition they came in order.
    for partition in range(8):
        mine = [n for n in seen if n % 8 == partition]
        assert mine == sorted(mine), mine
    assert await scene.drain(group="workers") == []


async def every_group_gets_everything(scene: Scene) -> None:
    await scene.queue().push([{"n": n} for n in range(6)])
    for group in ("billing", "audit"):
        seen: list[int] = []

        async def handle(messages: list[Any], seen: list[int] = seen) -> None:
            seen += [one["data"]["n"] for one in messages]

        call = scene.queue().group(group).batch(4).limit(6).timeout_millis(_POLL_MS)
        await call.consume(handle)
        assert seen == [0, 1, 2, 3, 4, 5], (group, seen)


async def a_batch_is_a_list_and_one_message_is_not(scene: Scene) -> None:
    await scene.queue().push([{"n": n} for n in range(5)])
    kinds: list[type] = []

    async def handle(given: Any) -> None:
        kinds.append(type(given))

    await scene.queue().batch(1).limit(1).timeout_millis(_POLL_MS).consume(handle)
    await scene.queue().batch(2).limit(2).timeout_millis(_POLL_MS).consume(handle)
    await scene.queue().batch(2).limit(2).each().timeout_millis(_POLL_MS).consume(handle)
    assert kinds == [dict, list, dict, dict], kinds
    assert await scene.drain() == []


async def a_consumer_ends_when_it_is_idle(scene: Scene) -> None:
    await scene.queue().push({"n": 1})
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message)

    call = scene.queue().batch(1).idle_millis(200).timeout_millis(100)
    await asyncio.wait_for(call.consume(handle), 10)
    assert len(seen) == 1


async def callbacks_take_over_the_acknowledgment(scene: Scene) -> None:
    await scene.queue().push([{"n": 1}, {"n": 2}])
    succeeded: list[Any] = []

    async def handle(message: Any) -> int:
        return int(message["data"]["n"]) * 10

    async def note(message: Any, result: Any) -> None:
        succeeded.append(result)
        assert (await scene.queen.ack(message))["success"]

    call = scene.queue().batch(1).limit(2).timeout_millis(_POLL_MS)
    await call.consume(handle).on_success(note)
    assert succeeded == [10, 20]
    assert await scene.drain() == []


async def a_new_subscription_skips_what_was_there(scene: Scene) -> None:
    """The original loses the first message after the subscription; we deliver it."""
    await scene.queue().push({"n": "old"})

    def pop(group: str, **how: str) -> Any:
        call = scene.queue().group(group).batch(10).wait(False)
        if "mode" in how:
            return call.subscription_mode(how["mode"]).pop()
        return call.subscription_from(how["start"]).pop()

    for group, how in (
        ("a", {"mode": "new"}),
        ("b", {"mode": "new-only"}),
        ("c", {"start": "now"}),
    ):
        assert await pop(group, **how) == [], group
    await scene.queue().push({"n": "new"})
    await scene.queue().partition("made later").push({"n": "also new"})
    for group, how in (
        ("a", {"mode": "new"}),
        ("b", {"mode": "new-only"}),
        ("c", {"start": "now"}),
    ):
        found = [*await pop(group, **how), *await pop(group, **how)]
        assert sorted(one["data"]["n"] for one in found) == ["also new", "new"], (group, found)
    assert len(await scene.drain(group="from the beginning")) == 3


async def a_subscription_from_a_time(scene: Scene) -> None:
    await scene.queue().push({"n": "old"})
    await spend_async(0.05)
    since = datetime.now(timezone.utc).isoformat()  # noqa: UP017 - as users of 3.8 write it
    await spend_async(0.05)
    await scene.queue().push({"n": "new"})
    call = scene.queue().group("late").subscription_from(since).batch(10).wait(False)
    assert [one["data"]["n"] for one in await call.pop()] == ["new"]


@only("2.6.0")
async def commit_on_delivery_leases_nothing(scene: Scene) -> None:
    """0.15.0 has `auto_ack(True)` for this, and never sends it."""
    await scene.queue().push([{"n": n} for n in range(3)])
    messages = await scene.queue().batch(2).wait(False).commit_on_delivery().pop()
    assert [one["data"]["n"] for one in messages] == [0, 1]
    assert {one["leaseId"] for one in messages} == {""}
    assert await scene.drain() == [{"n": 2}]


@only("2.6.0")
async def a_pop_that_leaves_its_size_to_the_broker_gets_one(scene: Scene) -> None:
    """The client asks with `autopilot=true`; without an echo it goes on as with old brokers."""
    await scene.queue().push([{"n": 1}, {"n": 2}])
    popped = await scene.queue().wait(False).pop_result()
    assert [one["data"]["n"] for one in popped.messages] == [1]
    assert popped.autopilot is None
    await scene.queen.ack(popped.messages)
    given: list[Any] = []

    async def handle(messages: Any) -> None:
        given.append(messages)

    await scene.queue().limit(1).timeout_millis(_POLL_MS).consume(handle)
    assert [[one["data"]["n"] for one in batch] for batch in given] == [[2]]
