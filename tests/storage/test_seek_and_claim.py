"""A seek between the commit of a claim and its answer."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queen.core.options import QueueOptions
from queen.service.admin.groups import BEGINNING, SeekTarget
from queen.service.broker import Broker, Limits
from queen.service.consume.feeds import Pop
from queen.service.log.append import Append


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=3))
    yield started
    await started.stop()


async def test_a_lease_that_ended_before_it_was_known_does_not_block_its_partition(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"race-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions())
    await broker.pusher.push([Append(name, "p", [b"t"], [b"1"], 100)])
    queue = await broker.catalog.queue(name)
    assert queue is not None
    await broker.popper.pop([queue], Pop("g", 1, named="none"), 0)
    (group,) = await broker.groups.find("g", name)
    feed = broker.dispatcher.feed(queue.id, "g")
    assert feed is not None
    fetch = broker.hot.fetch

    async def seek_after_claim(statement: str, *arguments: Any) -> Any:
        rows = await fetch(statement, *arguments)
        if statement == "claim":
            monkeypatch.setattr(broker.hot, "fetch", fetch)
            await broker.groups.seek(group, None, SeekTarget(BEGINNING), dry=False)
            # The look at all partitions that a seek starts is over as well.
            while feed.sweep_after is not None:
                await broker.hot.fetchval("now")
        return rows

    monkeypatch.setattr(broker.hot, "fetch", seek_after_claim)
    (lost,) = await broker.popper.pop([queue], Pop("g", 1), 0)
    (again,) = await broker.popper.pop([queue], Pop("g", 1), 0)
    assert (lost.start, again.start) == (0, 0)
    assert again.epoch > lost.epoch
