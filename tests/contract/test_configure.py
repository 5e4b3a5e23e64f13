"""Queues: configured, overwritten, deleted."""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.contract.conftest import Park

DEFAULTS = {
    "leaseTime": 300,
    "maxSize": 0,
    "ttl": 0,
    "retryLimit": 3,
    "retryDelay": 1000,
    "retryBackoff": "fixed",
    "retryMaxDelay": 3_600_000,
    "breaker": 0,
    "breakerOutcomes": 20,
    "breakerPause": 10_000,
    "rateLimit": 0,
    "rateInterval": 1000,
    "rateBurst": 0,
    "rateLimitPerPartition": 0,
    "maxInFlight": 0,
    "maxInFlightPerPartition": 0,
    "queueRateLimit": 0,
    "queueMaxInFlight": 0,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "retentionEnabled": False,
    "encryptionEnabled": False,
    "maxWaitTimeSeconds": 0,
    "dedup": "window",
    "dedupWindowSeconds": 600,
    "sharedGroups": False,
}


def configure(api: Api, **body: Any) -> Any:
    answer = api.call("POST", "/api/v1/configure", body)
    assert answer.status == 201, answer.raw
    return answer.json


@pytest.mark.parametrize("options", [{}, None, dict.fromkeys(DEFAULTS)])
def test_what_is_not_said_has_its_default(
    api: Api, queue: str, options: dict[str, Any] | None
) -> None:
    body = configure(api, queue=queue, namespace=None, task=None, options=options)
    assert body["configured"] is True
    assert (body["queue"], body["namespace"], body["task"]) == (queue, "", "")
    assert body["options"] == DEFAULTS
    assert body["queueId"]
    assert body["partitionId"]


def test_a_name_is_enough(api: Api, queue: str) -> None:
    assert configure(api, queue=queue)["options"] == DEFAULTS


def test_every_option_is_kept_and_answered(api: Api, queue: str) -> None:
    options = {
        **{name: not value for name, value in DEFAULTS.items() if isinstance(value, bool)},
        **{name: 7 for name, value in DEFAULTS.items() if type(value) is int},
        "priority": -3,
        "dedup": "forever",
        "retryBackoff": "exponential",
    }
    assert options.keys() == DEFAULTS.keys()
    assert configure(api, queue=queue, options=options)["options"] == options


def test_configuring_again_overwrites_everything(api: Api, queue: str) -> None:
    first = configure(api, queue=queue, namespace="n", task="t", options={"leaseTime": 5})
    second = configure(api, queue=queue, options={"priority": 2})
    assert second["options"] == {**DEFAULTS, "priority": 2}
    assert (second["namespace"], second["task"]) == ("", "")
    assert second["queueId"] == first["queueId"]
    assert second["partitionId"] == first["partitionId"]


def test_configuring_again_keeps_the_messages(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    api.configure(queue, leaseTime=9)
    body = api.pop(queue, batch=5).json
    assert len(body["messages"]) == 2
    assert body["claims"][0]["leaseMs"] == 9000


def test_configure_makes_the_default_partition(api: Api, queue: str) -> None:
    configured = configure(api, queue=queue)
    pushed = api.push({"queue": queue, "payload": 1}).json[0]
    assert pushed["partition_id"] == configured["partitionId"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("leaseTime", 0),
        ("leaseTime", -1),
        ("leaseTime", 10**12),
        ("leaseTime", "60"),
        ("leaseTime", 1.5),
        ("leaseTime", True),
        ("retryLimit", -1),
        ("maxSize", -1),
        ("maxSize", 2**70),
        ("priority", 2**31),
        ("priority", []),
        ("retentionEnabled", "yes"),
        ("retentionEnabled", 1),
        ("dedup", "sometimes"),
        ("dedup", True),
        ("dedupWindowSeconds", 0),
        ("dedupWindowSeconds", 10**9),
        ("leasetime", 60),
        ("lease_time", 60),
        ("", 1),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(
    api: Api, queue: str, option: str, value: object
) -> None:
    answer = api.configure(queue, **{option: value})
    assert answer.status == 400
    assert answer.json["code"] == "bad_request"
    assert option in answer.json["error"]
    # Nothing was made by it.
    assert api.delete_queue(queue).json["existed"] is False


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": None},
        {"queue": 1},
        {"queue": ""},
        {"queue": "a\x00b"},
        {"queue": "a\nb"},
        {"queue": "\u202e"},
        {"queue": "x" * 256},
        {"queue": "ü" * 128},
        {"queue": "\ud800"},
        {"queue": "q", "namespace": 1},
        {"queue": "q", "namespace": "x" * 256},
        {"queue": "q", "task": "\x00"},
        {"queue": "q", "options": []},
        {"queue": "q", "options": "x"},
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(api: Api, body: dict[str, Any]) -> None:
    answer = api.call("POST", "/api/v1/configure", body)
    assert answer.status == 400
    assert answer.json["error"]


# ---- delete ----


async def test_a_deleted_queue_leaves_nothing_behind(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, dedup="forever")
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(3)])
    message = api.messages(queue, consumerGroup="g")[0]
    api.ack(message, "dlq")
    partitions = await connection.fetch(
        "select p.id from queen.partitions p join queen.queues q on q.id = p.queue_id "
        "where q.name = $1",
        queue,
    )
    ids = [row["id"] for row in partitions]
    assert len(ids) == 4
    answer = api.delete_queue(queue)
    assert answer.status == 200
    assert answer.json == {"deleted": True, "queue": queue, "existed": True}
    for table in ("segments", "cursors", "dead_letters", "dedup_index"):
        left = await connection.fetchval(
            f"select count(*) from queen.{table} where partition_id = any ($1)", ids
        )
        assert left == 0, table
    assert await connection.fetchval("select 1 from queen.queues where name = $1", queue) is None


def test_deleting_what_does_not_exist_succeeds(api: Api, queue: str) -> None:
    answer = api.delete_queue(queue)
    assert answer.status == 200
    assert answer.json == {"deleted": True, "queue": queue, "existed": False}


def test_a_deleted_queue_is_empty_when_it_is_used_again(api: Api, queue: str) -> None:
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    first = api.push(item).json[0]
    (message,) = api.messages(queue)
    api.push({"queue": queue, "payload": 2})
    api.delete_queue(queue)
    assert api.pop(queue).status == 204
    assert api.ack(message).status in (400, 404, 409)
    second = api.push(item).json[0]
    assert second["status"] == "queued"
    assert second["partition_id"] != first["partition_id"]
    assert api.data(queue, batch=5) == [1]


def test_a_deleted_queue_forgets_its_options_and_groups(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=5)
    api.push({"queue": queue, "payload": "old"})
    assert api.pop(queue, consumerGroup="g", subscriptionMode="new").status == 204
    api.delete_queue(queue)
    api.push({"queue": queue, "payload": 1})
    body = api.pop(queue, consumerGroup="g").json
    assert [one["data"] for one in body["messages"]] == [1]
    assert body["claims"][0]["leaseMs"] == 300_000


def test_deleting_ends_the_polls_that_wait_for_the_queue(api: Api, queue: str, park: Park) -> None:
    api.configure(queue)
    polls = [park(api, queue, name, timeout=20_000) for name in (None, "Default")]
    started = time.monotonic()
    api.delete_queue(queue)
    assert [poll.answer().status for poll in polls] == [204, 204]
    assert time.monotonic() - started < 10


def test_a_queue_can_be_deleted_while_it_is_written(api: Api, twin: Api, queue: str) -> None:
    # A push is stored in the old queue or in the new one, or may be repeated.
    for n in range(30):
        twin.send("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": n}]})
        assert api.delete_queue(queue).status == 200
        assert twin.receive().status in (201, 503)
