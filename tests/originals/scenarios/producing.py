"""Queues are made, messages are pushed."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from tests.originals.scene import Scene, only


async def create_answers_with_the_options(scene: Scene) -> None:
    told: list[Any] = []

    async def note(answer: Any) -> None:
        told.append(answer)

    options = {
        "lease_time": 17,
        "retry_limit": 5,
        "retention_enabled": True,
        "retention_seconds": 9,
    }
    call = scene.queue().namespace("shop").task("orders").config(options).create()
    answer = await call.on_success(note)
    assert answer["configured"] is True, answer
    assert (answer["queue"], answer["namespace"], answer["task"]) == (scene.name, "shop", "orders")
    assert answer["options"]["leaseTime"] == 17
    assert answer["options"]["retryLimit"] == 5
    assert answer["options"]["retentionEnabled"] is True
    # What neither the caller nor the client's nine options say has our default.
    ours = {"ttl": 0, "deadLetterQueue": True, "dlqAfterMaxRetries": True, "retryDelay": 1000}
    assert answer["options"].items() >= ours.items(), answer
    assert told == [answer]


async def delete_says_whether_there_was_something(scene: Scene) -> None:
    await scene.queue().create()
    await scene.queue().push({"n": 1})
    answer = await scene.queue().delete()
    assert answer == {"deleted": True, "queue": scene.name, "existed": True}, answer
    answer = await scene.queue().delete()
    assert answer["existed"] is False, answer
    assert await scene.queue().wait(False).pop() == []


async def a_refused_configuration_is_an_error_at_once(scene: Scene) -> None:
    failed: list[Exception] = []

    async def note(error: Exception) -> None:
        failed.append(error)

    started = time.monotonic()
    answer = await scene.queue().config({"lease_time": -1}).create().on_error(note)
    assert answer["success"] is False, answer
    assert "leaseTime" in answer["error"], answer
    assert [str(one) for one in failed] == [answer["error"]]
    # A status of 500 would have been tried three times, in three seconds.
    assert time.monotonic() - started < 2.5


async def push_answers_for_each_message_in_order(scene: Scene) -> None:
    stored: list[Any] = []

    async def note(items: list[Any]) -> None:
        stored.extend(items)

    items = [{"data": {"n": n}, "transactionId": f"order-{n}"} for n in range(5)]
    results = await scene.queue().partition("customer-7").push(items).on_success(note)
    assert [one["status"] for one in results] == ["queued"] * 5, results
    assert [one["transaction_id"] for one in results] == [f"order-{n}" for n in range(5)]
    assert len({one["message_id"] for one in results}) == 5
    assert [one["result"] for one in stored] == results
    messages = await scene.queue().partition("customer-7").batch(10).wait(False).pop()
    assert [one["id"] for one in messages] == [one["message_id"] for one in results]


async def a_push_needs_no_queue(scene: Scene) -> None:
    await scene.queue().push({"n": 1})
    assert await scene.drain() == [{"n": 1}]


async def every_payload_comes_back_as_it_was(scene: Scene) -> None:
    payloads: list[Any] = [None, "", "grün\u2028\n", [], {}, 0, -1.5, True, [1, {"a": [None]}]]
    payloads.append({"data": {"data": 1}, "payload": 2})
    await scene.queue().push([{"data": one} for one in payloads])
    # Without `data` or `payload` the whole object is the payload.
    await scene.queue().push({"total": 12})
    await scene.queue().push({"payload": "by the other name"})
    assert await scene.drain() == [*payloads, {"total": 12}, "by the other name"]


async def a_duplicate_is_reported_and_not_stored(scene: Scene) -> None:
    heard: dict[str, list[str]] = {"stored": [], "duplicates": []}

    async def note_stored(items: list[Any]) -> None:
        heard["stored"] += [one["transactionId"] for one in items]

    async def note_duplicates(items: list[Any], error: Exception) -> None:
        assert "Duplicate" in str(error)
        heard["duplicates"] += [one["transactionId"] for one in items]

    first = await scene.queue().push({"data": "first", "transactionId": "order-1"})
    items = [
        {"data": "again", "transactionId": "order-1"},
        {"data": "new", "transactionId": "order-2"},
    ]
    call = scene.queue().push(items).on_success(note_stored).on_duplicate(note_duplicates)
    results = await call
    assert [one["status"] for one in results] == ["duplicate", "queued"], results
    assert results[0]["message_id"] == first[0]["message_id"]
    assert heard == {"stored": ["order-2"], "duplicates": ["order-1"]}, heard
    assert await scene.drain() == ["first", "new"]


async def an_item_that_cannot_be_stored_is_named(scene: Scene) -> None:
    failed: list[str] = []

    async def note(items: list[Any], error: Exception) -> None:
        failed.append(str(error))

    items = [{"data": 1}, {"data": 2, "transactionId": "x" * 300}, {"data": 3}]
    await scene.queue().push(items).on_error(note)
    assert len(failed) == 1 and "transactionId" in failed[0], failed
    # The others are stored: the original refuses or stores them depending on the place.
    assert await scene.drain() == [1, 3]


async def a_trace_id_stays_with_its_message(scene: Scene) -> None:
    trace = str(uuid.uuid4())
    await scene.queue().push([{"data": 1, "traceId": trace}, {"data": 2, "traceId": "not a uuid"}])
    messages = await scene.queue().batch(2).wait(False).pop()
    # The client drops what is not a UUID.
    assert [one["traceId"] for one in messages] == [trace, None]


@only("0.15.0")
async def a_full_queue_refuses(scene: Scene) -> None:
    await scene.queue().config({"max_size": 3}).create()
    await scene.queue().push([{"n": 1}, {"n": 2}])
    failed: list[str] = []

    async def note(items: list[Any], error: Exception) -> None:
        failed.append(str(error))

    started = time.monotonic()
    await scene.queue().push([{"n": 3}, {"n": 4}]).on_error(note)
    assert len(failed) == 1 and "capacity" in failed[0], failed
    assert time.monotonic() - started < 2.5, "the refusal was tried again"
    assert await scene.drain() == [{"n": 1}, {"n": 2}]
    await scene.queue().push([{"n": 5}])
    assert await scene.drain() == [{"n": 5}]


@only("2.6.0")
async def a_push_waits_for_room_in_a_full_queue(scene: Scene) -> None:
    """This client takes a 429 for "later": it tries again after the time the answer names."""
    await scene.queue().config({"max_size": 2}).create()
    await scene.queue().push([{"n": 1}, {"n": 2}])
    waiting = asyncio.create_task(_push(scene, {"n": 3}))
    assert await asyncio.wait([waiting], timeout=0.2) == (set(), {waiting})
    assert await scene.drain() == [{"n": 1}, {"n": 2}]
    (result,) = await waiting
    assert result["status"] == "queued", result
    assert await scene.drain() == [{"n": 3}]


async def _push(scene: Scene, payload: Any) -> Any:
    return await scene.queue().push(payload)
