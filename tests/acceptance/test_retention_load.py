"""The clean-up runs all the time, on two servers, under producers and consumers.

Three queues, one for each reason to remove something:

    done     what every group has finished; a group that is slow must lose nothing
    old      what is older than a second, read or not
    stale    what nobody has read within a second

Of the last two, consumers that do not keep up miss messages, and that is all that may
happen: what they get is in order, and no request fails.

`QUEEN_TEST_SECONDS` sets how long the producers write.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import asyncpg
import pytest

from tests.acceptance.client import HttpClient
from tests.acceptance.deployment import until
from tests.conftest import ServerProcess
from tests.waiting import spend_async

SECONDS = min(float(os.environ.get("QUEEN_TEST_SECONDS", "4")), 600)
PARTITIONS = 4
GROUPS = ("fast", "slow")
OPTIONS: dict[str, dict[str, Any]] = {
    "done": {"retentionEnabled": True, "completedRetentionSeconds": 1},
    "old": {"retentionEnabled": True, "retentionSeconds": 1},
    "stale": {"maxWaitTimeSeconds": 1},
}
DRAIN_S = 60.0

_LOGS = """
select p.id, p.tail, p.head, count(s.*) as segments,
       coalesce(sum(s.end_offset - s.base_offset), 0)::bigint as stored,
       coalesce(min(s.base_offset), p.head) as first, coalesce(max(s.end_offset), p.head) as last
from queen.queues q
join queen.partitions p on p.queue_id = q.id
left join queen.segments s on s.partition_id = p.id
where q.name = $1 and p.head > 0
group by p.id, p.tail, p.head
"""
_CURSORS = """
select p.head, c.committed, c.lease_id
from queen.queues q
join queen.partitions p on p.queue_id = q.id
join queen.cursors c on c.partition_id = p.id
where q.name = $1
"""
_REMOVED = """
select coalesce(sum(h.messages), 0)::bigint
from queen.retention_history h join queen.queues q on q.id = h.queue_id where q.name = $1
"""


class Load:
    """Producers and consumers of one queue, and what they sent and got."""

    def __init__(self, queue: str, ports: list[int], seed: int) -> None:
        self.queue = queue
        self._ports = ports
        self._random = random.Random(seed)
        self.pushed: dict[str, list[int]] = defaultdict(list)
        # For each group and partition the numbers it got, in order.
        self.delivered: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.refused = 0
        self.producing = True

    async def call(
        self, client: HttpClient, method: str, path: str, body: object = None
    ) -> tuple[int, Any]:
        answer = await client.call(method, path, body)
        assert answer.status in (200, 201, 204), answer
        return answer

    async def configure(self, options: dict[str, Any]) -> None:
        client = HttpClient(self._ports[0])
        body = {"queue": self.queue, "options": {"leaseTime": 30, "retryDelay": 0, **options}}
        await self.call(client, "POST", "/api/v1/configure", body)
        # A group counts from when it has come for the first time.
        for group in GROUPS:
            await self._pop(client, group)
        await client.close()

    async def _pop(self, client: HttpClient, group: str) -> list[dict[str, Any]]:
        query = {"consumerGroup": group, "batch": 20, "wait": "true", "timeout": 100}
        path = f"/api/v1/pop/queue/{self.queue}?{urlencode(query)}"
        _, body = await self.call(client, "GET", path)
        return body["messages"] if body else []

    async def produce(self, number: int) -> None:
        client = HttpClient(self._ports[number % 2])
        # A partition has one producer, so the order is known.
        partition, deadline = f"p{number}", time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            first = len(self.pushed[partition])
            numbers = range(first, first + self._random.randint(1, 10))
            items = [{"queue": self.queue, "partition": partition, "payload": n} for n in numbers]
            await self.call(client, "POST", "/api/v1/push", {"items": items})
            self.pushed[partition] += numbers
            await spend_async(self._random.uniform(0, 0.02))
        await client.close()

    async def consume(self, group: str, port: int, is_over: Callable[[], bool]) -> None:
        client = HttpClient(port)
        while not is_over():
            messages = await self._pop(client, group)
            # Before the ack: the next ones may be delivered to another before that is answered.
            for one in messages:
                self.delivered[group, one["partition"]].append(one["data"])
            if messages and group == "slow" and self.producing:
                await spend_async(self._random.uniform(0.1, 0.4))
            if messages:
                await self._finish(client, group, messages)
        await client.close()

    async def _finish(self, client: HttpClient, group: str, messages: list[dict[str, Any]]) -> None:
        acks = [
            {
                "transactionId": one["transactionId"],
                "partitionId": one["partitionId"],
                "leaseId": one["leaseId"],
                "status": "completed",
            }
            for one in messages
        ]
        body = {"acknowledgments": acks, "consumerGroup": group}
        _, answer = await self.call(client, "POST", "/api/v1/ack/batch", body)
        # Removed under the consumer's hands: another server cannot look its id up.
        self.refused += sum(not result["success"] for result in answer["results"])

    async def go(self, is_over: Callable[[], bool]) -> None:
        consumers = [
            asyncio.create_task(self.consume(group, port, is_over))
            for group in GROUPS
            for port in self._ports
        ]
        await asyncio.gather(*(self.produce(number) for number in range(PARTITIONS)))
        self.producing = False
        await asyncio.gather(*consumers)


async def check_consistent(connection: asyncpg.Connection, queue: str) -> None:
    for row in await connection.fetch(_LOGS, queue):
        # What is stored is exactly what lies between tail and head.
        assert row["tail"] <= row["head"], row
        assert row["stored"] == row["head"] - row["tail"], row
        assert (row["first"], row["last"]) == (row["tail"], row["head"]), row
    for row in await connection.fetch(_CURSORS, queue):
        assert row["committed"] <= row["head"], row


@pytest.mark.slow
@pytest.mark.timeout(400 + int(SECONDS) * 2)
async def test_the_clean_up_takes_nothing_that_is_needed(
    dsn: str,
    start_server: Callable[..., ServerProcess],
    queue: str,
    connection: asyncpg.Connection,
) -> None:
    servers = [start_server("--database-url", dsn, "--retention-interval", "50") for _ in range(2)]
    ports = [one.port for one in servers]
    loads = {name: Load(f"{queue}-{name}", ports, seed) for seed, name in enumerate(OPTIONS)}
    for name, load in loads.items():
        await load.configure(OPTIONS[name])

    done = loads["done"]
    deadline = time.monotonic() + SECONDS + DRAIN_S

    def all_is_done() -> bool:
        delivered = sum(map(len, done.delivered.values()))
        wanted = len(GROUPS) * sum(map(len, done.pushed.values()))
        is_over = not any(load.producing for load in loads.values()) and delivered >= wanted
        return is_over or time.monotonic() > deadline

    await asyncio.gather(*(load.go(all_is_done) for load in loads.values()))

    # Everything reached every group, once and in order, and what was done went away meanwhile.
    for group in GROUPS:
        for partition, numbers in done.pushed.items():
            assert done.delivered[group, partition] == numbers
    assert done.refused == 0
    for name, load in loads.items():
        for (_, partition), numbers in load.delivered.items():
            assert numbers == sorted(set(numbers)), (name, partition)
        await check_consistent(connection, load.queue)
        assert await connection.fetchval(_REMOVED, load.queue) > 0, name

    async def is_empty() -> bool:
        rows = await connection.fetch(_LOGS, done.queue)
        return all(row["tail"] == row["head"] for row in rows)

    # A walk that found much to leave rests for a minute before it begins again at the front.
    await until(is_empty, 90)
