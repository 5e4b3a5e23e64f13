"""What one neighbour does wrong, under load, and nobody else notices.

The load of the crash campaign runs on two servers, one of which lacks the key of an encrypted
queue. Meanwhile rows are locked, a server is suspended, the queue changes its dedup, the
database's clock has been elsewhere, ids of a queue that cannot be read are repeated, and a push
is larger than a frame. Then the history must show each confirmed message finished once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import urllib.error
import urllib.request

import asyncpg
import pytest

from tests.acceptance.client import Client
from tests.acceptance.deployment import Deployment
from tests.acceptance.history import Needs, Status, check
from tests.acceptance.test_crashes import GROUPS, LEASE_S, QUEUE, Load, summary
from tests.waiting import spend_async

KINDS = {
    "partition": 3,
    "cursor": 3,
    "seal": 2,
    "paused peer": 2,
    "forever": 2,
    "clock": 2,
    "wrong key": 4,
    "oversized": 1,
}
SECRET, LARGE = "secret", "large"
_OTHER_KEY = "cd" * 32


class Disturber:
    """Does what a neighbour may do, each kind as often as `KINDS` says, in random order."""

    def __init__(self, deployment: Deployment, load: Load, seed: int) -> None:
        self._deployment = deployment
        self._load = load
        self._choice = random.Random(f"{seed} disturber")
        self._dedup = "window"

    async def run(self) -> None:
        plan = [kind for kind, times in KINDS.items() for _ in range(times)]
        self._choice.shuffle(plan)
        self._database = await asyncpg.connect(self._deployment.dsn)
        try:
            for kind in plan:
                await spend_async(self._choice.uniform(0.1, 0.4))
                await self._strike(kind)
                self._load.history.fault(kind)
        finally:
            await self._database.close()

    async def _strike(self, kind: str) -> None:
        strikes = {
            "partition": lambda: self._lock("select 1 from queen.partitions where id % 3 = 0"),
            "cursor": lambda: self._lock("select 1 from queen.cursors where partition_id % 3 = 0"),
            "seal": self._hold_seal,
            "paused peer": self._pause,
            "forever": self._turn,
            "clock": self._step_clock,
            "wrong key": self._repeat_secret,
            "oversized": self._push_large,
        }
        await strikes[kind]()

    async def _lock(self, rows: str) -> None:
        """A peer that holds some rows and does not go on."""
        async with self._database.transaction():
            await self._database.execute(f"{rows} order by 1 for update")
            await spend_async(self._choice.uniform(0.3, 1.5))

    async def _hold_seal(self) -> None:
        async with self._database.transaction():
            await self._database.execute(
                "select pg_advisory_xact_lock(7001, id) from queen.queues where name = $1", QUEUE
            )
            await spend_async(self._choice.uniform(0.2, 0.6))

    async def _pause(self) -> None:
        """Suspended for less than its connections live, in the middle of whatever it did."""
        port = self._choice.choice(self._deployment.ports)
        self._deployment.pause_server(port)
        await spend_async(self._choice.uniform(0.5, 2))
        self._deployment.resume_server(port)

    async def _turn(self) -> None:
        self._dedup = "forever" if self._dedup == "window" else "window"
        async with Client(self._load.history, self._deployment.ports[0]) as client:
            await client.configure(
                QUEUE, leaseTime=LEASE_S, retryLimit=1_000_000, dedup=self._dedup
            )

    async def _step_clock(self) -> None:
        """What a clock that went ahead, and came back, leaves behind."""
        await self._database.execute(
            "update queen.partitions set head_at = head_at + interval '1 minute'"
            " where id % 5 = 0 and head > 0"
        )

    async def _repeat_secret(self) -> None:
        good, wrong = self._deployment.ports
        items = [{"queue": SECRET, "payload": n, "transactionId": f"{n}"} for n in range(5)]
        assert await self._post(good, items) == 201
        assert await self._post(wrong, items) == 503

    async def _push_large(self) -> None:
        payload = "x" * (1024 * 1024)
        items: list[dict[str, object]] = [{"queue": LARGE, "payload": payload}] * 40
        assert await self._post(self._deployment.ports[0], items) == 201

    async def _post(self, port: int, items: list[dict[str, object]]) -> int:
        """Push beside the history: what becomes of it is asserted here."""
        body = json.dumps({"items": items}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/push", body)

        def send() -> int:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        return await asyncio.to_thread(send)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_neighbours_notice_nothing(deployment: Deployment) -> None:
    seed = int(os.environ.get("QUEEN_TEST_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"QUEEN_TEST_SEED={seed}")
    await deployment.add_server()
    await deployment.add_server(QUEEN_ENCRYPTION_KEY=_OTHER_KEY)
    async with asyncio.TaskGroup() as actors:
        load = Load(deployment, seed, actors)
        async with Client(load.history, deployment.ports[0]) as client:
            await client.configure(SECRET, encryptionEnabled=True)
        await load.start()
        await Disturber(deployment, load, seed).run()
        await load.finish()
    needs = Needs(pushes=100, redeliveries=0, refusals=0, unknown_pushes=0, faults=KINDS)
    print(summary(load.history))
    verdict = check(load.history, GROUPS, needs, lease_s=LEASE_S)
    assert verdict.status is Status.VALID, str(verdict)
