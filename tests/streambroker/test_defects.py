"""Where the original is wrong or says nothing, or Redis says otherwise: what holds here.

The first part has the nine points that were decided, the second the faults of the original that
are not repeated. Those of them that `test_originals.py` shows already are not shown again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from queen.errors import BadRequest, Conflict, NotFound
from queen.streambroker import StreamBroker
from tests.streambroker.test_originals import (
    claim_all,
    group_info,
    ids_of,
    wait_for_consumer,
)

Name = Callable[[str], str]


async def test_a_read_without_a_word_does_not_wait(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    assert await broker.xreadgroup("g", "c", stream) == []
    assert await broker.xreadgroup("g", "c", stream, 5, 0) == []
    assert await broker.xreadgroup("g", "c", stream, 5, 10) == []


async def test_none_waits_for_ever(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    reading = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
    await wait_for_consumer(broker, stream, "g", "c")
    assert not reading.done()
    added = await broker.xadd(stream, 1)
    assert ids_of(await reading) == [added]


async def test_a_group_that_exists_keeps_its_position(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g", "0")
    await broker.xadd(stream, 1)
    await broker.create_group(stream, "g", "$")
    assert (await group_info(broker, stream, "g")).lag == 1
    with pytest.raises(Conflict):
        await broker.create_group(stream, "g", "$", strict=True)


async def test_what_is_not_there_is_empty(broker: StreamBroker, stream: str) -> None:
    async def ask_all() -> list[object]:
        return [
            await broker.xreadgroup("g", "c", stream),
            await broker.xreadgroup("g", "c", stream, 1, 60_000),
            await broker.xreadgroup("g", "c", stream, 1, 60_000, claim_idle_ms=0),
            await broker.xreadgroup("g", "c", stream, history_after="0"),
            await broker.xack(stream, "g", ["1-1"]),
            await broker.nack(stream, "g", ["1-1"]),
            await broker.xpending(stream, "g"),
            await broker.xautoclaim(stream, "g", "c", 0),
            await broker.xclaim(stream, "g", "c", 0, ["1-1"]),
            await broker.get_stream_group_info(stream, "g"),
            await broker.delete_consumer(stream, "g", "c"),
            await broker.delete_consumer(stream, "g", "c", keep_pending=False),
            await broker.delete_group(stream, "g"),  # type: ignore[func-returns-value]
            await broker.redrive(stream),
        ]

    nothing = [[], [], [], [], 0, 0, [], [], [], None, 0, 0, None, 0]
    assert await ask_all() == nothing
    assert [await broker.xlen(stream), await broker.xrange(stream)] == [0, []]
    assert await broker.get_group_info(stream) == []
    await broker.create_group(stream, "other")
    assert await ask_all() == nothing


async def test_settings_of_a_group_that_is_not_there_are_an_error(
    broker: StreamBroker, stream: str
) -> None:
    for _ in range(2):
        with pytest.raises(NotFound):
            await broker.set_group_id(stream, "g", "0")
        with pytest.raises(NotFound):
            await broker.set_delivery_limit(stream, "g", 3)
        await broker.create_group(stream, "other")


async def test_one_who_waits_notices_that_the_group_is_deleted(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    reading = asyncio.create_task(broker.xreadgroup("g", "c", stream, 1, None))
    await wait_for_consumer(broker, stream, "g", "c")
    await broker.delete_group(stream, "g")
    assert await reading == []


@pytest.mark.parametrize("start", ["not-an-id", "1-2-3", "", "-", "+", "18446744073709551616"])
async def test_a_group_starts_at_an_id_only(broker: StreamBroker, stream: str, start: str) -> None:
    with pytest.raises(BadRequest, match="start_id"):
        await broker.create_group(stream, "g", start)
    assert await broker.get_group_info(stream) == []


async def test_a_claim_takes_ones_own_and_has_the_order_of_ids(
    broker: StreamBroker, stream: str
) -> None:
    added = [await broker.xadd(stream, number) for number in range(4)]
    await broker.create_group(stream, "g", "0")
    for consumer in ("z", "a", "z", "a"):
        await broker.xreadgroup("g", consumer, stream)
    assert ids_of(await broker.xautoclaim(stream, "g", "a", 0, 10)) == added


async def test_lag_is_a_number_and_exact(broker: StreamBroker, stream: str) -> None:
    added = [await broker.xadd(stream, number) for number in range(6)]
    for position, start in enumerate(["0", *added]):
        await broker.create_group(stream, f"g{position}", start)
    lags = [info.lag for info in await broker.get_group_info(stream)]
    assert lags == [6, 5, 4, 3, 2, 1, 0]
    await broker.xdel(stream, [added[1], added[4]])
    lags = [info.lag for info in await broker.get_group_info(stream)]
    assert lags == [4, 3, 3, 2, 1, 1, 0]


async def test_deliveries_are_counted(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    entry_id = await broker.xadd(stream, 1)
    (message,) = await broker.xreadgroup("g", "c", stream)
    assert (message.delivery_count, message.data) == (1, 1)
    assert message.deliveryCount == 1  # type: ignore[attr-defined]
    (message,) = await broker.xautoclaim(stream, "g", "d", 0)
    assert message.delivery_count == 2
    (message,) = await broker.xclaim(stream, "g", "e", 0, [entry_id])
    assert (message.delivery_count, message.data) == (3, 1)
    (message,) = await broker.xreadgroup("g", "e", stream, history_after="0")
    assert (message.delivery_count, message.data) == (4, 1)
    for _ in range(2):
        (message,) = await broker.xpending(stream, "g")
        assert (message.delivery_count, message.consumer, message.data) == (4, "e", 1)
        assert message.idle_ms is not None
        assert message.idle_ms >= 0
    (message,) = await broker.xrange(stream)
    assert (message.delivery_count, message.consumer, message.idle_ms) == (None, None, None)


async def test_many_are_pending_and_claimed_in_pages(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    number_of = 120
    added = [await broker.xadd(stream, number) for number in range(number_of)]
    for consumer in ("a", "b"):
        await broker.xreadgroup("g", consumer, stream, number_of // 2)
    await broker.xautoclaim(stream, "g", "b", 0, 3)
    assert ids_of(await broker.xpending(stream, "g")) == added
    own = await broker.xpending(stream, "g", "b")
    assert ids_of(own) == added[:3] + added[60:]
    assert {message.consumer for message in own} == {"b"}
    claimed = await broker.xautoclaim(stream, "g", "c", 0, 110)
    assert ids_of(claimed) == added[:110]
    counts = [message.delivery_count for message in claimed]
    assert counts == [3] * 3 + [2] * 107
    assert ids_of(await broker.xautoclaim(stream, "g", "c", 0, 0)) == added


# The faults of the original.


async def test_names_with_colons_are_names_of_their_own(broker: StreamBroker, name: Name) -> None:
    short, long = name("a"), f"{name('a')}:g"
    pairs = [(short, "g:h"), (long, "h"), (short, "g"), (short, "g:y")]
    for stream, group in pairs:
        await broker.create_group(stream, group, "0")
    for stream in (short, long):
        await broker.xadd(stream, stream)
    for stream, group in pairs:
        (message,) = await broker.xreadgroup(group, "c:1", stream, 10)
        assert message.data == stream
    for done, (stream, group) in enumerate(pairs):
        (message,) = await broker.xpending(stream, group, "c:1")
        assert await broker.xack(stream, group, [message.id]) == 1
        left = [(await group_info(broker, *pair)).total_pending for pair in pairs]
        assert left == [0] * (done + 1) + [1] * (3 - done)


async def test_a_claim_makes_its_consumer_known(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    for number in range(2):
        await broker.xadd(stream, number)
    await broker.xreadgroup("g", "a", stream, 2)
    await broker.xautoclaim(stream, "g", "b", 0, 2)
    info = await group_info(broker, stream, "g")
    assert {each.name: each.pending for each in info.consumers} == {"a": 0, "b": 2}
    assert info.total_pending == 2
    assert await broker.delete_consumer(stream, "g", "b", keep_pending=False) == 2
    assert (await group_info(broker, stream, "g")).total_pending == 0


async def test_a_count_of_zero_is_no_limit(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(3)]
    assert ids_of(await broker.xreadgroup("g", "c", stream, 0)) == added
    assert ids_of(await broker.xreadgroup("g", "c", stream, 0, history_after="0")) == added
    assert ids_of(await broker.xrange(stream, count=0)) == added
    assert ids_of(await broker.xrange(stream, count=2)) == added[:2]


async def test_a_consumer_reads_again_what_it_has(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(3)]
    await broker.xreadgroup("g", "c", stream, 3)
    own = await broker.xreadgroup("g", "c", stream, 10, history_after=added[0])
    assert ids_of(own) == added[1:]
    assert [message.delivery_count for message in own] == [2, 2]
    assert await broker.xreadgroup("g", "other", stream, 10, history_after="0") == []


async def test_a_read_that_needs_no_ack(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = await broker.xadd(stream, 1)
    assert ids_of(await broker.xreadgroup("g", "c", stream, no_ack=True)) == [added]
    assert await broker.xpending(stream, "g") == []
    assert await broker.xreadgroup("g", "c", stream) == []


async def test_a_claim_by_id_takes_what_is_idle(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(3)]
    await broker.xreadgroup("g", "a", stream, 3)
    assert await broker.xclaim(stream, "g", "b", 3_600_000, added) == []
    assert ids_of(await broker.xclaim(stream, "g", "b", 0, [added[2], "5-5", added[0]])) == [
        added[2],
        added[0],
    ]
    assert ids_of(await broker.xpending(stream, "g", "a")) == [added[1]]


async def test_a_group_is_moved(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(3)]
    await broker.set_group_id(stream, "g", added[1])
    assert ids_of(await broker.xreadgroup("g", "c", stream, 10)) == added[2:]
    await broker.set_group_id(stream, "g", "0")
    assert ids_of(await broker.xreadgroup("g", "c", stream, 10)) == added


async def test_what_was_deleted_is_still_listed_until_it_is_claimed(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(4)]
    await broker.xreadgroup("g", "c", stream, 4)
    assert await broker.xdel(stream, [added[0], added[0], "7-7"]) == 1
    assert await broker.xtrim(stream, 2) == 1
    pending = await broker.xpending(stream, "g")
    assert ids_of(pending) == added
    assert [message.is_deleted for message in pending] == [True, True, False, False]
    assert (await group_info(broker, stream, "g")).total_pending == 4
    assert ids_of(await broker.xautoclaim(stream, "g", "d", 0, 10)) == added[2:]
    assert ids_of(await broker.xpending(stream, "g")) == added[2:]
    assert (await group_info(broker, stream, "g")).total_pending == 2


async def test_an_ack_counts_once_and_works_for_what_was_deleted(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    entry_id = await broker.xadd(stream, 1)
    await broker.xreadgroup("g", "c", stream)
    await broker.xdel(stream, [entry_id])
    assert await broker.xack(stream, "g", [entry_id, entry_id]) == 1
    assert await broker.xack(stream, "g", [entry_id]) == 0


async def test_a_group_that_is_created_again_has_nothing_pending(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    await broker.xadd(stream, 1)
    await broker.xreadgroup("g", "a", stream)
    await claim_all(broker, stream, "g", "b", 0, 1)
    await broker.delete_group(stream, "g")
    await broker.create_group(stream, "g")
    assert await broker.xpending(stream, "g") == []
    assert (await group_info(broker, stream, "g")).total_pending == 0


async def test_streams_are_listed_by_patterns(broker: StreamBroker, name: Name) -> None:
    own = name("")
    names = [f"{word}{own}" for word in ("jobs:a", "jobs:b", "mail", "[x]")]
    for stream in names:
        await broker.xadd(stream, 1)
    wanted = {
        f"*{own}": sorted(names),
        f"jobs:*{own[:5]}*": names[:2],
        f"*obs:?{own}": names[:2],
        f"jobs:[b-z]{own}": names[1:2],
        f"jobs:[^b]{own}": names[:1],
        f"\\[x\\]{own}": names[3:],
        names[2]: [names[2]],
        f"nothing{own}": [],
    }
    assert {pattern: await broker.scan_streams(pattern) for pattern in wanted} == wanted


async def test_an_end_without_a_sequence_includes_all_of_them(
    broker: StreamBroker, stream: str
) -> None:
    added = [await broker.xadd(stream, number) for number in range(5)]
    last_ms = added[-1].partition("-")[0]
    assert ids_of(await broker.xrange(stream, "0", last_ms)) == added
    assert ids_of(await broker.xrange(stream, added[1], added[3])) == added[1:4]
    assert ids_of(await broker.xrange(stream, f"({added[1]}", f"({added[3]}")) == [added[2]]
    assert await broker.xrange(stream, added[3], added[1]) == []


async def test_ids_have_twice_sixty_four_bits(broker: StreamBroker, stream: str) -> None:
    largest = "18446744073709551615"
    await broker.create_group(stream, "g", f"{largest}-{int(largest) - 1}")
    info = await group_info(broker, stream, "g")
    assert info.last_delivered_id == f"{largest}-{int(largest) - 1}"
    assert await broker.xrange(stream, "9007199254740993-0", largest) == []
    assert await broker.xack(stream, "g", [f"{largest}-{largest}"]) == 0
    with pytest.raises(BadRequest):
        await broker.xack(stream, "g", [f"{int(largest) + 1}-0"])
