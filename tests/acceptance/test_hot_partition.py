"""One partition, many writers, and readers that never look away.

This is where a log that orders messages by time or by sequence loses them: a reader that
polls the tail without pause passes a position before the message that belongs there is
visible.

`QUEEN_TEST_SECONDS` sets how long each run lasts; take 60 for a long one.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from tests.acceptance.client import Client
from tests.acceptance.deployment import Deployment
from tests.acceptance.history import History, Item, Needs, Outcome, Status, check
from tests.long import long

SECONDS = float(os.environ.get("QUEEN_TEST_SECONDS", "3"))
PRODUCERS = 16
# A run with fewer proves nothing; on a slow machine it lasts longer.
PUSHES = int(35 * SECONDS)
QUEUE, PARTITION = "hot", "one"
DRAIN_S = 60.0


class Run:
    """Producers and readers over some servers, and what they saw."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.history = History()
        self.producing = True

    async def go(self, seconds: float) -> None:
        ports = self.deployment.ports
        async with Client(self.history, ports[0]) as client:
            await client.configure(QUEUE, leaseTime=60)
        readers = [asyncio.create_task(self._tail(port)) for port in ports]
        readers.append(asyncio.create_task(self._worker()))
        deadline = time.monotonic() + seconds
        await asyncio.gather(*(self._produce(number, deadline) for number in range(PRODUCERS)))
        self.producing = False
        await asyncio.gather(*readers)

    @property
    def groups(self) -> list[str]:
        return ["worker", *(f"tail-{port}" for port in self.deployment.ports)]

    async def _produce(self, number: int, deadline: float) -> None:
        """Push one request after the other; now and then the same one on two connections."""
        name, choice = f"p{number}", random.Random(number)
        ports = self.deployment.ports
        sent = 0
        async with Client(self.history, ports[0]) as one, Client(self.history, ports[-1]) as two:
            while time.monotonic() < deadline or len(self.history.pushes) < PUSHES:
                size = choice.randint(1, 4)
                items = [Item(f"{name}-{sent + at}", PARTITION) for at in range(size)]
                sent += size
                chance = choice.random()
                if chance < 0.05:
                    await asyncio.gather(one.push(QUEUE, name, items), two.push(QUEUE, name, items))
                else:
                    await (one if chance < 0.5 else two).push(QUEUE, name, items)

    async def _tail(self, port: int) -> None:
        """Read the partition without ever waiting for it."""
        group = f"tail-{port}"
        async with Client(self.history, port) as client:

            async def read() -> bool:
                pop = await client.pop(QUEUE, group, partition=PARTITION, auto=True, batch=1000)
                return bool(pop.deliveries)

            await self._read_all(group, read)

    async def _worker(self) -> None:
        """Lease on one server, ack on another if there is one."""
        ports = self.deployment.ports
        async with Client(self.history, ports[0]) as one, Client(self.history, ports[-1]) as two:

            async def read() -> bool:
                pop = await one.pop(QUEUE, "worker", wait_ms=200, batch=200)
                if pop.deliveries:
                    await two.ack(pop, [message.transaction_id for message in pop.deliveries])
                return bool(pop.deliveries)

            await self._read_all("worker", read)

    async def _read_all(self, group: str, read: object) -> None:
        assert callable(read)
        while self.producing:
            await read()
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            if not await read() and await self.deployment.is_drained(QUEUE, group):
                self.history.drain(group)
                return


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 200)
@pytest.mark.parametrize("servers", [2, *long(1)])
async def test_a_reader_at_the_tail_of_a_hot_partition_skips_nothing(
    deployment: Deployment, servers: int
) -> None:
    for _ in range(servers):
        await deployment.add_server()
    run = Run(deployment)
    await run.go(SECONDS)
    operations = [*run.history.pushes, *run.history.pops, *run.history.acks]
    confirmed = sum(len(push.items) for push in run.history.pushes)
    print(f"{len(run.history.pushes)} pushes, {confirmed} messages, {len(run.history.pops)} pops")
    assert {operation.outcome for operation in operations} == {Outcome.OK}
    assert not any(ack.refused for ack in run.history.acks)
    verdict = check(run.history, run.groups, Needs(pushes=PUSHES))
    assert verdict.status is Status.VALID, verdict
