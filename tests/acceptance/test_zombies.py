"""Holders that have lost their lease and do not know it, one at a time.

`test_crashes` meets them at random; here each is led up to its ack.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.acceptance.client import Client
from tests.acceptance.deployment import Deployment, until
from tests.acceptance.history import Ack, History, Item, Outcome, Pop, Status, check
from tests.waiting import spend_async

QUEUE, PARTITION, GROUP = "orders", "lane", "billing"
HEAL_S = 60.0
ROUNDS = 10


async def ack_until_answered(client: Client, pop: Pop) -> Ack:
    """Ack everything that was popped; again while the database is away."""
    ids = [one.transaction_id for one in pop.deliveries]
    acks: list[Ack] = []

    async def is_answered() -> bool:
        acks.append(await client.ack(pop, ids))
        return acks[-1].outcome is not Outcome.UNKNOWN

    await until(is_answered, HEAL_S)
    return acks[-1]


@pytest.fixture
async def ports(deployment: Deployment) -> tuple[int, int]:
    """Two servers on one database."""
    return await deployment.add_server(), await deployment.add_server()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_lease_that_a_crash_took_back_is_refused(
    deployment: Deployment, ports: tuple[int, int]
) -> None:
    """A grant need not reach the disk. The server that made it may still believe in it."""
    history = History()
    async with Client(history, ports[0]) as first, Client(history, ports[1]) as second:
        await first.configure(QUEUE, leaseTime=60)
        for number in range(ROUNDS):
            await first.push(QUEUE, "p", [Item(f"{number}", PARTITION), Item(f"w{number}", "warm")])
            # The first grant of a connection does reach the disk.
            await ack_until_answered(first, await first.pop(QUEUE, GROUP, partition="warm"))
            # What the push still writes, a notification, would take the grant to the disk, and
            # so would whatever the other server does.
            await spend_async(0.1)
            deployment.pause_server(ports[1])
            deployment.hold_wal_writer()
            lost = await first.pop(QUEUE, GROUP, partition=PARTITION)
            assert await deployment.kill_postgres()
            deployment.resume_server(ports[1])
            history.crash()
            await until(second.is_healthy, HEAL_S)
            other = await second.pop(QUEUE, GROUP, partition=PARTITION)
            if other.deliveries:
                break
            # The grant had reached the disk all the same, so it holds.
            assert (await ack_until_answered(first, lost)).refused == ()
        else:
            pytest.fail(f"no grant was lost in {ROUNDS} crashes")
        assert other.deliveries == lost.deliveries
        assert (await ack_until_answered(first, lost)).accepted == ()
        assert (await ack_until_answered(second, other)).refused == ()
    history.drain(GROUP)
    verdict = check(history, [GROUP], lease_s=60)
    assert verdict.status is Status.VALID, str(verdict)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "leased"])
async def test_a_server_that_was_paused_does_not_ack_what_has_moved_on(
    deployment: Deployment, ports: tuple[int, int], finished: bool
) -> None:
    """It slept through the end of a lease; the messages are with, or done by, somebody else."""
    history = History()
    items = [Item(f"{number}", PARTITION) for number in range(3)]
    more = [Item(f"{number}", PARTITION) for number in range(3, 6)]
    async with Client(history, ports[0]) as sleeper, Client(history, ports[1]) as other:
        await sleeper.configure(QUEUE, leaseTime=3)
        await sleeper.push(QUEUE, "p", items)
        held = await sleeper.pop(QUEUE, GROUP, partition=PARTITION)
        deployment.pause_server(ports[0])
        taken = await other.pop(QUEUE, GROUP, partition=PARTITION, wait_ms=20_000)
        assert taken.deliveries == held.deliveries
        if finished:
            assert (await ack_until_answered(other, taken)).refused == ()
        await other.push(QUEUE, "p", more)
        late = asyncio.create_task(ack_until_answered(sleeper, held))
        # The request is under way to the server before that wakes up.
        await spend_async(0.1)
        deployment.resume_server(ports[0])
        assert (await late).accepted == ()
        # What it missed is known to it: neither stored again nor passed over.
        await sleeper.push(QUEUE, "p", [*items, *more])
        async with asyncio.timeout(HEAL_S):
            while not await deployment.is_drained(QUEUE, GROUP):
                await read_on(sleeper)
    history.drain(GROUP)
    verdict = check(history, [GROUP], lease_s=3)
    assert verdict.status is Status.VALID, str(verdict)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_ack_whose_server_died_can_be_repeated_elsewhere(
    deployment: Deployment, ports: tuple[int, int]
) -> None:
    """It has happened, and says so, also when others have read on meanwhile."""
    history = History()
    items = [Item(f"{number}", PARTITION) for number in range(3)]
    more = [Item(f"{number}", PARTITION) for number in range(3, 6)]
    async with Client(history, ports[0]) as first, Client(history, ports[1]) as second:
        await first.configure(QUEUE, leaseTime=60)
        await first.push(QUEUE, "p", items)
        pop = await first.pop(QUEUE, GROUP, partition=PARTITION)
        await first.ack_one(pop, "0")
        # The same before the lease is over, ...
        assert (await second.ack_one(pop, "0")).accepted == ("0",)
        await ack_until_answered(first, pop)
        assert deployment.kill_server(ports[0])
        # ... when it is, ...
        assert (await ack_until_answered(second, pop)).refused == ()
        await second.push(QUEUE, "p", more)
        await read_on(second)
        # ... and when there has been another.
        assert (await ack_until_answered(second, pop)).refused == ()
    history.drain(GROUP)
    verdict = check(history, [GROUP], lease_s=60)
    assert verdict.status is Status.VALID, str(verdict)


async def read_on(client: Client) -> None:
    pop = await client.pop(QUEUE, GROUP, partition=PARTITION, wait_ms=500)
    if pop.deliveries:
        await ack_until_answered(client, pop)
