"""What the dashboard asks for first: problems, search, messages by text and offset, who asks."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.api import Answer, Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Connect
from tests.waiting import until


def _get(api: Api, path: str, **query: Any) -> Answer:
    return api.call("GET", f"/api/v1/{path}?{urlencode(query)}")


def _ok(api: Api, path: str, **query: Any) -> Any:
    answer = _get(api, path, **query)
    assert answer.status == 200, answer.raw
    return answer.json


def test_without_authentication_everybody_is_an_admin(api: Api) -> None:
    assert _ok(api, "whoami") == {
        "subject": None,
        "role": "admin",
        "namespaces": None,
        "authenticated": False,
    }


def test_a_partition_that_a_group_is_behind_in_is_a_problem(
    own_server: ServerProcess, connect: Connect, queue: str
) -> None:
    # Only the worst are listed: of a database that others use, these are theirs.
    api = connect(own_server)
    api.push_many(queue, 5, "slow")
    api.messages(queue, "slow", consumerGroup="g", batch=2)

    def mine() -> list[Any]:
        stuck = _ok(api, "status/problems", minLagSeconds=0)["stuck"]
        return [each for each in stuck if each["queue"] == queue]

    (problem,) = until(mine)
    assert problem["partition"] == "slow" and problem["consumerGroup"] == "g"
    assert problem["pending"] == 5 and problem["attempts"] == 1
    assert problem["leaseExpiresAt"] is not None and problem["lagSeconds"] >= 0
    assert _ok(api, "status/problems", minLagSeconds=86400)["stuck"] == []


def test_unread_messages_that_retention_will_take_are_a_problem(
    own_server: ServerProcess, connect: Connect, queue: str
) -> None:
    api = connect(own_server)
    api.configure(queue, retentionEnabled=True, retentionSeconds=3600)
    api.push_many(queue, 3)
    api.messages(queue, consumerGroup="g")

    def mine() -> list[Any]:
        risks = _ok(api, "status/problems")["retention"]
        return [each for each in risks if each["queue"] == queue]

    (risk,) = until(mine)
    assert risk["consumerGroup"] == "g" and risk["pending"] == 3
    written = _ok(api, "messages", queue=queue)["messages"][-1]["createdAt"]
    assert written < risk["removedAt"]


def test_search_finds_names_by_a_part_of_them_whatever_the_case(api: Api, queue: str) -> None:
    api.push_many(queue, 1, "Zebra%_x")
    api.messages(queue, consumerGroup="zebras")
    found = _ok(api, "search", q="zEBRA", limit=50)["results"]
    assert {"kind": "partition", "name": "Zebra%_x", "queue": queue} in found
    assert "zebras" in [each["name"] for each in found if each["kind"] == "group"]
    names = [each["name"] for each in _ok(api, "search", q=queue)["results"]]
    assert queue in names
    # No character of the text means anything but itself.
    assert queue not in [each["queue"] for each in _ok(api, "search", q="Z%x")["results"]]


@pytest.mark.parametrize("query", ["", "q=", "q=" + "a" * 256, "q=a&limit=0", "q=a&limit=51"])
def test_a_search_for_nothing_or_too_much_is_refused(api: Api, query: str) -> None:
    assert api.call("GET", f"/api/v1/search?{query}").status == 400


def test_messages_are_found_by_a_text_in_their_payload_or_id(api: Api, queue: str) -> None:
    ids = api.push_many(queue, 30)
    api.push({"queue": queue, "partition": "p", "payload": {"word": "Ünïcode NEEDLE 🐝"}})
    answer = _ok(api, "messages", queue=queue, text="ünïcode needle 🐝", preview="true")
    (message,) = answer["messages"]
    assert message["partition"] == "p" and answer["lookedAt"] == 31
    assert "NEEDLE" in message["preview"]
    (by_id,) = _ok(api, "messages", queue=queue, text=ids[7].upper())["messages"]
    assert by_id["offset"] == 7 and "preview" not in by_id
    assert _ok(api, "messages", queue=queue, text="needle", partition="Default")["messages"] == []
    assert len(_ok(api, "messages", queue=queue, text='"n"', limit=4)["messages"]) == 4
    done = _ok(api, "messages", queue=queue, text='"n"', status="completed")
    assert done["messages"] == []


def test_a_preview_is_the_beginning_of_a_payload(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": "é" * 1000})
    (message,) = _ok(api, "messages", queue=queue, preview="true")["messages"]
    assert 100 < len(message["preview"]) <= 240


def test_a_message_is_listed_by_its_offset(api: Api, queue: str) -> None:
    api.push_many(queue, 5)
    (message,) = _ok(api, "messages", queue=queue, partition="Default", at=3)["messages"]
    assert message["offset"] == 3
    assert _ok(api, "messages", queue=queue, partition="Default", at=99)["messages"] == []


@pytest.mark.parametrize("query", ["text=a", "queue=q&at=3", "queue=q&partition=p&at=-1"])
def test_a_list_by_text_or_offset_needs_to_know_where(api: Api, query: str) -> None:
    api.push_many("q", 1, "p")
    assert api.call("GET", f"/api/v1/messages?{query}").status == 400


def test_a_text_that_is_too_long_is_refused(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    path = f"/api/v1/messages?queue={quote(queue)}&text={'a' * 256}"
    assert api.call("GET", path).status == 400
