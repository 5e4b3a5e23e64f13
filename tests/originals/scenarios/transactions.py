"""Acks and pushes that happen together."""

from __future__ import annotations

from typing import Any

from tests.originals.environments import READERS_OF_ACKS
from tests.originals.scene import Scene, only


async def _refused(call: Any) -> str:
    try:
        await call.commit()
    except Exception as error:
        return str(error)
    raise AssertionError("the transaction was not refused")


async def an_ack_and_a_push_in_one(scene: Scene) -> None:
    await scene.queue("-in").push([{"n": 1}, {"n": 2}])
    messages = await scene.queue("-in").batch(2).wait(False).pop()
    call = scene.queen.transaction().ack(messages)
    call = call.queue(f"{scene.name}-out").partition("p").push([{"data": "a"}, {"data": "b"}])
    answer = await call.commit()
    assert answer["success"] is True and answer["transactionId"], answer
    assert [one["type"] for one in answer["results"]] == ["ack", "ack", "push"], answer
    assert await scene.drain("-in") == []
    assert await scene.drain("-out") == ["a", "b"]


async def a_transaction_for_a_group(scene: Scene) -> None:
    await scene.queue().push({"n": 1})
    (message,) = await scene.queue().group("g").wait(False).pop()
    call = scene.queen.transaction().ack(message, "completed", {"consumer_group": "g"})
    answer = await call.queue(f"{scene.name}-out").push({"n": 2}).commit()
    assert answer["success"] is True, answer
    assert await scene.drain(group="g") == []
    assert await scene.drain("-out") == [{"n": 2}]
    assert await scene.drain(group="another") == [{"n": 1}]


async def a_lost_lease_refuses_all_of_it(scene: Scene) -> None:
    await scene.queue("-in").config({"retry_delay": 0}).create()
    await scene.queue("-in").push({"n": 1})
    (stale,) = await scene.queue("-in").wait(False).pop()
    await scene.queen.ack(stale, "retry")
    (current,) = await scene.queue("-in").wait(False).pop()
    call = scene.queen.transaction().queue(f"{scene.name}-out").push({"n": 2}).ack(stale)
    assert "lease" in await _refused(call)
    assert await scene.queue("-out").wait(False).pop() == []
    answer = await scene.queen.transaction().ack(current).commit()
    assert answer["success"] is True, answer


async def an_empty_transaction_is_refused_by_the_client(scene: Scene) -> None:
    assert "no operations" in await _refused(scene.queen.transaction())


@only("2.6.0")
async def a_transaction_sent_again_is_a_duplicate(scene: Scene) -> None:
    """0.15.0 does not send the ids of what a transaction pushes."""
    for _ in range(2):
        call = scene.queen.transaction().queue(scene.name)
        answer = await call.push({"data": 1, "transactionId": "once"}).commit()
        assert answer["success"] is True, answer
    assert await scene.drain() == [1]


@only(*READERS_OF_ACKS)
async def a_transaction_sent_again_without_ids_is_done_once(scene: Scene) -> None:
    """As the client does by itself when an answer is lost."""
    await scene.queue().push({"n": 1})
    (message,) = await scene.queue().wait(False).pop()
    transaction = scene.queen.transaction().ack(message)
    transaction = transaction.queue(f"{scene.name}.out").push({"data": "result"})
    for _ in range(3):
        answer = await transaction.commit()
        assert answer["success"] is True, answer
    assert await scene.drain(".out") == ["result"]
