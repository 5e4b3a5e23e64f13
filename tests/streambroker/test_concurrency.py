"""Many at once: workers of one group, groups of one stream, and who is served first."""

from __future__ import annotations

import asyncio
from collections import Counter

from queen.streambroker import StreamBroker
from tests.streambroker.test_originals import group_info, ids_of, wait_for_consumer

_ENTRIES = 200


async def _work(broker: StreamBroker, stream: str, group: str, consumer: str) -> list[str]:
    """Read and ack until nothing comes any more."""
    done: list[str] = []
    while messages := await broker.xreadgroup(group, consumer, stream, 7, 1_000):
        assert {message.delivery_count for message in messages} == {1}
        done += ids_of(messages)
        assert await broker.xack(stream, group, ids_of(messages)) == len(messages)
    return done


async def test_four_workers_share_a_group(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    workers = [asyncio.create_task(_work(broker, stream, "g", f"w{n}")) for n in range(4)]
    producers = [broker.xadd(stream, number) for number in range(_ENTRIES)]
    added = await asyncio.gather(*producers)
    done = [entry_id for worker in workers for entry_id in await worker]
    assert Counter(done) == Counter(added)
    info = await group_info(broker, stream, "g")
    assert (info.total_pending, info.lag, len(info.consumers)) == (0, 0, 4)


async def test_each_group_gets_everything_in_order(broker: StreamBroker, stream: str) -> None:
    groups = ["a", "b", "c"]
    for group in groups:
        await broker.create_group(stream, group)
    readers = [asyncio.create_task(_work(broker, stream, group, "w")) for group in groups]
    added = [await broker.xadd(stream, number) for number in range(_ENTRIES)]
    for reader in readers:
        assert await reader == added


async def test_ids_grow_however_many_add(broker: StreamBroker, stream: str) -> None:
    added = await asyncio.gather(*(broker.xadd(stream, number) for number in range(_ENTRIES)))
    assert len(set(added)) == _ENTRIES
    listed = ids_of(await broker.xrange(stream))
    assert sorted(listed, key=_as_number) == listed
    assert set(listed) == set(added)


def _as_number(entry_id: str) -> tuple[int, int]:
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq)


async def test_those_who_wait_are_served_in_order_of_arrival(
    broker: StreamBroker, stream: str
) -> None:
    await broker.create_group(stream, "g")
    # In no order of names, and the last one may take more than one.
    consumers = ["m", "z", "a", "k"]
    readers = []
    for consumer in consumers:
        count = 5 if consumer == "k" else 1
        reading = broker.xreadgroup("g", consumer, stream, count, None)
        readers.append(asyncio.create_task(reading))
        await wait_for_consumer(broker, stream, "g", consumer)
    added = [await broker.xadd(stream, number) for number in range(4)]
    assert [ids_of(await reader) for reader in readers] == [[entry_id] for entry_id in added]


async def test_who_no_longer_waits_is_passed_over(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    gone = asyncio.create_task(broker.xreadgroup("g", "gone", stream, 1, None))
    await wait_for_consumer(broker, stream, "g", "gone")
    waiting = asyncio.create_task(broker.xreadgroup("g", "waits", stream, 1, None))
    await wait_for_consumer(broker, stream, "g", "waits")
    gone.cancel()
    await asyncio.wait([gone])
    # What was added before the server noticed may still be given to the one that is gone: so it is
    # pending, and is there for those who claim.
    added = [await broker.xadd(stream, number) for number in range(2)]
    got_new = ids_of(await waiting)
    assert got_new
    assert set(got_new) <= set(added)


async def test_many_claim_and_each_entry_has_one_owner(broker: StreamBroker, stream: str) -> None:
    await broker.create_group(stream, "g")
    added = [await broker.xadd(stream, number) for number in range(60)]
    await broker.xreadgroup("g", "dead", stream, 60)
    await broker.nack(stream, "g", added)
    hour_ms = 3_600_000
    claims = await asyncio.gather(
        *(broker.xautoclaim(stream, "g", f"c{n}", hour_ms, 20) for n in range(5))
    )
    claimed = [entry_id for messages in claims for entry_id in ids_of(messages)]
    assert Counter(claimed) == Counter(added)
