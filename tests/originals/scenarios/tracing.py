"""Consumers leave traces of what they did with a message; operators read them."""

from __future__ import annotations

from typing import Any

from tests.originals.scene import Scene

_POLL_MS = 300


async def a_trace_is_recorded_and_read_back(scene: Scene) -> None:
    await scene.queue().push({"n": 1})
    handled: list[Any] = []

    async def handle(message: Any) -> None:
        trace = {"traceName": [scene.name, "orders"], "eventType": "step", "data": {"paid": True}}
        answer = await message["trace"](trace)
        assert answer["success"] is True, answer
        answer = await message["trace"]({"data": {"text": "no name"}})
        assert answer["success"] is True, answer
        handled.append(message)

    call = scene.queue().group("billing").batch(1).limit(1).timeout_millis(_POLL_MS)
    await call.consume(handle)
    (message,) = handled
    admin = scene.queen.admin
    answer = await admin.get_traces_for_message(message["partitionId"], message["transactionId"])
    first, second = answer["traces"]
    assert first["event_type"] == "step" and second["event_type"] == "info", answer
    assert first["data"] == {"paid": True} and second["data"] == {"text": "no name"}
    assert first["consumer_group"] == "billing"
    assert first["trace_names"] == sorted([scene.name, "orders"]), first
    answer = await admin.get_traces_by_name(scene.name, limit=10)
    (found,) = answer["traces"]
    assert found["transaction_id"] == message["transactionId"], found
    assert found["queue_name"] == scene.name and found["partition_name"] == "Default"
    assert answer["total"] == 1, answer
    answer = await admin.get_trace_names(limit=50)
    (name,) = [one for one in answer["trace_names"] if one["trace_name"] == scene.name]
    assert name["trace_count"] == 1 and name["message_count"] == 1, name


async def in_a_batch_every_trace_is_of_the_last_message(scene: Scene) -> None:
    """A defect of both clients, not of ours: the closure they make sees the loop's last one."""
    await scene.queue().push([{"n": n} for n in range(3)])
    handled: list[Any] = []

    async def handle(messages: list[Any]) -> None:
        for one in messages:
            answer = await one["trace"]({"data": {"n": one["data"]["n"]}})
            assert answer["success"] is True, answer
        handled.extend(messages)

    await scene.queue().batch(3).limit(3).timeout_millis(_POLL_MS).consume(handle)
    counts = []
    for one in handled:
        ids = (one["partitionId"], one["transactionId"])
        counts.append(len((await scene.queen.admin.get_traces_for_message(*ids))["traces"]))
    assert counts == [0, 0, 3], counts


async def a_trace_that_cannot_be_recorded_does_not_stop_the_handler(scene: Scene) -> None:
    await scene.queue().push({"n": 1})

    async def handle(message: Any) -> None:
        answer = await message["trace"]({"traceName": "x"})
        assert answer["success"] is False, answer
        message["transactionId"], kept = "no such message", message["transactionId"]
        answer = await message["trace"]({"data": {"n": 1}})
        assert answer["success"] is False and answer["error"], answer
        message["transactionId"] = kept

    await scene.queue().batch(1).limit(1).timeout_millis(_POLL_MS).consume(handle)
    assert await scene.drain() == []
