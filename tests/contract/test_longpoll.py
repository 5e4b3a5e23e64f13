"""Long polls: woken at once, answered on time, and nothing lost or doubled on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlencode

import pytest

from tests.api import Api, Poll, pop_path
from tests.contract.conftest import Park, settle

# A loaded machine may take its time; a lost wake-up takes seconds.
SOON_S = 0.5


def since(started: float) -> float:
    return time.monotonic() - started


@pytest.mark.parametrize("partition", [None, "Default"])
def test_a_push_wakes_a_parked_poll_at_once(
    api: Api, queue: str, park: Park, partition: str | None
) -> None:
    api.configure(queue)
    poll = park(api, queue, partition)
    assert not poll.is_answered()
    started = time.monotonic()
    api.push({"queue": queue, "payload": 1})
    assert poll.data() == [1]
    assert since(started) < SOON_S


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_poll_may_come_before_its_queue(
    api: Api, queue: str, park: Park, partition: str | None
) -> None:
    poll = park(api, queue, partition)
    started = time.monotonic()
    api.push({"queue": queue, "partition": "p", "payload": 1})
    assert poll.data() == [1]
    assert since(started) < SOON_S


def test_a_poll_may_come_before_its_partition(api: Api, queue: str, park: Park) -> None:
    api.push({"queue": queue, "partition": "other", "payload": 0})
    poll = park(api, queue, "p")
    api.push({"queue": queue, "partition": "another", "payload": 1})
    assert not poll.is_answered(0.05)
    started = time.monotonic()
    api.push({"queue": queue, "partition": "p", "payload": 2})
    assert poll.data() == [2]
    assert since(started) < SOON_S


def test_a_poll_by_namespace_may_come_before_its_queue(api: Api, queue: str, park: Park) -> None:
    query = urlencode({"namespace": queue, "wait": "true", "timeout": 5000})
    poll = park(api, queue, path=f"/api/v1/pop?{query}")
    started = time.monotonic()
    api.push({"queue": f"{queue}.task", "payload": 1})
    assert poll.data() == [1]
    assert since(started) < SOON_S


def test_a_poll_by_namespace_is_woken_by_any_of_its_queues(
    api: Api, queue: str, park: Park
) -> None:
    for name in ("a", "b", "c"):
        body = {"queue": f"{queue}.{name}", "namespace": queue}
        assert api.call("POST", "/api/v1/configure", body).status == 201
    query = urlencode({"namespace": queue, "wait": "true", "timeout": 5000})
    for name in ("b", "c", "a"):
        poll = park(api, queue, path=f"/api/v1/pop?{query}")
        started = time.monotonic()
        api.push({"queue": f"{queue}.{name}", "payload": name})
        assert poll.data() == [name]
        assert since(started) < SOON_S


def test_a_poll_that_finds_something_does_not_wait(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    started = time.monotonic()
    assert len(api.messages(queue, wait="true", timeout=30_000, batch=100)) == 2
    assert since(started) < SOON_S


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("partition", [None, "p"])
def test_a_poll_without_a_message_ends_on_time(
    api: Api, queue: str, exists: bool, partition: str | None
) -> None:
    if exists:
        api.configure(queue)
    started = time.monotonic()
    answer = api.pop(queue, partition, wait="true", timeout=400)
    assert (answer.status, answer.raw) == (204, b"")
    assert 0.39 < since(started) < 0.4 + SOON_S


def test_a_poll_by_namespace_ends_on_time(api: Api, queue: str) -> None:
    started = time.monotonic()
    query = urlencode({"namespace": queue, "wait": "true", "timeout": 400})
    assert api.call("GET", f"/api/v1/pop?{query}").status == 204
    assert 0.39 < since(started) < 0.4 + SOON_S


def test_a_timeout_of_zero_is_one_look(api: Api, queue: str) -> None:
    started = time.monotonic()
    assert api.pop(queue, wait="true", timeout=0).status == 204
    api.push_many(queue, 1)
    assert len(api.messages(queue, wait="true", timeout=0)) == 1
    assert since(started) < SOON_S


def test_the_timeout_counts_from_the_request_even_when_the_queue_comes_later(
    api: Api, queue: str, park: Park
) -> None:
    started = time.monotonic()
    poll = park(api, queue, timeout=900)
    assert not poll.is_answered(0.6)
    api.configure(queue)
    assert poll.answer().status == 204
    assert 0.89 < since(started) < 0.9 + SOON_S


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("partition", [None, "Default"])
def test_a_client_that_hangs_up_does_not_swallow_the_next_message(
    api: Api, queue: str, park: Park, exists: bool, partition: str | None
) -> None:
    if exists:
        api.configure(queue)
    for auto_ack in ("true", "false"):
        poll = park(api, queue, partition, autoAck=auto_ack)
        poll.hang_up()
        settle(api)
        api.push({"queue": queue, "payload": auto_ack})
        assert api.data(queue, partition, autoAck="true") == [auto_ack]


def test_the_next_in_line_gets_what_a_gone_client_waited_for(
    api: Api, queue: str, park: Park
) -> None:
    first, second = park(api, queue), park(api, queue)
    first.hang_up()
    started = time.monotonic()
    api.push({"queue": queue, "payload": 1})
    assert second.data() == [1]
    assert since(started) < SOON_S


def test_a_client_that_hangs_up_while_it_is_served_loses_nothing(api: Api, queue: str) -> None:
    # Push and hang-up race; whoever wins, the message is delivered to somebody in the end.
    api.configure(queue, leaseTime=1)
    for n in range(6):
        poll = Poll(api, pop_path(queue, wait="true", timeout=5000))
        settle(api)
        api.send("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": n}]})
        poll.hang_up()
        assert api.receive().status == 201
        assert api.data(queue, wait="true", timeout=5000, autoAck="true") == [n]


# ---- several that wait ----


def data_of_all(polls: list[Poll]) -> list[list[int]]:
    return [poll.data() for poll in polls]


@pytest.mark.parametrize("auto_ack", ["true", "false"])
def test_each_of_several_parked_consumers_gets_one_partition(
    api: Api, queue: str, park: Park, auto_ack: str
) -> None:
    polls = [park(api, queue, batch=10, autoAck=auto_ack, timeout=2000) for _ in range(5)]
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(5)])
    assert sorted(data_of_all(polls)) == [[n] for n in range(5)]


@pytest.mark.parametrize("partition", [None, "Default"])
def test_several_parked_consumers_share_the_messages_of_a_partition(
    api: Api, queue: str, park: Park, partition: str | None
) -> None:
    polls = [park(api, queue, partition, autoAck="true", timeout=1500) for _ in range(5)]
    started = time.monotonic()
    api.push(*[{"queue": queue, "payload": n} for n in range(5)])
    assert sorted(data_of_all(polls)) == [[n] for n in range(5)]
    assert since(started) < SOON_S


def test_consumers_of_a_queue_and_of_its_partition_share_its_messages(
    api: Api, queue: str, park: Park
) -> None:
    polls = [
        park(api, queue, partition, autoAck="true", timeout=2000)
        for partition in ("Default", None, "Default", None)
    ]
    started = time.monotonic()
    api.push(*[{"queue": queue, "payload": n} for n in range(4)])
    assert sorted(data_of_all(polls)) == [[n] for n in range(4)]
    assert since(started) < SOON_S


def test_one_message_wakes_one_consumer_of_a_group(api: Api, queue: str, park: Park) -> None:
    polls = [park(api, queue, timeout=700) for _ in range(4)]
    api.push_many(queue, 1)
    got = [poll.answer().status for poll in polls]
    assert sorted(got) == [200, 204, 204, 204]


def test_one_message_wakes_one_consumer_of_each_group(api: Api, queue: str, park: Park) -> None:
    polls = [park(api, queue, consumerGroup=f"g{n}") for n in range(4)]
    api.push({"queue": queue, "payload": 1})
    assert data_of_all(polls) == [[1]] * 4


def test_a_parked_poll_takes_up_to_its_batch(api: Api, queue: str, park: Park) -> None:
    poll = park(api, queue, batch=3, partitions=10)
    api.push(*[{"queue": queue, "payload": n} for n in range(5)])
    assert poll.data() == [0, 1, 2]


def test_those_who_wait_longest_are_served_first(api: Api, queue: str, park: Park) -> None:
    api.configure(queue)
    polls = [park(api, queue) for _ in range(4)]
    for n in range(4):
        api.push({"queue": queue, "partition": f"p{n}", "payload": n})
        assert polls[n].data() == [n]


# ---- races ----


def alternately(n: int, one: Callable[[], None], other: Callable[[], None]) -> None:
    for work in (one, other) if n % 2 else (other, one):
        work()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["one server", "two servers"])
@pytest.mark.parametrize("partition", [None, "Default"])
def test_a_push_that_races_with_the_start_of_a_poll_still_wakes_it(
    api: Api, twin: Api, other_api: Api, queue: str, partition: str | None, elsewhere: bool
) -> None:
    api.configure(queue)
    poller = other_api if elsewhere else twin
    path = pop_path(queue, partition, wait="true", timeout=3000, autoAck="true")
    worst = 0.0
    for n in range(100):
        body = {"items": [{"queue": queue, "payload": n}]}
        started = time.monotonic()
        alternately(
            n,
            lambda: poller.send("GET", path),
            lambda body=body: api.send("POST", "/api/v1/push", body),  # type: ignore[misc]
        )
        assert api.receive().status == 201
        assert [one["data"] for one in poller.receive().messages] == [n]
        worst = max(worst, since(started))
    assert worst < 1 + SOON_S


def test_an_ack_that_races_with_the_start_of_a_poll_still_wakes_it(
    api: Api, twin: Api, queue: str
) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(100)])
    (message,) = api.messages(queue)
    for partition in [None, "Default"] * 40:
        body = {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
        }
        started = time.monotonic()
        twin.send("GET", pop_path(queue, partition, wait="true", timeout=3000))
        api.send("POST", "/api/v1/ack", body)
        assert api.receive().status == 200
        (message,) = twin.receive().messages
        assert since(started) < 1
