"""Two servers on one database behave like one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import asyncpg
import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Connect, Park, age, settle
from tests.stopwatch import tries

# Far less than a poll would wait that nobody wakes, far more than a busy machine takes.
LATE_S = 10


def test_a_poll_parked_on_another_server_is_woken_within_100_ms(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    api.configure(queue)
    for stopwatch in tries(looks_every_s=1):
        n = stopwatch.number
        poll = park(other_api, queue, autoAck="true", timeout=20_000)
        with stopwatch:
            api.push({"queue": queue, "partition": f"p{n % 3}", "payload": n})
            assert poll.data() == [n]


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_poll_on_another_server_may_come_before_its_queue(
    api: Api, other_api: Api, queue: str, park: Park, partition: str | None
) -> None:
    poll = park(other_api, queue, partition, timeout=20_000)
    started = time.monotonic()
    api.push({"queue": queue, "partition": "p", "payload": 1})
    assert poll.data() == [1]
    assert time.monotonic() - started < LATE_S


def test_a_poll_on_another_server_may_come_before_its_partition(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    api.configure(queue)
    for stopwatch in tries(looks_every_s=1):
        name = f"p{stopwatch.number}"
        poll = park(other_api, queue, name)
        with stopwatch:
            api.push({"queue": queue, "partition": name, "payload": 1})
            assert poll.data() == [1]


def test_a_poll_by_namespace_on_another_server_finds_a_new_queue(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    path = f"/api/v1/pop?namespace={queue}&wait=true&timeout=20000"
    poll = park(other_api, queue, path=path)
    started = time.monotonic()
    api.push({"queue": f"{queue}.x", "payload": 1})
    assert poll.data() == [1]
    assert time.monotonic() - started < LATE_S


def test_what_one_server_takes_the_other_sees_at_once(api: Api, other_api: Api, queue: str) -> None:
    for n in range(20):
        api.push({"queue": queue, "partition": f"p{n % 4}", "payload": n})
        assert other_api.data(queue, autoAck="true") == [n]


def test_an_old_hint_does_not_hide_what_another_server_has_just_written(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    api.configure(queue)
    other_api.pop(queue)
    for n in range(10):
        # The other server is told of a message in one partition, which is taken meanwhile;
        watcher = park(other_api, queue, consumerGroup="watch", autoAck="true")
        api.push({"queue": queue, "partition": f"a{n}", "payload": "taken"})
        watcher.answer()
        assert api.data(queue, autoAck="true") == ["taken"]
        # then there is one in another partition, and it is asked before it is told.
        api.push({"queue": queue, "partition": f"b{n}", "payload": n})
        assert other_api.data(queue, autoAck="true") == [n]
        other_api.messages(queue, consumerGroup="watch", autoAck="true", batch=9, partitions=9)


def test_a_lease_of_one_server_holds_on_the_other(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    (message,) = api.messages(queue)
    assert other_api.pop(queue).status == 204
    assert other_api.pop(queue, "Default").status == 204
    assert other_api.ack(message).status == 200
    assert other_api.data(queue) == [{"n": 1}]


def test_a_parked_group_over_two_servers_shares_without_doubles(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    polls = [
        park(one, queue, autoAck="true", timeout=20_000) for one in (api, other_api, api, other_api)
    ]
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(4)])
    assert sorted(poll.data() for poll in polls) == [[0], [1], [2], [3]]


def test_one_message_is_delivered_once_to_a_group_on_two_servers(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    for n in range(3):
        polls = [park(one, queue, timeout=1200, autoAck="true") for one in (api, other_api)]
        api.push({"queue": queue, "payload": n})
        assert sorted(poll.answer().status for poll in polls) == [200, 204]


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_an_ack_on_one_server_wakes_who_waits_on_the_other(
    api: Api,
    other_api: Api,
    queue: str,
    park: Park,
    connection: asyncpg.Connection,
    status: str,
) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(2)])
    (message,) = api.messages(queue)
    poll = park(other_api, queue, timeout=20_000)
    # Not found by looking at what was written lately: it is a backlog.
    await age(connection, queue, 60)
    started = time.monotonic()
    assert api.ack(message, status).status == 200
    assert poll.data() == [1 if status == "completed" else 0]
    assert time.monotonic() - started < LATE_S


async def test_what_was_given_back_on_one_server_is_there_for_the_next_pop_on_the_other(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    assert other_api.pop(queue).status == 204
    await age(connection, queue, 60)
    assert api.ack(message, "failed").json["status"] == "failed_retry"
    assert len(other_api.messages(queue)) == 1


async def test_a_backlog_is_found_by_a_server_that_has_never_seen_it(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(1200)])
    await age(connection, queue, 3600)
    got: list[int] = []
    while batch := other_api.data(queue, batch=1000, partitions=1000, autoAck="true"):
        got += batch
    assert sorted(got) == list(range(1200))


def test_duplicates_are_found_whoever_wrote_the_original(
    api: Api, other_api: Api, queue: str
) -> None:
    for n in range(20):
        one, two = (api, other_api) if n % 2 else (other_api, api)
        item = {"queue": queue, "payload": n, "transactionId": f"t{n}"}
        first = one.push(item).json[0]
        assert first["status"] == "queued"
        again = two.push(item).json[0]
        assert again["status"] == "duplicate"
        assert again["message_id"] == first["message_id"]


@pytest.mark.parametrize("dedup", ["window", "forever"])
def test_a_server_that_has_just_started_finds_earlier_duplicates(
    api: Api,
    start_server: Callable[..., ServerProcess],
    connect: Connect,
    dsn: str,
    queue: str,
    dedup: str,
) -> None:
    api.configure(queue, dedup=dedup)
    items = [
        {"queue": queue, "partition": f"p{n % 3}", "payload": n, "transactionId": f"t{n}"}
        for n in range(300)
    ]
    first = api.push(*items).json
    fresh = connect(start_server("--database-url", dsn))
    new = {"queue": queue, "partition": "p0", "payload": "new", "transactionId": "new"}
    again = fresh.push(*items, new).json
    assert [one["status"] for one in again] == ["duplicate"] * 300 + ["queued"]
    assert [one["message_id"] for one in again[:-1]] == [one["message_id"] for one in first]


@pytest.mark.parametrize("dedup", ["window", "forever"])
def test_the_same_ids_pushed_at_once_on_both_servers_are_stored_once(
    api: Api, other_api: Api, queue: str, dedup: str
) -> None:
    api.configure(queue, dedup=dedup)
    for start in range(0, 1000, 100):
        items = [
            {"queue": queue, "payload": n, "transactionId": f"t{n}"}
            for n in range(start, start + 100)
        ]
        for one in (api, other_api):
            one.send("POST", "/api/v1/push", {"items": items})
        answers = [one.receive().json for one in (api, other_api)]
        for mine, theirs in zip(*answers, strict=True):
            assert sorted((mine["status"], theirs["status"])) == ["duplicate", "queued"]
            assert mine["message_id"] == theirs["message_id"]
    assert api.data(queue, batch=10_000) == list(range(1000))


def test_offsets_are_dense_when_both_servers_write_one_partition(
    api: Api, other_api: Api, queue: str
) -> None:
    for n in range(50):
        for one in (api, other_api):
            one.send("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": [one.url, n]}]})
        for one in (api, other_api):
            assert one.receive().status == 201
    messages = other_api.messages(queue, batch=1000)
    assert [one["offset"] for one in messages] == list(range(100))
    for one in (api, other_api):
        mine = [m["data"][1] for m in messages if m["data"][0] == one.url]
        assert mine == list(range(50))


def test_a_changed_configuration_reaches_the_other_server(
    api: Api, other_api: Api, queue: str
) -> None:
    api.configure(queue, leaseTime=100)
    api.push_many(queue, 1)
    groups = (f"g{number}" for number in itertools.count())

    def lease_ms() -> object:
        return other_api.pop(queue, consumerGroup=next(groups)).json["claims"][0]["leaseMs"]

    assert lease_ms() == 100_000
    for stopwatch in tries(looks_every_s=5):
        wanted_s = 7 + stopwatch.number
        with stopwatch:
            api.configure(queue, leaseTime=wanted_s)
            while lease_ms() != wanted_s * 1000:
                pass


def test_a_deleted_queue_can_be_used_again_through_the_other_server(
    api: Api, other_api: Api, queue: str
) -> None:
    for name in ("a", "b"):
        api.push({"queue": queue, "partition": name, "payload": "old", "transactionId": "t"})
        assert len(other_api.messages(queue, name)) == 1
    assert api.delete_queue(queue).json["existed"] is True
    # No duplicate: the queue that knew this id is gone.
    pushed = other_api.push({"queue": queue, "partition": "a", "payload": 1, "transactionId": "t"})
    assert pushed.json[0]["status"] == "queued"
    assert api.data(queue, "a") == [1]
    assert api.delete_queue(queue).status == 200
    api.push({"queue": queue, "partition": "a", "payload": 2, "transactionId": "t"})
    settle(api)
    assert other_api.data(queue, wait="true", timeout=20_000) == [2]


def test_a_poll_that_is_parked_elsewhere_survives_the_deletion_of_its_queue(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    api.configure(queue)
    poll = park(other_api, queue, timeout=600)
    api.delete_queue(queue)
    api.push({"queue": queue, "payload": 1})
    # It ends with nothing or with the message; in no case is the message lost.
    assert poll.data() or other_api.data(queue) == [1]
