"""What a server must catch up on before it publishes, after others have written much."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from queen.core.frame import compress, encode_body, segment_of
from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.log.append import Append
from queen.service.log.appender import outcomes
from queen.service.sinks import publish as publish_module
from queen.service.sinks.sinks import Batch, NamedStage, Stage

# More than is compared under the lock of a partition.
MESSAGES = 110_000
AT_ONCE = 10_000
BEHIND = 4


@pytest.fixture
async def brokers(dsn: str) -> AsyncIterator[list[Broker]]:
    """Two servers on one database."""
    async with AsyncExitStack() as stack:
        started = []
        for _ in range(2):
            broker = await Broker.start(dsn, Limits(dedup_hashes=500_000, connections=3))
            stack.push_async_callback(broker.stop)
            started.append(broker)
        yield started


async def _push(broker: Broker, queue: str, ids: list[bytes]) -> None:
    await broker.pusher.push([Append(queue, "p", ids, [b"1"] * len(ids), 40 * len(ids))])


async def _publish(broker: Broker, queue: str, ids: list[bytes]) -> publish_module.Published:
    """Publish a batch of messages whose ids the producer has chosen."""
    payloads = [b"1"] * len(ids)
    append = Append(queue, "p", ids, payloads, 100)
    append.encoded = compress(encode_body(segment_of(ids, payloads)))
    epoch, _ = await broker.sinks.open(query := uuid.uuid4().hex, "run", None, once=False)
    await broker.sinks.stage(Stage(query, 0, "run", 0, 0), 0, [append], unique=False)
    return await broker.publisher.publish(
        Batch(query, epoch, "run", 0, [NamedStage(0, 0, len(ids))])
    )


async def test_what_others_wrote_meanwhile_is_loaded_before_the_lock_when_it_is_much(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    away, busy = brokers
    await busy.queues.configure(queue := uuid.uuid4().hex, "", "", QueueOptions())
    await _push(away, queue, [b"first"])
    for first in range(0, MESSAGES, AT_ONCE):
        await _push(busy, queue, [b"m%d" % n for n in range(first, first + AT_ONCE)])
    said: list[tuple[int, int]] = []

    def heard(rows: Any) -> Any:
        decoded = outcomes(rows)
        said.extend((row.outcome, len(row.unseen or b"")) for row in decoded)
        return decoded

    monkeypatch.setattr(publish_module, "outcomes", heard)
    published = await _publish(away, queue, [b"m7", b"first", b"fresh"])
    assert (published.messages, published.duplicates) == (1, 2)
    assert said == [(BEHIND, 0), (0, 0)]


async def test_a_little_is_compared_at_once(brokers: list[Broker]) -> None:
    away, busy = brokers
    await busy.queues.configure(queue := uuid.uuid4().hex, "", "", QueueOptions())
    await _push(away, queue, [b"first"])
    await _push(busy, queue, [b"second", b"third"])
    published = await _publish(away, queue, [b"third", b"fresh", b"first"])
    assert (published.messages, published.duplicates) == (1, 2)
