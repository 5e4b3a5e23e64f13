"""Traces: events of messages, found by message and by name."""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from queen.service.admin.traces import JOB
from queen.service.broker import Broker, Limits
from tests.api import Answer, Api

PATH = "/api/v1/traces"


@pytest.fixture
def message(api: Api, queue: str) -> dict[str, Any]:
    api.push({"queue": queue, "partition": "p", "payload": {"order": 7}, "transactionId": "t/1"})
    (found,) = api.messages(queue, "p")
    return dict(found)


@pytest.fixture
def name() -> str:
    return f"trace {uuid.uuid4().hex[:8]} ü/%"


def record(api: Api, message: dict[str, Any], **more: Any) -> Answer:
    body = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "data": {"text": "step"},
        **more,
    }
    return api.call("POST", PATH, body)


def recorded(api: Api, message: dict[str, Any], **more: Any) -> str:
    answer = record(api, message, **more)
    assert answer.status == 201, answer.raw
    assert answer.json["success"] is True
    return str(answer.json["traceId"])


def of_message(api: Api, message: dict[str, Any], query: str = "") -> Any:
    one = quote(message["transactionId"], safe="")
    answer = api.call("GET", f"{PATH}/{message['partitionId']}/{one}{query}")
    assert answer.status == 200, answer.raw
    return answer.json


def by_name(api: Api, name: str, query: str = "") -> Any:
    answer = api.call("GET", f"{PATH}/by-name/{quote(name, safe='')}{query}")
    assert answer.status == 200, answer.raw
    return answer.json


def test_the_events_of_a_message_come_oldest_first(
    api: Api, other_api: Api, message: dict[str, Any], name: str
) -> None:
    ids = [
        recorded(api, message, data=1, traceNames=[f"{name}b", f"{name}a", "", None]),
        recorded(other_api, message, data={"z": [None], "a": "ü"}, eventType="error"),
        recorded(api, message, traceNames=name, consumerGroup="g"),
    ]
    answer = of_message(other_api, message)
    assert (answer["count"], answer["total"]) == (3, 3)
    assert answer["pagination"] == {"limit": 1000, "offset": 0, "total": 3}
    events = answer["traces"]
    assert [one["id"] for one in events] == ids
    assert [one["data"] for one in events] == [1, {"z": [None], "a": "ü"}, {"text": "step"}]
    assert list(events[1]["data"]) == ["z", "a"], "data is kept as it was sent"
    assert [one["event_type"] for one in events] == ["info", "error", "info"]
    assert [one["consumer_group"] for one in events] == ["__QUEUE_MODE__"] * 2 + ["g"]
    assert [one["trace_names"] for one in events] == [[f"{name}a", f"{name}b"], [], [name]]
    assert all(one["created_at"].endswith("Z") for one in events)
    page = of_message(api, message, "?limit=1&offset=1")
    assert ([one["id"] for one in page["traces"]], page["total"]) == ([ids[1]], 3)


def test_events_of_many_messages_meet_under_a_name(
    api: Api, message: dict[str, Any], name: str, queue: str
) -> None:
    api.push({"queue": f"{queue}-2", "payload": "second", "transactionId": "t2"})
    (other,) = api.messages(f"{queue}-2")
    recorded(api, message, traceNames=[name, name])
    recorded(api, other, traceNames=[name])
    recorded(api, message, traceNames=["another"])
    gone = {**message, "transactionId": "never pushed"}
    recorded(api, gone, traceNames=[name])
    answer = by_name(api, name)
    assert (answer["count"], answer["total"], answer["limit"], answer["offset"]) == (3, 3, 100, 0)
    first, second, third = answer["traces"]
    assert first["message_payload"] == {"order": 7}
    assert (first["queue_name"], first["partition_name"]) == (queue, "p")
    assert (first["transaction_id"], first["partition_id"]) == ("t/1", message["partitionId"])
    assert (second["message_payload"], second["queue_name"]) == ("second", f"{queue}-2")
    assert third["message_payload"] is None
    page = by_name(api, name, "?limit=1&offset=1")
    assert (page["traces"], page["total"]) == ([second], 3)
    assert by_name(api, f"{name} unknown")["traces"] == []


def test_names_are_listed_the_last_used_first(api: Api, message: dict[str, Any], name: str) -> None:
    for one in ("old", "new"):
        recorded(api, message, traceNames=[f"{name}{one}", f"{name}both"])
    recorded(api, {**message, "transactionId": "t2"}, traceNames=[f"{name}both"])
    answer = api.call("GET", f"{PATH}/names?limit=1000").json
    assert answer["count"] == len(answer["trace_names"]) <= answer["total"]
    mine = [one for one in answer["trace_names"] if one["trace_name"].startswith(name)]
    assert [one["trace_name"] for one in mine] == [f"{name}both", f"{name}new", f"{name}old"]
    assert (mine[0]["trace_count"], mine[0]["message_count"]) == (3, 2)
    assert mine[0]["last_seen"] > mine[1]["last_seen"] > mine[2]["last_seen"]
    page = api.call("GET", f"{PATH}/names?limit=1&offset=1").json
    assert [one["trace_name"] for one in page["trace_names"]] == [f"{name}new"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"transactionId": None}, "transactionId and partitionId are required"),
        ({"transactionId": ""}, "transactionId and partitionId are required"),
        ({"partitionId": None}, "transactionId and partitionId are required"),
        ({"transactionId": "x" * 256}, "transactionId"),
        ({"transactionId": "a\0b"}, "transactionId"),
        ({"traceNames": ["ok", "bad\n"]}, "traceNames"),
        ({"traceNames": [f"n{n}" for n in range(101)]}, "traceNames"),
        ({"traceNames": 5}, "traceNames"),
        ({"eventType": "e\0"}, "event type"),
        ({"consumerGroup": "g" * 300}, "consumer group"),
        ({"data": "x" * 300_000}, "data is larger"),
        ({"data": "a\0b"}, "data has a NUL"),
    ],
)
def test_an_event_that_makes_no_sense_is_refused(
    api: Api, message: dict[str, Any], change: dict[str, Any], error: str
) -> None:
    answer = record(api, message, **change)
    assert answer.status == 400 and error in answer.json["error"]
    assert of_message(api, message)["traces"] == []


def test_an_event_needs_data(api: Api, message: dict[str, Any]) -> None:
    body = {"transactionId": "t", "partitionId": message["partitionId"]}
    answer = api.call("POST", PATH, body)
    assert (answer.status, answer.json["error"]) == (400, "data is required")
    assert record(api, message, data=None).status == 201
    assert of_message(api, message)["traces"][0]["data"] is None


@pytest.mark.parametrize("partition", ["no id", "0fffffff-ffff-8fff-bfff-ffffffffffff"])
def test_a_partition_that_does_not_exist_is_not_found(
    api: Api, message: dict[str, Any], partition: str
) -> None:
    assert record(api, message, partitionId=partition).status == 404
    assert api.call("GET", f"{PATH}/{quote(partition)}/t").status == 404


def test_traces_go_with_their_queue(
    api: Api, message: dict[str, Any], name: str, queue: str
) -> None:
    recorded(api, message, traceNames=[name])
    api.delete_queue(queue)
    assert by_name(api, name)["total"] == 0
    assert record(api, message).status == 404


async def test_old_traces_are_forgotten(
    api: Api, message: dict[str, Any], name: str, dsn: str, connection: asyncpg.Connection
) -> None:
    old, young = (recorded(api, message, traceNames=[name]) for _ in range(2))
    await connection.execute(
        "update traces set created_at = created_at - interval '31 days' where id = $1", int(old)
    )
    broker = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=3))
    try:
        while await broker.jobs.run_once(JOB):
            pass
    finally:
        await broker.stop()
    assert [one["id"] for one in by_name(api, name)["traces"]] == [young]


def test_a_payload_without_hashes_is_found_too(api: Api, queue: str, name: str) -> None:
    api.configure(queue, dedup="off")
    api.push({"queue": queue, "payload": json.loads("[1]"), "transactionId": "t"})
    (message,) = api.messages(queue)
    recorded(api, message, traceNames=name)
    assert by_name(api, name)["traces"][0]["message_payload"] == [1]
