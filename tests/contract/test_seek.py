"""Seek: a group goes where it is told, exactly, in all partitions, and its leases end."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Connect, Park, age
from tests.contract.groupcalls import delete, detail, entries, eventually, moved, path_of, seek
from tests.stopwatch import tries


def read_all(api: Api, queue: str, group: str = "g") -> list[Any]:
    """Read until nothing is left."""
    got: list[Any] = []
    while page := api.data(queue, batch=100, partitions=100, consumerGroup=group, autoAck="true"):
        got += page
    return got


def numbers(answer: Any) -> tuple[int, int, int]:
    return (
        answer["partitionsUpdated"], answer["messagesAgain"], answer["messagesSkipped"],
    )  # fmt: skip


def test_to_the_beginning_everything_comes_again(api: Api, queue: str) -> None:
    for partition in ("a", "b"):
        api.push_many(queue, 3, partition)
    assert len(read_all(api, queue)) == 6
    answer = moved(api, "g", queue, toBeginning=True)
    assert numbers(answer) == (2, 6, 0)
    assert (answer["seekToEnd"], answer["targetTimestamp"]) == (False, None)
    assert len(read_all(api, queue)) == 6


def test_to_the_end_nothing_of_before_comes(api: Api, queue: str) -> None:
    api.push_many(queue, 3, "read")
    api.push_many(queue, 4, "unread")
    api.ack_batch(api.messages(queue, "read", batch=1, consumerGroup="g"), group="g")
    answer = moved(api, "g", queue, toEnd=True)
    assert numbers(answer) == (2, 0, 6)
    assert answer["seekToEnd"] is True and answer["targetTimestamp"].endswith("Z")
    assert read_all(api, queue) == []
    for partition in ("read", "unread", "made later"):
        api.push({"queue": queue, "partition": partition, "payload": partition})
    assert sorted(read_all(api, queue)) == ["made later", "read", "unread"]


async def test_to_a_time_the_first_message_at_or_after_it_is_next(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for n in range(4):
        for partition in ("a", "b"):
            api.push({"queue": queue, "partition": partition, "payload": f"{partition}{n}"})
        await age(connection, queue, 3600)
    assert len(read_all(api, queue)) == 8
    at = datetime.now(UTC) - timedelta(minutes=150)
    answer = moved(api, "g", queue, timestamp=at.isoformat())
    assert numbers(answer) == (2, 4, 0)
    assert sorted(read_all(api, queue)) == ["a2", "a3", "b2", "b3"]
    # Forward as well, and exactly at a message.
    moved(api, "g", queue, toBeginning=True)
    times = await connection.fetch(
        "select s.created_at from segments s join partitions p on p.id = s.partition_id"
        " join queues q on q.id = p.queue_id where q.name = $1 and p.name = 'a'"
        " order by s.base_offset",
        queue,
    )
    answer = moved(api, "g", queue, "a", timestamp=times[1][0].isoformat())
    assert answer["offset"] == 1
    assert datetime.fromisoformat(answer["cursorMovedTo"]) == times[0][0]
    assert api.data(queue, "a", batch=9, consumerGroup="g") == ["a1", "a2", "a3"]


def test_a_time_to_come_is_the_end(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    api.pop(queue, "none", consumerGroup="g")
    moved(api, "g", queue, timestamp="2100-01-01T00:00:00Z")
    api.push({"queue": queue, "payload": "new"})
    assert read_all(api, queue) == ["new"]


@pytest.mark.parametrize(
    ("offset", "lands", "again", "skipped"),
    [(0, 0, 2, 0), (1, 1, 1, 0), (4, 4, 0, 2), (99, 5, 0, 3)],
)
def test_to_an_offset(
    api: Api, queue: str, offset: int, lands: int, again: int, skipped: int
) -> None:
    api.push_many(queue, 5)
    api.ack_batch(api.messages(queue, batch=2, consumerGroup="g"), group="g")
    answer = moved(api, "g", queue, "Default", offset=offset)
    assert (answer["offset"], numbers(answer)) == (lands, (1, again, skipped))
    assert read_all(api, queue) == [{"n": n} for n in range(lands, 5)]


def test_one_partition_without_a_body_goes_to_its_end(api: Api, queue: str) -> None:
    for partition in ("a", "b"):
        api.push_many(queue, 2, partition)
    api.pop(queue, "none", consumerGroup="g")
    path = path_of("g", "queues", queue, "partitions", "a", "seek")
    answer = api.call("POST", path)
    assert answer.status == 200, answer.raw
    assert (answer.json["updated"], answer.json["offset"], answer.json["seekToEnd"]) == (
        True,
        2,
        True,
    )
    assert answer.json["cursorMovedTo"].endswith("Z")
    assert len(read_all(api, queue)) == 2


async def test_nothing_is_read_that_retention_has_taken(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 5)
    assert len(read_all(api, queue)) == 5
    await connection.execute(
        "update partitions set tail = 3 where queue_id = (select id from queues where name = $1)",
        queue,
    )
    assert numbers(moved(api, "g", queue, toBeginning=True)) == (1, 2, 0)
    assert detail(api, "g", queue)["Default"]["position"] == 3
    assert moved(api, "g", queue, "Default", offset=1)["offset"] == 3


@pytest.mark.parametrize("target", [{"toEnd": True}, {"toBeginning": True}, {"offset": 1}])
def test_a_lease_ends_with_the_seek(
    api: Api, other_api: Api, queue: str, target: dict[str, Any]
) -> None:
    api.push_many(queue, 3)
    held = api.messages(queue, batch=3, consumerGroup="g")
    api.ack(held[1])
    before = detail(api, "g", queue)["Default"]
    assert before["leaseActive"]
    moved(other_api, "g", queue, "Default", **target)
    for one in (api, other_api):
        assert one.ack(held[0]).status == 409
        assert not one.ack_batch(held, group="g").json["results"][2]["success"]
        assert one.extend(held[0]["leaseId"]).status == 404
    start = {"toEnd": 3, "toBeginning": 0, "offset": 1}[next(iter(target))]
    assert detail(api, "g", queue)["Default"]["leaseActive"] is False
    assert api.data(queue, batch=9, consumerGroup="g") == [{"n": n} for n in range(start, 3)]


def test_the_epoch_grows(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    first = api.pop(queue, consumerGroup="g").json["claims"][0]["epoch"]
    moved(api, "g", queue, toBeginning=True)
    answer = api.pop(queue, consumerGroup="g").json["claims"][0]
    assert answer["epoch"] > first + 1
    assert answer["attempt"] == 1


@pytest.mark.parametrize("partition", [None, "p"])
def test_who_waits_is_served_after_a_seek_on_any_server(
    api: Api, other_api: Api, queue: str, park: Park, partition: str | None
) -> None:
    api.push({"queue": queue, "partition": "p", "payload": 1})
    for one in (api, other_api):
        assert one.data(queue, consumerGroup="g", autoAck="true") == ([1] if one is api else [])
    for waits, seeks in ((api, api), (other_api, api), (api, other_api)):
        for stopwatch in tries(looks_every_s=1):
            poll = park(waits, queue, partition, consumerGroup="g", autoAck="true")
            assert not poll.is_answered()
            with stopwatch:
                moved(seeks, "g", queue, toBeginning=True)
                assert poll.data() == [1]


def test_a_partition_seek_wakes_too(api: Api, other_api: Api, queue: str, park: Park) -> None:
    api.push({"queue": queue, "partition": "p", "payload": 1})
    assert other_api.data(queue, consumerGroup="g", autoAck="true") == [1]
    for stopwatch in tries(looks_every_s=1):
        poll = park(other_api, queue, consumerGroup="g", autoAck="true")
        with stopwatch:
            moved(api, "g", queue, "p", offset=0)
            assert poll.data() == [1]


async def test_a_dry_run_says_what_would_happen_and_does_nothing(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for n in range(4):
        for partition in ("a", "b", "c"):
            api.push({"queue": queue, "partition": partition, "payload": n})
        await age(connection, queue, 3600)
    api.ack_batch(api.messages(queue, "a", batch=3, consumerGroup="g"), group="g")
    (held,) = api.messages(queue, "b", consumerGroup="g")
    at = (datetime.now(UTC) - timedelta(minutes=150)).isoformat()
    targets: list[dict[str, Any]] = [{"timestamp": at}, {"toEnd": True}, {"toBeginning": True}]
    for target in targets:
        before = detail(api, "g", queue)
        foretold = moved(api, "g", queue, dryRun=True, **target)
        assert foretold["dryRun"] is True
        assert {k: v["position"] for k, v in detail(api, "g", queue).items()} == {
            k: v["position"] for k, v in before.items()
        }
        assert api.extend(held["leaseId"]).status == (200 if target is targets[0] else 404)
        really = moved(api, "g", queue, **target)
        assert numbers(really) == numbers(foretold)
        assert really["dryRun"] is False
    assert numbers(really)[1] > 0


@pytest.mark.parametrize(
    ("body", "partition"),
    [
        ({}, None),
        ({"toEnd": False}, None),
        ({"toEnd": True, "toBeginning": True}, None),
        ({"offset": 1}, None),
        ({"timestamp": "yesterday"}, None),
        ({"timestamp": 5}, None),
        ({"toEnd": "yes"}, None),
        ({"offset": -1}, "Default"),
        ({"offset": 1.5}, "Default"),
        ({"offset": 1, "toEnd": True}, "Default"),
    ],
)
def test_a_seek_that_makes_no_sense_is_refused(
    api: Api, queue: str, body: dict[str, Any], partition: str | None
) -> None:
    api.push_many(queue, 2)
    api.pop(queue, consumerGroup="g", autoAck="true")
    answer = seek(api, "g", queue, partition, **body)
    assert answer.status == 400 and answer.json["code"] == "bad_request"
    assert detail(api, "g", queue)["Default"]["position"] == 1


def test_a_seek_of_what_does_not_exist_is_not_found(api: Api, queue: str) -> None:
    assert seek(api, "g", queue, toEnd=True).status == 404
    api.push_many(queue, 1)
    assert seek(api, "g", queue, toEnd=True).status == 404
    api.pop(queue, consumerGroup="g")
    assert seek(api, "g", queue, "other", toEnd=True).status == 404
    assert seek(api, "g", queue, toEnd=True).status == 200
    delete(api, "g", queue)
    assert seek(api, "g", queue, toEnd=True).status == 404


def test_a_seek_under_load_loses_nothing_that_comes_after_it(
    api: Api, server: ServerProcess, connect: Connect, queue: str
) -> None:
    """While somebody pushes: whatever is pushed after the answer of a seek is delivered, and
    all of a partition from the first that is delivered on."""
    partitions = [f"p{n}" for n in range(8)]
    api.push(*[{"queue": queue, "partition": one, "payload": -1} for one in partitions])
    api.pop(queue, consumerGroup="g", autoAck="true")
    pusher, stop = connect(server), threading.Event()
    pushed: list[int] = []

    def push() -> None:
        while not stop.is_set():
            n = len(pushed)
            pusher.push(*[{"queue": queue, "partition": one, "payload": n} for one in partitions])
            pushed.append(n)

    thread = threading.Thread(target=push)
    thread.start()
    try:
        for _ in range(10):
            moved(api, "g", queue, toEnd=True)
        known = len(pushed)
        while len(pushed) < known + 3:
            pass
    finally:
        stop.set()
        thread.join()
    got: dict[str, list[int]] = {one: [] for one in partitions}
    while page := api.messages(queue, batch=1000, partitions=8, consumerGroup="g", autoAck="true"):
        for one in page:
            got[one["partition"]].append(one["data"])
    for one in partitions:
        assert got[one] == list(range(got[one][0], len(pushed))), one
        # One request may be on its way when the seek answers.
        assert got[one][0] <= known + 1


async def test_a_seek_of_many_partitions_is_one_statement(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 2)
    api.pop(queue, consumerGroup="g", autoAck="true")
    await connection.execute(
        """
        with mine as (select id from queues where name = $1), made as (
            insert into partitions (queue_id, name, head, head_at)
            select mine.id, 'p' || n, 1, clock_timestamp() from mine, generate_series(1, 5000) n
            returning id, queue_id, head_at
        )
        insert into segments
            (partition_id, base_offset, end_offset, created_at, queue_id, codec, body)
        select id, 0, 1, head_at, queue_id, 0, 'x' from made
        """,
        queue,
    )
    assert numbers(moved(api, "g", queue, toEnd=True)) == (5_001, 0, 5_001)
    assert entries(api, queue)["g"]["totalLag"] == 0
    assert numbers(moved(api, "g", queue, toBeginning=True)) == (5_001, 5_002, 0)
    one = entries(api, queue)["g"]
    assert (one["totalLag"], one["partitionsWithLag"]) == (5_002, 5_001)
    assert api.delete_queue(queue).status == 200


@pytest.mark.parametrize("mode", ["new", "new-only"])
@pytest.mark.parametrize("partition", [None, "p"])
def test_a_group_for_new_messages_misses_none_in_empty_and_new_partitions(
    api: Api, other_api: Api, queue: str, mode: str, partition: str | None
) -> None:
    api.configure(queue)
    assert api.pop(queue, partition, consumerGroup="g", subscriptionMode=mode).status == 204
    other_api.push({"queue": queue, "partition": "p", "payload": "first"})
    got = api.data(queue, partition, consumerGroup="g", subscriptionMode=mode, autoAck="true")
    assert got == ["first"]
    other_api.push({"queue": queue, "partition": "later", "payload": "second"})
    assert other_api.data(queue, consumerGroup="g", subscriptionMode=mode) == ["second"]


@pytest.mark.parametrize("seeks_where", ["here", "there"])
def test_a_seek_in_the_midst_of_pops_leaves_no_partition_behind(
    server: ServerProcess, api: Api, other_api: Api, connect: Connect, queue: str, seeks_where: str
) -> None:
    """A grant that is on its way when its group is moved must not block the partition."""
    for n in range(6):
        api.push_many(queue, 20, f"p{n}")
    api.pop(queue, "none", consumerGroup="g")
    stop = threading.Event()

    def consume(own: Api) -> None:
        while not stop.is_set():
            got = own.messages(queue, batch=5, consumerGroup="g", wait="true", timeout=300)
            if got:
                own.ack_batch(got, group="g")

    threads = [threading.Thread(target=consume, args=(connect(server),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        seeker = api if seeks_where == "here" else other_api
        for _ in range(15):
            moved(seeker, "g", queue, toBeginning=True)
        assert eventually(lambda: entries(api, queue)["g"]["totalLag"] == 0, within_s=10)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
