"""What the state machine and its model have found, each led up to on its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api import Api
from tests.model.broker import Broker

FAST = {"retryDelay": 0, "retryLimit": 9}


def letters(api: Api, queue: str) -> list[Any]:
    found: list[Any] = api.call("GET", f"/api/v1/dlq?queue={queue}").json["messages"]
    return found


def delete(api: Api, message: dict[str, Any]) -> None:
    path = f"/api/v1/messages/{message['partitionId']}/{message['id']}"
    assert api.call("DELETE", path).status == 200


@pytest.mark.parametrize("status", ["failed", "dlq"])
def test_a_message_that_was_deleted_leaves_no_letter(api: Api, queue: str, status: str) -> None:
    api.configure(queue, retryLimit=0, retryDelay=0)
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    delete(api, message)
    assert api.ack(message, status).status == 200
    assert letters(api, queue) == []


def test_a_message_that_was_deleted_after_its_last_try_leaves_no_letter(
    broker: Broker, api: Api, queue: str
) -> None:
    api.configure(queue, retryLimit=0, retryDelay=0)
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    broker.lapse(message["leaseId"])
    delete(api, message)
    assert api.messages(queue, "Default") == []
    assert letters(api, queue) == []


def test_the_count_of_retries_never_goes_down(api: Api, queue: str) -> None:
    api.configure(queue, **FAST)
    api.push_many(queue, 2)
    for failures in range(2):
        both = api.messages(queue, "Default", batch=2)
        assert [one["retryCount"] for one in both] == [failures, failures]
        api.ack_batch(both, "failed")
    (first,) = api.messages(queue, "Default")
    assert (first["data"]["n"], first["retryCount"]) == (0, 2)
    api.ack(first)
    (second,) = api.messages(queue, "Default", batch=2)
    assert (second["data"]["n"], second["retryCount"]) == (1, 2)


def test_what_is_given_back_without_fault_was_not_tried(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0, retryLimit=1)
    api.push_many(queue, 2)
    one, two = api.messages(queue, "Default", batch=2)
    api.ack(two, "retry")
    api.ack(one)
    (two,) = api.messages(queue, "Default")
    assert two["retryCount"] == 0
    assert api.ack(two, "failed").json["status"] == "failed_retry"


def test_a_copy_for_another_group_does_not_answer_for_its_original(api: Api, queue: str) -> None:
    api.configure(queue, **FAST)
    api.push({"queue": queue, "payload": 1, "transactionId": "t"})
    (message,) = api.messages(queue, consumerGroup="one")
    api.ack(message, "dlq")
    assert api.call("POST", "/api/v1/dlq/retry", {"queue": queue}).json["retried"] == 1
    (original,) = api.messages(queue, consumerGroup="two", batch=10)
    assert api.ack(original, "failed").json["status"] == "failed_retry"
    (original,) = api.messages(queue, "Default", consumerGroup="two", batch=10)
    assert original["retryCount"] == 1


def test_only_a_lease_that_ends_with_failures_waits(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=60_000, retryLimit=9)
    api.push_many(queue, 3)
    first, second, third = api.messages(queue, batch=3)
    for message in (first, second):
        api.ack(message, "retry")
    assert api.ack(third).json["success"]
    for n in range(2):
        (message,) = api.messages(queue, "Default")
        assert message["data"]["n"] == n
        assert api.ack(message).json["success"]


def test_an_old_failure_makes_nobody_else_wait(broker: Broker, api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=60_000, retryLimit=9)
    api.push_many(queue, 3)
    first, second, third = api.messages(queue, batch=3)
    api.ack_batch([first, second], "retry")
    api.ack(third, "failed")
    assert api.messages(queue, "Default") == []
    broker.end_waits(queue)
    for n in range(3):
        (message,) = api.messages(queue, "Default")
        assert message["data"]["n"] == n
        assert api.ack(message).json["success"]


def test_setting_a_message_aside_does_not_end_the_wait_of_another(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=60_000, retryLimit=9)
    api.push_many(queue, 2)
    first, second = api.messages(queue, batch=2)
    api.ack_batch([first, second], "failed")
    path = f"/api/v1/messages/{second['partitionId']}/{second['id']}/dlq"
    assert api.call("POST", path).status == 200
    assert api.messages(queue, "Default") == []
