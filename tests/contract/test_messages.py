"""/api/v1/messages: looking at messages, deleting, retrying and setting them aside."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import asyncpg
import pytest

from tests.api import Answer, Api


def listed(api: Api, **query: Any) -> list[Any]:
    answer = api.call("GET", f"/api/v1/messages?{urlencode(query)}")
    assert answer.status == 200, answer.raw
    found: list[Any] = answer.json["messages"]
    return found


def push(api: Api, queue: str, *payloads: Any, partition: str = "Default") -> list[dict[str, Any]]:
    answer = api.push(
        *[{"queue": queue, "partition": partition, "payload": one} for one in payloads]
    )
    found: list[dict[str, Any]] = answer.json
    return found


def about(api: Api, one: dict[str, Any], method: str = "GET", verb: str = "") -> Answer:
    """Ask for a message by what the push said of it."""
    name = quote(one["transaction_id"], safe="")
    return api.call(method, f"/api/v1/messages/{one['partition_id']}/{name}{verb}")


def test_messages_are_listed_newest_first_with_what_became_of_them(api: Api, queue: str) -> None:
    for n in range(4):
        push(api, queue, n)
    first, second = api.messages(queue, batch=2)
    api.ack(first)
    found = listed(api, queue=queue)
    assert [one["offset"] for one in found] == [3, 2, 1, 0]
    assert [one["status"] for one in found] == ["pending", "pending", "processing", "completed"]
    assert found[2]["leaseExpiresAt"] is not None
    assert found[3]["transactionId"] == first["transactionId"]
    assert [one["offset"] for one in listed(api, queue=queue, limit=2, offset=1)] == [2, 1]
    assert [one["offset"] for one in listed(api, queue=queue, status="pending")] == [3, 2]
    assert listed(api, queue=queue, partition="unknown") == []
    assert listed(api, queue="unknown") == []
    assert api.ack(second).status == 200


def test_messages_of_a_namespace_are_listed_together(api: Api, queue: str) -> None:
    for name in ("a", "b"):
        push(api, f"{queue}.{name}", name)
    assert [one["queue"][-1] for one in listed(api, ns=queue)] == ["b", "a"]
    assert [one["queue"][-1] for one in listed(api, ns=queue, task="a")] == ["a"]


@pytest.mark.parametrize("query", ["limit=0", "status=x", "partition=p", "from=x", "limit=5000"])
def test_a_list_that_means_nothing_is_refused(api: Api, query: str) -> None:
    assert api.call("GET", f"/api/v1/messages?{query}").status == 400


def test_a_message_is_found_by_its_transaction_id_and_by_its_own_id(api: Api, queue: str) -> None:
    one, two = push(api, queue, {"a": 1}, {"b": 2})
    for found in (
        about(api, two).json,
        about(api, {**two, "transaction_id": two["message_id"]}).json,
    ):
        assert (found["payload"], found["offset"], found["status"]) == ({"b": 2}, 1, "pending")
        assert found["id"] == two["message_id"]
    assert about(api, one).json["data"] == {"a": 1}
    assert about(api, {**one, "transaction_id": "unknown"}).status == 404
    assert about(api, {**one, "partition_id": "unknown"}).status == 404


def test_a_deleted_message_is_shown_to_nobody(api: Api, other_api: Api, queue: str) -> None:
    pushed = push(api, queue, *range(5))
    # Both servers have the segment in their caches.
    for one in (api, other_api):
        one.ack_batch(one.messages(queue, consumerGroup="before", batch=1), group="before")
    assert about(api, pushed[2], "DELETE").json["success"]
    assert about(api, pushed[2]).status == 404
    assert about(api, pushed[2], "DELETE").status == 404
    for group in ("before", "after"):
        messages = api.messages(queue, consumerGroup=group, batch=10)
        assert 2 not in [one["data"] for one in messages]
        results = api.ack_batch(messages, group=group).json["results"]
        assert all(one["success"] for one in results)
        assert api.messages(queue, consumerGroup=group, batch=10) == []
    assert [one["offset"] for one in listed(api, queue=queue)] == [4, 3, 1, 0]


def test_a_batch_of_nothing_but_deleted_messages_is_passed_over(api: Api, queue: str) -> None:
    pushed = push(api, queue, *range(3))
    for one in pushed[:2]:
        assert about(api, one, "DELETE").status == 200
    assert api.data(queue, consumerGroup="g", batch=2) == [2]
    assert api.data(queue, consumerGroup="one", batch=1, autoAck="true", wait="true") == [2]


async def test_a_payload_that_is_deleted_is_gone(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    (one,) = push(api, queue, "a secret")
    assert about(api, one, "DELETE").status == 200
    bodies = await connection.fetch(
        "select s.body from queen.segments s join queen.queues q on q.id = s.queue_id"
        " where q.name = $1",
        queue,
    )
    assert not any(b"secret" in row["body"] for row in bodies)


def test_a_message_is_set_aside_by_hand_and_comes_back(api: Api, queue: str) -> None:
    one, two = push(api, queue, 1, 2)
    for group in ("a", "b"):
        api.ack_batch(api.messages(queue, consumerGroup=group, batch=1), group=group)
    moved = about(api, two, "POST", "/dlq").json
    assert sorted(moved["consumerGroups"]) == ["a", "b"]
    assert about(api, two, "POST", "/dlq").status == 409
    assert about(api, one, "POST", "/dlq").status == 409
    assert api.messages(queue, consumerGroup="a") == []
    found = about(api, two).json
    assert (found["status"], found["errorMessage"]) == ("dead_letter", "Moved by hand")
    assert about(api, two, "POST", "/retry").json["retried"] == 2
    for group in ("a", "b"):
        assert api.data(queue, consumerGroup=group, batch=10) == [2]
    assert about(api, one, "POST", "/retry").status == 409


def test_a_message_that_is_being_worked_on_can_be_set_aside(api: Api, queue: str) -> None:
    push(api, queue, 1, 2)
    first, second = api.messages(queue, batch=2)
    place = {"partition_id": first["partitionId"], "transaction_id": first["transactionId"]}
    assert about(api, place, "POST", "/dlq").json["moved"] == 1
    assert api.ack(second).json["success"]
    # It is done already, and the lease is over.
    assert api.ack(first).json["success"]
    assert api.messages(queue) == []


def test_nobody_has_read_it_yet(api: Api, queue: str) -> None:
    one, _two = push(api, queue, 1, 2)
    assert about(api, one, "POST", "/dlq").json["moved"] == 1
    assert api.data(queue, batch=10) == [2]


def test_a_deleted_message_leaves_no_dead_letter(api: Api, queue: str) -> None:
    (one,) = push(api, queue, "a secret")
    assert about(api, one, "POST", "/dlq").json["moved"] == 1
    assert about(api, one, "DELETE").status == 200
    assert api.call("GET", f"/api/v1/dlq?queue={queue}").json["total"] == 0


def test_a_queue_is_cleared(api: Api, queue: str) -> None:
    push(api, queue, *range(5))
    push(api, queue, *range(3), partition="p")
    leased = api.messages(queue, "Default", batch=2)
    path = f"/api/v1/queues/{queue}/clear"
    assert api.call("DELETE", f"{path}?partition=p").json["removed"] == 3
    assert api.call("DELETE", f"{path}?partition=unknown").status == 404
    assert api.call("DELETE", "/api/v1/queues/unknown/clear").status == 404
    answer = api.call("DELETE", path).json
    assert (answer["removed"], answer["cleared"]) == (5, True)
    assert listed(api, queue=queue) == []
    assert all(one["success"] for one in api.ack_batch(leased).json["results"])
    push(api, queue, "new")
    (message,) = api.messages(queue, batch=10)
    assert (message["data"], message["offset"]) == ("new", 5)
