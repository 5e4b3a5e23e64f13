"""Groups can be looked at, paused, resumed, subscribed anew and deleted, on any server."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from queen.service.stats.lag import Lag
from queen.storage.database import Database
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Park, age, refresh
from tests.contract.groupcalls import (
    ROOT,
    delete,
    detail,
    entries,
    eventually,
    moved,
    path_of,
    pause,
    resume,
)
from tests.stopwatch import tries

# ---- looking ----


async def test_a_group_is_listed_with_what_it_has_not_read(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for partition, count in (("a", 3), ("b", 2), ("c", 1)):
        api.push_many(queue, count, partition)
    await age(connection, queue, 600)
    api.ack_batch(api.messages(queue, "a", batch=2, consumerGroup="g"), group="g")
    (leased,) = api.messages(queue, "b", consumerGroup="g")
    one = entries(api, queue)["g"]
    assert one["topics"] == [queue]
    assert (one["totalLag"], one["partitionsWithLag"], one["members"]) == (4, 3, 1)
    assert 600 <= one["maxTimeLag"] < 700
    assert (one["state"], one["paused"], one["activeLeases"]) == ("Lagging", False, 1)
    assert (one["subscriptionMode"], one["subscriptionTimestamp"]) == ("all", None)
    assert one["subscriptionCreatedAt"].endswith("Z")
    stands = detail(api, "g", queue)
    assert {name: row["offsetLag"] for name, row in stands.items()} == {"a": 1, "b": 2, "c": 1}
    assert {name: row["leaseActive"] for name, row in stands.items()} == {
        "a": False, "b": True, "c": False,
    }  # fmt: skip
    assert stands["b"]["partitionId"] == leased["partitionId"]
    assert 600 <= stands["a"]["timeLagSeconds"] < 700
    assert (stands["a"]["position"], stands["a"]["head"]) == (2, 3)
    whole = api.call("GET", path_of("g")).json[queue]
    for key in ("totalLag", "partitionsWithLag", "members", "activeLeases"):
        assert whole[key] == one[key], key
    # Time has gone on since.
    assert one["maxTimeLag"] <= whole["maxTimeLag"] < 700


def test_a_group_that_has_read_everything_has_no_lag(api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    api.pop(queue, batch=3, consumerGroup="g", autoAck="true")
    one = entries(api, queue)["g"]
    assert (one["totalLag"], one["maxTimeLag"], one["state"]) == (0, 0, "Stable")
    assert detail(api, "g", queue)["Default"]["timeLagSeconds"] == 0


def test_history_that_a_group_has_not_subscribed_to_is_no_lag(api: Api, queue: str) -> None:
    api.push_many(queue, 5, "old")
    api.pop(queue, "other", consumerGroup="g", subscriptionMode="new")
    assert entries(api, queue)["g"]["totalLag"] == 0
    assert entries(api, queue)["g"]["state"] == "Dead"
    api.push_many(queue, 2, "old")
    api.push_many(queue, 1, "new")
    assert entries(api, queue)["g"]["totalLag"] == 3
    assert detail(api, "g", queue)["old"]["position"] == 5


async def test_what_retention_took_is_no_lag(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 5)
    api.pop(queue, "other", consumerGroup="g")
    await connection.execute(
        "update partitions set tail = 3 where queue_id = (select id from queues where name = $1)",
        queue,
    )
    assert entries(api, queue)["g"]["totalLag"] == 2


def test_partitions_come_in_pages(api: Api, queue: str) -> None:
    for n in range(5):
        api.push_many(queue, 1, f"p{n}")
    api.pop(queue, consumerGroup="g")
    seen: list[str] = []
    for offset in (0, 2, 4):
        answer = api.call("GET", f"{path_of('g')}?queue={queue}&limit=2&offset={offset}")
        assert answer.json[queue]["hasMore"] is (offset < 4)
        seen += [one["partition"] for one in answer.json[queue]["partitions"]]
    assert sorted(seen) == [f"p{n}" for n in range(5)]


def test_groups_come_in_pages(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    for n in range(3):
        api.pop(queue, consumerGroup=f"{queue}-{n}")
    everybody = [(one["name"], one["queueName"]) for one in api.call("GET", ROOT).json]
    assert everybody == sorted(everybody)
    pages = [api.call("GET", f"{ROOT}?limit=2&offset={offset}").json for offset in (0, 2)]
    assert [(one["name"], one["queueName"]) for page in pages for one in page] == everybody[:4]


async def test_lagging_partitions_come_worst_first(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    group = f"g-{queue}"
    for partition in ("worst", "bad", "fine"):
        api.push_many(queue, 2, partition)
        await age(connection, queue, 7200)
    api.pop(queue, "worst", consumerGroup=group, autoAck="true")
    api.pop(queue, "fine", batch=2, consumerGroup=group, autoAck="true")
    refresh(api)
    found = api.call("GET", f"{ROOT}/lagging?minLagSeconds=3600").json
    assert [one["time_lag_seconds"] for one in found] == sorted(
        (one["time_lag_seconds"] for one in found), reverse=True
    )
    mine = [one for one in found if one["consumer_group"] == group]
    assert [(one["partition_name"], one["offset_lag"]) for one in mine] == [
        ("worst", 1),
        ("bad", 2),
    ]
    assert mine[0]["queue_name"] == queue
    assert 5.9 < mine[0]["lag_hours"] < 6.1
    assert mine[0]["oldest_unconsumed_at"].endswith("Z")
    later = api.call("GET", f"{ROOT}/lagging?minLagSeconds=18000").json
    assert [one["partition_name"] for one in later if one["consumer_group"] == group] == ["worst"]


def test_a_small_installation_sees_lag_at_once(
    start_server: Callable[..., ServerProcess], queue: str, tmp_path: Path
) -> None:
    """No refresh, no wait: counting is cheap, so whoever asks counts."""
    api = start_server("--data-dir", str(tmp_path)).api()

    def told() -> tuple[int, list[int]]:
        (one,) = api.call("GET", ROOT).json
        late = api.call("GET", f"{ROOT}/lagging?minLagSeconds=0").json
        return one["totalLag"], [row["offset_lag"] for row in late]

    api.push_many(queue, 3)
    api.pop(queue, consumerGroup="g", autoAck="true")
    assert told() == (2, [2])
    moved(api, "g", queue, toBeginning=True)
    assert told() == (3, [3])
    moved(api, "g", queue, toEnd=True)
    assert told() == (0, [])
    moved(api, "g", queue, toBeginning=True)
    api.delete_queue(queue)
    assert api.call("GET", f"{ROOT}/lagging?minLagSeconds=0").json == []


async def test_lag_is_shown_by_namespace(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    for name in (f"{queue}-x", f"{queue}-y"):
        api.call("POST", "/api/v1/configure", {"queue": name, "namespace": name, "task": "t"})
        api.push_many(name, 1)
        await age(connection, name, 60)
        api.pop(name, "none", consumerGroup="g")
    refresh(api)
    now = await connection.fetchval("select clock_timestamp()")
    for among in ([f"{queue}-x"], [f"{queue}-y"], [f"{queue}-x", f"{queue}-y"], []):
        found = await Lag(database).lagging(now, among)
        assert [row["queue"] for row in found] == among


def test_a_group_of_several_queues_comes_in_one_page(api: Api, queue: str) -> None:
    group = f"g-{queue}"
    queues = [f"{queue}-{n}" for n in range(3)]
    for name in queues:
        items = [{"queue": name, "partition": f"p{n}", "payload": n} for n in range(400)]
        api.push(*items)
        api.pop(name, consumerGroup=group)
    first = api.call("GET", path_of(group)).json
    assert list(first) == queues
    assert [len(one["partitions"]) for one in first.values()] == [333] * 3
    assert all(one["hasMore"] for one in first.values())
    rest = api.call("GET", f"{path_of(group)}?offset=333").json
    assert [len(one["partitions"]) for one in rest.values()] == [67] * 3
    assert not any(one["hasMore"] for one in rest.values())


@pytest.mark.parametrize(
    "path",
    [
        f"{ROOT}?limit=0",
        f"{ROOT}?offset=-1",
        f"{ROOT}/lagging?minLagSeconds=soon",
        f"{ROOT}/lagging?minLagSeconds=-1",
        f"{ROOT}/%00",
        f"{ROOT}/g?queue=%07",
    ],
)
def test_a_question_that_makes_no_sense_is_refused(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert answer.status == 400 and answer.json["code"] == "bad_request"


def test_what_does_not_exist_is_not_found(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    for method, path in (
        ("GET", path_of("nobody")),
        ("POST", path_of("nobody", "pause")),
        ("POST", path_of("nobody", "queues", queue, "resume")),
    ):
        assert api.call(method, path).status == 404, path
    body = {"subscriptionTimestamp": "2026-01-01T00:00:00Z"}
    assert api.call("POST", path_of("nobody", "subscription"), body).status == 404


async def test_use_is_noted(
    dsn: str, start_server: Callable[..., ServerProcess], queue: str, connection: asyncpg.Connection
) -> None:
    """A group that somebody asks for is in use, though it gets nothing."""
    own = start_server("--database-url", dsn).api()
    own.configure(queue)
    await connection.execute(
        "insert into groups (queue_id, name, used_at) select id, 'g', '2020-01-01' from queues"
        " where name = $1",
        queue,
    )
    own.pop(queue, consumerGroup="g")
    assert eventually(lambda: entries(own, queue)["g"]["lastUsedAt"] > "2021")


# ---- pause ----


@pytest.mark.parametrize("where", ["queue", "all"])
def test_a_paused_group_gets_nothing_until_it_is_resumed(
    api: Api, other_api: Api, queue: str, park: Park, where: str
) -> None:
    group = f"g-{queue}"
    api.push_many(queue, 1)
    (first,) = api.messages(queue, consumerGroup=group)
    names = (queue,) if where == "queue" else ()
    answer = pause(api, group, *names)
    assert answer.json == {
        "success": True, "consumerGroup": group, "queues": [queue], "paused": True,
    }  # fmt: skip
    assert entries(api, queue)[group]["paused"] is True
    # What is leased can still be acked.
    assert api.ack(first).status == 200
    api.push_many(queue, 1)
    for one in (api, other_api):
        assert one.pop(queue, consumerGroup=group).status == 204
    assert len(api.messages(queue, consumerGroup="another")) == 1
    polls = [park(one, queue, consumerGroup=group, timeout=20_000) for one in (api, other_api)]
    started = time.monotonic()
    assert resume(api, group, *names).json["paused"] is False
    while not any(poll.is_answered(0.02) for poll in polls):
        assert time.monotonic() - started < 10
    assert entries(api, queue)[group]["paused"] is False


def test_a_resumed_group_is_served_on_the_other_server_too(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    api.push_many(queue, 1)
    for stopwatch in tries(looks_every_s=1):
        group = f"g{stopwatch.number}"
        other_api.pop(queue, "none", consumerGroup=group)
        pause(api, group, queue)
        polls = [park(other_api, queue, name, consumerGroup=group) for name in (None, "Default")]
        assert not polls[0].is_answered(0.1)
        with stopwatch:
            resume(api, group, queue)
            while not any(poll.is_answered(0.005) for poll in polls):
                pass


# ---- subscription ----


async def test_a_new_subscription_counts_where_the_group_has_not_read(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for payload in ("old", "young"):
        for partition in ("read", "unread"):
            api.push({"queue": queue, "partition": partition, "payload": payload})
        await age(connection, queue, 3600)
    group = f"g-{queue}"
    api.pop(queue, "read", consumerGroup=group, subscriptionMode="new")
    at = (datetime.now(UTC) - timedelta(minutes=90)).isoformat()
    answer = api.call("POST", path_of(group, "subscription"), {"subscriptionTimestamp": at})
    assert answer.status == 200, answer.raw
    assert (answer.json["rowsUpdated"], answer.json["success"]) == (1, True)
    assert entries(api, queue)[group]["subscriptionMode"] == "timestamp"
    got = api.messages(queue, batch=9, partitions=9, consumerGroup=group)
    assert [(one["partition"], one["data"]) for one in got] == [("unread", "young")]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "Missing subscriptionTimestamp"),
        ({"subscriptionTimestamp": None}, "Missing subscriptionTimestamp"),
        ({"subscriptionTimestamp": "soon"}, "subscriptionTimestamp"),
        ({"subscriptionTimestamp": 5}, "subscriptionTimestamp"),
    ],
)
def test_a_subscription_without_a_time_is_refused(
    api: Api, queue: str, body: dict[str, object], word: str
) -> None:
    api.push_many(queue, 1)
    api.pop(queue, consumerGroup=queue)
    answer = api.call("POST", path_of(queue, "subscription"), body)
    assert answer.status == 400 and word in answer.json["error"]


# ---- delete ----


@pytest.mark.parametrize("where", ["queue", "all"])
def test_a_deleted_group_starts_as_a_new_one(
    api: Api, other_api: Api, queue: str, where: str
) -> None:
    group = f"g-{queue}"
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(3)])
    for one in (api, other_api):
        one.pop(queue, consumerGroup=group, autoAck="true")
    (held,) = other_api.messages(queue, consumerGroup=group)
    answer = delete(api, group, *((queue,) if where == "queue" else ()))
    assert answer.status == 200, answer.raw
    assert answer.json["deletedPartitions"] == 3
    assert (answer.json["metadataDeleted"], answer.json["existed"]) == (True, True)
    assert answer.json.get("queueName") == (queue if where == "queue" else None)
    assert group not in entries(api, queue)
    for one in (api, other_api):
        assert one.ack(held).status == 409
    assert api.pop(queue, consumerGroup=group, subscriptionMode="new").status == 204
    api.push({"queue": queue, "partition": "p0", "payload": "new"})
    assert eventually(
        lambda: other_api.data(queue, batch=9, consumerGroup=group, autoAck="true") == ["new"]
    )


def test_progress_can_be_deleted_without_the_subscription(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": "old"})
    assert api.pop(queue, consumerGroup="g", subscriptionMode="new").status == 204
    api.push({"queue": queue, "payload": "new"})
    assert api.data(queue, consumerGroup="g", autoAck="true") == ["new"]
    answer = delete(api, "g", queue, deleteMetadata="false")
    assert (answer.json["metadataDeleted"], answer.json["deletedPartitions"]) == (False, 1)
    assert api.data(queue, batch=9, consumerGroup="g", subscriptionMode="all") == ["new"]


def test_deleting_what_is_not_there_is_no_error(api: Api, queue: str) -> None:
    answer = delete(api, f"nobody-{queue}")
    assert answer.status == 200
    assert (answer.json["existed"], answer.json["deletedPartitions"]) == (False, 0)


def test_who_waits_for_a_deleted_group_comes_back_as_a_new_one(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    api.push({"queue": queue, "payload": 1})
    polls = []
    for one in (api, other_api):
        one.pop(queue, consumerGroup="g", autoAck="true")
        polls.append(park(one, queue, consumerGroup="g"))
    delete(api, "g", queue)
    assert [poll.answer().status for poll in polls] == [204, 204]
    assert other_api.data(queue, consumerGroup="g") == [1]


async def test_a_server_that_was_not_told_finds_out(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push({"queue": queue, "payload": 1})
    assert api.data(queue, consumerGroup="g", autoAck="true") == [1]
    await connection.execute(
        "select delete_group(g.id, true) from groups g join queues q on q.id = g.queue_id"
        " where q.name = $1",
        queue,
    )
    api.push({"queue": queue, "payload": 2})
    assert eventually(lambda: api.data(queue, batch=9, consumerGroup="g") == [1, 2])


async def test_dead_letters_of_a_deleted_group_stay(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 1)
    api.ack(api.messages(queue, consumerGroup="g")[0], status="dlq")
    delete(api, "g", queue)
    count = await connection.fetchval(
        "select count(*) from dead_letters d join queues q on q.id = d.queue_id where q.name = $1",
        queue,
    )
    assert count == 1


# ---- fairness: what has nothing must not hide what has ----


@pytest.mark.parametrize("how", ["queue", "namespace", "task"])
def test_drained_partitions_do_not_hide_one_that_has_something(
    api: Api, other_api: Api, queue: str, how: str
) -> None:
    name = f"{queue}.{queue}-task.x"
    path = {
        "queue": f"/api/v1/pop/queue/{name}?consumerGroup=g&autoAck=true",
        "namespace": f"/api/v1/pop?namespace={queue}&consumerGroup=g&autoAck=true",
        "task": f"/api/v1/pop?task={queue}-task&consumerGroup=g&autoAck=true",
    }[how]
    for n in range(12):
        api.push({"queue": name, "partition": f"p{n}", "payload": n})
    got = [api.call("GET", path).messages[0]["data"] for _ in range(12)]
    assert sorted(got) == list(range(12))
    api.push({"queue": name, "partition": "p12", "payload": 12})
    assert [one["data"] for one in other_api.call("GET", path).messages] == [12]


def test_partitions_take_turns(api: Api, queue: str) -> None:
    """One that always has more does not keep the others waiting."""
    for _ in range(5):
        api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(6)])
    got = [api.data(queue, consumerGroup="g", autoAck="true")[0] for _ in range(12)]
    assert sorted(got[:6]) == sorted(got[6:]) == list(range(6))
