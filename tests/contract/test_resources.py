"""Resources: how much lies in the queues, counted right, and paged."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.contract.conftest import age, refresh


def _get(api: Api, path: str) -> Any:
    answer = api.call("GET", f"/api/v1/{path}")
    assert answer.status == 200, answer
    return answer.json


def _summary(api: Api, queue: str) -> Any:
    (found,) = _get(api, f"resources/queues?queue={queue}")["queues"]
    return found


def test_a_queue_is_counted_as_it_is_used(api: Api, queue: str) -> None:
    api.configure(queue)
    api.push_many(queue, 10)
    refresh(api)
    counts = _summary(api, queue)["messages"]
    assert (counts["total"], counts["pending"], counts["written"]) == (10, 10, 10)

    popped = api.messages(queue, batch=4)
    refresh(api)
    counts = _summary(api, queue)["messages"]
    assert (counts["pending"], counts["processing"], counts["completed"]) == (6, 4, 0)

    api.ack_batch(popped)
    refresh(api)
    counts = _summary(api, queue)["messages"]
    assert (counts["pending"], counts["processing"], counts["completed"]) == (6, 0, 4)


def test_a_message_is_pending_until_every_group_has_done_it(api: Api, queue: str) -> None:
    api.push_many(queue, 10)
    api.messages(queue, batch=10, consumerGroup="fast", autoAck="true")
    api.messages(queue, batch=3, consumerGroup="slow", autoAck="true")
    refresh(api)
    detail = _get(api, f"resources/queues/{queue}")
    assert detail["totals"]["pending"] == 7 and detail["totals"]["completed"] == 3
    assert {one["name"]: one["pending"] for one in detail["groups"]} == {"fast": 0, "slow": 7}


def test_dead_letters_are_counted(api: Api, queue: str) -> None:
    api.configure(queue, deadLetterQueue=True)
    api.push_many(queue, 3)
    for message in api.messages(queue, batch=2):
        api.ack(message, "dlq")
    refresh(api)
    counts = _summary(api, queue)["messages"]
    assert counts["deadLetter"] == 2 and counts["pending"] == 1


def test_bytes_are_counted(api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    refresh(api)
    assert _summary(api, queue)["storedBytes"] > 3 * 8


def test_a_page_of_partitions_and_the_totals_of_all(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(25)])
    refresh(api)
    first = _get(api, f"resources/queues/{queue}?limit=10")
    last = _get(api, f"resources/queues/{queue}?limit=10&offset=20")
    middle = _get(api, f"resources/queues/{queue}?limit=10&offset=10")
    pages = [[one["name"] for one in page["partitions"]] for page in (first, middle, last)]
    assert list(map(len, pages)) == [10, 10, 5]
    assert sorted(name for page in pages for name in page) == sorted(f"p{n}" for n in range(25))
    assert first["pagination"] == {"limit": 10, "offset": 0, "total": 25}
    assert first["totals"]["total"] == 25
    assert first["partitions"][0]["stats"]["pending"] == 1
    assert first["partitions"][0]["oldestMessage"] == first["partitions"][0]["newestMessage"]
    listed = _get(api, f"resources/partitions?queue={queue}&limit=1000")
    assert len(listed["partitions"]) == listed["pagination"]["total"] == 25
    assert _get(api, f"resources/partitions?queue={queue}&offset=25")["partitions"] == []


def test_labels_add_their_queues_up(api: Api, queue: str) -> None:
    for number in range(2):
        body = {"queue": f"{queue}-{number}", "namespace": f"ns-{queue}", "task": f"t-{queue}"}
        api.call("POST", "/api/v1/configure", body)
        api.push_many(f"{queue}-{number}", 2 + number)
    refresh(api)
    spaces = {one["namespace"]: one for one in _get(api, "resources/namespaces")["namespaces"]}
    tasks = {one["task"]: one for one in _get(api, "resources/tasks")["tasks"]}
    for found in (spaces[f"ns-{queue}"], tasks[f"t-{queue}"]):
        assert (found["queues"], found["partitions"]) == (2, 2)
        assert found["messages"] == {"total": 5, "pending": 5, "processing": 0}
    listed = _get(api, f"resources/queues?namespace=ns-{queue}")
    assert [one["name"] for one in listed["queues"]] == [f"{queue}-1", f"{queue}-0"]
    assert listed["total"] == 2


async def test_lag_is_the_age_of_the_oldest_message_not_done(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 2)
    await age(connection, queue, 100)
    api.push_many(queue, 1)
    api.messages(queue, consumerGroup="behind", autoAck="true")
    api.messages(queue, batch=2, consumerGroup="nearly", autoAck="true")
    api.messages(queue, batch=3, consumerGroup="done", autoAck="true")
    refresh(api)
    groups = _get(api, f"resources/queues/{queue}")["groups"]
    lags = {one["name"]: one["lagSeconds"] for one in groups}
    assert 100 <= lags["behind"] < 160
    assert 0 <= lags["nearly"] < 60
    assert lags["done"] == 0


def test_the_overview_adds_everything_up(api: Api, queue: str) -> None:
    refresh(api)
    before = _get(api, "resources/overview")
    api.push_many(queue, 5)
    api.messages(queue, batch=2, autoAck="true")
    refresh(api)
    after = _get(api, "resources/overview")
    assert after["queues"] == before["queues"] + 1
    assert after["messages"]["total"] >= before["messages"]["total"] + 5
    assert after["throughput"]["ingestedPerSecond"] > 0
    assert after["lag"]["offset"]["max"] >= 3
    assert after["statsAge"] < 60 and after["statsAt"].endswith("Z")


def test_a_deleted_queue_takes_its_numbers_along(api: Api, queue: str) -> None:
    api.push_many(queue, 5)
    refresh(api)
    assert _summary(api, queue)["messages"]["total"] == 5
    api.delete_queue(queue)
    assert _get(api, f"resources/queues?queue={queue}")["queues"] == []
    assert api.call("GET", f"/api/v1/resources/queues/{queue}").status == 404
    assert _get(api, f"analytics/queue-ops?queue={queue}")["series"] == []
    api.push_many(queue, 1)
    refresh(api)
    assert _summary(api, queue)["messages"]["written"] == 1


async def test_a_deleted_queue_leaves_no_row_of_numbers(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 5)
    api.messages(queue)
    refresh(api)
    queue_id = await connection.fetchval("select id from queues where name = $1", queue)
    tables = ("queue_stats", "group_stats", "activity")
    for table in tables:
        counted = f"select count(*) from {table} where queue_id = $1"
        while not await connection.fetchval(counted, queue_id):
            # Activity is written at most four times a second.
            _get(api, "status")
    api.delete_queue(queue)
    for table in tables:
        assert not await connection.fetchval(
            f"select count(*) from {table} where queue_id = $1", queue_id
        )


def test_two_servers_tell_the_same(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    other_api.push_many(queue, 4)
    refresh(other_api)
    for one in (api, other_api):
        assert _summary(one, queue)["messages"]["total"] == 7


def test_a_small_installation_sees_its_own_writes_at_once(
    start_server: Any, queue: str, tmp_path: Any
) -> None:
    """No refresh, no wait: counting is cheap, so whoever asks counts."""
    api = start_server("--data-dir", str(tmp_path)).api()
    for count in range(1, 6):
        api.push_many(queue, 1)
        found = _summary(api, queue)["messages"]
        assert found["total"] == found["pending"] == count
    api.ack_batch(api.messages(queue, batch=2))
    assert _summary(api, queue)["messages"]["completed"] == 2


@pytest.mark.parametrize(
    "path",
    [
        "resources/queues?limit=0",
        "resources/queues?limit=ten",
        "resources/queues?offset=-1",
        "resources/queues?limit=10001",
        "resources/queues?namespace=%00",
        "resources/queues/a?limit=1001",
        "resources/partitions",
        "resources/partitions?queue=",
    ],
)
def test_what_cannot_be_asked_is_refused(api: Api, path: str) -> None:
    answer = api.call("GET", f"/api/v1/{path}")
    assert answer.status == 400
    assert answer.json["error"]


def test_unknown_queues_are_not_found(api: Api, queue: str) -> None:
    assert api.call("GET", f"/api/v1/resources/queues/{queue}").status == 404
    assert api.call("GET", f"/api/v1/resources/partitions?queue={queue}").status == 404


# ---- against a count by hand ----


async def _by_hand(connection: asyncpg.Connection, queue: str) -> dict[Any, Any]:
    """Count a queue message by message, without any of the statements under test."""
    at: datetime = await connection.fetchval("select clock_timestamp()")
    queue_id = await connection.fetchval("select id from queues where name = $1", queue)
    partitions = await connection.fetch("select * from partitions where queue_id = $1", queue_id)
    groups = await connection.fetch("select * from groups where queue_id = $1", queue_id)
    written: dict[int, dict[int, datetime]] = defaultdict(dict)
    for row in await connection.fetch("select * from segments where queue_id = $1", queue_id):
        for offset in range(row["base_offset"], row["end_offset"]):
            written[row["partition_id"]][offset] = row["created_at"]
    cursors = {
        (row["partition_id"], row["group_id"]): row
        for row in await connection.fetch("select * from cursors")
    }
    counted: dict[Any, Any] = {}
    undone: set[tuple[int, int]] = set()
    for group in groups:
        pending, oldest, leased = 0, None, 0
        begun, lives, behind = 0, 0, {}
        for partition in partitions:
            cursor = cursors.get((partition["id"], group["id"]))
            live = cursor is not None and (cursor["lease_until"] or at) > at
            begun, lives = begun + (cursor is not None), lives + live
            unread_here: list[datetime] = []
            for offset, created_at in written[partition["id"]].items():
                if offset < partition["tail"]:
                    continue
                if cursor is not None:
                    unread = offset >= cursor["committed"]
                else:
                    unread = group["starts_at"] is None or created_at >= group["starts_at"]
                if unread:
                    pending += 1
                    undone.add((partition["id"], offset))
                    oldest = min(oldest or created_at, created_at)
                    unread_here.append(created_at)
                    leased += bool(live and cursor and offset < cursor["batch_end"])
            if unread_here:
                behind[partition["id"]] = (len(unread_here), min(unread_here))
        counted[group["name"]] = (pending, leased, oldest)
        counted[group["name"], "places"] = (begun, lives, len(behind))
        counted[group["name"], "late"] = behind
    retained = sum(
        offset >= partition["tail"]
        for partition in partitions
        for offset in written[partition["id"]]
    )
    counted["total"] = retained
    counted["outstanding"] = len(undone) if groups else retained
    counted["written"] = sum(partition["head"] for partition in partitions)
    return counted


async def _told(api: Api, queue: str, connection: asyncpg.Connection) -> dict[Any, Any]:
    refresh(api)
    detail = _get(api, f"resources/queues/{queue}")
    told: dict[Any, Any] = {}
    rows = await connection.fetch(
        "select g.name, g.id, s.* from group_stats s join groups g on g.id = s.group_id"
        " join queues q on q.id = g.queue_id where q.name = $1",
        queue,
    )
    oldest = {row["name"]: row["oldest_unread_at"] for row in rows}
    for row in rows:
        late = await connection.fetch(
            "select * from lagging_partitions where group_id = $1", row["id"]
        )
        behind = {one["partition_id"]: (one["pending"], one["oldest_unread_at"]) for one in late}
        sums = (row["members"], row["leased_partitions"], row["partitions_behind"])
        told[row["name"], "places"] = sums
        told[row["name"], "late"] = behind
    for group in detail["groups"]:
        name = group["name"]
        told[name] = (group["pending"], group["processing"], oldest[name])
    totals = detail["totals"]
    told["total"] = totals["total"]
    told["outstanding"] = totals["pending"] + totals["processing"]
    told["written"] = totals["written"]
    return told


async def _check(api: Api, queue: str, connection: asyncpg.Connection) -> dict[Any, Any]:
    """Compare what is told with a count by hand, and return it."""
    told, counted = await _told(api, queue, connection), await _by_hand(connection, queue)
    late = {key: (told.pop(key), counted.pop(key)) for key in list(told) if key[-1] == "late"}
    assert told == counted
    # The list of what is late is bounded, and not this queue's alone: the worst is in it.
    for some, all_of_them in late.values():
        assert some.items() <= all_of_them.items()
    everywhere = [one for _, each in late.values() for one in each.values()]
    listed = [one for some, _ in late.values() for one in some.values()]
    assert min((at for _, at in everywhere), default=None) == min(
        (at for _, at in listed), default=None
    )
    return told


def _do_something(api: Api, queue: str, dice: random.Random) -> None:
    partition = f"p{dice.randrange(6)}"
    group = dice.choice(["a", "b", "late"])
    query: dict[str, Any] = {"batch": dice.randint(1, 5), "consumerGroup": group}
    if group == "late":
        query["subscriptionMode"] = "new"
    match dice.randrange(5):
        case 0 | 1:
            api.push_many(queue, dice.randint(1, 6), partition)
        case 2:
            api.messages(queue, **query, autoAck="true")
        case 3:
            api.messages(queue, **query)
        case 4:
            popped = api.messages(queue, **query)
            if popped:
                api.ack_batch(popped[: dice.randint(1, len(popped))], group=group)


@pytest.mark.parametrize("seed", range(4))
async def test_the_numbers_are_those_of_a_count_by_hand(
    api: Api, queue: str, connection: asyncpg.Connection, seed: int
) -> None:
    dice = random.Random(seed)
    # A namespace of its own, so that its worst partition is among those that are kept.
    body = {"queue": queue, "namespace": queue, "task": "t", "options": {"leaseTime": 600}}
    assert api.call("POST", "/api/v1/configure", body).status == 201
    for step in range(60):
        await asyncio.to_thread(_do_something, api, queue, dice)
        if step == 30:
            # Retention has taken what is oldest, in the middle of what groups have not read.
            await connection.execute(
                """
                with old as (
                    select distinct on (s.partition_id) s.partition_id, s.base_offset, s.end_offset
                    from segments s join queues q on q.id = s.queue_id
                    where q.name = $1 and s.partition_id % 2 = 0
                    order by s.partition_id, s.base_offset
                ),
                gone as (
                    delete from segments s using old o
                    where s.partition_id = o.partition_id and s.base_offset = o.base_offset
                )
                update partitions p set tail = o.end_offset from old o where p.id = o.partition_id
                """,
                queue,
            )
        if step % 10 == 9:
            await _check(api, queue, connection)


async def test_a_group_that_begins_in_the_middle_is_counted_from_there(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    """Partitions without a cursor: before, astride, and after the start of the subscription."""
    api.push_many(queue, 3, "before")
    api.push_many(queue, 4, "astride")
    api.pop(queue, "nowhere", consumerGroup="g", subscriptionMode="new")
    api.push_many(queue, 5, "astride")
    api.push_many(queue, 6, "after")
    told = await _check(api, queue, connection)
    assert told["g"][0] == 11


def test_bits_of_messages_done_out_of_turn_do_not_hide_them(api: Api, queue: str) -> None:
    """Pending is counted from the cursor; what is done behind a gap stays inside it."""
    api.push_many(queue, 4)
    popped = api.messages(queue, batch=4)
    api.ack(popped[2])
    refresh(api)
    assert _summary(api, queue)["messages"]["processing"] == 4


def test_a_refresh_moves_the_instant_on(api: Api) -> None:
    stamp = _get(api, "resources/overview")["statsAt"]
    refresh(api)
    assert _get(api, "resources/overview")["statsAt"] > stamp
