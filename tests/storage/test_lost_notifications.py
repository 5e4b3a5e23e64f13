"""A server that hears nothing of the others finds everything by looking."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.consume import sweeper
from queen.service.consume.feeds import Feed, Grant, Pop
from queen.service.log.append import Append
from queen.service.signals import Signals
from tests.waiting import until_met

PATIENCE_S = 20.0


@pytest.fixture
async def brokers(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Broker]]:
    """Two servers, neither of which hears the other, and which never look at all partitions."""
    monkeypatch.setattr(Signals, "_hear", lambda *_: None)
    monkeypatch.setattr(sweeper, "_SWEEP_INTERVAL_S", 3600.0)
    started = [await Broker.start(dsn, Limits(dedup_hashes=1000, connections=3)) for _ in range(2)]
    yield started
    for broker in started:
        await broker.stop()


async def _pop(broker: Broker, name: str, wait_s: float = 0) -> list[Grant]:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return await broker.popper.pop([queue], Pop("g", 1, waits=wait_s > 0), wait_s)


async def test_a_lease_that_another_server_ended_is_found_free(brokers: list[Broker]) -> None:
    one, other = brokers
    await one.queues.configure(name := uuid.uuid4().hex, "", "", QueueOptions(lease_time=3600))
    await one.pusher.push([Append(name, "p", [b"a", b"b"], [b"1", b"2"], 100)])
    (held,) = await _pop(one, name)
    waiting = asyncio.create_task(_pop(other, name, 300))

    def holding() -> Feed | None:
        known = other.catalog.known(name, "p")
        feed = other.dispatcher.feed(known.queue.id, "g") if known else None
        return feed if feed is not None and feed.held else None

    feed = await until_met(holding)
    assert feed is not None
    # Given back through its own server, of which the other one hears nothing.
    assert held.lease_id is not None
    await one.database.execute("release_lease", [held.partition.id], [feed.group_id], held.lease_id)
    async with asyncio.timeout(PATIENCE_S):
        (found,) = await waiting
    assert found.start == 0


async def test_a_lease_of_its_own_that_another_server_ended_is_found_free(
    brokers: list[Broker],
) -> None:
    one, other = brokers
    await one.queues.configure(name := uuid.uuid4().hex, "", "", QueueOptions(lease_time=3600))
    await one.pusher.push([Append(name, "p", [b"a", b"b"], [b"1", b"2"], 100)])
    (held,) = await _pop(one, name)
    waiting = asyncio.create_task(_pop(one, name, 300))
    group = await other.catalog.find_group(held.partition.queue, "g")
    assert group is not None and held.lease_id is not None
    await other.database.execute("release_lease", [held.partition.id], [group], held.lease_id)
    async with asyncio.timeout(PATIENCE_S):
        (found,) = await waiting
    assert found.start == 0
