"""A limit that is lifted while what it limits is counted: nothing is refused for want of room."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queen.core.frame import compress, encode_body, segment_of
from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.log.append import Append
from queen.service.sinks.sinks import Batch, NamedStage, Stage
from queen.storage.database import Database


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=3))
    yield started
    await started.stop()


@pytest.fixture
async def queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two queues with room, whose limits are lifted when the first of them is counted."""
    names = [uuid.uuid4().hex for _ in range(2)]
    for name in names:
        await broker.queues.configure(name, "", "", QueueOptions(max_size=5))
    fetchval = Database.fetchval
    counted: list[str] = []

    async def lift(self: Database, statement: str, *rest: Any) -> Any:
        if statement == "queue_depth" and not counted:
            counted.append(statement)
            for name in names:
                await broker.queues.configure(name, "", "", QueueOptions())
        return await fetchval(self, statement, *rest)

    monkeypatch.setattr(Database, "fetchval", lift)
    return names


_COLUMNS = [b"a", b"b"], [b"1"] * 2


async def test_what_is_pushed_meanwhile_is_taken(broker: Broker, queues: list[str]) -> None:
    appends = [Append(name, "p", *_COLUMNS, 100) for name in queues]
    await broker.pusher.push(appends)
    assert [append.error for append in appends] == [None, None]


async def test_what_is_published_meanwhile_is_taken(broker: Broker, queues: list[str]) -> None:
    epoch, _ = await broker.sinks.open(query := uuid.uuid4().hex, "run", None, once=False)
    appends = [Append(name, "p", *_COLUMNS, 100) for name in queues]
    for append in appends:
        append.encoded = compress(encode_body(segment_of(*_COLUMNS)))
    await broker.sinks.stage(Stage(query, 0, "run", 0, 0), 0, appends, unique=False)
    batch = Batch(query, epoch, "run", 0, [NamedStage(0, 0, 4)])
    assert (await broker.publisher.publish(batch)).messages == 4
