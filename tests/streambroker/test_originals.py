"""What the tests, the demonstrations and the guide of the original promise, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queen.streambroker import ConsumerGroupInfo, StreamBroker, StreamMessage
from tests.waiting import until_async

Name = Callable[[str], str]


def ids_of(messages: list[StreamMessage]) -> list[str]:
    return [message.id for message in messages]


async def claim_all(
    broker: StreamBroker, stream: str, group: str, consumer: str, idle_ms: int, wanted: int
) -> list[StreamMessage]:
    """Claim until so many are claimed, when they have become idle enough."""
    claimed: list[StreamMessage] = []

    async def look() -> bool:
        claimed.extend(await broker.xautoclaim(stream, group, consumer, idle_ms, 10))
        return len(claimed) >= wanted

    await until_async(look)
    return claimed


async def group_info(broker: StreamBroker, stream: str, group: str) -> ConsumerGroupInfo:
    info = await broker.get_stream_group_info(stream, group)
    assert info is not None
    return info


async def test_two_adds_have_two_ids(broker: StreamBroker, stream: str) -> None:
    first = await broker.xadd(stream, {"message": "Hello"})
    second = await broker.xadd(stream, {"message": "World"})
    assert first and second and first != second
    assert await broker.xlen(stream) == 2


async def test_two_consumers_share_what_a_group_reads(broker: StreamBroker, stream: str) -> None:
    added = [await broker.xadd(stream, {"number": number}) for number in range(3)]
    await broker.create_group(stream, "g", "0")
    first = await broker.xreadgroup("g", "consumer1", stream, 2)
    second = await broker.xreadgroup("g", "consumer2", stream, 2)
    assert (len(first), len(second)) == (2, 1)
    assert ids_of(first + second) == added


async def test_what_was_read_is_pending_until_it_is_acked(
    broker: StreamBroker, stream: str
) -> None:
    await broker.xadd(stream, {"task": "process"})
    await broker.create_group(stream, "g", "0")
    (message,) = await broker.xreadgroup("g", "c", stream, 1)
    assert ids_of(await broker.xpending(stream, "g")) == [message.id]
    assert await broker.xack(stream, "g", [message.id]) == 1
    assert await broker.xpending(stream, "g") == []


async def test_what_is_pending_for_too_long_is_claimed(broker: StreamBroker, stream: str) -> None:
    added = [await broker.xadd(stream, number) for number in range(2)]
    await broker.create_group(stream, "g", "0")
    assert len(await broker.xreadgroup("g", "consumer1", stream, 2)) == 2
    claimed = await claim_all(broker, stream, "g", "consumer2", 100, 2)
    assert ids_of(claimed) == added
    assert await broker.xack(stream, "g", ids_of(claimed)) == 2
    assert await broker.xpending(stream, "g") == []


async def test_a_stream_is_trimmed_to_its_newest(broker: StreamBroker, stream: str) -> None:
    added = [await broker.xadd(stream, number) for number in range(10)]
    assert await broker.xlen(stream) == 10
    assert await broker.xtrim(stream, 5) == 5
    assert await broker.xlen(stream) == 5
    assert ids_of(await broker.xrange(stream)) == added[5:]


async def test_entries_may_have_any_shape(broker: StreamBroker, stream: str) -> None:
    shapes = [
        {"type": "email", "to": "user@example.com", "subject": "Welcome!"},
        {"type": "sms", "phone": "+1234567890", "message": "Your code is 123456"},
        {"type": "webhook", "body": {"event": "user.signup", "ids": [1, 2]}},
    ]
    for data in shapes:
        await broker.xadd(stream, data)
    assert await broker.xlen(stream) == 3
    assert [message.data for message in await broker.xrange(stream)] == shapes


async def test_a_group_that_is_older_than_its_stream(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "order-processors", "0")
    for number in range(3):
        await broker.xadd(stream, {"orderId": number})
    first = await broker.xreadgroup("order-processors", "worker-1", stream, 2)
    for message in first:
        assert await broker.xack(stream, "order-processors", [message.id]) == 1
    second = await broker.xreadgroup("order-processors", "worker-2", stream, 10)
    assert (len(first), len(second)) == (2, 1)
    await broker.xack(stream, "order-processors", ids_of(second))
    (info,) = await broker.get_group_info(stream)
    assert [consumer.name for consumer in info.consumers] == ["worker-1", "worker-2"]
    assert info.total_pending == 0


async def test_another_takes_over_from_a_consumer_that_died(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, {"job": number}) for number in range(2)]
    assert ids_of(await broker.xreadgroup("g", "processor-1", stream, 10)) == added
    claimed = await claim_all(broker, stream, "g", "processor-2", 50, 2)
    assert ids_of(claimed) == added
    assert await broker.xack(stream, "g", added) == 2


async def test_a_reader_waits_for_what_is_added_later(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    reading = asyncio.create_task(broker.xreadgroup("g", "listener", stream, 1, 60_000))
    await wait_for_consumer(broker, stream, "g", "listener")
    assert not reading.done()
    added = await broker.xadd(stream, {"late": True})
    assert ids_of(await reading) == [added]
    assert await broker.xack(stream, "g", [added]) == 1


async def wait_for_consumer(broker: StreamBroker, stream: str, group: str, consumer: str) -> None:
    """Return when a consumer has begun to read, so that it waits if there is nothing."""

    async def is_there() -> bool:
        info = await group_info(broker, stream, group)
        return consumer in [each.name for each in info.consumers]

    await until_async(is_there)


async def test_groups_and_streams_do_not_know_of_each_other(
    broker: StreamBroker, name: Name
) -> None:
    emails, texts = name("emails"), name("sms")
    for group in ("senders", "auditors"):
        await broker.create_group(emails, group)
    await broker.create_group(texts, "senders")
    added = [await broker.xadd(emails, {"to": number}) for number in range(2)]
    text = await broker.xadd(texts, {"phone": 1})
    for group in ("senders", "auditors"):
        messages = await broker.xreadgroup(group, "w", emails, 10)
        assert ids_of(messages) == added
        await broker.xack(emails, group, added)
    assert ids_of(await broker.xreadgroup("senders", "w", texts, 10)) == [text]


async def test_a_group_from_now_on_does_not_see_what_was_before(
    broker: StreamBroker, stream: str
) -> None:
    await broker.xadd(stream, "old")
    await broker.create_group(stream, "g")
    added = await broker.xadd(stream, "new")
    assert ids_of(await broker.xreadgroup("g", "c", stream, 10)) == [added]


async def test_info_says_who_was_active_and_when(broker: StreamBroker, stream: str) -> None:
    entry_id = await broker.xadd(stream, 1)
    await broker.create_group(stream, "g", "0")
    (message,) = await broker.xreadgroup("g", "c", stream)
    info = await group_info(broker, stream, "g")
    (consumer,) = info.consumers
    assert (consumer.name, consumer.pending) == ("c", 1)
    # Both clocks are those of this machine.
    assert abs(consumer.last_activity - message.timestamp) < 60
    assert (info.last_delivered_id, info.total_pending, info.lag) == (entry_id, 1, 0)
    assert info.lastDeliveredId == entry_id  # type: ignore[attr-defined]


async def test_the_verbs_have_the_names_of_the_original_too(
    broker: StreamBroker, stream: str
) -> None:
    original = broker
    await original.createGroup(stream, "g", "0")  # type: ignore[attr-defined]
    entry_id = await original.xadd(stream, {"a": 1})
    await original.xreadgroup("g", "c", stream, 1, 0)
    (info,) = await original.getGroupInfo(stream)  # type: ignore[attr-defined]
    assert info.totalPending == 1
    again = await original.getStreamGroupInfo(stream, "g")  # type: ignore[attr-defined]
    assert again.lastDeliveredId == entry_id
    assert stream in await original.scanStreams(f"{stream[:-1]}*")  # type: ignore[attr-defined]
    assert await original.deleteConsumer(stream, "g", "c") == 1  # type: ignore[attr-defined]
    await original.deleteGroup(stream, "g")  # type: ignore[attr-defined]
    assert await original.get_group_info(stream) == []
