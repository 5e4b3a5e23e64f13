"""What goes beyond Redis: given back, limited, keyed and idempotent entries."""

from __future__ import annotations

import asyncio

import pytest

from queen.errors import BadRequest
from queen.streambroker import Capability, StreamBroker
from tests.streambroker.test_originals import (
    claim_all,
    group_info,
    ids_of,
    wait_for_consumer,
)
from tests.waiting import until_async

_HOUR_MS = 3_600_000


async def test_what_is_given_back_is_claimed_at_once(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(3)]
    await broker.xreadgroup("g", "a", stream, 3)
    assert await broker.nack(stream, "g", [added[1], "5-5", added[2]]) == 2
    pending = await broker.xpending(stream, "g")
    assert [message.consumer for message in pending] == ["a", None, None]
    assert [message.delivery_count for message in pending] == [1, 1, 1]
    info = await group_info(broker, stream, "g")
    assert [(each.name, each.pending) for each in info.consumers] == [("a", 1)]
    assert info.total_pending == 3
    claimed = await broker.xautoclaim(stream, "g", "b", _HOUR_MS, 10)
    assert ids_of(claimed) == added[1:]
    assert [message.delivery_count for message in claimed] == [2, 2]


async def test_what_is_given_back_can_be_acked(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    entry_id = await broker.xadd(stream, 1)
    await broker.xreadgroup("g", "a", stream)
    await broker.nack(stream, "g", [entry_id])
    assert await broker.xack(stream, "g", [entry_id]) == 1
    assert await broker.nack(stream, "g", [entry_id]) == 0


async def test_what_is_given_back_with_a_delay_comes_later(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    entry_id = await broker.xadd(stream, 1)
    await broker.xreadgroup("g", "a", stream)
    assert await broker.nack(stream, "g", [entry_id], _HOUR_MS) == 1
    assert await broker.xautoclaim(stream, "g", "b", _HOUR_MS, 10) == []
    assert [message.id for message in await broker.xpending(stream, "g")] == [entry_id]
    if Capability.DELAYED_NACK in broker.capabilities:
        # However soon somebody wants to claim it.
        assert await broker.xautoclaim(stream, "g", "b", 0, 10) == []
        assert await broker.xreadgroup("g", "b", stream, 10, claim_idle_ms=0) == []
        assert await broker.nack(stream, "g", [entry_id], 100) == 1
        (message,) = await claim_all(broker, stream, "g", "b", _HOUR_MS, 1)
    else:
        (message,) = await claim_all(broker, stream, "g", "b", 100, 1)
    assert (message.id, message.delivery_count) == (entry_id, 2)


async def test_a_consumer_is_deleted_and_nothing_is_lost(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(5)]
    await broker.xreadgroup("g", "a", stream, 3)
    await broker.xreadgroup("g", "b", stream, 2)
    assert await broker.delete_consumer(stream, "g", "a") == 3
    info = await group_info(broker, stream, "g")
    assert [(each.name, each.pending) for each in info.consumers] == [("b", 2)]
    assert info.total_pending == 5
    claimed = await broker.xautoclaim(stream, "g", "b", _HOUR_MS, 10)
    assert ids_of(claimed) == added[:3]
    assert await broker.delete_consumer(stream, "g", "a") == 0


async def test_a_read_takes_what_is_idle_first(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(4)]
    await broker.xreadgroup("g", "a", stream, 2)
    assert ids_of(await broker.xreadgroup("g", "b", stream, 1, claim_idle_ms=_HOUR_MS)) == [
        added[2]
    ]
    messages = await broker.xreadgroup("g", "b", stream, 4, claim_idle_ms=0)
    assert sorted(ids_of(messages)) == added
    assert [messages[-1].id, messages[-1].delivery_count] == [added[3], 1]
    assert {message.delivery_count for message in messages[:3]} == {2}
    assert len(await broker.xreadgroup("g", "c", stream, 3, claim_idle_ms=0)) == 3


async def test_one_who_waits_gets_what_has_become_idle(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    entry_id = await broker.xadd(stream, 1)
    await broker.xreadgroup("g", "a", stream)
    messages = await broker.xreadgroup("g", "b", stream, 1, 60_000, claim_idle_ms=150)
    assert ids_of(messages) == [entry_id]
    assert messages[0].delivery_count == 2


async def test_a_claiming_read_also_waits_for_what_is_new(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    assert await broker.xreadgroup("g", "b", stream, 1, 50, claim_idle_ms=_HOUR_MS) == []
    reading = asyncio.create_task(
        broker.xreadgroup("g", "c", stream, 1, None, claim_idle_ms=_HOUR_MS)
    )
    await wait_for_consumer(broker, stream, "g", "c")
    entry_id = await broker.xadd(stream, 1)
    assert ids_of(await reading) == [entry_id]


async def test_what_is_delivered_too_often_is_set_aside(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    await broker.set_delivery_limit(stream, "g", 2)
    bad = await broker.xadd(stream, {"poison": True})
    await broker.xreadgroup("g", "a", stream)
    (message,) = await broker.xautoclaim(stream, "g", "a", 0)
    assert message.delivery_count == 2
    good = await broker.xadd(stream, {"poison": False})
    assert ids_of(await broker.xreadgroup("g", "a", stream, 10, claim_idle_ms=0)) == [good]
    assert ids_of(await broker.xpending(stream, "g")) == [good]
    (letter,) = await broker.xrange(f"{stream}.dlq")
    assert letter.data == {"poison": True}
    origin = letter.dead_letter
    assert origin is not None
    assert (origin.stream, origin.group, origin.id) == (stream, "g", bad)
    assert origin.deliveries == 2


async def test_a_limit_is_of_one_group_and_is_taken_away(broker: StreamBroker, stream: str) -> None:
    for group in ("limited", "free"):
        await broker.create_group(stream, group)
    await broker.set_delivery_limit(stream, "limited", 1)
    added = [await broker.xadd(stream, number) for number in range(2)]
    for group in ("limited", "free"):
        await broker.xreadgroup(group, "c", stream, 2)
    assert ids_of(await broker.xautoclaim(stream, "free", "c", 0, 10)) == added
    assert await broker.xautoclaim(stream, "limited", "c", 0, 1) == []
    assert await broker.xpending(stream, "limited") == []
    assert await broker.xlen(f"{stream}.dlq") == 2
    await broker.set_delivery_limit(stream, "limited", None)
    third = await broker.xadd(stream, 3)
    await broker.xreadgroup("limited", "c", stream)
    assert ids_of(await broker.xautoclaim(stream, "limited", "c", 0, 1)) == [third]


async def test_dead_letters_are_added_again(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    await broker.set_delivery_limit(stream, "g", 1)
    data = [{"number": number} for number in range(3)]
    for each in data:
        await broker.xadd(stream, each)
    await broker.xreadgroup("g", "c", stream, 3)
    assert await broker.xautoclaim(stream, "g", "c", 0, 10) == []
    assert await broker.redrive(stream, 1) == 1
    assert await broker.xlen(f"{stream}.dlq") == 2
    assert await broker.redrive(stream) == 2
    assert await broker.redrive(stream) == 0
    assert await broker.xlen(f"{stream}.dlq") == 0
    again = await broker.xreadgroup("g", "c", stream, 10)
    assert [message.data for message in again] == data
    assert {message.delivery_count for message in again} == {1}
    assert {message.dead_letter for message in again} == {None}


async def test_a_limit_that_everybody_is_told_or_not(broker: StreamBroker, stream: str) -> None:
    """A limit is kept with the group, or the capabilities say that it is not."""
    await broker.create_group(stream, "g")
    await broker.set_delivery_limit(stream, "g", 1)
    await broker.delete_group(stream, "g")
    await broker.create_group(stream, "g", "0")
    await broker.xadd(stream, 1)
    await broker.xreadgroup("g", "c", stream)
    assert len(await broker.xautoclaim(stream, "g", "c", 0)) == 1


async def test_an_add_that_is_repeated_adds_nothing(broker: StreamBroker, stream: str) -> None:
    if Capability.IDEMPOTENT_ADD not in broker.capabilities:
        with pytest.raises(BadRequest, match="idempotent-add"):
            await broker.xadd(stream, 1, idempotency_key="order-1")
        assert await broker.xlen(stream) == 0
        return
    first = await broker.xadd(stream, 1, idempotency_key="order-1")
    assert await broker.xadd(stream, 1, idempotency_key="order-1") == first
    other = await broker.xadd(stream, 1, idempotency_key="order-1", producer="another")
    assert other != first
    assert await broker.xadd(stream, 2, idempotency_key="order-2") not in (first, other)
    assert await broker.xlen(stream) == 3


async def test_of_one_key_one_entry_is_in_flight(broker: StreamBroker, stream: str) -> None:
    if Capability.KEY_ORDER not in broker.capabilities:
        with pytest.raises(BadRequest, match="key-order"):
            await broker.xadd(stream, 1, key="customer-1")
        assert await broker.xlen(stream) == 0
        return
    for group in ("g", "h"):
        await broker.create_group(stream, group)
    first, second = [await broker.xadd(stream, number, key="a") for number in range(2)]
    other = await broker.xadd(stream, 2, key="b")
    free = [await broker.xadd(stream, number) for number in (3, 4)]
    assert ids_of(await broker.xreadgroup("g", "c", stream, 10)) == [first, other, *free]
    assert await broker.xreadgroup("g", "d", stream, 10) == []
    assert ids_of(await broker.xreadgroup("h", "c", stream, 1)) == [first]
    reading = asyncio.create_task(broker.xreadgroup("g", "e", stream, 10, None))
    await wait_for_consumer(broker, stream, "g", "e")
    await broker.xack(stream, "g", [first])
    assert ids_of(await reading) == [second]


async def test_a_stream_is_kept_short_by_those_who_add(broker: StreamBroker, stream: str) -> None:
    added = [await broker.xadd(stream, number, max_length=3) for number in range(5)]
    assert ids_of(await broker.xrange(stream)) == added[2:]


async def test_an_idle_consumer_can_claim_in_a_loop(broker: StreamBroker, stream: str) -> None:
    """The usual worker: one call that takes over and reads on, until all is acked."""
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(6)]
    await broker.xreadgroup("g", "dead", stream, 3)
    done: list[str] = []

    async def work() -> bool:
        for message in await broker.xreadgroup("g", "alive", stream, 2, 20, claim_idle_ms=30):
            done.append(message.id)
            await broker.xack(stream, "g", [message.id])
        return len(done) == len(added)

    await until_async(work)
    assert sorted(done) == added
