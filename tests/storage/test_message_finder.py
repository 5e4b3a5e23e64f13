"""One message is found by its id or its offset, whatever the dedup of its queue."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import AsyncIterator

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.catalog import Partition
from queen.service.log import append
from queen.service.log.append import Append
from queen.service.read import message_finder


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=3))
    yield started
    await started.stop()


async def _partition(broker: Broker, policy: str) -> Partition:
    name = f"lookup-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions(dedup=policy))  # type: ignore[arg-type]
    await broker.catalog.resolve([(name, "p")])
    found = broker.catalog.known(name, "p")
    assert found is not None
    return found


async def _push(broker: Broker, partition: Partition, *ids: str, traces: bool = False) -> None:
    """Push messages in one segment; the payload of each is its id."""
    extras = {"traceId": [f"trace of {one}" for one in ids]} if traces else None
    payloads = [f'"{one}"'.encode() for one in ids]
    encoded = [one.encode() for one in ids]
    one = Append(partition.queue.name, partition.name, encoded, payloads, 100, extras)
    await broker.pusher.push([one])


@pytest.mark.parametrize("policy", ["window", "forever", "off"])
async def test_a_message_is_found_by_its_id(
    broker: Broker, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_finder, "_PAGE", 12)
    partition = await _partition(broker, policy)
    for n in range(30):
        await _push(broker, partition, f"a{n}", f"b{n}", f"ü{n}", traces=n == 7)
    for n in (0, 7, 29):
        found = await broker.message_finder.by_transaction_id(partition, f"ü{n}")
        assert found is not None
        assert found.offset == 3 * n + 2
        assert found.payload == f'"ü{n}"'.encode()
        assert found.transaction_id == f"ü{n}"
        assert found.trace_id == (f"trace of ü{n}" if n == 7 else None)
        assert found == await broker.message_finder.at(partition, found.offset)
    assert await broker.message_finder.by_transaction_id(partition, "c1") is None


async def test_of_equal_ids_the_newest_is_found(broker: Broker) -> None:
    partition = await _partition(broker, "off")
    for ids in (["x", "a"], ["x", "x", "b"], ["c"]):
        await _push(broker, partition, *ids)
    found = await broker.message_finder.by_transaction_id(partition, "x")
    assert found is not None and found.offset == 3


async def test_a_collision_finds_the_right_message(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (append, message_finder):
        monkeypatch.setattr(module, "hash_ids", lambda ids: array("Q", [42 for _ in ids]))
    partition = await _partition(broker, "window")
    for n in range(20):
        await _push(broker, partition, f"{n}")
    for n in (0, 19):
        found = await broker.message_finder.by_transaction_id(partition, f"{n}")
        assert found is not None and found.offset == n


async def test_what_retention_took_is_not_found(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    partition = await _partition(broker, "window")
    await _push(broker, partition, "gone", "kept")
    await connection.execute("update partitions set tail = 1 where id = $1", partition.id)
    assert await broker.message_finder.by_transaction_id(partition, "gone") is None
    assert await broker.message_finder.at(partition, 0) is None
    found = await broker.message_finder.by_transaction_id(partition, "kept")
    assert found is not None and found.offset == 1


@pytest.mark.parametrize("offset", [-1, 2, 100, 2**62, 2**80])
async def test_an_offset_that_was_never_written_is_not_found(broker: Broker, offset: int) -> None:
    partition = await _partition(broker, "window")
    await _push(broker, partition, "a", "b")
    assert await broker.message_finder.at(partition, offset) is None


async def test_the_search_without_hashes_ends_at_its_bound(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_finder, "_PAGE", 2)
    monkeypatch.setattr(message_finder, "_MAX_BODIES", 4)
    partition = await _partition(broker, "off")
    for n in range(6):
        await _push(broker, partition, f"{n}")
    assert await broker.message_finder.by_transaction_id(partition, "2") is not None
    assert await broker.message_finder.by_transaction_id(partition, "1") is None
