"""Rates and limits of groups: exact on two servers, on the database's clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Park, park
from tests.retries.conftest import Servers
from tests.waiting import until

__all__ = ["park"]

HOUR_MS = 3_600_000
SHARED = pytest.mark.parametrize("shared", [False, True], ids=["ordered", "shared"])


def take_all(servers: Servers, queue: str, **query: Any) -> list[Any]:
    """Pop at both servers by turns until neither gives more."""
    taken: list[Any] = []
    empty = 0
    while empty < 2:
        popped = servers.next.messages(queue, **query)
        empty = 0 if popped else empty + 1
        taken += popped
    return taken


def push(servers: Servers, queue: str, partitions: int, each: int) -> None:
    for name in range(partitions):
        servers.next.push_many(queue, each, f"p{name}")


@SHARED
def test_a_rate_is_kept_over_two_servers(servers: Servers, queue: str, shared: bool) -> None:
    servers.next.configure(
        queue, sharedGroups=shared, rateLimit=60, rateInterval=HOUR_MS, rateBurst=25
    )
    push(servers, queue, 10, 20)
    query = {"batch": 7, "partitions": 3}
    assert len(take_all(servers, queue, **query)) == 25
    servers.pop_none(queue, **query)
    # A message a minute: half of one is none.
    for minutes, messages in ((0.4, 0), (0.5, 0), (0.2, 1), (3, 3), (10, 10), (6000, 25)):
        servers.advance(minutes * 60, queue)
        assert len(take_all(servers, queue, **query)) == messages, minutes


def test_groups_have_rates_of_their_own(servers: Servers, queue: str) -> None:
    servers.next.configure(queue, rateLimit=5, rateInterval=HOUR_MS)
    push(servers, queue, 4, 10)
    for group in ("a", "b"):
        taken = take_all(servers, queue, batch=3, consumerGroup=group)
        assert len(taken) == 5


@SHARED
def test_a_partition_has_a_rate_of_its_own(servers: Servers, queue: str, shared: bool) -> None:
    servers.next.configure(
        queue, sharedGroups=shared, rateLimitPerPartition=3, rateInterval=HOUR_MS
    )
    push(servers, queue, 4, 10)

    def take() -> Counter[str]:
        taken: Counter[str] = Counter()
        empty = 0
        while empty < 2:
            messages = servers.next.messages(queue, batch=2, partitions=2)
            empty = 0 if messages else empty + 1
            for message in messages:
                taken[message["partition"]] += 1
                servers.next.ack(message)
        return taken

    assert take() == {f"p{n}": 3 for n in range(4)}
    servers.advance(1300, queue)
    assert take() == {f"p{n}": 1 for n in range(4)}


@SHARED
def test_no_more_is_in_flight_than_may_be(servers: Servers, queue: str, shared: bool) -> None:
    servers.next.configure(queue, sharedGroups=shared, maxInFlight=8, leaseTime=600)
    push(servers, queue, 10, 5)
    held = take_all(servers, queue, batch=3, partitions=2)
    assert len(held) == 8
    # What is done makes room at once, wherever it is acked.
    for message in held[:3]:
        servers.next.ack(message)
    more = take_all(servers, queue, batch=3, partitions=2)
    assert len(more) == 3
    # And so does what lapses.
    servers.advance(601, queue)
    assert len(take_all(servers, queue, batch=3, partitions=2)) == 8


@SHARED
def test_no_more_of_a_partition_is_in_flight_than_may_be(
    servers: Servers, queue: str, shared: bool
) -> None:
    servers.next.configure(queue, sharedGroups=shared, maxInFlightPerPartition=2, leaseTime=600)
    push(servers, queue, 3, 9)
    held = take_all(servers, queue, batch=5, partitions=3)
    assert Counter(message["partition"] for message in held) == {"p0": 2, "p1": 2, "p2": 2}
    for message in held:
        servers.next.ack(message)
    again = take_all(servers, queue, batch=5, partitions=3)
    assert Counter(message["partition"] for message in again) == {"p0": 2, "p1": 2, "p2": 2}


def test_a_poll_that_waits_is_woken_when_there_is_room(
    servers: Servers, queue: str, park: Park
) -> None:
    servers.next.configure(queue, maxInFlight=1, leaseTime=600)
    push(servers, queue, 2, 1)
    here, there = servers.apis
    (held,) = here.messages(queue)
    poll = park(there, queue, timeout=20_000)
    assert not poll.is_answered(0.2)
    here.ack(held)
    assert len(poll.data()) == 1


def test_a_poll_that_waits_is_woken_when_there_are_tokens(servers: Servers, queue: str) -> None:
    servers.next.configure(queue, rateLimit=5, rateInterval=1000, rateBurst=1)
    push(servers, queue, 1, 4)
    for _ in range(4):
        (message,) = servers.pop(queue)
        servers.next.ack(message)


def test_many_at_once_take_no_more_than_there_is(
    clocked_servers: tuple[ServerProcess, ServerProcess], servers: Servers, queue: str
) -> None:
    servers.next.configure(queue, rateLimit=40, rateInterval=HOUR_MS, maxInFlight=30)
    push(servers, queue, 20, 10)

    def consume(number: int) -> int:
        count = 0
        with closing(Api(clocked_servers[number % 2].url)) as api:
            for _ in range(12):
                count += len(api.messages(queue, batch=3, partitions=2))
        return count

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(consume, range(8))) == 30
    assert take_all(servers, queue) == []


# ---- all groups of a queue together ----


@SHARED
def test_groups_of_a_queue_have_a_rate_together(servers: Servers, queue: str, shared: bool) -> None:
    servers.next.configure(
        queue, sharedGroups=shared, queueRateLimit=12, rateLimit=8, rateInterval=HOUR_MS
    )
    push(servers, queue, 4, 20)
    query = {"batch": 3, "partitions": 2}
    counts = [
        len(take_all(servers, queue, consumerGroup=group, **query)) for group in ("a", "b", "c")
    ]
    assert counts == [8, 4, 0]
    # Five minutes bring one message, to whoever asks first.
    servers.advance(301, queue)
    counts = [
        len(take_all(servers, queue, consumerGroup=group, **query)) for group in ("c", "b", "a")
    ]
    assert counts == [1, 0, 0]


@SHARED
def test_groups_of_a_queue_hold_no_more_together_than_may_be(
    servers: Servers, queue: str, shared: bool
) -> None:
    servers.next.configure(queue, sharedGroups=shared, queueMaxInFlight=8, leaseTime=600)
    push(servers, queue, 6, 5)
    query: dict[str, Any] = {"batch": 3, "partitions": 2}
    first = servers.next.messages(queue, consumerGroup="a", **query)
    held = [*first, *take_all(servers, queue, consumerGroup="b", **query)]
    assert (len(first), len(held)) == (3, 8)
    assert take_all(servers, queue, consumerGroup="a", **query) == []
    for message in first:
        servers.next.ack(message)
    assert len(take_all(servers, queue, consumerGroup="c", **query)) == 3
    servers.advance(601, queue)
    assert len(take_all(servers, queue, consumerGroup="d", **query)) == 8


def test_a_poll_of_another_group_is_woken_when_there_is_room(
    servers: Servers, queue: str, park: Park
) -> None:
    servers.next.configure(queue, queueMaxInFlight=1, leaseTime=600)
    push(servers, queue, 1, 1)
    here, there = servers.apis
    (held,) = here.messages(queue, consumerGroup="a")
    polls = [park(api, queue, timeout=20_000, consumerGroup=group)
             for api, group in ((here, "b"), (there, "c"))]  # fmt: skip
    assert not any(poll.is_answered(0.2) for poll in polls)
    here.ack(held)
    # One of both has it now; it makes room for the other.
    (first,) = until(lambda: [poll for poll in polls if poll.is_answered()])
    (message,) = first.messages()
    here.ack(message)
    polls.remove(first)
    assert len(polls[0].data()) == 1


def test_many_groups_at_once_take_no_more_than_there_is_for_all(
    clocked_servers: tuple[ServerProcess, ServerProcess], servers: Servers, queue: str
) -> None:
    servers.next.configure(queue, queueRateLimit=25, rateInterval=HOUR_MS, queueMaxInFlight=40)
    push(servers, queue, 20, 10)

    def consume(number: int) -> int:
        with closing(Api(clocked_servers[number % 2].url)) as api:
            query: dict[str, Any] = {"batch": 3, "consumerGroup": f"g{number % 3}"}
            return sum(len(api.messages(queue, **query)) for _ in range(12))

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(consume, range(8))) == 25


def test_limits_and_a_breaker_go_together(servers: Servers, queue: str) -> None:
    servers.next.configure(
        queue,
        rateLimit=6,
        rateInterval=HOUR_MS,
        breaker=100,
        breakerOutcomes=5,
        breakerPause=600_000,
        retryDelay=1,
    )
    push(servers, queue, 8, 1)
    messages = [servers.pop(queue)[0] for _ in range(5)]
    for message in messages:
        servers.fail(message)
    servers.pop_none(queue)
    servers.advance(600, queue)
    (probe,) = servers.pop(queue, batch=5)
    servers.next.ack(probe)
    # The sixth token is gone; a sixth of an hour has brought another.
    assert len(take_all(servers, queue, batch=5, partitions=5)) == 1


def test_several_workers_keep_a_rate(
    dsn: str, start_server: Callable[..., ServerProcess], queue: str
) -> None:
    running = start_server("--database-url", dsn, "--workers", "2", "--test-clock")
    servers = Servers(*(running.api() for _ in range(4)))
    servers.next.configure(queue, rateLimit=9, rateInterval=HOUR_MS)
    push(servers, queue, 4, 10)
    assert len(take_all(servers, queue, batch=4)) == 9


async def test_a_bucket_that_somebody_holds_delays_no_other(
    servers: Servers, connection: asyncpg.Connection, queue: str
) -> None:
    servers.next.configure(queue, rateLimit=100, rateInterval=HOUR_MS)
    other = f"{queue}-other"
    servers.next.configure(other)
    push(servers, queue, 2, 2)
    assert servers.pop(queue)
    async with connection.transaction():
        held = await connection.execute(
            "select 1 from queen.paced_groups b join queen.groups g on g.id = b.group_id"
            " join queen.queues q on q.id = g.queue_id where q.name = $1 for update of b",
            queue,
        )
        assert held == "SELECT 1"
        servers.pop_none(queue)
        push(servers, other, 1, 2)
        assert servers.pop(other)
    assert servers.pop(queue)


@pytest.mark.parametrize(
    ("limit", "lifted"),
    [
        ({"rateLimit": 1, "rateInterval": HOUR_MS}, {"rateLimit": 0}),
        ({"rateLimitPerPartition": 1, "rateInterval": HOUR_MS}, {"rateLimitPerPartition": 0}),
        ({"maxInFlight": 1}, {"maxInFlight": 10}),
    ],
)
def test_who_waits_notices_that_a_limit_is_lifted(
    servers: Servers, queue: str, park: Park, limit: dict[str, int], lifted: dict[str, int]
) -> None:
    first, second = servers.next, servers.next
    first.configure(queue, sharedGroups=True, **limit)
    first.push_many(queue, 5, "p")
    assert len(take_all(servers, queue)) == 1
    polls = [park(api, queue, timeout=60_000) for api in (first, second)]
    changed = first.call("PATCH", f"/api/v1/resources/queues/{queue}/options", {"options": lifted})
    assert changed.status == 200, changed.raw
    for poll in polls:
        assert len(poll.answer().json["messages"]) == 1
