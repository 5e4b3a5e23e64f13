"""Servers that are killed under load: no entry is lost, none is acknowledged twice.

`QUEEN_TEST_LONG=1` kills 200 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from queen.storage.embedded import EmbeddedPostgres
from queen.storage.tuning import settings_for
from tests.conftest import ServerProcess
from tests.entries.workload import Workload
from tests.ports import free_port
from tests.waiting import spend_async

IS_LONG = "QUEEN_TEST_LONG" in os.environ
KILLS = 200 if IS_LONG else 4
SEED = int(os.environ.get("QUEEN_TEST_SEED", time.time_ns() % 1_000_000))


@pytest.mark.slow
@pytest.mark.timeout(1800 if IS_LONG else 300)
async def test_nothing_is_lost_when_servers_are_killed(
    tmp_path: Path, start_server: Callable[..., ServerProcess]
) -> None:
    print(f"QUEEN_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    database = EmbeddedPostgres(tmp_path / "pg", settings_for(1024**3, 2))
    database.start()
    port, resp_port = free_port(), free_port()
    arguments = ("--database-url", database.dsn, "--resp-port", str(resp_port))
    try:
        server = start_server(*arguments, port=port)
        load, names = Workload(resp_port), ["a", "b", "c"]
        await load.begin()
        tasks = [asyncio.create_task(load.produce(number, 4)) for number in range(4)]
        tasks += [asyncio.create_task(load.consume(name)) for name in names]
        for _ in range(KILLS):
            await spend_async(rng.uniform(0.05, 0.8))
            server.kill()
            server = await asyncio.to_thread(start_server, *arguments, port=port)
        await spend_async(0.5)
        load.stop()
        await asyncio.gather(*tasks)
        await load.finish(names)
        await load.check()
        assert load.failures
        print(f"{len(load.added)} entries, {KILLS} kills, {load.failures} lost answers")
        server.stop()
    finally:
        database.stop()
