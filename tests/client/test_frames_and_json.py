"""A server says the same in frames and in JSON, and hears the same."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queen import Message, Queen, Received
from queen.testing import expect
from tests.conftest import ServerProcess

# What does not depend on the group that reads.
NAMES = [
    "id",
    "transaction_id",
    "queue",
    "partition",
    "partition_id",
    "offset",
    "created_at",
    "raw",
    "data",
    "retry_count",
    "attempt",
    "priority",
    "trace_id",
    "producer_sub",
    "is_settled",
    "is_given_back",
]


@pytest.fixture(params=[True, False], ids=["frames", "json"])
async def either(server: ServerProcess, request: pytest.FixtureRequest) -> AsyncIterator[Queen]:
    async with Queen(server.url, retry_s=5, frames=request.param) as made:
        yield made


def shown(message: Received) -> dict[str, Any]:
    values = {name: getattr(message, name) for name in NAMES}
    return {**values, "raw": bytes(values["raw"]), "repr": repr(message)}


async def test_messages_are_the_same(server: ServerProcess, queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(priority=7, retryLimit=5, retryDelay=0).create()
    for partition in ("a", "ä 1"):
        pushing = queen.queue(queue).partition(partition)
        await pushing.push([{"n": 1}, [1, "zwei"], None, "x" * 3000])
        await pushing.push([Message("own", transaction_id="ä/1", trace_id=str(uuid.uuid4()))])
    async with Queen(server.url, frames=False) as other:
        both: list[list[dict[str, Any]]] = []
        for client, group in ((queen, "framed"), (other, "plain")):
            base = client.queue(queue).group(group).partitions(2)
            first = await base.pop(batch=10)
            assert {one.consumer_group for one in first} == {group}
            assert all(one.lease_id and one.epoch for one in first)
            # One fails, one is done already when they come again.
            await queen.ack(first[2])
            await queen.nack(first[1], "not yet")
            await queen.ack([one for one in first if not one.is_settled], "retry")
            again = await base.pop(batch=10)
            rows = [shown(one) for one in [*first, *again]]
            both.append(sorted(rows, key=lambda row: (row["attempt"], row["id"])))
    framed, plain = both
    assert len(framed) == len(plain) == 19
    assert framed == plain
    assert {row["attempt"] for row in framed} == {1, 2}


async def test_a_consumer_says_the_same(either: Queen, queue: str) -> None:
    await either.queue(queue).config(retryLimit=0).create()
    for name in "ab":
        await either.queue(queue).partition(name).push(list(range(50)))
    seen: list[tuple[str, int]] = []

    async def handle(message: Received) -> None:
        seen.append((message.partition, message.data))
        if message.data == 7:
            raise ValueError("seven")
        if message.data == 9:
            await message.dead_letter("nine")

    wanted = either.queue(queue).group("g").batch(20).each().partitions(2).limit(100)
    done = await wanted.consume(handle, signals=False)
    assert sorted(seen) == [(name, n) for name in "ab" for n in range(50)]
    assert (done.handled, done.failed) == (98, 2)
    letters = (await either.queue(queue).group("g").dlq().get()).messages
    errors = sorted((one.partition, one.data, one.error_message) for one in letters)
    assert errors == [
        (name, n, error) for name in "ab" for n, error in ((7, "ValueError: seven"), (9, "nine"))
    ]
    await expect(either, queue).to_be_empty(group="g")


async def test_a_lease_may_be_acked_by_hand_by_a_transaction_and_by_its_consumer(
    either: Queen, queue: str
) -> None:
    await either.queue(queue).push(list(range(30)))

    async def handle(batch: list[Received]) -> None:
        await batch[1].ack()
        async with either.transaction() as transaction:
            transaction.ack(batch[2]).push(f"{queue}-out", batch[2].data)

    done = await either.queue(queue).batch(10).limit(30).consume(handle, signals=False)
    assert done.handled == 30
    out = await either.queue(f"{queue}-out").pop(batch=10)
    assert [one.data for one in out] == [2, 12, 22]
    await expect(either, queue).to_be_empty()
