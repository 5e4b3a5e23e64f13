"""Long polls: woken at once, answered on time, and nothing lost or doubled on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlencode

import pytest

from tests.api import Api, Poll, pop_path
from tests.contract.conftest import Park, settle
from tests.stopwatch import tries
from tests.waiting import until

# How often a server looks by itself.
LOOKS_EVERY_S = 1
# Far less than a poll that is not ended in time would wait, far more than a busy machine takes.
LATE_S = 10


def since(started: float) -> float:
    return time.monotonic() - started


@pytest.mark.parametrize("partition", [None, "Default"])
def test_a_push_wakes_a_parked_poll_at_once(
    api: Api, queue: str, park: Park, partition: str | None
) -> None:
    for stopwatch in tries(LOOKS_EVERY_S):
        name = f"{queue}.{stopwatch.number}"
        api.configure(name)
        poll = park(api, name, partition)
        assert not poll.is_answered()
        with stopwatch:
            api.push({"queue": name, "payload": 1})
            assert poll.data() == [1]


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_poll_may_come_before_its_queue(
    api: Api, queue: str, park: Park, partition: str | None
) -> None:
    poll = park(api, queue, partition, timeout=20_000)
    started = time.monotonic()
    api.push({"queue": queue, "partition": "p", "payload": 1})
    assert poll.data() == [1]
    assert since(started) < LATE_S


def test_a_poll_may_come_before_its_partition(api: Api, queue: str, park: Park) -> None:
    api.push({"queue": queue, "partition": "other", "payload": 0})
    for stopwatch in tries(LOOKS_EVERY_S):
        name = f"p{stopwatch.number}"
        poll = park(api, queue, name)
        api.push({"queue": queue, "partition": "another", "payload": 1})
        assert not poll.is_answered(0.05)
        with stopwatch:
            api.push({"queue": queue, "partition": name, "payload": 2})
            assert poll.data() == [2]


def test_a_poll_by_namespace_may_come_before_its_queue(api: Api, queue: str, park: Park) -> None:
    for stopwatch in tries(LOOKS_EVERY_S):
        namespace = f"{queue}-{stopwatch.number}"
        query = urlencode({"namespace": namespace, "wait": "true", "timeout": 5000})
        poll = park(api, queue, path=f"/api/v1/pop?{query}")
        with stopwatch:
            api.push({"queue": f"{namespace}.task", "payload": 1})
            assert poll.data() == [1]


def test_a_poll_by_namespace_is_woken_by_any_of_its_queues(
    api: Api, queue: str, park: Park
) -> None:
    for name in ("a", "b", "c"):
        body = {"queue": f"{queue}.{name}", "namespace": queue}
        assert api.call("POST", "/api/v1/configure", body).status == 201
    query = urlencode({"namespace": queue, "wait": "true", "timeout": 5000})
    for name in ("b", "c", "a"):
        for stopwatch in tries(LOOKS_EVERY_S):
            poll = park(api, queue, path=f"/api/v1/pop?{query}&autoAck=true")
            with stopwatch:
                api.push({"queue": f"{queue}.{name}", "payload": name})
                assert poll.data() == [name]


def test_a_poll_that_finds_something_does_not_wait(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    started = time.monotonic()
    assert len(api.messages(queue, wait="true", timeout=30_000, batch=100)) == 2
    assert since(started) < LATE_S


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
    assert 0.39 < since(started) < LATE_S


def test_a_poll_by_namespace_ends_on_time(api: Api, queue: str) -> None:
    started = time.monotonic()
    query = urlencode({"namespace": queue, "wait": "true", "timeout": 400})
    assert api.call("GET", f"/api/v1/pop?{query}").status == 204
    assert 0.39 < since(started) < LATE_S


def test_a_timeout_of_zero_is_one_look(api: Api, queue: str) -> None:
    started = time.monotonic()
    assert api.pop(queue, wait="true", timeout=0).status == 204
    api.push_many(queue, 1)
    assert len(api.messages(queue, wait="true", timeout=0)) == 1
    assert since(started) < LATE_S


def test_the_timeout_counts_from_the_request_even_when_the_queue_comes_later(
    api: Api, queue: str, park: Park
) -> None:
    took: list[float] = []
    while not took or took[-1] >= 2.2:
        assert len(took) < 10, took
        name = f"{queue}.{len(took)}"
        started = time.monotonic()
        poll = park(api, name, timeout=1500)
        assert not poll.is_answered(0.75)
        api.configure(name)
        assert poll.answer().status == 204
        # Counted from the queue on, it would be more than 2.2 seconds in all tries.
        took.append(since(started))
        assert took[-1] > 1.49


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("partition", [None, "Default"])
def test_a_client_that_hangs_up_does_not_swallow_the_next_message(
    api: Api, queue: str, park: Park, exists: bool, partition: str | None
) -> None:
    if exists:
        api.configure(queue)
    park(api, queue, partition).hang_up()
    settle(api)
    api.push({"queue": queue, "payload": 1})
    # A server that hears late that the client has gone gives back what it has leased for it.
    assert until(lambda: api.data(queue, partition, autoAck="true")) == [1]


@pytest.mark.parametrize("partition", [None, "Default"])
def test_a_poll_that_acknowledges_is_over_when_its_client_hangs_up(
    api: Api, queue: str, park: Park, partition: str | None
) -> None:
    """What comes while the server looks for a client is gone with it, so there are some tries."""
    api.configure(queue)
    for number in range(10):
        park(api, queue, partition, autoAck="true").hang_up()
        settle(api)
        api.push({"queue": queue, "payload": number})
        if api.data(queue, partition, autoAck="true", wait="true", timeout=1000) == [number]:
            return
    raise AssertionError("each message went to a client that was gone")


def test_the_next_in_line_gets_what_a_gone_client_waited_for(
    api: Api, queue: str, park: Park
) -> None:
    for stopwatch in tries(LOOKS_EVERY_S):
        name = f"{queue}.{stopwatch.number}"
        first, second = park(api, name), park(api, name)
        first.hang_up()
        with stopwatch:
            api.push({"queue": name, "payload": 1})
            assert second.data() == [1]


def test_a_client_that_hangs_up_while_it_is_served_loses_nothing(api: Api, queue: str) -> None:
    # Push and hang-up race; whoever wins, the message is delivered to somebody in the end.
    api.configure(queue, leaseTime=1)
    for n in range(6):
        poll = Poll(api, pop_path(queue, wait="true", timeout=20_000))
        settle(api)
        api.send("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": n}]})
        poll.hang_up()
        assert api.receive().status == 201
        assert api.data(queue, wait="true", timeout=20_000, autoAck="true") == [n]


# ---- several that wait ----


def data_of_all(polls: list[Poll]) -> list[list[int]]:
    return [poll.data() for poll in polls]


@pytest.mark.parametrize("auto_ack", ["true", "false"])
def test_each_of_several_parked_consumers_gets_one_partition(
    api: Api, queue: str, park: Park, auto_ack: str
) -> None:
    polls = [park(api, queue, batch=10, autoAck=auto_ack, timeout=20_000) for _ in range(5)]
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(5)])
    assert sorted(data_of_all(polls)) == [[n] for n in range(5)]


@pytest.mark.parametrize("partition", [None, "Default"])
def test_several_parked_consumers_share_the_messages_of_a_partition(
    api: Api, queue: str, park: Park, partition: str | None
) -> None:
    for stopwatch in tries(LOOKS_EVERY_S):
        name = f"{queue}.{stopwatch.number}"
        polls = [park(api, name, partition, autoAck="true") for _ in range(5)]
        with stopwatch:
            api.push(*[{"queue": name, "payload": n} for n in range(5)])
            assert sorted(data_of_all(polls)) == [[n] for n in range(5)]


def test_consumers_of_a_queue_and_of_its_partition_share_its_messages(
    api: Api, queue: str, park: Park
) -> None:
    for stopwatch in tries(LOOKS_EVERY_S):
        name = f"{queue}.{stopwatch.number}"
        polls = [
            park(api, name, partition, autoAck="true")
            for partition in ("Default", None, "Default", None)
        ]
        with stopwatch:
            api.push(*[{"queue": name, "payload": n} for n in range(4)])
            assert sorted(data_of_all(polls)) == [[n] for n in range(4)]


def test_one_message_wakes_one_consumer_of_a_group(api: Api, queue: str, park: Park) -> None:
    polls = [park(api, queue, timeout=2000) for _ in range(4)]
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
    path = pop_path(queue, partition, wait="true", timeout=20_000, autoAck="true")
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
    assert worst < LATE_S


def test_an_ack_that_races_with_the_start_of_a_poll_still_wakes_it(
    api: Api, twin: Api, queue: str
) -> None:
    """A machine may pause now and then; wakes that are lost are lost in every round."""
    slowest: list[float] = []
    while not slowest or slowest[-1] >= 0.3 * LOOKS_EVERY_S:
        assert len(slowest) < 5, slowest
        slowest.append(_race_acks_with_polls(api, twin, f"{queue}.{len(slowest)}"))


def _race_acks_with_polls(api: Api, twin: Api, queue: str) -> float:
    """Return how long the fifth slowest of many took."""
    api.push(*[{"queue": queue, "payload": n} for n in range(100)])
    (message,) = api.messages(queue)
    took: list[float] = []
    for partition in [None, "Default"] * 40:
        body = {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
        }
        started = time.monotonic()
        twin.send("GET", pop_path(queue, partition, wait="true", timeout=20_000))
        api.send("POST", "/api/v1/ack", body)
        assert api.receive().status == 200
        (message,) = twin.receive().messages
        took.append(since(started))
    assert max(took) < LATE_S
    return sorted(took)[-5]


@pytest.mark.parametrize("others", [0, 3])
def test_a_poll_of_one_partition_is_woken_when_its_lease_lapses(
    api: Api, queue: str, others: int
) -> None:
    """Whether or not other partitions of the queue have something."""
    api.configure(queue, leaseTime=1)
    for name in ["p", *(f"other-{n}" for n in range(others))]:
        api.push({"queue": queue, "partition": name, "payload": name})
    assert len(api.messages(queue, "p")) == 1
    (again,) = api.messages(queue, "p", wait="true", timeout=30_000)
    assert again["data"] == "p"
