"""A burst of one namespace leaves the others their part of a server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.log.append import Append

BURST = 5000
FEW = 20
# Of each flush.
MOST_APPENDS = 1000


@pytest.fixture(params=[{}, {"*": 1}], ids=["as it comes", "weighed"])
async def broker(dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    limits = Limits(dedup_hashes=1000, connections=4, namespace_weights=request.param)
    started = await Broker.start(dsn, limits)
    yield started
    await started.stop()


def appends_of(queue: str, count: int) -> list[Append]:
    return [
        Append(queue, f"p{number % 50}", [uuid.uuid4().hex.encode()], [b"1"], 40)
        for number in range(count)
    ]


async def test_pushes_of_another_namespace_do_not_wait_for_a_burst(broker: Broker) -> None:
    queues = [uuid.uuid4().hex for _ in range(2)]
    for name in queues:
        await broker.queues.configure(name, name, "", QueueOptions(dedup="off"))
        await broker.pusher.push(appends_of(name, 50))
    burst = [broker.pusher.submit([append]) for append in appends_of(queues[0], BURST)]
    few = [broker.pusher.submit([append]) for append in appends_of(queues[1], FEW)]
    await asyncio.gather(*(request.wait() for request in few))
    stored = sum(request.is_answered for request in burst)
    if broker.limits.namespace_weights:
        # All of the few are in the first flush, which they share.
        assert stored <= MOST_APPENDS
    else:
        assert stored == BURST
    await asyncio.gather(*(request.wait() for request in burst))
