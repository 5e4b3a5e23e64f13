"""`kill -9` of servers and of PostgreSQL under load, and consumers that come back from the dead.

Producers choose their transaction ids before the first attempt and repeat a push until it is
answered. Consumers pop with short leases; most ack, some in one transaction with a push, some
die, some ack when it is too late.
Meanwhile processes are killed. Then everything is healed and read to the end, and the
history must show each confirmed message finished once by each group.

`QUEEN_TEST_SEED` repeats the plan of a run, though not its timing.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.acceptance.client import Client
from tests.acceptance.deployment import Deployment, until
from tests.acceptance.history import Ack, History, Item, Needs, Outcome, Pop, Status, check
from tests.long import IS_LONG, long
from tests.waiting import spend_async

KILLS = {"server": 3, "postmaster": 2, "postgres": 2, "backend": 1}
if IS_LONG:
    KILLS = {"server": 5, "postmaster": 3, "postgres": 4, "backend": 2}
QUEUE, GROUPS = "orders", ("billing", "shipping")
# What some consumers push in the transaction that acks.
OUTPUT = "invoices"
PARTITIONS, PRODUCERS, CONSUMERS = 20, 6, 3
# A run with fewer messages proves nothing.
PUSHES = 300
LEASE_S = 2
HEAL_S = DRAIN_S = 60.0


class Load:
    """Producers and consumers, and what they saw."""

    def __init__(
        self,
        deployment: Deployment,
        seed: int,
        actors: asyncio.TaskGroup,
        partitions: int = PARTITIONS,
        **options: object,
    ) -> None:
        self.history = History()
        self._partitions = partitions
        self._options = options
        self._deployment = deployment
        self._seed = seed
        self._actors = actors
        self._pushing = self._popping = self._careless = True
        # Closed while producers, or consumers, are to hold still.
        self._may_push, self._may_pop = asyncio.Event(), asyncio.Event()
        self.resume()
        # Which lease got a message last, by group and transaction id.
        self._holders: dict[tuple[str, str], str] = {}
        # Set when another lease has got a message of this one.
        self._robbed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._zombies: set[asyncio.Task[None]] = set()
        self._producers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        async with self._client(0) as client:
            # Consumers that die use up attempts; none of that shall end in the dead letters.
            patience = {"leaseTime": LEASE_S, "retryLimit": 1_000_000}
            await client.configure(QUEUE, **patience, **self._options)
        for number in range(PRODUCERS):
            self._producers.append(self._actors.create_task(self._produce(number)))
        for group in GROUPS:
            for number in range(CONSUMERS):
                self._actors.create_task(self._consume(group, number))

    async def hold_back(self, choice: random.Random) -> None:
        """Let only one side work for a moment.

        A commit that reaches the disk takes all earlier ones along. Pushes hide what would be
        wrong with acks, and acks hide it of pushes.
        """
        held, longest_s = choice.choice([(self._may_push, 0.05), (self._may_pop, 0.2)])
        held.clear()
        await spend_async(choice.uniform(0.01, longest_s))

    def resume(self) -> None:
        self._may_push.set()
        self._may_pop.set()

    async def reach(self, messages: int) -> None:
        """Let producers go on until so many messages are confirmed, however slow they are."""

        async def are_confirmed() -> bool:
            pushes = [one for one in self.history.pushes if one.outcome is Outcome.OK]
            return sum(len(push.items) for push in pushes) >= messages

        await until(are_confirmed, HEAL_S)

    async def finish(self) -> None:
        """Let producers come to an end and consumers read everything; no faults from here."""
        self._pushing = self._careless = False
        async with asyncio.timeout(HEAL_S):
            await asyncio.wait(self._producers)
        await asyncio.gather(*map(self._drain, GROUPS))
        self._popping = False
        # Whoever still waits for its messages to be redelivered waits for what does not come.
        for robbed in self._robbed.values():
            robbed.set()
        async with asyncio.timeout(HEAL_S):
            while self._zombies:
                await asyncio.wait(self._zombies)
        await self._read_outputs()

    async def _read_outputs(self) -> None:
        async with Client(History(), self._deployment.ports[0]) as client:
            while (pop := await client.pop(OUTPUT, "audit", auto=True)).deliveries:
                for one in pop.deliveries:
                    transaction_id, lease = one.transaction_id.split(" ")
                    self.history.outputs.append((transaction_id, lease))
        assert await self._deployment.is_drained(OUTPUT, "audit")

    async def _drain(self, group: str) -> None:
        # What is missing is told by the verdict on the history.
        with suppress(TimeoutError):
            await until(lambda: self._deployment.is_drained(QUEUE, group), DRAIN_S)
            self.history.drain(group)

    def _client(self, number: int) -> Client:
        ports = self._deployment.ports
        return Client(self.history, ports[number % len(ports)])

    # ---- producers ----

    async def _produce(self, number: int) -> None:
        name, choice = f"p{number}", random.Random(f"{self._seed} {number}")
        clients = [self._client(at) for at in range(len(self._deployment.ports))]
        sent = 0
        try:
            while self._pushing:
                size = choice.randint(1, 3)
                lanes = [f"lane-{choice.randrange(self._partitions)}" for _ in range(size)]
                items = [Item(f"{name}-{sent + at}", lane) for at, lane in enumerate(lanes)]
                sent += size
                await self._push(name, items, clients, choice)
                await spend_async(choice.uniform(0, 0.01))
        finally:
            for client in clients:
                await client.close()

    async def _push(
        self, name: str, items: list[Item], clients: list[Client], choice: random.Random
    ) -> None:
        """Push until it is answered, on whichever server."""
        while True:
            await self._may_push.wait()
            push = await choice.choice(clients).push(QUEUE, name, items)
            if push.outcome is Outcome.OK:
                return
            await spend_async(choice.uniform(0.01, 0.1))

    # ---- consumers ----

    async def _consume(self, group: str, number: int) -> None:
        choice = random.Random(f"{self._seed} {group} {number}")
        while self._popping:
            # A client for each round: where it goes, and whether it lives, is decided anew.
            async with self._client(choice.randrange(2)) as client:
                await self._may_pop.wait()
                batch, partitions = choice.randint(1, 40), choice.randint(1, 3)
                pop = await client.pop(
                    QUEUE, group, wait_ms=300, batch=batch, partitions=partitions
                )
                if pop.deliveries:
                    self._hold(pop)
                    await self._decide_fate(client, pop, choice)
                elif pop.outcome is not Outcome.OK:
                    await spend_async(0.05)

    def _hold(self, pop: Pop) -> None:
        for one in pop.deliveries:
            former = self._holders.get((pop.group, one.transaction_id))
            if former not in (None, pop.lease):
                self._robbed[former].set()
            self._holders[pop.group, one.transaction_id] = pop.lease

    async def _decide_fate(self, client: Client, pop: Pop, choice: random.Random) -> None:
        ids = [one.transaction_id for one in pop.deliveries]
        fate = choice.random() if self._careless else 1.0
        if fate < 0.02:
            return  # It dies with the whole batch in its hands.
        if fate < 0.04:
            some = choice.sample(ids, choice.randint(1, len(ids)))
            for one in some:
                await self._until_answered(client.ack_one, pop, one)
            return  # It dies after a part.
        if fate < 0.06:
            self._raise_zombie(self._ack_too_late(pop))
        elif fate < 0.08:
            self._raise_zombie(self._ack_at_the_last_moment(pop, choice.uniform(0.8, 1.6)))
        elif fate < 0.3:
            await self._until_answered(client.move, pop, ids, OUTPUT)
        else:
            await self._until_answered(client.ack, pop, ids)

    async def _until_answered(
        self, ack: Callable[..., Awaitable[Ack]], pop: Pop, *what: object
    ) -> None:
        while True:
            await self._may_pop.wait()
            if (await ack(pop, *what)).outcome is not Outcome.UNKNOWN:
                return
            await spend_async(0.05)

    # ---- consumers that were thought dead ----

    def _raise_zombie(self, work: object) -> None:
        zombie: asyncio.Task[None] = self._actors.create_task(work)  # type: ignore[arg-type]
        self._zombies.add(zombie)
        zombie.add_done_callback(self._zombies.discard)

    async def _ack_too_late(self, pop: Pop) -> None:
        """Wait until others have got messages of this lease, then ack all of it."""
        ids = [one.transaction_id for one in pop.deliveries]
        await self._robbed[pop.lease].wait()
        async with self._client(len(ids)) as client:
            await self._until_answered(client.ack_one, pop, ids[0])
            await self._until_answered(client.move, pop, ids, OUTPUT)
            await self._until_answered(client.ack, pop, ids)

    async def _ack_at_the_last_moment(self, pop: Pop, leases: float) -> None:
        """Ack when the lease is about to end, or has just ended."""
        await spend_async(leases * LEASE_S)
        async with self._client(0) as client:
            await self._until_answered(client.ack, pop, [one[0] for one in pop.deliveries])


class Nemesis:
    """Kills processes, each kind as often as it is told, in random order."""

    def __init__(
        self,
        deployment: Deployment,
        load: Load,
        seed: int,
        actors: asyncio.TaskGroup,
        kills: dict[str, int] = KILLS,
    ) -> None:
        self._kills = kills
        self._deployment = deployment
        self._load = load
        self._actors = actors
        self._choice = random.Random(f"{seed} nemesis")

    async def run(self) -> None:
        plan = [kind for kind, times in self._kills.items() for _ in range(times)]
        self._choice.shuffle(plan)
        for kind in plan:
            await spend_async(self._choice.uniform(0.2, 1.0))
            if self._choice.random() < 0.7:
                await self._load.hold_back(self._choice)
            await self._strike(kind)
            self._load.resume()
            # Sometimes the next fault comes before this one is healed.
            if self._choice.random() < 0.7:
                await self.healed()

    async def _strike(self, kind: str) -> None:
        if kind == "server":
            port = self._choice.choice(self._deployment.ports)
            assert self._deployment.kill_server(port), "a server ended by itself"
            self._load.history.fault(kind)
            await self._restart(port)
            return
        strike = {
            "postmaster": self._deployment.kill_postmaster,
            "postgres": self._deployment.kill_postgres,
            "backend": self._deployment.kill_backend,
        }[kind]
        # There is nothing to hit while it is still down from the fault before.
        await until(strike, HEAL_S)
        self._load.history.fault(kind)
        self._load.history.crash()
        self._actors.create_task(self._watch_recovery())

    async def _watch_recovery(self) -> None:
        await until(self._deployment.is_recovered, HEAL_S)
        self._load.history.recover()

    async def _restart(self, port: int) -> None:
        await spend_async(self._choice.uniform(0, 0.3))
        await self._deployment.start_server(port)

    async def healed(self) -> None:
        """Return when every server says that it is ready.

        It may say so for a moment longer than is true: an orphaned backend still answers.
        """
        for port in self._deployment.ports:
            async with Client(self._load.history, port) as client:
                await until(client.is_healthy, HEAL_S)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("servers", [2, *long(1)])
async def test_each_confirmed_message_is_finished_once_by_each_group(
    deployment: Deployment, servers: int
) -> None:
    seed = int(os.environ.get("QUEEN_TEST_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"QUEEN_TEST_SEED={seed}")
    for _ in range(servers):
        await deployment.add_server()
    async with asyncio.TaskGroup() as actors:
        load = Load(deployment, seed, actors)
        nemesis = Nemesis(deployment, load, seed, actors)
        await load.start()
        await nemesis.run()
        await nemesis.healed()
        await load.reach(PUSHES)
        await load.finish()
    needs = Needs(pushes=PUSHES, redeliveries=1, refusals=1, unknown_pushes=1, faults=KILLS)
    print(summary(load.history))
    verdict = check(load.history, GROUPS, needs, lease_s=LEASE_S, several_servers=servers > 1)
    assert verdict.status is Status.VALID, str(verdict)


def summary(history: History) -> str:
    confirmed = {
        item.transaction_id
        for push in history.pushes
        if push.outcome is Outcome.OK
        for item in push.items
    }
    unknown = sum(push.outcome is Outcome.UNKNOWN for push in history.pushes)
    return (
        f"{dict(history.faults)}; {len(history.pushes)} pushes, {unknown} unknown, "
        f"{len(confirmed)} messages; {len(history.pops)} pops; {len(history.acks)} acks, "
        f"{sum(bool(ack.refused) for ack in history.acks)} refused; {len(history.outputs)} outputs"
    )
