"""Leases and acks against a model: any order of events, on two servers.

The model knows which messages are done and who holds what. The servers may redeliver, but
never what is done; they may refuse an ack, but never lose one that they have confirmed.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import asyncpg
import pytest

from tests.api import Api

RETRY_LIMIT = 2
PARTITIONS = ("a", "b")


class Lease:
    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages
        self.open = {one["transactionId"] for one in messages}
        self.live = True


class Model:
    def __init__(
        self, servers: list[Api], queue: str, connection: asyncpg.Connection, seed: int
    ) -> None:
        self.servers = servers
        self.queue = queue
        self.connection = connection
        self.random = random.Random(seed)
        self.pushed: dict[str, list[str]] = {name: [] for name in PARTITIONS}
        self.settled: set[str] = set()
        self.failures: dict[str, int] = {}
        self.leases: list[Lease] = []

    @property
    def server(self) -> Api:
        return self.random.choice(self.servers)

    def holder(self, partition: str) -> Lease | None:
        for lease in self.leases:
            if lease.live and lease.messages[0]["partition"] == partition:
                return lease
        return None

    def push(self) -> None:
        partition = self.random.choice(PARTITIONS)
        ids = [uuid.uuid4().hex for _ in range(self.random.randint(1, 4))]
        items = [
            {"queue": self.queue, "partition": partition, "payload": one, "transactionId": one}
            for one in ids
        ]
        assert self.server.push(*items).status == 201
        self.pushed[partition] += ids

    async def pop(self) -> None:
        partition = self.random.choice(PARTITIONS)
        messages = self.server.messages(self.queue, partition, batch=self.random.randint(1, 6))
        # Leases that lapsed too often have cost their message its life.
        self.settled |= await self.dead()
        ids = [one["transactionId"] for one in messages]
        left = [one for one in self.pushed[partition] if one not in self.settled]
        if self.holder(partition) is not None or not left:
            assert ids == []
        else:
            # In order, without gaps, and nothing that is done.
            assert ids
            assert ids == left[: len(ids)]
            self.leases.append(Lease(messages))

    def ack(self) -> None:
        if not self.leases:
            return
        lease = self.random.choice(self.leases[-6:])
        count = self.random.randint(1, len(lease.messages))
        chosen = self.random.sample(lease.messages, count)
        status = self.random.choice(["completed", "completed", "completed", "failed", "dlq"])
        answer = self.server.ack_batch(chosen, status).json
        for message, result in zip(chosen, answer["results"], strict=True):
            self.check(lease, message["transactionId"], status, result)
        if not lease.open:
            lease.live = False

    def check(self, lease: Lease, one: str, status: str, result: dict[str, Any]) -> None:
        if not lease.live:
            # Repeated, or too late: never a success for what is not settled.
            assert not result["success"] or one in self.settled
            return
        if one in self.settled:
            # A failure of what is done is a repeat, or too late.
            assert result["success"] or status != "completed", result
            return
        assert result["success"], result
        if result["status"] != "failed_retry":
            self.settled.add(one)
        elif one in lease.open:
            # Failing twice in one delivery is failing once.
            self.failures[one] = self.failures.get(one, 0) + 1
        lease.open.discard(one)

    async def lapse(self) -> None:
        live = [lease for lease in self.leases if lease.live]
        if live:
            lease = self.random.choice(live)
            await self.connection.execute(
                "update queen.cursors set lease_until = clock_timestamp() where lease_id = $1",
                uuid.UUID(lease.messages[0]["leaseId"]),
            )
            lease.live = False

    async def dead(self) -> set[str]:
        rows = await self.connection.fetch(
            """
            select d.transaction_id from queen.dead_letters d
            join queen.queues q on q.id = d.queue_id where q.name = $1
            """,
            self.queue,
        )
        return {row["transaction_id"] for row in rows}

    async def step(self) -> None:
        kind = self.random.choices(["push", "pop", "ack", "lapse"], [2, 4, 6, 1])[0]
        if kind == "lapse":
            await self.lapse()
        elif kind == "pop":
            await self.pop()
        else:
            getattr(self, kind)()

    async def drain(self) -> None:
        for lease in self.leases:
            if lease.live:
                self.server.ack_batch(lease.messages)
                self.settled |= {one["transactionId"] for one in lease.messages}
                lease.live = False
        for partition in PARTITIONS:
            while messages := self.server.messages(self.queue, partition, batch=10):
                ids = {one["transactionId"] for one in messages}
                assert not ids & self.settled
                assert all(
                    one["success"] for one in self.server.ack_batch(messages).json["results"]
                )
                self.settled |= ids
        self.settled |= await self.dead()


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_settled_stays_settled_and_the_rest_comes_again(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection, seed: int
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=RETRY_LIMIT)
    model = Model([api, other_api], queue, connection, seed)
    for _ in range(200):
        await model.step()
    await model.drain()
    assert model.settled == {one for ids in model.pushed.values() for one in ids}
    assert max(model.failures.values(), default=0) <= RETRY_LIMIT
