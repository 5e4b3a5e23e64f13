"""Maintenance: pushes or pops are held back on all servers, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from queen.core.frame import encode_frame
from tests.api import Api, ack_of, push_of
from tests.contract.conftest import Park
from tests.waiting import until

PATH = "/api/v1/system/maintenance"
# Far less than a poll waits here, far more than a busy machine takes.
SOON_S = 10


def turn(api: Api, enabled: bool, which: str = "") -> None:
    answer = api.call("POST", PATH + which, {"enabled": enabled})
    assert answer.status == 200, answer.raw
    key = "popMaintenanceMode" if which else "maintenanceMode"
    assert answer.json[key] is enabled
    assert ("ENABLED" if enabled else "DISABLED") in answer.json["message"]


@pytest.fixture
def off(api: Api, other_api: Api) -> Iterator[None]:
    """Whatever a test turns on is off again after it, on both servers."""
    yield
    for which in ("", "/pop"):
        turn(api, False, which)
    for one in (api, other_api):
        assert one.call("GET", PATH).json["maintenanceMode"] is False


pytestmark = pytest.mark.usefixtures("off")


def is_buffered(api: Api, queue: str) -> bool:
    return api.push({"queue": queue, "payload": 1}).status == 202


def test_a_push_in_maintenance_waits_in_the_spool_of_its_server(
    api: Api, other_api: Api, queue: str
) -> None:
    api.configure(queue)
    turn(api, True)
    for one in (api, other_api):
        until(partial(is_buffered, one, f"{queue}-try"))
    answer = api.push({"queue": queue, "payload": "held", "transactionId": "t"})
    (result,) = answer.json
    assert (answer.status, result["status"], result["message_id"]) == (202, "buffered", None)
    answer = other_api.push_frames(encode_frame(queue, "p", ["t2"], [b"1"]))
    assert (answer.status, answer.json[0]["status"]) == (202, "buffered")
    assert api.messages(queue, batch=9) == []
    state = api.call("GET", PATH).json
    assert state["maintenanceMode"] and state["bufferedMessages"] >= 1
    assert state["bufferStats"]["pendingCount"] >= 1
    assert api.call("GET", "/api/v1/status/buffers").json["pending"] >= 1
    turn(other_api, False)
    assert api.call("GET", PATH).json["maintenanceMode"] is False
    stored: list[str] = []

    def both_are_stored() -> bool:
        stored.extend(one["transactionId"] for one in api.messages(queue, autoAck="true"))
        return len(stored) == 2

    until(both_are_stored)
    assert sorted(stored) == ["t", "t2"]
    until(lambda: api.call("GET", PATH).json["bufferedMessages"] == 0)
    again = api.push({"queue": queue, "payload": "x", "transactionId": "t"})
    assert (again.status, again.json[0]["status"]) == (201, "duplicate")


def test_pops_and_acks_go_on_while_pushes_are_held(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    turn(api, True)
    held = api.messages(queue, batch=2)
    assert len(held) == 2
    refused = api.transaction(ack_of(held[0]), push_of({"queue": queue, "payload": 1}))
    assert (refused.status, refused.json["code"]) == (503, "maintenance")
    assert api.transaction(ack_of(held[0])).status == 200
    assert api.ack(held[1]).status == 200


def test_a_pop_in_maintenance_is_empty_at_once(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    turn(api, True, "/pop")
    started = time.monotonic()
    for query in ({}, {"wait": "true"}, {"wait": "true", "consumerGroup": "g"}):
        assert api.pop(queue, timeout=20_000, **query).status == 204
    assert api.pop("nobody made this", wait="true", timeout=20_000).status == 204
    assert api.call("GET", "/api/v1/pop?wait=true&timeout=20000").status == 204
    assert time.monotonic() - started < SOON_S
    assert api.push({"queue": queue, "payload": 1}).status == 201
    assert other_api.call("GET", PATH + "/pop").json["popMaintenanceMode"] is True
    turn(api, False, "/pop")
    assert len(api.messages(queue, batch=9)) == 2


def test_pops_that_wait_are_answered_when_it_begins(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    api.configure(queue)
    polls = [
        park(one, queue, timeout=20_000, path=path)
        for one in (api, other_api)
        for path in (
            f"/api/v1/pop/queue/{queue}?wait=true&timeout=20000",
            f"/api/v1/pop/queue/{queue}/partition/p?wait=true&timeout=20000",
            f"/api/v1/pop?namespace={queue}&wait=true&timeout=20000",
            f"/api/v1/pop/queue/{queue}-later?wait=true&timeout=20000",
        )
    ]
    started = time.monotonic()
    turn(api, True, "/pop")
    assert [poll.answer().status for poll in polls] == [204] * 8
    assert time.monotonic() - started < SOON_S


def test_what_is_said_of_the_buffer_is_true(api: Api, other_api: Api) -> None:
    turn(api, True)
    answer = other_api.call("GET", PATH).json
    assert answer == {
        "maintenanceMode": True,
        "popMaintenanceMode": False,
        "bufferedMessages": 0,
        "bufferHealthy": True,
        "bufferStats": {
            "pendingCount": 0,
            "failedCount": 0,
            "dbHealthy": True,
            "failedFiles": {
                "count": 0, "totalBytes": 0, "totalMB": 0.0, "failoverCount": 0, "qos0Count": 0,
            },
        },
    }  # fmt: skip


@pytest.mark.parametrize("which", ["", "/pop"])
@pytest.mark.parametrize("body", [None, "{}", '{"enabled":1}', '{"enabled":"true"}', "[", "[]"])
def test_a_switch_needs_a_boolean(api: Api, which: str, body: str | None) -> None:
    answer = api.call("POST", PATH + which, body)
    assert (answer.status, answer.json["error"]) == (400, "enabled (boolean) is required")
