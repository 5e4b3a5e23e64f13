"""Retries back off: the same on two servers, exactly as the rule says, on the database's clock."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from queen.core.ids import parse_partition
from queen.core.pacing.backoff import Backoff
from tests.retries.conftest import Servers

MINUTE_MS = 60_000
# Time passes by itself, too, while a test is at work.
MARGIN_S = 20


async def group_of(connection: asyncpg.Connection, queue: str) -> int:
    group_id: int = await connection.fetchval(
        "select g.id from queen.groups g join queen.queues q on q.id = g.queue_id"
        " where q.name = $1 and g.name = '__QUEUE_MODE__'",
        queue,
    )
    return group_id


async def wait_of(connection: asyncpg.Connection, queue: str) -> float:
    """For how many milliseconds a cursor of a queue gives out nothing."""
    wait_ms: float = await connection.fetchval(
        "select extract(epoch from max(c.retry_at) - clock_timestamp()) * 1000"
        " from queen.cursors c join queen.partitions p on p.id = c.partition_id"
        " join queen.queues q on q.id = p.queue_id where q.name = $1",
        queue,
    )
    return float(wait_ms)


def rule(message: dict[str, Any], group_id: int, delay_ms: int, longest_ms: int, n: int) -> int:
    partition_id = parse_partition(message["partitionId"])
    assert partition_id is not None
    backoff = Backoff("exponential", delay_ms, longest_ms)
    return backoff.wait_ms(n, group_id, partition_id, message["offset"])


async def test_waits_double_and_are_the_same_on_both_servers(
    servers: Servers, connection: asyncpg.Connection, queue: str
) -> None:
    delay_ms, longest_ms = 10 * MINUTE_MS, 60 * MINUTE_MS
    servers.next.configure(
        queue,
        retryLimit=9,
        retryDelay=delay_ms,
        retryBackoff="exponential",
        retryMaxDelay=longest_ms,
    )
    servers.next.push({"queue": queue, "payload": 1})
    for n in range(1, 7):
        (message,) = servers.pop(queue)
        assert message["retryCount"] == n - 1
        servers.fail(message)
        wait_ms = rule(message, await group_of(connection, queue), delay_ms, longest_ms, n)
        whole = min(delay_ms << n - 1, longest_ms)
        assert whole / 2 <= wait_ms <= whole
        stored = await wait_of(connection, queue)
        assert wait_ms - MARGIN_S * 1000 < stored <= wait_ms
        servers.advance(wait_ms / 1000 - MARGIN_S, queue)
        servers.pop_none(queue)
        servers.advance(MARGIN_S, queue)
    assert servers.pop(queue)[0]["retryCount"] == 6


async def test_only_failures_of_the_message_count(
    servers: Servers, connection: asyncpg.Connection, queue: str
) -> None:
    delay_ms = 10 * MINUTE_MS
    servers.next.configure(queue, retryLimit=9, retryDelay=delay_ms, retryBackoff="exponential")
    servers.next.push(*({"queue": queue, "payload": n} for n in range(2)))
    for _ in range(2):
        (first, *_) = servers.pop(queue, batch=1)
        servers.fail(first)
        servers.advance(3600, queue)
    (first,) = servers.pop(queue, batch=1)
    servers.next.ack(first)
    (second,) = servers.pop(queue, batch=1)
    assert second["data"] == 1
    servers.fail(second)
    wait_ms = rule(second, await group_of(connection, queue), delay_ms, 60 * MINUTE_MS, 1)
    assert wait_ms - MARGIN_S * 1000 < await wait_of(connection, queue) <= wait_ms


async def test_what_failed_in_one_lease_comes_when_the_last_of_it_is_due(
    servers: Servers, connection: asyncpg.Connection, queue: str
) -> None:
    """None comes before its time; what is done does not come at all."""
    delay_ms = 10 * MINUTE_MS
    servers.next.configure(queue, retryLimit=9, retryDelay=delay_ms, retryBackoff="exponential")
    servers.next.push(*({"queue": queue, "payload": n} for n in range(3)))
    (only, *_) = servers.pop(queue, batch=1)
    servers.fail(only)
    servers.advance(3600, queue)
    messages = servers.pop(queue, batch=3)
    servers.next.ack_batch(messages[:2], "failed")
    servers.next.ack(messages[2])
    group_id = await group_of(connection, queue)
    waits = [
        rule(message, group_id, delay_ms, 60 * MINUTE_MS, n)
        for message, n in zip(messages, (2, 1), strict=False)
    ]
    assert max(waits) - MARGIN_S * 1000 < await wait_of(connection, queue) <= max(waits)
    servers.advance(max(waits) / 1000, queue)
    assert [message["data"] for message in servers.pop(queue, batch=3)] == [0, 1]


async def test_by_default_every_wait_is_the_retry_delay(
    servers: Servers, connection: asyncpg.Connection, queue: str
) -> None:
    servers.next.configure(queue, retryLimit=9, retryDelay=120 * MINUTE_MS)
    servers.next.push({"queue": queue, "payload": 1})
    for _ in range(3):
        (message,) = servers.pop(queue)
        servers.fail(message)
        stored = await wait_of(connection, queue)
        assert 120 * MINUTE_MS - MARGIN_S * 1000 < stored <= 120 * MINUTE_MS
        servers.advance(7200, queue)


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_an_ack_may_ask_for_a_delay_of_its_own(
    servers: Servers, connection: asyncpg.Connection, queue: str, status: str
) -> None:
    servers.next.configure(queue, retryDelay=1000, retryMaxDelay=30 * MINUTE_MS)
    servers.next.push({"queue": queue, "payload": 1})
    for asked_ms, waits_ms in ((20 * MINUTE_MS, 20 * MINUTE_MS), (99 * MINUTE_MS, 30 * MINUTE_MS)):
        (message,) = servers.pop(queue)
        assert servers.next.ack(message, status, retryAfterMs=asked_ms).status == 200
        stored = await wait_of(connection, queue)
        assert waits_ms - MARGIN_S * 1000 < stored <= waits_ms
        servers.advance(waits_ms / 1000, queue)
    (message,) = servers.pop(queue)
    assert message["retryCount"] == (2 if status == "failed" else 0)


def test_a_delay_before_now_is_refused_by_itself(servers: Servers, queue: str) -> None:
    servers.next.push(*({"queue": queue, "payload": n} for n in range(2)))
    first, second = servers.pop(queue, batch=2)
    acks = [{**_item(first), "retryAfterMs": -1}, {**_item(second), "status": "completed"}]
    answer = servers.next.call("POST", "/api/v1/ack/batch", {"acknowledgments": acks})
    refused, done = answer.json["results"]
    assert not refused["success"] and "retryAfterMs" in refused["error"]
    assert done["success"]


def _item(message: dict[str, Any]) -> dict[str, Any]:
    names = ("transactionId", "partitionId", "leaseId")
    return {name: message[name] for name in names} | {"status": "failed"}


def test_dead_letters_keep_how_often_it_was_tried_and_the_last_error(
    servers: Servers, queue: str
) -> None:
    servers.next.configure(queue, retryLimit=2, retryDelay=1000, retryBackoff="exponential")
    servers.next.push({"queue": queue, "payload": 1})
    for n in range(3):
        (message,) = servers.pop(queue)
        servers.fail(message, error=f"try {n + 1}")
        servers.advance(60, queue)
    (letter,) = servers.next.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]
    assert (letter["retryCount"], letter["errorMessage"]) == (3, "try 3")


def test_one_that_is_given_up_at_once_was_tried_once(servers: Servers, queue: str) -> None:
    servers.next.push(*({"queue": queue, "payload": n} for n in range(3)))
    messages = servers.pop(queue, batch=3)
    servers.next.ack(messages[1], "dlq", error="hopeless")
    (letter,) = servers.next.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]
    assert (letter["retryCount"], letter["errorMessage"]) == (1, "hopeless")


# ---- shared groups ----


async def due_of(connection: asyncpg.Connection, queue: str) -> dict[int, float]:
    """For how many milliseconds messages of a shared group wait, by the first of each span."""
    rows = await connection.fetch(
        "select s.first_offset, extract(epoch from s.due_at - clock_timestamp()) * 1000 as wait_ms"
        " from queen.shared_spans s join queen.partitions p on p.id = s.partition_id"
        " join queen.queues q on q.id = p.queue_id where q.name = $1 and s.lease_id is null",
        queue,
    )
    return {row["first_offset"]: float(row["wait_ms"]) for row in rows}


async def test_in_a_shared_group_each_failure_waits_for_itself(
    servers: Servers, connection: asyncpg.Connection, queue: str
) -> None:
    delay_ms = 10 * MINUTE_MS
    servers.next.configure(
        queue, sharedGroups=True, retryLimit=9, retryDelay=delay_ms, retryBackoff="exponential"
    )
    servers.next.push({"queue": queue, "payload": 0})
    for n in (1, 2, 3):
        (first,) = servers.pop(queue, batch=1)
        assert first["data"] == 0
        servers.fail(first)
        wait_ms = rule(first, await group_of(connection, queue), delay_ms, 60 * MINUTE_MS, n)
        stored = (await due_of(connection, queue))[0]
        assert wait_ms - MARGIN_S * 1000 < stored <= wait_ms
        servers.advance(wait_ms / 1000, queue)
    # What follows is held up by nobody.
    servers.next.push(*({"queue": queue, "payload": n} for n in (1, 2)))
    held = [servers.pop(queue, batch=1)[0] for _ in range(3)]
    assert sorted(message["data"] for message in held) == [0, 1, 2]


async def test_in_a_shared_group_an_ack_may_ask_for_its_own_delay(
    servers: Servers, connection: asyncpg.Connection, queue: str
) -> None:
    servers.next.configure(queue, sharedGroups=True, retryDelay=MINUTE_MS)
    servers.next.push(*({"queue": queue, "payload": n} for n in range(3)))
    messages = servers.pop(queue, batch=3)
    asked = (None, 20 * MINUTE_MS, None)
    acks = [
        {**_item(message), **({"retryAfterMs": ms} if ms else {})}
        for message, ms in zip(messages, asked, strict=True)
    ]
    servers.next.call("POST", "/api/v1/ack/batch", {"acknowledgments": acks})
    waits = await due_of(connection, queue)
    for (first, wait_ms), ms in zip(sorted(waits.items()), asked, strict=True):
        expected = ms or MINUTE_MS
        assert expected - MARGIN_S * 1000 < wait_ms <= expected, first


def test_in_a_shared_group_a_message_given_up_at_once_was_tried_once(
    servers: Servers, queue: str
) -> None:
    servers.next.configure(queue, sharedGroups=True)
    servers.next.push(*({"queue": queue, "payload": n} for n in range(3)))
    messages = servers.pop(queue, batch=3)
    servers.next.ack(messages[1], "dlq", error="hopeless")
    (letter,) = servers.next.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]
    assert (letter["retryCount"], letter["errorMessage"]) == (1, "hopeless")
