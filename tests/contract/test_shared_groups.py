"""Shared groups: many hold messages of one partition at once, and none holds up another."""

from __future__ import annotations

import uuid
from typing import Any

import asyncpg
import pytest

from tests.api import Api, ack_of, push_of
from tests.contract.conftest import Park
from tests.contract.groupcalls import detail, entries, moved, path_of, seek
from tests.contract.leasedcalls import messages_of, pop_frames
from tests.contract.querycalls import QueryCalls, ack
from tests.waiting import until

SHARED = {"consumerGroup": "workers", "shared": "true"}


def take(api: Api, queue: str, partition: str | None = None, **query: Any) -> list[Any]:
    return api.messages(queue, partition, **{**SHARED, **query})


def numbers(messages: list[Any]) -> list[int]:
    return [message["data"]["n"] for message in messages]


def results(answer: Any) -> list[bool]:
    assert answer.status == 200, answer.raw
    return [item["success"] for item in answer.json["results"]]


async def lapse(connection: asyncpg.Connection, message: dict[str, Any]) -> None:
    lapsed = await connection.execute(
        "update queen.shared_spans set due_at = clock_timestamp() where lease_id = $1",
        uuid.UUID(message["leaseId"]),
    )
    assert lapsed == "UPDATE 1"


async def cursor(connection: asyncpg.Connection, queue: str) -> asyncpg.Record:
    row = await connection.fetchrow(
        """
        select c.*, (select count(*) from queen.shared_spans s
                     where s.partition_id = c.partition_id and s.group_id = c.group_id) as spans
        from queen.cursors c join queen.groups g on g.id = c.group_id
        join queen.queues q on q.id = g.queue_id where q.name = $1 and g.name = 'workers'
        """,
        queue,
    )
    assert row is not None
    return row


def test_many_hold_messages_of_one_partition_at_once(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 6)
    servers = [api, other_api] * 3
    held = [take(server, queue, "Default") for server in servers]
    assert sorted(n for messages in held for n in numbers(messages)) == list(range(6))
    assert len({messages[0]["leaseId"] for messages in held}) == 6
    assert take(api, queue, "Default") == []
    for server, messages in zip(servers, reversed(held), strict=True):
        assert results(server.ack_batch(messages, group="workers")) == [True]
    assert take(api, queue, "Default") == []
    assert entries(api, queue)["workers"]["totalLag"] == 0


@pytest.mark.parametrize("framed", [False, True])
def test_a_failure_holds_up_nobody(api: Api, queue: str, framed: bool) -> None:
    api.configure(queue, retryDelay=0, retryLimit=5)
    api.push_many(queue, 10)
    if framed:
        first = messages_of(pop_frames(api, queue, "Default", batch=5, **SHARED))
    else:
        first = take(api, queue, batch=5)
    assert numbers(first) == [0, 1, 2, 3, 4]
    assert results(api.ack_batch([first[2]], "failed", "workers")) == [True]
    # It is there for others at once, although the lease that it was in goes on.
    (again,) = take(api, queue, "Default")
    assert (again["data"]["n"], again["retryCount"]) == (2, 1)
    assert numbers(take(api, queue, "Default", batch=9)) == [5, 6, 7, 8, 9]
    assert results(api.ack_batch([first[2]], "completed", "workers")) == [False]
    assert results(api.ack_batch([again], "completed", "workers")) == [True]
    rest = [first[0], first[1], first[3], first[4]]
    assert results(api.ack_batch(rest, "completed", "workers")) == [True] * 4


def test_a_failure_waits_alone(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=300_000)
    api.push_many(queue, 3)
    first = take(api, queue)
    api.ack_batch(first, "failed", "workers")
    assert numbers(take(api, queue, "Default", batch=5)) == [1, 2]
    assert take(api, queue, "Default") == []
    assert entries(api, queue)["workers"]["totalLag"] == 3


def test_what_is_tried_too_often_is_a_dead_letter(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0, retryLimit=2)
    api.push_many(queue, 1)
    for attempt in range(3):
        (message,) = take(api, queue, "Default", batch=1)
        assert (message["data"]["n"], message["retryCount"]) == (0, attempt)
        api.ack(message, "failed", error="no")
    api.push_many(queue, 2)
    assert numbers(take(api, queue, "Default", batch=5)) == [0, 1]
    (letter,) = api.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]
    assert letter["errorMessage"] == "no"


async def test_a_lease_that_lapsed_is_refused_and_what_it_held_comes_again(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 4)
    zombie, other = take(api, queue, batch=2), take(api, queue, "Default", batch=2)
    await lapse(connection, zombie[0])
    assert api.extend(zombie[0]["leaseId"]).status == 404
    again = take(other_api, queue, "Default", batch=10)
    assert [(one["data"]["n"], one["retryCount"]) for one in again] == [(0, 1), (1, 1)]
    for server in (api, other_api):
        assert results(server.ack_batch(zombie, "completed", "workers")) == [False, False]
        assert results(server.ack_batch(zombie, "failed", "workers")) == [False, False]
    assert results(api.ack_batch(again, group="workers")) == [True, True]
    # Of another server's lease.
    assert results(other_api.ack_batch(other, group="workers")) == [True, True]
    row = await cursor(connection, queue)
    assert (row["committed"], row["handed"], row["in_flight"], row["spans"]) == (4, 4, 0, 0)


async def test_an_ack_that_is_sent_again_is_told_so(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    first, second = take(api, queue), take(api, queue, "Default", batch=2)
    for server in (api, api, other_api):
        assert results(server.ack_batch(second, group="workers")) == [True, True]
        assert results(server.ack_batch(first, group="workers")) == [True]


def test_a_lease_is_prolonged_at_any_server(api: Api, other_api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=20)
    api.push_many(queue, 2)
    first, second = take(api, queue), take(api, queue, "Default")
    assert api.extend(first[0]["leaseId"], {"seconds": 500}).status == 200
    assert other_api.extend(second[0]["leaseId"], {"seconds": 500}).status == 200


@pytest.mark.parametrize("named", [True, False], ids=["in the ack", "as required"])
def test_a_transaction_acks_one_of_several_leases(api: Api, queue: str, named: bool) -> None:
    api.push_many(queue, 2)
    (first,), (second,) = take(api, queue), take(api, queue, "Default")
    made = {"queue": f"{queue}.out", "payload": 1}
    operation = ack_of(second) if named else ack_of(second) | {"leaseId": None}
    leases = None if named else [second["leaseId"]]
    for _ in range(2):
        # Sent again it is known.
        answer = api.transaction(operation, push_of(made), leases=leases)
        assert answer.status == 200 and answer.json["success"], answer.raw
    assert len(api.messages(f"{queue}.out", batch=10)) == 1
    guarded = api.transaction(push_of(made), leases=[first["leaseId"]])
    assert guarded.json["success"], guarded.raw
    assert api.transaction(push_of(made), leases=[second["leaseId"]]).status == 409


def test_a_transaction_of_a_lease_that_is_gone_changes_nothing(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    (message,) = take(api, queue)
    assert seek(api, "workers", queue, toBeginning=True).status == 200
    answer = api.transaction(ack_of(message), push_of({"queue": f"{queue}.out", "payload": 1}))
    assert answer.status == 409
    assert api.messages(f"{queue}.out") == []


def test_auto_ack_is_done_at_once(api: Api, queue: str) -> None:
    api.push_many(queue, 5)
    (held,) = take(api, queue)
    assert numbers(take(api, queue, "Default", batch=3, autoAck="true")) == [1, 2, 3]
    assert entries(api, queue)["workers"]["totalLag"] == 2
    assert numbers(take(api, queue, "Default", batch=9, autoAck="true")) == [4]
    assert results(api.ack_batch([held], group="workers")) == [True]
    assert entries(api, queue)["workers"]["totalLag"] == 0


def test_a_seek_ends_all_leases(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 4)
    held = [take(api, queue, "Default") for _ in range(3)]
    api.ack_batch(held[0], "failed", "workers")
    moved = seek(other_api, "workers", queue, toBeginning=True)
    assert moved.status == 200
    for messages in held:
        assert results(api.ack_batch(messages, group="workers")) == [False]
    again = until(lambda: take(api, queue, "Default", batch=10))
    assert [(one["data"]["n"], one["retryCount"]) for one in again] == [(n, 0) for n in range(4)]


def test_a_paused_group_is_given_nothing(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    first = take(api, queue)
    assert api.call("POST", path_of("workers", "pause")).status == 200
    assert take(api, queue, "Default") == []
    assert results(api.ack_batch(first, group="workers")) == [True]
    assert api.call("POST", path_of("workers", "resume")).status == 200
    assert numbers(take(api, queue, "Default")) == [1]


def test_a_deleted_group_leaves_nothing(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    held = take(api, queue)
    answer = api.call("DELETE", path_of("workers", "queues", queue))
    assert answer.json["deletedPartitions"] == 1
    assert results(api.ack_batch(held, group="workers")) == [False]
    # Who comes by its name is a new group.
    assert numbers(take(api, queue, "Default", batch=9)) == [0, 1]


async def test_a_queue_that_is_cleared_or_deleted_holds_nobody_up(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 4)
    first, second = take(api, queue), take(api, queue, "Default")
    await lapse(connection, second[0])
    assert api.call("DELETE", f"/api/v1/queues/{queue}/clear").status == 200
    assert take(api, queue, "Default") == []
    # What somebody holds is his; the rest is passed over.
    assert results(api.ack_batch(first, group="workers")) == [True]
    row = await cursor(connection, queue)
    assert (row["committed"], row["in_flight"], row["spans"]) == (4, 0, 0)
    api.push_many(queue, 1)
    assert numbers(take(api, queue, "Default")) == [0]
    assert api.delete_queue(queue).status == 200
    partition_id = row["partition_id"]
    left = "select count(*) from queen.shared_spans where partition_id = $1"
    assert await connection.fetchval(left, partition_id) == 0


def test_what_waits_is_served_as_it_comes(api: Api, queue: str, park: Park) -> None:
    api.configure(queue)
    polls = [park(api, queue, **SHARED) for _ in range(4)]
    api.push_many(queue, 4)
    assert sorted(n["n"] for poll in polls for n in poll.data()) == [0, 1, 2, 3]


def test_a_failed_message_wakes_who_waits(api: Api, other_api: Api, queue: str, park: Park) -> None:
    api.configure(queue, retryDelay=200)
    api.push_many(queue, 2)
    first, _second = take(api, queue), take(api, queue, "Default")
    polls = [park(api, queue, **SHARED), park(other_api, queue, **SHARED)]
    api.ack_batch(first, "failed", "workers")
    served = until(lambda: [poll for poll in polls if poll.is_answered()])
    assert [n["n"] for n in served[0].data()] == [0]


async def test_a_lease_that_lapses_wakes_who_waits(api: Api, queue: str, park: Park) -> None:
    api.configure(queue, leaseTime=2)
    api.push_many(queue, 2)
    take(api, queue)
    assert api.extend(take(api, queue, "Default")[0]["leaseId"], {"seconds": 500}).status == 200
    assert [n["n"] for n in park(api, queue, **SHARED).data()] == [0]


def test_delayed_messages_come_when_they_are_due(api: Api, queue: str, park: Park) -> None:
    api.configure(queue, delayedProcessing=1)
    api.push_many(queue, 2)
    assert take(api, queue, "Default") == []
    assert [n["n"] for n in park(api, queue, batch=5, **SHARED).data()] == [0, 1]


async def test_what_is_too_old_is_passed_over(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, ttl=600)
    api.push_many(queue, 4)
    held, lapsed = take(api, queue), take(api, queue, "Default")
    await lapse(connection, lapsed[0])
    await connection.execute(
        "update queen.segments s set created_at = s.created_at - interval '1 hour' "
        "from queen.queues q where q.id = s.queue_id and q.name = $1",
        queue,
    )
    api.push_many(queue, 1)
    assert numbers(take(api, queue, "Default", batch=9)) == [0]
    assert results(api.ack_batch(held, group="workers")) == [True]
    row = await cursor(connection, queue)
    assert (row["committed"], row["in_flight"]) == (4, 1)


# ---- messages that kill ----


async def test_what_two_holders_went_silent_over_comes_one_at_a_time(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=3)
    api.push_many(queue, 3)
    for _ in range(2):
        messages = take(api, queue, "Default", batch=3)
        assert numbers(messages) == [0, 1, 2]
        await lapse(connection, messages[0])
    # The second one kills whoever has it. Nobody else is given up for that.
    done: list[int] = []
    for _ in range(5):
        for message in take(api, queue, "Default", batch=3):
            if message["data"]["n"] == 1:
                await lapse(connection, message)
            else:
                api.ack(message)
                done += numbers([message])
    assert done == [0, 2]
    (letter,) = api.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]
    assert letter["data"] == {"n": 1}
    row = await cursor(connection, queue)
    assert (row["committed"], row["in_flight"], row["spans"]) == (3, 0, 0)


async def test_a_message_is_set_aside_by_hand_wherever_it_is(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 6)
    held = take(api, queue, batch=2)
    every = api.messages(queue, batch=6, consumerGroup="all")
    for at in (1, 4):
        where = f"/api/v1/messages/{every[at]['partitionId']}/{every[at]['transactionId']}/dlq"
        answer = api.call("POST", f"{where}?consumerGroup=workers")
        assert answer.status == 200, answer.raw
    assert results(api.ack_batch(held, group="workers")) == [True, True]
    assert numbers(take(api, queue, "Default", batch=2)) == [2, 3]
    assert numbers(take(api, queue, "Default", batch=2)) == [5]
    row = await cursor(connection, queue)
    assert (row["committed"], row["handed"], row["in_flight"]) == (2, 6, 3)


# ---- from one kind to the other ----


async def test_a_group_that_becomes_shared_keeps_its_place(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 10)
    ordered = {"consumerGroup": "workers"}
    held = api.messages(queue, batch=6, **ordered)
    api.ack_batch(held[:1], group="workers")
    api.ack_batch(held[3:4], group="workers")
    api.ack_batch(held[4:5], "failed", "workers")
    assert other_api.messages(queue, "Default", **ordered) == []
    answer = other_api.call("POST", path_of("workers", "queues", queue, "share"))
    assert answer.json["shared"] is True
    assert entries(api, queue)["workers"]["shared"] is True
    # What the lease holds stays with it; what it has given back, and the rest, is for others.
    others = take(api, queue, "Default") + take(other_api, queue, "Default", batch=10)
    assert sorted(numbers(others)) == [4, 6, 7, 8, 9]
    left = [held[1], held[2], held[5]]
    assert results(other_api.ack_batch(left, group="workers")) == [True] * 3
    assert results(api.ack_batch(others, group="workers")) == [True] * 5
    row = await cursor(connection, queue)
    assert (row["committed"], row["in_flight"], row["spans"]) == (10, 0, 0)


async def test_a_group_that_was_shared_finishes_what_is_out_and_reads_in_order(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 10)
    held = [take(api, queue, "Default", batch=2) for _ in range(3)]
    api.ack_batch(held[1], group="workers")
    api.ack_batch(held[0][:1], "failed", "workers")
    assert api.call("POST", path_of("workers", "order")).status == 200
    ordered = {"consumerGroup": "workers"}
    for server in (api, other_api):
        assert server.messages(queue, "Default", **ordered) == []
    assert results(other_api.ack_batch(held[2], group="workers")) == [True, True]
    assert results(api.ack_batch(held[0][1:], group="workers")) == [True]
    (again,) = other_api.messages(queue, "Default", batch=9, **ordered)
    assert again["data"]["n"] == 0
    # One at a time from now on.
    assert api.messages(queue, "Default", batch=9, **ordered) == []
    other_api.ack(again)
    assert numbers(api.messages(queue, "Default", batch=9, **ordered)) == [6, 7, 8, 9]
    assert other_api.messages(queue, "Default", **ordered) == []
    row = await cursor(connection, queue)
    assert (row["committed"], row["handed"], row["in_flight"]) == (6, None, 0)


async def test_what_has_failed_in_order_is_not_forgotten(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=5)
    api.push_many(queue, 4)
    ordered = {"consumerGroup": "workers"}
    held = api.messages(queue, batch=3, **ordered)
    api.ack_batch(held[1:2], group="workers")
    api.ack_batch([held[0], held[2]], "failed", "workers")
    again = [*take(api, queue, "Default"), *take(api, queue, "Default", batch=5)]
    assert [(one["data"]["n"], one["retryCount"]) for one in again] == [(0, 1), (2, 1)]
    assert numbers(take(api, queue, "Default")) == [3]


def test_a_queue_says_what_its_new_groups_are(api: Api, queue: str) -> None:
    api.configure(queue, sharedGroups=True)
    api.push_many(queue, 2)
    plain = {"consumerGroup": "workers"}
    assert numbers(api.messages(queue, "Default", **plain)) == [0]
    assert numbers(api.messages(queue, "Default", **plain)) == [1]
    assert entries(api, queue)["workers"]["shared"] is True
    strict = {"consumerGroup": "strict", "shared": "false"}
    assert numbers(api.messages(queue, "Default", **strict)) == [0]
    assert api.messages(queue, "Default", **strict) == []


def test_where_a_shared_group_stands_is_told(api: Api, queue: str) -> None:
    api.push_many(queue, 6)
    slow = take(api, queue)
    api.ack_batch(take(api, queue, "Default", batch=3), group="workers")
    partition = detail(api, "workers", queue)["Default"]
    assert (partition["position"], partition["offsetLag"]) == (0, 3)
    assert partition["leaseActive"] is True
    stored = api.call("GET", f"/api/v1/messages?queue={queue}").json["messages"]
    states = [message["status"] for message in reversed(stored)]
    assert states == ["processing", *["completed"] * 3, "pending", "pending"]
    api.ack_batch(slow, group="workers")
    assert detail(api, "workers", queue)["Default"]["position"] == 4


def test_a_seek_says_what_comes_again_and_what_does_not(api: Api, queue: str) -> None:
    api.push_many(queue, 6)
    held = take(api, queue, batch=5)
    failed = ack_of(held[0], "retry", retryAfterMs=60_000)
    acks = [failed, *map(ack_of, held[1:])]
    answer = api.call(
        "POST", "/api/v1/ack/batch", {"consumerGroup": "workers", "acknowledgments": acks}
    )
    assert results(answer) == [True] * 5
    assert numbers(take(api, queue)) == [5]
    cases: list[tuple[dict[str, Any], int, int]] = [
        ({"toBeginning": True}, 4, 0),
        ({"toEnd": True}, 0, 2),
        ({"partition": "Default", "offset": 3}, 2, 1),
    ]
    for to, again, skipped in cases:
        said = moved(api, "workers", queue, dryRun=True, **to)
        assert (said["messagesAgain"], said["messagesSkipped"]) == (again, skipped), to


async def test_turning_a_group_lets_nobody_die_early(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryLimit=3, retryDelay=0, deadLetterQueue=True)
    api.push_many(queue, 3)
    ordered = {"consumerGroup": "workers"}
    for batch in (1, 3):
        api.messages(queue, batch=batch, wait="true", timeout=20_000, **ordered)
        await connection.execute(
            "update queen.cursors c set lease_until = clock_timestamp() from queen.partitions p"
            " join queen.queues q on q.id = p.queue_id where p.id = c.partition_id and q.name = $1",
            queue,
        )
    assert api.call("POST", path_of("workers", "queues", queue, "share")).status == 200
    counts: dict[int, int] = {}
    while len(counts) < 3:
        for message in take(api, queue, batch=3, wait="true", timeout=20_000):
            counts[message["data"]["n"]] = message["retryCount"]
    assert counts == {0: 2, 1: 1, 2: 1}


def test_a_group_of_the_streaming_sdk_reads_in_order(api: Api, queue: str) -> None:
    """Its state needs that, whoever says something else: an operator, a consumer, the queue."""
    assert api.configure(queue, sharedGroups=True).status == 201
    api.push_many(queue, 3)
    # One that was there, and shared, before the query was.
    (first,) = api.messages(queue, consumerGroup="streams.older")
    assert shared_groups(api, queue) == {"streams.older"}
    older, query = QueryCalls(api, queue, "older"), QueryCalls(api, queue)
    assert shared_groups(api, queue) == set()
    (message,) = query.again()
    assert query.again() == []
    for name in (older.group, query.group):
        answer = api.call("POST", path_of(name, "queues", queue, "share"))
        assert answer.status == 409
        assert "in order" in answer.json["error"] and repr(name) in answer.json["error"]
        said = api.pop(queue, consumerGroup=name, shared="true")
        assert said.status == 409 and "in order" in said.json["error"]
    assert query.cycle(message["partitionId"], ack=ack(message))["success"]
    assert numbers(query.again()) == [1]
    assert first["data"] == {"n": 0}
    assert shared_groups(api, queue) == set()


def shared_groups(api: Api, queue: str) -> set[str]:
    return {name for name, entry in entries(api, queue).items() if entry["shared"]}
