"""A group that fails nearly everything pauses by itself, on all servers, and probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.retries.conftest import Servers
from tests.waiting import until

PAUSE_S = 600


def configure(servers: Servers, queue: str, **options: Any) -> None:
    named = {"breaker": 80, "breakerOutcomes": 5, "breakerPause": PAUSE_S * 1000} | options
    servers.next.configure(queue, retryDelay=1, retryLimit=3, **named)


def push(servers: Servers, queue: str, count: int) -> None:
    """One message in each of so many partitions."""
    servers.next.push(*({"queue": queue, "partition": f"p{n}", "payload": n} for n in range(count)))


def open_since(api: Api, queue: str, group: str = "__QUEUE_MODE__") -> str | None:
    answer = api.call("GET", f"/api/v1/consumer-groups/{group}?queue={queue}")
    since: str | None = answer.json[queue]["breakerOpenSince"]
    return since


def fail_until_open(servers: Servers, queue: str) -> list[Any]:
    """Fail five messages, popped and acked by turns at both servers."""
    failed = [servers.pop(queue)[0] for _ in range(5)]
    for message in failed:
        assert servers.fail(message).status == 200
    for api in servers.apis:
        assert open_since(api, queue) is not None
    return failed


def test_it_opens_probes_and_closes_over_two_servers(servers: Servers, queue: str) -> None:
    configure(servers, queue)
    push(servers, queue, 12)
    failed = fail_until_open(servers, queue)
    servers.pop_none(queue, batch=10)

    servers.advance(PAUSE_S - 60, queue)
    servers.pop_none(queue, batch=10)
    servers.advance(60, queue)
    (probe,) = servers.pop(queue, batch=10, partitions=10)
    # One at a time, whoever asks.
    servers.pop_none(queue, batch=10)
    servers.fail(probe)
    failed.append(probe)
    servers.pop_none(queue, batch=10)
    servers.advance(PAUSE_S, queue)

    (probe,) = servers.pop(queue, batch=10, partitions=10)
    servers.next.ack(probe)
    assert [open_since(api, queue) for api in servers.apis] == [None, None]
    rest: list[Any] = []
    while len(rest) < 11:
        rest += servers.pop(queue, batch=10, partitions=10)
    assert {message["data"] for message in rest} == set(range(12)) - {probe["data"]}
    tried = {message["data"]: message["retryCount"] for message in rest}
    failures = Counter(message["data"] for message in failed)
    assert tried == {number: failures[number] for number in tried}


def test_what_was_leased_before_is_given_back_without_fault(servers: Servers, queue: str) -> None:
    configure(servers, queue)
    push(servers, queue, 8)
    held = [servers.pop(queue)[0] for _ in range(3)]
    fail_until_open(servers, queue)
    for message in held:
        answer = servers.fail(message, error="as all others")
        assert answer.status == 200
    servers.next.call("POST", f"/api/v1/consumer-groups/__QUEUE_MODE__/queues/{queue}/resume", {})
    servers.advance(1, queue)
    again: list[Any] = []
    while len(again) < 8:
        again += servers.pop(queue, batch=8, partitions=8)
    tried = {message["data"]: message["retryCount"] for message in again}
    assert [tried[message["data"]] for message in held] == [0, 0, 0]


def test_a_large_batch_that_fails_does_not_fill_the_dead_letters(
    servers: Servers, queue: str
) -> None:
    configure(servers, queue)
    servers.next.configure(
        queue, retryDelay=1, retryLimit=0, breaker=100, breakerOutcomes=5, breakerPause=10_000
    )
    servers.next.push_many(queue, 100)
    messages = servers.pop(queue, batch=100)
    assert len(messages) == 100
    servers.next.ack_batch(messages, "failed")
    assert len(servers.next.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]) == 5


def test_without_the_option_everything_fails_as_ever(servers: Servers, queue: str) -> None:
    servers.next.configure(queue, retryDelay=1, retryLimit=0)
    servers.next.push_many(queue, 100)
    messages = servers.pop(queue, batch=100)
    servers.next.ack_batch(messages, "failed")
    assert len(servers.next.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]) == 100


def test_other_groups_go_on(servers: Servers, queue: str) -> None:
    configure(servers, queue)
    push(servers, queue, 6)
    fail_until_open(servers, queue)
    assert servers.pop(queue, consumerGroup="sound")


def test_a_probe_that_is_lost_is_followed_by_another(servers: Servers, queue: str) -> None:
    configure(servers, queue, leaseTime=30)
    push(servers, queue, 8)
    fail_until_open(servers, queue)
    servers.advance(PAUSE_S, queue)
    (lost,) = servers.pop(queue)
    servers.pop_none(queue)
    servers.advance(31, queue)
    (probe,) = servers.pop(queue)
    assert probe["leaseId"] != lost["leaseId"]


def test_a_pop_that_waits_gets_the_probe(servers: Servers, queue: str) -> None:
    configure(servers, queue, breakerPause=300)
    push(servers, queue, 6)
    fail_until_open(servers, queue)
    assert len(servers.pop(queue)) == 1


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_transactions_count_too(servers: Servers, queue: str, status: str) -> None:
    configure(servers, queue)
    push(servers, queue, 6)
    for message in [servers.pop(queue)[0] for _ in range(5)]:
        names = ("transactionId", "partitionId", "leaseId")
        ack = {"type": "ack", "status": status, **{name: message[name] for name in names}}
        assert servers.next.transaction(ack).status == 200
    assert (open_since(servers.next, queue) is None) == (status == "completed")


def test_it_says_so(servers: Servers, queue: str) -> None:
    configure(servers, queue)
    push(servers, queue, 6)
    fail_until_open(servers, queue)
    api = servers.next
    problems = api.call("GET", "/api/v1/status/problems").json["breakers"]
    (mine,) = [each for each in problems if each["queue"] == queue]
    assert (mine["consumerGroup"], mine["openedAt"] < mine["probeAt"]) == ("__QUEUE_MODE__", True)
    series = f'queen_group_breaker_open{{group="__QUEUE_MODE__",queue="{queue}"}} 1.0'
    until(lambda: series in api.call("GET", "/metrics/prometheus").raw.decode())
    groups = api.call("GET", "/api/v1/consumer-groups?limit=1000").json
    (entry,) = [each for each in groups if each["queueName"] == queue]
    assert entry["breakerOpenSince"] == mine["openedAt"]


def test_several_workers_behave_like_one(
    dsn: str, start_server: Callable[..., ServerProcess], queue: str
) -> None:
    """Whichever process answers: what fails, how long it waits, and the breaker."""
    running = start_server("--database-url", dsn, "--workers", "2", "--test-clock")
    servers = Servers(*(running.api() for _ in range(6)))
    configure(servers, queue)
    push(servers, queue, 8)
    (first,) = servers.pop(queue)
    assert servers.fail(first, retryAfterMs=3_600_000).status == 200
    for message in [servers.pop(queue)[0] for _ in range(4)]:
        assert message["data"] != first["data"]
        servers.fail(message)
    assert open_since(servers.next, queue) is not None
    servers.pop_none(queue)
    servers.advance(PAUSE_S, queue)
    (probe,) = servers.pop(queue)
    servers.pop_none(queue)
    servers.next.ack(probe)
    assert open_since(servers.next, queue) is None


def test_a_shared_group_has_a_breaker_too(servers: Servers, queue: str) -> None:
    configure(servers, queue, sharedGroups=True)
    servers.next.push_many(queue, 12)
    held = servers.pop(queue, batch=2)
    failed = [servers.pop(queue, batch=1)[0] for _ in range(5)]
    for message in failed:
        servers.fail(message)
    assert open_since(servers.next, queue) is not None
    # It was out before: it comes again without fault.
    servers.fail(held[0])
    servers.pop_none(queue, batch=10)
    servers.advance(PAUSE_S, queue)
    (probe,) = servers.pop(queue, batch=10)
    servers.pop_none(queue, batch=10)
    servers.next.ack(probe)
    assert open_since(servers.next, queue) is None
    again: list[Any] = []
    while len(again) < 10:
        again += servers.pop(queue, batch=10)
    counts = {message["transactionId"]: message["retryCount"] for message in again}
    assert counts[held[0]["transactionId"]] == 0
    assert all(counts.get(message["transactionId"], 1) == 1 for message in failed)
