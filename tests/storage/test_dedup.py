"""Dedup is exact within its horizon, whatever the hashes do."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import AsyncIterator, Iterable

import pytest

from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.log import append
from queen.service.log.append import Append


@pytest.fixture
async def brokers(dsn: str) -> AsyncIterator[tuple[Broker, Broker]]:
    """Two servers on one database."""
    limits = Limits(dedup_hashes=100_000, connections=3)
    one, other = await Broker.start(dsn, limits), await Broker.start(dsn, limits)
    yield one, other
    await one.stop()
    await other.stop()


async def _queue(broker: Broker, policy: str) -> str:
    name = f"dedup-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions(dedup=policy))  # type: ignore[arg-type]
    return name


async def _push(broker: Broker, queue: str, *ids: str) -> list[tuple[int, bool]]:
    """Push messages; return offset and whether it was there before, for each."""
    encoded = [name.encode() for name in ids]
    append = Append(queue, "p", encoded, [b"1"] * len(ids), 100)
    await broker.pusher.push([append])
    return [(append.offset_of(at), append.is_duplicate(at)) for at in range(len(ids))]


def _all_alike(ids: Iterable[bytes]) -> array[int]:
    return array("Q", [42 for _ in ids])


@pytest.mark.parametrize("policy", ["window", "forever"])
async def test_colliding_hashes_refuse_no_message(
    brokers: tuple[Broker, Broker], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every id has the same hash: the stored ids must decide, on both servers."""
    monkeypatch.setattr(append, "hash_ids", _all_alike)
    one, other = brokers
    queue = await _queue(one, policy)
    assert await _push(one, queue, "a", "b") == [(0, False), (1, False)]
    assert await _push(other, queue, "c", "a") == [(2, False), (0, True)]
    assert await _push(one, queue, "d", "c", "b") == [(3, False), (2, True), (1, True)]
    assert await _push(other, queue, "e", "d") == [(4, False), (3, True)]


@pytest.mark.parametrize("policy", ["window", "forever"])
async def test_a_repeat_is_answered_with_the_first_offset(
    brokers: tuple[Broker, Broker], policy: str
) -> None:
    one, other = brokers
    queue = await _queue(one, policy)
    ids = [f"id-{n}" for n in range(300)]
    first = await _push(one, queue, *ids)
    assert [offset for offset, _ in first] == list(range(300))
    for broker in (one, other):
        again = await _push(broker, queue, *ids)
        assert again == [(offset, True) for offset, _ in first]


async def test_off_stores_every_message(brokers: tuple[Broker, Broker]) -> None:
    one, _ = brokers
    queue = await _queue(one, "off")
    assert await _push(one, queue, "a", "a") == [(0, False), (1, False)]
    assert await _push(one, queue, "a") == [(2, False)]


@pytest.mark.parametrize("policy", ["window", "forever"])
async def test_the_same_id_twice_in_one_push_is_one_message(
    brokers: tuple[Broker, Broker], policy: str
) -> None:
    one, _ = brokers
    queue = await _queue(one, policy)
    pushed = await _push(one, queue, "a", "b", "a", "c", "b")
    assert pushed == [(0, False), (1, False), (0, True), (2, False), (1, True)]


async def test_the_same_id_in_two_partitions_is_two_messages(
    brokers: tuple[Broker, Broker],
) -> None:
    one, _ = brokers
    queue = await _queue(one, "window")
    appends = [Append(queue, name, [b"a"], [b"1"], 10) for name in ("x", "y")]
    await one.pusher.push(appends)
    assert not any(each.is_duplicate(0) for each in appends)


async def test_a_new_server_knows_what_the_old_one_wrote(dsn: str) -> None:
    limits = Limits(dedup_hashes=100_000, connections=3)
    old = await Broker.start(dsn, limits)
    queue = await _queue(old, "window")
    await _push(old, queue, "a", "b")
    await old.stop()
    new = await Broker.start(dsn, limits)
    assert await _push(new, queue, "b", "c") == [(1, True), (2, False)]
    await new.stop()


async def test_memory_is_bounded_and_the_window_held_is_told(dsn: str) -> None:
    limits = Limits(dedup_hashes=50_000, connections=3)
    broker = await Broker.start(dsn, limits)
    queue = await _queue(broker, "window")
    for batch in range(20):
        await _push(broker, queue, *(f"{batch}-{n}" for n in range(5000)))
    assert len(broker.dedup.recent) <= 50_000 + 16_384
    assert 0 < broker.dedup.recent.held_seconds() < 60
    newest = await _push(broker, queue, "19-4999")
    assert newest == [(99_999, True)]
    await broker.stop()
