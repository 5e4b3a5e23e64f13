"""Ack: what is done stays done, what is not comes again, and nobody acks for another."""

from __future__ import annotations

import time
import uuid
from typing import Any

import asyncpg
import pytest

from tests.api import Api, ack_of
from tests.contract.conftest import Park
from tests.stopwatch import tries


async def let_lapse(connection: asyncpg.Connection, message: dict[str, Any]) -> None:
    """End the lease of a message, as if its time were over."""
    ended = await connection.fetchval(
        "update queen.cursors set lease_until = clock_timestamp() where lease_id = $1 returning 1",
        uuid.UUID(message["leaseId"]),
    )
    assert ended == 1


def comes_again(api: Api, queue: str, **query: Any) -> list[Any]:
    """Wait for a lapsed lease to be noticed; return what is delivered then."""
    return api.messages(queue, wait="true", timeout=20_000, **query)


def results(answer: Any) -> list[tuple[bool, str]]:
    assert answer.status == 200, answer.raw
    return [(one["success"], one["status"]) for one in answer.json["results"]]


def test_a_single_ack_is_answered_by_an_object(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue, consumerGroup="g")
    answer = api.ack(message)
    assert answer.status == 200
    body = answer.json
    assert body["transactionId"] == message["transactionId"]
    assert (body["status"], body["success"]) == ("completed", True)
    assert body["consumerGroup"] == "g"
    assert body["acknowledgedAt"].endswith("Z")
    assert "error" not in body
    assert api.pop(queue, consumerGroup="g").status == 204


@pytest.mark.parametrize("status", ["completed", "success", None])
def test_every_word_for_done_is_understood(api: Api, queue: str, status: str | None) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(2)])
    (message,) = api.messages(queue)
    assert api.ack(message, status=status).json["status"] == "completed"  # type: ignore[arg-type]
    assert api.data(queue) == [1]


def test_an_ack_of_the_default_group_answers_null_for_it(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    first, second = api.messages(queue, batch=2)
    assert api.ack(first).json["consumerGroup"] is None
    assert api.ack(second, consumerGroup="__QUEUE_MODE__").json["consumerGroup"] is None


def test_a_batch_answers_for_each_item_in_order(api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    messages = api.messages(queue, batch=3)
    answer = api.ack_batch([messages[2], messages[0], messages[1]])
    assert answer.json["processed"] == 3
    assert "error" not in answer.json
    assert [one["index"] for one in answer.json["results"]] == [0, 1, 2]
    ids = [one["transactionId"] for one in answer.json["results"]]
    assert ids == [messages[at]["transactionId"] for at in (2, 0, 1)]
    assert results(answer) == [(True, "completed")] * 3
    assert all(one["error"] is None for one in answer.json["results"])
    assert api.pop(queue).status == 204


def test_a_batch_with_refusals_has_an_error(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 2)
    stale = api.messages(queue, batch=2)
    api.ack_batch(stale, "retry")
    (current,) = api.messages(queue)
    alone = api.ack_batch(stale[1:])
    assert (alone.status, alone.json["error"]) == (200, "Invalid or expired lease")
    mixed = api.ack_batch([current, stale[1]])
    assert results(mixed) == [(True, "completed"), (False, "error")]
    assert mixed.json["error"] == "1 of 2 were not taken: Invalid or expired lease"


def test_an_empty_batch_is_nothing_to_do(api: Api) -> None:
    assert api.ack_batch([]).json == {"processed": 0, "results": []}


def test_a_batch_over_two_partitions_moves_both(api: Api, queue: str) -> None:
    for partition in ("a", "b"):
        api.push(*[{"queue": queue, "partition": partition, "payload": n} for n in range(3)])
    messages = api.messages(queue, batch=4, partitions=2)
    assert len(messages) == 4
    assert results(api.ack_batch(messages)) == [(True, "completed")] * 4
    left = api.messages(queue, batch=10, partitions=2)
    assert sorted(one["data"] for one in left) == sorted([1, 2] if len(left) == 2 else [])
    assert not {one["id"] for one in left} & {one["id"] for one in messages}


def test_a_batch_over_two_leases_and_queues_moves_all(api: Api, queue: str) -> None:
    messages = []
    for name in (queue, f"{queue}.x"):
        api.push_many(name, 2)
        messages += api.messages(name, batch=2)
    assert results(api.ack_batch([messages[n] for n in (0, 2, 3, 1)])) == [(True, "completed")] * 4
    assert api.pop(queue).status == api.pop(f"{queue}.x").status == 204


def test_a_batch_uses_its_own_group(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    messages = api.messages(queue, batch=2, consumerGroup="g")
    assert results(api.ack_batch(messages, group=None)) == [(False, "error")] * 2
    assert results(api.ack_batch(messages, group="g")) == [(True, "completed")] * 2


# ---- parts of a batch ----


def test_a_lease_goes_on_until_all_of_it_is_decided(api: Api, queue: str) -> None:
    api.push_many(queue, 4)
    first, second, third = api.messages(queue, batch=3)
    api.ack(first)
    api.ack(third)
    assert api.pop(queue).status == 204
    api.ack(second)
    assert api.data(queue) == [{"n": 3}]


async def test_only_what_is_not_done_comes_again(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(10)])
    messages = api.messages(queue, batch=8)
    assert results(api.ack_batch([messages[n] for n in (0, 1, 6, 3)])) == [(True, "completed")] * 4
    await let_lapse(connection, messages[0])
    assert [one["data"] for one in api.messages(queue, "Default", batch=8)] == [2, 4, 5, 7, 8, 9]


async def test_out_of_order_acks_survive_several_leases(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(20)])
    left = list(range(20))
    for done in ([11], [0, 2, 12], [1, 3, 19], [*range(4, 11), 14]):
        messages = api.messages(queue, "Default", batch=20)
        assert [one["data"] for one in messages] == left
        chosen = [one for one in messages if one["data"] in done]
        assert results(api.ack_batch(chosen)) == [(True, "completed")] * len(done)
        await let_lapse(connection, messages[0])
        left = [n for n in left if n not in done]
    assert [one["data"] for one in api.messages(queue, "Default", batch=20)] == left


def test_a_lease_lapses_by_itself(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=2)
    api.push(*[{"queue": queue, "payload": n} for n in range(3)])
    started = time.monotonic()
    messages = api.messages(queue, batch=3)
    api.ack(messages[1])
    again = comes_again(api, queue, batch=3)
    assert [one["data"] for one in again] == [0, 2]
    assert [one["retryCount"] for one in again] == [1, 1]
    assert again[0]["leaseId"] != messages[0]["leaseId"]
    assert 1.9 < time.monotonic() - started < 10


# ---- whose ack it is ----


async def test_a_zombie_is_refused_and_changes_nothing(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 2)
    old = api.messages(queue, batch=2)
    await let_lapse(connection, old[0])
    answer = api.ack(old[0])
    assert answer.status == 409
    assert answer.json["code"] == "lease_lost"
    assert "lease" in answer.json["error"]
    new = api.messages(queue, "Default", batch=2)
    assert len(new) == 2
    # Refused too while another holds the partition, one by one and as a batch.
    assert api.ack(old[0]).status == 409
    batch = api.ack_batch(old)
    assert results(batch) == [(False, "error")] * 2
    assert all("lease" in one["error"] for one in batch.json["results"])
    assert results(api.ack_batch(new)) == [(True, "completed")] * 2


async def test_a_zombie_is_refused_by_another_server(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 2)
    old = api.messages(queue, batch=2)
    await let_lapse(connection, old[0])
    assert other_api.ack(old[0]).status == 409
    new = other_api.messages(queue, "Default", batch=2)
    assert len(new) == 2
    for one in (api, other_api):
        assert results(one.ack_batch(old)) == [(False, "error")] * 2
    assert results(api.ack_batch(new)) == [(True, "completed")] * 2


def test_a_repeated_ack_succeeds(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    messages = api.messages(queue, batch=2)
    for one in (api, api, other_api):
        assert results(one.ack_batch(messages)) == [(True, "completed")] * 2
        assert one.ack(messages[0]).json["status"] == "completed"


def test_a_repeated_ack_succeeds_while_somebody_else_reads_on(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    (first,) = api.messages(queue)
    api.ack(first)
    (second,) = api.messages(queue)
    assert api.ack(first).status == 200
    assert api.ack(second).status == 200


def test_a_repeated_ack_of_a_part_of_a_lease_succeeds(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    first, _, third = api.messages(queue, batch=3)
    for message in (first, third):
        for one in (api, api, other_api):
            answer = one.ack(message)
            assert (answer.status, answer.json.get("status")) == (200, "completed"), one.url


def test_a_repeated_ack_succeeds_although_an_earlier_message_was_given_back(
    api: Api, other_api: Api, queue: str
) -> None:
    api.configure(queue, retryDelay=0)
    api.push(*[{"queue": queue, "payload": n} for n in range(3)])
    first, second, third = api.messages(queue, batch=3)
    assert api.ack(second).status == 200
    assert api.ack(first, "failed").json["status"] == "failed_retry"
    assert api.ack(third).status == 200
    # The lease is over; its second and third message are done, its first comes again.
    for one in (api, other_api):
        assert [one.ack(m).status for m in (second, third)] == [200, 200], one.url
    assert api.data(queue, batch=3) == [0]


def test_an_ack_of_what_was_given_back_is_refused(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0)
    # The lease ended with a receipt, but this message is not done: it comes again.
    api.push_many(queue, 2)
    first, second = api.messages(queue, batch=2)
    assert results(api.ack_batch([first])) == [(True, "completed")]
    assert results(api.ack_batch([second], "failed")) == [(True, "failed_retry")]
    assert api.ack(second).status == 409
    assert api.ack(first).status == 200
    assert [one["transactionId"] for one in api.messages(queue)] == [second["transactionId"]]


def test_a_message_that_was_not_leased_cannot_be_acked(api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    later = api.messages(queue, batch=3, consumerGroup="peek")[2]
    (first,) = api.messages(queue)
    answer = api.ack(first, transactionId=later["transactionId"])
    assert answer.status == 409
    assert api.ack(first, transactionId="nobody").status == 409
    assert api.ack(first).status == 200
    assert api.data(queue, batch=5) == [{"n": 1}, {"n": 2}]


def test_an_unknown_message_is_refused_beside_a_whole_batch(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    messages = api.messages(queue, batch=2)
    stranger = {**messages[0], "transactionId": "nobody"}
    answer = api.ack_batch([messages[0], stranger, messages[1]])
    assert [success for success, _ in results(answer)] == [True, False, True]


def test_an_unknown_message_is_refused_after_the_batch_was_acked(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    assert api.ack(message).status == 200
    assert api.ack(message, transactionId="nobody").status == 409


def test_the_lease_of_another_group_does_not_count(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    (mine,) = api.messages(queue, consumerGroup="a")
    (other,) = api.messages(queue, consumerGroup="b")
    assert api.ack(mine, consumerGroup="b").status == 409
    assert api.ack(mine, consumerGroup=None).status == 409
    assert api.ack({**mine, "leaseId": other["leaseId"]}).status == 409
    assert api.ack(mine).status == api.ack(other).status == 200


def test_the_lease_of_another_partition_does_not_count(api: Api, queue: str) -> None:
    for partition in ("a", "b"):
        api.push({"queue": queue, "partition": partition, "payload": 1, "transactionId": "t"})
    (a,) = api.messages(queue, "a")
    (b,) = api.messages(queue, "b")
    assert api.ack({**a, "leaseId": b["leaseId"]}).status == 409
    batch = api.ack_batch([{**a, "leaseId": b["leaseId"]}, b])
    assert results(batch) == [(False, "error"), (True, "completed")]
    assert api.ack(a).status == 200


@pytest.mark.parametrize("lease", [None, ""])
async def test_without_a_lease_id_an_ack_counts_while_the_lease_lives(
    api: Api, queue: str, connection: asyncpg.Connection, lease: str | None
) -> None:
    api.push_many(queue, 3)
    first, second = api.messages(queue, batch=2)
    assert api.ack(first, leaseId=lease).status == 200
    await let_lapse(connection, first)
    assert api.ack(second, leaseId=lease).status == 409
    (again,) = api.messages(queue, "Default")
    assert again["transactionId"] == second["transactionId"]
    assert api.ack(again, leaseId=lease).status == 200
    assert api.data(queue) == [{"n": 2}]


async def test_without_a_lease_id_the_lease_that_lives_is_acked_and_its_holder_learns_of_it(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 3)
    late = api.messages(queue, "Default", batch=2)
    await let_lapse(connection, late[0])
    held = api.messages(queue, "Default", batch=2)
    # Nobody can tell who sends it: it counts for whoever holds the lease now.
    assert api.ack(late[0], leaseId=None).status == 200
    for one in (api, other_api):
        answer = one.ack(held[0], "failed")
        assert (answer.status, answer.json["code"]) == (409, "conflict")
        assert "already completed" in answer.json["error"]
        # Its own ack finds what it wanted.
        assert one.ack(held[0]).json["status"] == "completed"
    assert results(api.ack_batch(held, "retry")) == [(False, "error"), (True, "failed_retry")]
    assert api.data(queue, "Default", batch=3) == [{"n": 1}, {"n": 2}]


def test_what_was_committed_at_once_has_no_lease_that_could_be_acked(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    (done,) = api.messages(queue, autoAck="true")
    assert done["leaseId"] == ""
    assert api.ack(done).status == 409
    (held,) = api.messages(queue)
    assert api.ack(done, "failed").status == 409
    assert api.ack(held).status == 200


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
def test_a_failure_of_what_is_completed_is_told_as_not_applied(
    api: Api, other_api: Api, queue: str, status: str
) -> None:
    api.push_many(queue, 2)
    first, second = api.messages(queue, batch=2)
    for message in (first, second):
        assert api.ack(message).status == 200
        for one in (api, other_api):
            assert one.ack(message, status).status == 409
            answer = one.ack_batch([message], status)
            assert results(answer) == [(False, "error")]
            assert "already completed" in answer.json["results"][0]["error"]
    assert api.call("GET", f"/api/v1/dlq?queue={queue}").json["total"] == 0


def test_a_failure_that_is_repeated_is_answered_as_the_first_time(
    api: Api, other_api: Api, queue: str
) -> None:
    api.configure(queue, retryLimit=0)
    api.push_many(queue, 2)
    first, second = api.messages(queue, batch=2)
    for status, message in (("failed", first), ("dlq", second)):
        for one in (api, api, other_api):
            answer = one.ack(message, status).json
            assert (answer["status"], answer["dlq"]) == ("failed_dlq", True)
            assert results(one.ack_batch([message], status)) == [(True, "failed_dlq")]


def test_without_a_lease_id_what_was_never_popped_cannot_be_acked(api: Api, queue: str) -> None:
    pushed = api.push({"queue": queue, "payload": 1}).json[0]
    body = {"transactionId": pushed["transaction_id"], "partitionId": pushed["partition_id"]}
    assert api.call("POST", "/api/v1/ack", body).status in (404, 409)
    assert api.data(queue) == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitionId": "nowhere"},
        {"partitionId": "0fffffff-ffff-8fff-bfff-ffffffffffff"},
        {"partitionId": str(uuid.uuid4())},
        {"leaseId": "not a lease"},
        {"leaseId": str(uuid.uuid4())},
    ],
)
def test_an_ack_for_something_that_does_not_exist_is_refused(
    api: Api, queue: str, wrong: dict[str, str]
) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    answer = api.ack(message, **wrong)
    assert answer.status in (400, 404, 409)
    assert answer.json["error"]
    batch = api.ack_batch([{**message, **wrong}, message])
    assert results(batch) == [(False, "error"), (True, "completed")]
    assert batch.json["results"][0]["error"]


def test_equal_ids_without_dedup_can_all_be_acked(api: Api, queue: str) -> None:
    api.configure(queue, dedup="off")
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    api.push(item, item, {"queue": queue, "payload": 2, "transactionId": "u"}, item)
    for message in api.messages(queue, batch=3):
        assert api.ack(message).status == 200
    # All three are done, so the lease is over and the fourth comes.
    assert [one["transactionId"] for one in api.messages(queue)] == ["t"]


# ---- failures ----


async def dead_letters(connection: asyncpg.Connection, queue: str) -> list[Any]:
    rows: list[Any] = await connection.fetch(
        """
        select d.transaction_id, convert_from(d.payload, 'UTF8')::json as payload, d.error,
               d.attempts, d.trace_id, d.message_offset, g.name as group
        from queen.dead_letters d
        join queen.partitions p on p.id = d.partition_id
        join queen.queues q on q.id = p.queue_id
        join queen.groups g on g.id = d.group_id
        where q.name = $1 order by d.message_offset
        """,
        queue,
    )
    return rows


async def test_a_failed_message_comes_again_until_the_limit_and_is_then_dead(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=2)
    trace = str(uuid.uuid4())
    api.push({"queue": queue, "payload": {"a": 1}, "transactionId": "t", "traceId": trace})
    api.push({"queue": queue, "payload": 2})
    for attempt in range(2):
        (message,) = api.messages(queue, consumerGroup="g")
        assert (message["transactionId"], message["retryCount"]) == ("t", attempt)
        answer = api.ack(message, "failed", error="boom").json
        assert (answer["status"], answer["dlq"], answer["success"]) == ("failed_retry", False, True)
    assert await dead_letters(connection, queue) == []
    (message,) = api.messages(queue, consumerGroup="g")
    answer = api.ack(message, "failed", error="boom").json
    assert (answer["status"], answer["dlq"], answer["success"]) == ("failed_dlq", True, True)
    (row,) = await dead_letters(connection, queue)
    assert (row["transaction_id"], row["error"], row["group"]) == ("t", "boom", "g")
    assert (row["attempts"], row["trace_id"]) == (3, trace)
    assert row["payload"] == '{"a": 1}'
    # The cursor has moved past it, for this group alone.
    assert api.data(queue, consumerGroup="g") == [2]
    assert api.data(queue) == [{"a": 1}]


async def test_without_retries_the_first_failure_is_the_last(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=0)
    api.push(*[{"queue": queue, "payload": n} for n in range(3)])
    messages = api.messages(queue, batch=3)
    assert results(api.ack_batch([messages[1]], "failed")) == [(True, "failed_dlq")]
    assert results(api.ack_batch([messages[0], messages[2]])) == [(True, "completed")] * 2
    assert [row["message_offset"] for row in await dead_letters(connection, queue)] == [1]
    assert api.pop(queue).status == 204


def test_a_failed_part_of_a_batch_comes_again_alone(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0)
    api.push(*[{"queue": queue, "payload": n} for n in range(5)])
    messages = api.messages(queue, batch=5)
    acks = [
        {
            "transactionId": one["transactionId"],
            "partitionId": one["partitionId"],
            "leaseId": one["leaseId"],
            "status": "failed" if n in (1, 3) else "completed",
        }
        for n, one in enumerate(messages)
    ]
    answer = api.call("POST", "/api/v1/ack/batch", {"acknowledgments": acks})
    assert [status for _, status in results(answer)] == [
        "completed",
        "failed_retry",
        "completed",
        "failed_retry",
        "completed",
    ]
    assert api.data(queue, batch=5) == [1, 3]


def test_a_message_fails_at_its_own_limit_not_at_its_neighbours(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0, retryLimit=1)
    api.push({"queue": queue, "payload": "bad"})
    assert results(api.ack_batch(api.messages(queue), "failed")) == [(True, "failed_retry")]
    api.push({"queue": queue, "payload": "unlucky"})
    messages = api.messages(queue, batch=2)
    # Whether or not the new one comes along, its first failure is not its last.
    verdicts = [status for _, status in results(api.ack_batch(messages, "failed"))]
    assert verdicts in (["failed_dlq"], ["failed_dlq", "failed_retry"])
    assert api.data(queue) == ["unlucky"]


async def test_a_batch_of_bad_messages_is_delivered_as_often_as_the_limit_says(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=2)
    api.push(*[{"queue": queue, "payload": n} for n in range(3)])
    delivered = {0: 0, 1: 0, 2: 0}
    while messages := api.messages(queue, batch=3):
        for one in messages:
            delivered[one["data"]] += 1
        api.ack_batch(messages, "failed")
    assert delivered == {0: 3, 1: 3, 2: 3}
    assert [row["attempts"] for row in await dead_letters(connection, queue)] == [3, 3, 3]


def test_a_batch_that_fails_twice_and_then_succeeds_is_done(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0, retryLimit=3)
    api.push(*[{"queue": queue, "payload": n} for n in range(10)])
    for _ in range(2):
        messages = api.messages(queue, batch=10)
        assert results(api.ack_batch(messages, "failed")) == [(True, "failed_retry")] * 10
    got: list[int] = []
    while messages := api.messages(queue, batch=10):
        got += [one["data"] for one in messages]
        api.ack_batch(messages)
    assert got == list(range(10))


def test_a_batch_that_fails_comes_again_as_a_batch(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0, retryLimit=9)
    api.push_many(queue, 5)
    for failures in range(4):
        messages = api.messages(queue, "Default", batch=5)
        assert [one["retryCount"] for one in messages] == [failures] * 5
        api.ack_batch(messages, "failed")


async def test_failures_do_not_count_as_deaths(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=9)
    api.push_many(queue, 5)
    sizes = []
    for ending in ("failed", "lapsed", "failed", "lapsed", "failed"):
        messages = api.messages(queue, "Default", batch=5)
        sizes.append(len(messages))
        if ending == "lapsed":
            await let_lapse(connection, messages[0])
        else:
            api.ack_batch(messages, ending)
    # One death among failures proves nothing yet; after the second what was held comes alone.
    assert sizes == [5, 5, 5, 5, 1]


async def test_failures_of_a_message_before_it_was_the_next_do_not_hide_its_deaths(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=9)
    api.push_many(queue, 5)
    for _ in range(3):
        api.ack_batch(api.messages(queue, "Default", batch=5), "failed")
    api.ack(api.messages(queue, "Default")[0])
    for _ in range(2):
        messages = api.messages(queue, "Default", batch=4)
        assert [one["data"]["n"] for one in messages] == [1, 2, 3, 4]
        await let_lapse(connection, messages[0])
    (message,) = api.messages(queue, "Default", batch=4)
    assert message["data"]["n"] == 1


async def test_a_consumer_that_fails_a_message_and_dies_over_the_next_is_a_death(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=9)
    api.push_many(queue, 5)
    for _ in range(2):
        messages = api.messages(queue, "Default", batch=5)
        assert len(messages) == 5
        api.ack(messages[0], "failed")
        await let_lapse(connection, messages[0])
    assert len(api.messages(queue, "Default", batch=5)) == 1


async def test_a_message_can_be_declared_dead_at_once(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(2)])
    (message,) = api.messages(queue)
    answer = api.ack(message, "dlq", error="poison").json
    assert (answer["status"], answer["dlq"]) == ("failed_dlq", True)
    (row,) = await dead_letters(connection, queue)
    assert (row["error"], row["attempts"]) == ("poison", 1)
    assert api.data(queue) == [1]


async def test_dead_letters_keep_the_text_of_their_error(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    error = 'Zeile\n\t"ü" 😀 \\ \'; drop table'
    api.push_many(queue, 1)
    api.ack(api.messages(queue)[0], "dlq", error=error)
    assert [row["error"] for row in await dead_letters(connection, queue)] == [error]


def test_retry_gives_a_message_back_without_counting(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0, retryLimit=1)
    api.push(*[{"queue": queue, "payload": n} for n in range(2)])
    for _ in range(4):
        (message,) = api.messages(queue)
        answer = api.ack(message, "retry").json
        assert (answer["success"], answer["dlq"]) == (True, False)
    (message,) = api.messages(queue)
    assert message["data"] == 0
    assert api.ack(message, "failed").json["status"] == "failed_retry"


def test_an_unknown_status_is_an_error_and_leaves_the_message_leased(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    messages = api.messages(queue, batch=2)
    answer = api.ack(messages[0], "maybe")
    assert answer.status == 400
    assert "maybe" in answer.json["error"]
    batch = api.ack_batch(messages, "maybe")
    assert results(batch) == [(False, "error")] * 2
    assert "maybe" in batch.json["results"][0]["error"]
    assert api.pop(queue).status == 204
    assert results(api.ack_batch(messages)) == [(True, "completed")] * 2


async def test_a_message_that_kills_its_consumer_takes_no_neighbour_along(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    # Nobody answers for the batch; after two silent deaths messages come one at a time.
    api.configure(queue, retryDelay=0, retryLimit=2)
    api.push(*[{"queue": queue, "payload": n} for n in range(3)])
    for _ in range(2):
        messages = api.messages(queue, "Default", batch=3)
        assert len(messages) == 3
        await let_lapse(connection, messages[0])
    (message,) = api.messages(queue, "Default", batch=3)
    assert api.ack(message, "failed").json["status"] == "failed_dlq"
    assert [row["message_offset"] for row in await dead_letters(connection, queue)] == [0]


# ---- who waits for the partition ----


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
def test_an_ack_wakes_who_waits_for_the_partition(
    api: Api, queue: str, park: Park, status: str
) -> None:
    for stopwatch in tries(looks_every_s=1):
        name = f"{queue}.{stopwatch.number}"
        api.configure(name, retryDelay=0)
        api.push(*[{"queue": name, "payload": n} for n in range(2)])
        (message,) = api.messages(name)
        polls = [park(api, name), park(api, name, "Default")]
        with stopwatch:
            assert api.ack(message, status).status == 200
            while not any(poll.is_answered(0.005) for poll in polls):
                pass
        (answered,) = [poll for poll in polls if poll.is_answered()]
        assert answered.data() == [1 if status in ("completed", "dlq") else 0]


def test_one_request_cannot_say_two_things_of_a_message(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    body = {"acknowledgments": [ack_of(message), ack_of(message, "failed")]}
    answer = api.call("POST", "/api/v1/ack/batch", body)
    assert [one["success"] for one in answer.json["results"]] == [True, False]
    assert api.pop(queue).status == 204
