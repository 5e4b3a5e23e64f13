"""/api/v1/dlq: what dies, what is kept of it, and how it comes back."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlencode

import asyncpg
import pytest

from tests.api import Api


def dlq(api: Api, **query: Any) -> dict[str, Any]:
    answer = api.call("GET", f"/api/v1/dlq?{urlencode(query)}")
    assert answer.status == 200, answer.raw
    found: dict[str, Any] = answer.json
    return found


def retry(api: Api, **body: Any) -> int:
    answer = api.call("POST", "/api/v1/dlq/retry", body)
    assert answer.status == 200, answer.raw
    count: int = answer.json["retried"]
    return count


def kill(api: Api, queue: str, payload: Any, group: str | None = None, **more: Any) -> None:
    """Push a message and let a group give it up."""
    api.push({"queue": queue, "payload": payload, **more})
    query = {"consumerGroup": group} if group else {}
    (message,) = api.messages(queue, more.get("partition"), **query)
    assert api.ack(message, "dlq", error=f"bad {payload}").json["dlq"]


def data(page: dict[str, Any]) -> list[Any]:
    return [one["data"] for one in page["messages"]]


def test_a_dead_letter_tells_everything_about_its_message(api: Api, queue: str) -> None:
    trace = str(uuid.uuid4())
    kill(api, queue, {"a": 1}, "g", partition="p", transactionId="t", traceId=trace)
    page = dlq(api, queue=queue)
    (letter,) = page["messages"]
    assert (page["total"], page["limit"], page["offset"]) == (1, 100, 0)
    assert letter["data"] == {"a": 1}
    assert (letter["transactionId"], letter["traceId"]) == ("t", trace)
    assert (letter["queue"], letter["queueName"]) == (queue, queue)
    assert (letter["partition"], letter["partitionName"]) == ("p", "p")
    assert (letter["consumerGroup"], letter["errorMessage"]) == ("g", "bad {'a': 1}")
    assert letter["retryCount"] == 1
    assert letter["createdAt"] <= letter["failedAt"]


def test_queue_mode_has_no_group(api: Api, queue: str) -> None:
    kill(api, queue, 1)
    (letter,) = dlq(api, queue=queue, consumerGroup="__QUEUE_MODE__")["messages"]
    assert letter["consumerGroup"] is None


def test_letters_are_filtered_paged_and_counted(api: Api, queue: str) -> None:
    for n in range(5):
        kill(api, queue, n, "g", partition=f"p{n % 2}")
    kill(api, queue, 5, "other")
    assert data(dlq(api, queue=queue)) == [0, 4, 3, 2, 1, 0]
    page = dlq(api, queue=queue, consumerGroup="g", limit=2, offset=1)
    assert (data(page), page["total"]) == ([3, 2], 5)
    assert data(dlq(api, queue=queue, partition="p1")) == [3, 1]
    assert data(dlq(api, queue=queue, error="bad 4")) == [4]
    middle = dlq(api, queue=queue)["messages"][2]["failedAt"]
    assert data(dlq(api, queue=queue, **{"from": middle})) == [0, 4, 3]
    assert data(dlq(api, queue=queue, to=middle)) == [2, 1, 0]
    assert dlq(api, queue=f"{queue}.unknown")["messages"] == []
    assert dlq(api, queue=queue, partition="unknown")["messages"] == []


def test_partition_default_is_what_the_published_client_sends_for_any(api: Api, queue: str) -> None:
    kill(api, queue, 1, partition="p")
    assert data(dlq(api, queue=queue, partition="Default")) == [1]


def test_errors_are_counted(api: Api, queue: str) -> None:
    for n in (1, 2, 2, 2):
        kill(api, queue, n, "g")
    answer = api.call("GET", f"/api/v1/dlq/errors?queue={queue}")
    found = [(one["error"], one["count"], one["consumerGroup"]) for one in answer.json["errors"]]
    assert found == [("bad 2", 3, "g"), ("bad 1", 1, "g")]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "offset=-1", "from=never", "partition=p"])
def test_a_filter_that_means_nothing_is_refused(api: Api, query: str) -> None:
    assert api.call("GET", f"/api/v1/dlq?{query}").status == 400


# ---- the way back ----


def test_a_retried_letter_comes_to_its_group_and_to_no_other(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": 1, "transactionId": "t"})
    for group in ("one", "two"):
        (message,) = api.messages(queue, consumerGroup=group)
        status = "dlq" if group == "one" else "completed"
        assert api.ack(message, status).status == 200
    assert retry(api, queue=queue) == 1
    assert dlq(api, queue=queue)["total"] == 0
    assert api.messages(queue, consumerGroup="two") == []
    (again,) = api.messages(queue, consumerGroup="one")
    assert (again["data"], again["transactionId"], again["retryCount"]) == (1, "t", 0)
    assert api.ack(again).json["success"]
    # A group that comes later reads the message once, not its copy.
    (first,) = api.messages(queue, consumerGroup="three", batch=10)
    assert first["id"] != again["id"]
    assert api.ack(first).json["success"]
    assert api.messages(queue, consumerGroup="three") == []


def test_what_is_hidden_does_not_hold_a_batch_back(api: Api, queue: str) -> None:
    for n in range(3):
        kill(api, queue, n, "one")
    assert retry(api, queue=queue) == 3
    api.push({"queue": queue, "payload": "new"})
    messages = api.messages(queue, consumerGroup="two", batch=100)
    assert [one["data"] for one in messages] == [0, 1, 2, "new"]
    results = api.ack_batch(messages, group="two").json["results"]
    assert all(one["success"] for one in results)
    assert api.messages(queue, consumerGroup="two") == []
    assert sorted(map(str, api.data(queue, consumerGroup="one", batch=100))) == [
        "0",
        "1",
        "2",
        "new",
    ]


def test_letters_are_retried_in_their_old_order(api: Api, queue: str) -> None:
    for n in range(5):
        kill(api, queue, n, "g")
    assert retry(api, queue=queue, consumerGroup="g") == 5
    assert api.data(queue, consumerGroup="g", batch=10) == [0, 1, 2, 3, 4]


def test_letters_are_retried_by_id_by_error_and_by_number(api: Api, queue: str) -> None:
    for n in range(4):
        kill(api, queue, n, "g")
    letters = {one["data"]: one["id"] for one in dlq(api, queue=queue)["messages"]}
    assert api.call("POST", f"/api/v1/dlq/{letters[2]}/retry").json["retried"] == 1
    assert api.call("POST", f"/api/v1/dlq/{letters[2]}/retry").status == 404
    assert retry(api, ids=[letters[2], letters[3]]) == 1
    assert retry(api, queue=queue, error="bad 0", limit=5) == 1
    assert data(dlq(api, queue=queue)) == [1]
    assert api.data(queue, consumerGroup="g", batch=10) == [2, 3, 0]


async def test_a_letter_that_does_not_open_stays_and_the_others_come_again(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    for number in range(5):
        kill(api, queue, number, "g", transactionId=str(number))
    # The newest and one in the middle need a key that this server does not have.
    await connection.execute(
        "update queen.dead_letters d set payload = overlay(d.payload placing '\\x0102' from 3)"
        " from queen.queues q where q.id = d.queue_id and q.name = $1"
        " and d.transaction_id in ('4', '2')",
        queue,
    )
    assert retry(api, queue=queue) == 3
    again = api.messages(queue, consumerGroup="g", batch=10)
    assert [one["data"] for one in again] == [0, 1, 3]
    kept = await connection.fetch(
        "select d.transaction_id from queen.dead_letters d join queen.queues q"
        " on q.id = d.queue_id where q.name = $1 order by 1",
        queue,
    )
    assert [row["transaction_id"] for row in kept] == ["2", "4"]
    # Where there is nothing else, it is said why.
    assert api.call("POST", "/api/v1/dlq/retry", {"queue": queue}).status == 503


def test_a_retry_that_names_nothing_is_refused(api: Api) -> None:
    assert api.call("POST", "/api/v1/dlq/retry", {}).status == 400
    assert api.call("POST", "/api/v1/dlq/retry", {"queue": "q", "limit": 0}).status == 400
    assert api.call("POST", "/api/v1/dlq/x/retry").status == 404


async def test_letters_in_two_hands_are_delivered_once(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for n in range(10):
        kill(api, queue, n, "g")
    for one in (api, other_api):
        one.send("POST", "/api/v1/dlq/retry", {"queue": queue})
    assert sum(one.receive().json["retried"] for one in (api, other_api)) == 10
    assert sorted(api.data(queue, consumerGroup="g", batch=100)) == list(range(10))


def test_letters_are_purged(api: Api, queue: str) -> None:
    for n in range(3):
        kill(api, queue, n, "g")
    first = dlq(api, queue=queue)["messages"][0]["id"]
    assert api.call("DELETE", f"/api/v1/dlq/{first}").json["purged"] == 1
    assert api.call("DELETE", f"/api/v1/dlq/{first}").status == 404
    assert api.call("DELETE", "/api/v1/dlq").status == 400
    assert api.call("DELETE", f"/api/v1/dlq?queue={queue}&consumerGroup=x").json["purged"] == 0
    assert api.call("DELETE", f"/api/v1/dlq?queue={queue}").json["purged"] == 2
    assert dlq(api, queue=queue)["total"] == 0


# ---- what dies ----


async def test_a_message_nobody_comes_back_from_dies_alone(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryLimit=3, retryDelay=0)
    api.push_many(queue, 5)
    sizes = []
    for _ in range(4):
        messages = api.messages(queue, "Default", batch=5)
        sizes.append(len(messages))
        await lapse(connection, messages[0]["leaseId"])
    # Twice the whole batch, then the first of it alone.
    assert sizes == [5, 5, 1, 1]
    (message,) = api.messages(queue, "Default", batch=5)
    assert (message["data"]["n"], message["retryCount"]) == (1, 0)
    (letter,) = dlq(api, queue=queue)["messages"]
    assert (letter["data"]["n"], letter["retryCount"]) == (0, 4)
    assert letter["errorMessage"] == "No consumer ever came back with it"


async def test_the_others_of_a_batch_that_was_lost_come_one_at_a_time(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 4)
    for _ in range(2):
        await lapse(connection, api.messages(queue, "Default", batch=3)[0]["leaseId"])
    sizes = []
    while messages := api.messages(queue, "Default", batch=3):
        sizes.append(len(messages))
        api.ack_batch(messages)
    # The three that were lost together, and what was never in doubt.
    assert sizes == [1, 1, 1, 1]


async def lapse(connection: asyncpg.Connection, lease_id: str) -> None:
    await connection.execute(
        "update queen.cursors set lease_until = clock_timestamp() where lease_id = $1",
        uuid.UUID(lease_id),
    )


def test_without_dead_letters_an_exhausted_message_is_dropped(api: Api, queue: str) -> None:
    api.configure(queue, retryLimit=0, retryDelay=0, deadLetterQueue=False)
    api.push_many(queue, 2)
    (message,) = api.messages(queue, "Default")
    assert api.ack(message, "failed").json["dlq"]
    assert dlq(api, queue=queue)["total"] == 0
    (following,) = api.messages(queue, "Default")
    # Who asks for a dead letter gets one.
    assert api.ack(following, "dlq").json["dlq"]
    assert dlq(api, queue=queue)["total"] == 1


async def test_a_message_may_fail_for_ever(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryLimit=1, retryDelay=0, dlqAfterMaxRetries=False)
    api.push_many(queue, 1)
    for _ in range(4):
        (message,) = api.messages(queue, "Default")
        assert api.ack(message, "failed").json["status"] == "failed_retry"
        (message,) = api.messages(queue, "Default")
        await lapse(connection, message["leaseId"])
    assert dlq(api, queue=queue)["total"] == 0


async def test_letters_of_an_encrypted_queue_are_encrypted(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    kill(api, queue, "a secret", "g")
    stored = await connection.fetchval(
        "select d.payload from queen.dead_letters d join queen.queues q on q.id = d.queue_id"
        " where q.name = $1",
        queue,
    )
    assert b"secret" not in stored
    assert data(dlq(api, queue=queue)) == ["a secret"]
    assert retry(api, queue=queue) == 1
    assert api.data(queue, consumerGroup="g") == ["a secret"]


@pytest.mark.parametrize("digits", [19, 20, 5000])
def test_an_id_of_many_digits_is_not_found(api: Api, digits: int) -> None:
    path = f"/api/v1/dlq/{'9' * digits}"
    assert api.call("DELETE", path).status == 404
    assert api.call("POST", f"{path}/retry").status == 404


async def test_a_letter_that_does_not_open_hides_no_other(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    kill(api, queue, 1)
    kill(api, queue, 2)
    await connection.execute(
        "update queen.dead_letters d set payload = overlay(payload placing '\\x0000' from 20)"
        " from queen.queues q where q.id = d.queue_id and q.name = $1 and message_offset = 0",
        queue,
    )
    first, second = sorted(dlq(api, queue=queue)["messages"], key=lambda one: one["offset"])
    assert first["data"] is None and "does not open" in first["unreadable"]
    assert (second["data"], second["unreadable"]) == (2, None)
