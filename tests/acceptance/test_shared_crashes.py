"""`kill -9` of servers and of PostgreSQL under shared groups, and consumers that come back.

The same campaign as `test_crashes`, with few partitions, so that many consumers hold messages of
each at once: none is lost, none is held by two, and none is acked by a lease that has lapsed.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.history import Needs, Status, check
from tests.acceptance.test_crashes import GROUPS, LEASE_S, Load, Nemesis, summary
from tests.long import IS_LONG

KILLS = {"server": 2, "postgres": 1, "backend": 1}
PARTITIONS, PUSHES = 2, 200
if IS_LONG:
    KILLS = {"server": 6, "postmaster": 4, "postgres": 5, "backend": 3}
    PUSHES = 600


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_each_confirmed_message_is_finished_once_by_each_shared_group(
    deployment: Deployment,
) -> None:
    seed = int(os.environ.get("QUEEN_TEST_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"QUEEN_TEST_SEED={seed}")
    for _ in range(2):
        await deployment.add_server()
    async with asyncio.TaskGroup() as actors:
        load = Load(deployment, seed, actors, PARTITIONS, sharedGroups=True)
        nemesis = Nemesis(deployment, load, seed, actors, KILLS)
        await load.start()
        await nemesis.run()
        await nemesis.healed()
        await load.reach(PUSHES)
        await load.finish()
    needs = Needs(pushes=PUSHES, redeliveries=1, faults=KILLS)
    print(summary(load.history))
    verdict = check(load.history, GROUPS, needs, lease_s=LEASE_S, several_servers=True)
    assert verdict.status is Status.VALID, str(verdict)
