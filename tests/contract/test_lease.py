"""Leases: prolonged by their holder, and only while they live."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.contract.conftest import Park


def seconds_left(answer: Any) -> float:
    assert answer.status == 200, answer.raw
    until = datetime.fromisoformat(answer.json["newExpiresAt"])
    return (until - datetime.now(UTC)).total_seconds()


def leased(api: Api, queue: str, lease_s: int = 20, **query: Any) -> dict[str, Any]:
    """Push a message to a queue with short leases, and lease it."""
    api.configure(queue, leaseTime=lease_s)
    api.push_many(queue, 1)
    message: dict[str, Any] = api.messages(queue, **query)[0]
    return message


@pytest.mark.parametrize("body", [None, {}, {"seconds": None}])
def test_a_lease_is_extended_by_a_minute_unless_told(
    api: Api, queue: str, body: dict[str, Any] | None
) -> None:
    lease = leased(api, queue)["leaseId"]
    answer = api.extend(lease, body)
    assert 30 < seconds_left(answer) < 61
    assert answer.json["leaseId"] == lease
    assert (answer.json["extended"], answer.json["success"]) == (True, True)
    assert answer.json["seconds"] == 60
    assert answer.json["lease_expires_at"] == answer.json["newExpiresAt"]


def test_a_lease_is_extended_by_what_is_asked_and_never_shortened(api: Api, queue: str) -> None:
    lease = leased(api, queue)["leaseId"]
    assert 450 < seconds_left(api.extend(lease, {"seconds": 500})) < 501
    assert 450 < seconds_left(api.extend(lease, {"seconds": 5})) < 501


@pytest.mark.parametrize("seconds", [-1, 86_401, 1.5, "60", 10**30])
def test_an_extension_that_makes_no_sense_is_refused(api: Api, queue: str, seconds: object) -> None:
    lease = leased(api, queue)["leaseId"]
    answer = api.extend(lease, {"seconds": seconds})
    assert answer.status == 400
    assert answer.json["error"]


@pytest.mark.parametrize(
    "lease", ["25eb9b20-47b5-4f57-8d0c-5255cef2390d", "not-a-lease", "%20", "0"]
)
def test_a_lease_that_never_was_is_not_found(api: Api, lease: str) -> None:
    answer = api.extend(lease, {})
    assert answer.status == 404
    assert answer.json["code"] == "not_found"


def test_a_lease_that_was_acked_is_not_found(api: Api, queue: str) -> None:
    message = leased(api, queue)
    api.ack(message)
    assert api.extend(message["leaseId"]).status == 404


async def test_a_lease_that_lapsed_is_not_found(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    message = leased(api, queue)
    await connection.execute(
        "update queen.cursors set lease_until = clock_timestamp() where lease_id = $1",
        uuid.UUID(message["leaseId"]),
    )
    assert api.extend(message["leaseId"]).status == 404
    assert other_api.extend(message["leaseId"]).status == 404


def test_an_extended_lease_outlives_its_first_end(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    # Extended on the server that granted it, and on another.
    messages = [leased(api, queue, lease_s=3), leased(api, f"{queue}.x", lease_s=3)]
    for one, message in zip((api, other_api), messages, strict=True):
        assert one.extend(message["leaseId"], {"seconds": 30}).status == 200
    polls = [
        park(one, name, timeout=3300) for one in (api, other_api) for name in (queue, f"{queue}.x")
    ]
    assert [poll.answer().status for poll in polls] == [204] * 4
    for one, message in zip((other_api, api), messages, strict=True):
        assert one.ack(message).status == 200


def test_a_lease_over_several_partitions_is_extended_in_all_of_them(
    api: Api, queue: str, park: Park
) -> None:
    api.configure(queue, leaseTime=3)
    for partition in ("a", "b", "c"):
        api.push({"queue": queue, "partition": partition, "payload": partition})
    messages = api.messages(queue, batch=10, partitions=3)
    assert len({one["leaseId"] for one in messages}) == 1
    api.ack(messages[0])
    assert api.extend(messages[0]["leaseId"], {"seconds": 30}).status == 200
    assert park(api, queue, timeout=3300).answer().status == 204
    assert all(one["success"] for one in api.ack_batch(messages).json["results"])


def test_an_extension_ends_too(api: Api, queue: str) -> None:
    message = leased(api, queue, lease_s=2)
    started = time.monotonic()
    assert api.extend(message["leaseId"], {"seconds": 4}).status == 200
    assert len(api.messages(queue, wait="true", timeout=20_000)) == 1
    assert 3.9 < time.monotonic() - started < 15
    assert api.extend(message["leaseId"]).status == 404


def test_the_lease_time_of_the_queue_is_told(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=17)
    api.push_many(queue, 1)
    assert api.pop(queue).json["claims"][0]["leaseMs"] == 17_000


def test_every_grant_has_a_higher_epoch_and_the_count_of_its_attempt(
    api: Api, other_api: Api, queue: str
) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 1)
    claims = []
    for one in (api, other_api, api):
        body = one.pop(queue, "Default").json
        claims.append(body["claims"][0])
        assert one.ack(body["messages"][0], "failed").status == 200
    assert [claim["attempt"] for claim in claims] == [1, 2, 3]
    epochs = [claim["epoch"] for claim in claims]
    assert epochs == sorted(set(epochs))
    assert {(claim["firstOffset"], claim["endOffset"]) for claim in claims} == {(0, 1)}
