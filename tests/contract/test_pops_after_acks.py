"""POST /api/v1/pop/…: acks and the next pop in one request."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from queen.wire.answers import MAX_ACKS
from tests.api import Answer, Api, pop_path
from tests.contract.conftest import settle
from tests.contract.leasedcalls import messages_of, pop_after, pop_frames, span_of

STALE = "Invalid or expired lease"


def leased(api: Api, queue: str, **query: Any) -> list[dict[str, Any]]:
    return messages_of(pop_frames(api, queue, **query))


def data(answer: Answer) -> list[Any]:
    return [message["data"]["n"] for message in messages_of(answer)]


@pytest.fixture(params=["granted here", "granted elsewhere"])
def asked(request: pytest.FixtureRequest, api: Api, other_api: Api) -> Api:
    """The server that granted the lease, and another one."""
    return api if request.param == "granted here" else other_api


@pytest.mark.parametrize("partition", [None, "Default"])
def test_the_next_messages_of_a_partition(
    api: Api, asked: Api, queue: str, partition: str | None
) -> None:
    api.push_many(queue, 4)
    first = leased(api, queue, batch=2)
    answer = pop_after(asked, queue, span_of(first), partition=partition, batch=2, wait="true")
    assert data(answer) == [2, 3]
    assert pop_after(api, queue, span_of(messages_of(answer)), partition=partition).status == 204
    assert api.pop(queue).status == 204


def test_in_json(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    first = leased(api, queue)
    # A server that has just come makes others look for everything again, and who waits for nothing
    # may be too early.
    path = pop_path(queue, wait="true")
    answer = api.call("POST", path, {"spans": [span_of(first)]})
    assert [message["data"] for message in answer.json["messages"]] == [{"n": 1}]


def test_a_failure_makes_it_come_again(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 1)
    first = leased(api, queue)
    (again,) = messages_of(pop_after(api, queue, span_of(first, "failed"), wait="true"))
    assert (again["offset"], again["retryCount"]) == (0, 1)


def test_nothing_is_leased_when_an_ack_is_refused(api: Api, asked: Api, queue: str) -> None:
    api.push_many(queue, 3)
    (first,) = leased(api, queue)
    api.push_many(queue, 1, "other")
    stale = {**span_of([first]), "leaseId": str(uuid.uuid4())}
    answer = pop_after(asked, queue, stale, span_of([first]))
    assert answer.status == 409 and answer.json["code"] == "lease_lost"
    refused, taken = answer.json["spans"]
    assert (refused["success"], refused["error"], refused["lost"]) == (False, STALE, 1)
    # The other one counts all the same.
    assert taken["success"] is True and taken["ended"] is True
    assert len(leased(api, queue, partitions=5, batch=5)) == 3


def test_acks_of_a_queue_that_is_gone(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    first = leased(api, queue)
    assert api.call("DELETE", f"/api/v1/resources/queues/{queue}").status == 200
    answer = pop_after(api, queue, span_of(first))
    assert answer.status == 409 and not answer.json["spans"][0]["success"]


def test_a_pop_from_a_queue_that_is_not_there_yet_acks_all_the_same(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    first = leased(api, queue)
    assert pop_after(api, f"{queue}-later", span_of(first)).status == 204
    assert api.call("POST", "/api/v1/ack/spans", {"spans": [span_of(first)]}).json["spans"] == [
        {"success": True, "error": None, "lost": 0, "dead": 0, "ended": True}
    ]


def test_acks_are_taken_at_once_though_the_pop_waits(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    first = leased(api, queue)
    path = pop_path(queue, wait="true", timeout=30_000)
    api.send("POST", path, {"spans": [span_of(first)]})
    settle(other_api)
    other_api.push_many(queue, 1)
    answer = api.receive()
    assert [message["offset"] for message in answer.json["messages"]] == [1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "Empty request body"),
        (b"{", "Input data was truncated"),
        ({}, "Object missing required field `spans`"),
        ({"spans": [{"partitionId": "x"}]}, "Object missing required field `leaseId`"),
    ],
)
def test_what_is_no_ack_is_refused_and_nothing_is_leased(
    api: Api, queue: str, body: Any, reason: str
) -> None:
    api.push_many(queue, 1)
    answer = api.call("POST", pop_path(queue), body)
    assert answer.status == 400 and reason in answer.json["error"]
    assert len(leased(api, queue)) == 1


def test_no_more_acks_than_alone(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    span = {**span_of(leased(api, queue)), "done": [[0, 1]] * MAX_ACKS}
    answer = pop_after(api, queue, span)
    assert answer.status == 400 and "more than" in answer.json["error"]


@pytest.mark.parametrize("query", [{"batch": 0}, {"consumerGroup": "\x00"}, {"conflation": "true"}])
def test_a_pop_that_is_wrong_acks_nothing(api: Api, queue: str, query: dict[str, Any]) -> None:
    api.push_many(queue, 1)
    first = leased(api, queue)
    assert pop_after(api, queue, span_of(first), **query).status == 400
    acked = api.call("POST", "/api/v1/ack/spans", {"spans": [span_of(first)]}).json["spans"]
    assert acked[0]["success"] is True
