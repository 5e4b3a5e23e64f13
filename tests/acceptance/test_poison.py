"""One message in a thousand kills the process that reads it.

Eight consumers, started again whenever they die. In the end the poisonous messages and only
they are dead letters, each after as many deaths as the queue allows, and everything else is
done: once where each message is acked when it is done, at least once where a batch is acked
as a whole, because what stood before the poison in its batch is lost with the process.

`QUEEN_TEST_POISON_MESSAGES` sets how many messages there are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import IS_LONG
from tests.waiting import until_async

MESSAGES = int(os.environ.get("QUEEN_TEST_POISON_MESSAGES", "2000"))
# In partitions that differ, so that the waits for their leases pass together.
POISON = {1000 * k + k * 331 % 1000 for k in range(MESSAGES // 1000)}
CONSUMERS, PARTITIONS = 8 if IS_LONG else 4, 8
LEASE_S, RETRY_LIMIT = 3, 2
ROOT = Path(__file__).parents[2]

_UNREAD = """
select count(*)
from queen.partitions p
join queen.queues q on q.id = p.queue_id and q.name = $1
left join queen.cursors c on c.partition_id = p.id
where p.head > coalesce(c.committed, 0)
"""


class Crew:
    """Consumers that are started again when they die."""

    def __init__(self, urls: list[str], queue: str, effects: Path, how: str) -> None:
        self._commands = [
            [sys.executable, "-m", "tests.acceptance.poisoned", url, queue, str(effects), how]
            for url in (urls * CONSUMERS)[:CONSUMERS]
        ]
        self._running = [self._start(command) for command in self._commands]
        self.deaths = 0

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=ROOT)

    def restart_the_dead(self) -> None:
        for at, process in enumerate(self._running):
            code = process.poll()
            if code is not None:
                assert code == 9, "a consumer died of something else"
                self.deaths += 1
                self._running[at] = self._start(self._commands[at])

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(10)


def push_all(api: Api, queue: str) -> None:
    for start in range(0, MESSAGES, 1000):
        items = [
            {
                "queue": queue,
                "partition": f"p{n % PARTITIONS}",
                "transactionId": f"m{n}",
                "payload": {"n": n, "poison": n in POISON},
            }
            for n in range(start, min(start + 1000, MESSAGES))
        ]
        assert api.push(*items).status == 201


async def drain(connection: asyncpg.Connection, crew: Crew, queue: str) -> None:
    """Keep the crew at work until the group has finished everything."""

    async def is_done() -> bool:
        crew.restart_the_dead()
        return not await connection.fetchval(_UNREAD, queue)

    await until_async(is_done, 200 + MESSAGES / 200, look_s=0.02)


@pytest.mark.slow
@pytest.mark.timeout(300 + MESSAGES // 100)
@pytest.mark.parametrize("how", ["each", "batch"])
async def test_a_poisonous_message_kills_nothing_but_its_consumers(
    server: ServerProcess,
    second_server: ServerProcess,
    api: Api,
    queue: str,
    connection: asyncpg.Connection,
    tmp_path: Path,
    how: str,
) -> None:
    api.configure(queue, leaseTime=LEASE_S, retryLimit=RETRY_LIMIT, retryDelay=0)
    push_all(api, queue)
    effects = tmp_path / "effects"
    effects.touch()
    crew = Crew([server.url, second_server.url], queue, effects, how)
    try:
        await drain(connection, crew, queue)
    finally:
        crew.stop()

    lines = [line.split(" ") for line in effects.read_text().splitlines()]
    done = Counter(one for what, one in lines if what == "done")
    died = Counter(one for what, one in lines if what == "died")
    assert done.keys() == {f"m{n}" for n in range(MESSAGES) if n not in POISON}
    if how == "each":
        assert set(done.values()) == {1}

    page = api.call("GET", f"/api/v1/dlq?queue={queue}&limit=1000").json["messages"]
    letters = {one["transactionId"]: one["retryCount"] for one in page}
    assert letters == {f"m{n}": RETRY_LIMIT + 1 for n in POISON}
    assert {one["errorMessage"] for one in page} == {"No consumer ever came back with it"}
    # A batch that is lost as a whole twice comes one at a time, and only then it is counted.
    most = RETRY_LIMIT + 1 + (2 if how == "batch" else 0)
    assert died.keys() == letters.keys()
    assert all(RETRY_LIMIT + 1 <= count <= most for count in died.values())
    assert crew.deaths == sum(died.values())
