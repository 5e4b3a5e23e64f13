"""Streams with the verbs of Redis over HTTP: the routes of the original, and those it lacks."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from tests.api import Api, Poll
from tests.integration.test_serve import Start, run
from tests.waiting import until

_LONG_MS = 60_000


def add(api: Api, stream: str, data: Any) -> str:
    answer = api.call("POST", f"/stream/{quote(stream, safe='')}/add", json.dumps(data))
    assert answer.status == 200, answer
    return str(answer.json["messageId"])


def consumer_path(stream: str, consumer: str = "c", **query: Any) -> str:
    path = f"/stream/{stream}/group/g/consumer/{consumer}"
    return path + "?" + "&".join(f"{name}={value}" for name, value in query.items())


def ids_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in messages]


# ---- the routes of the original ----


def test_a_message_goes_all_the_way(api: Api, queue: str) -> None:
    created = api.call("POST", f"/stream/{queue}/group/g", {"startId": "0"})
    assert created.json == {"status": "created", "stream": queue, "group": "g", "startId": "0"}
    data = {"task": "send", "to": ['"quoted"', None, 1.5]}
    answer = api.call("POST", f"/stream/{queue}/add", data)
    message_id = answer.json["messageId"]
    assert answer.status == 200
    assert answer.json == {"status": "added", "messageId": message_id, "stream": queue}
    read = api.call("GET", consumer_path(queue, count=5, block=0))
    (message,) = read.json["messages"]
    assert read.json == {
        "stream": queue,
        "group": "g",
        "consumer": "c",
        "count": 1,
        "messages": [message],
    }
    assert message == {
        "id": message_id,
        "data": data,
        "timestamp": int(message_id.split("-")[0]) / 1000,
        "deliveryCount": 1,
    }
    info = api.call("GET", f"/stream/{queue}/info").json
    (group,) = info["groups"]
    (consumer,) = group["consumers"]
    assert (info["stream"], info["length"]) == (queue, 1)
    assert group == {
        "name": "g",
        "consumers": [{"name": "c", "pending": 1, "lastActivity": consumer["lastActivity"]}],
        "lastDeliveredId": message_id,
        "totalPending": 1,
        "lag": 0,
    }
    acked = api.call("POST", f"/stream/{queue}/group/g/ack", {"messageIds": [message_id]})
    assert (acked.status, acked.json) == (200, {"status": "acknowledged", "count": 1})


def test_what_is_left_out_has_the_defaults_of_the_original(api: Api, queue: str) -> None:
    add(api, queue, "before")
    created = api.call("POST", f"/stream/{queue}/group/g")
    assert (created.status, created.json["startId"]) == (200, "$")
    added = [add(api, queue, number) for number in range(2)]
    # It is there, and stays where it is.
    assert api.call("POST", f"/stream/{queue}/group/g", {"startId": "0"}).status == 200
    assert ids_of(api.call("GET", consumer_path(queue)).json["messages"]) == added[:1]


@pytest.mark.parametrize("body", [None, b"", b"null", b" null ", b"{", b"{'a': 1}", b"\xff"])
def test_an_add_needs_data(api: Api, queue: str, body: bytes | None) -> None:
    answer = api.call("POST", f"/stream/{queue}/add", body)
    assert (answer.status, answer.json["error"]) == (400, "message data required")
    assert api.call("GET", f"/stream/{queue}/info").json["length"] == 0


@pytest.mark.parametrize(
    "body", [None, b"{", b"[]", b"{}", b'{"messageIds": []}', b'{"messageIds": "1-1"}']
)
def test_an_ack_needs_ids(api: Api, queue: str, body: bytes | None) -> None:
    answer = api.call("POST", f"/stream/{queue}/group/g/ack", body)
    assert (answer.status, answer.json["error"]) == (400, "messageIds array required")


def test_what_does_not_exist_is_empty(api: Api, queue: str) -> None:
    info = api.call("GET", f"/stream/{queue}/info")
    assert (info.status, info.json) == (200, {"stream": queue, "length": 0, "groups": []})
    for block in (0, _LONG_MS):
        read = api.call("GET", consumer_path(queue, block=block))
        assert (read.status, read.json["count"], read.json["messages"]) == (200, 0, [])
    acked = api.call("POST", f"/stream/{queue}/group/g/ack", {"messageIds": ["1-1"]})
    assert acked.json == {"status": "acknowledged", "count": 0}


@pytest.mark.parametrize("data", [0, False, "", [], {}, "null", 2**63, {"a": {"b": [1]}}])
def test_any_value_is_a_message(api: Api, queue: str, data: Any) -> None:
    add(api, queue, data)
    (message,) = api.call("GET", f"/stream/{queue}/messages").json["messages"]
    assert message["data"] == data
    assert type(message["data"]) is type(data)


def test_names_are_encoded(api: Api, queue: str) -> None:
    stream, group, consumer = f'{queue} "a/b"', 'g"\\ü\n', 'c/"'
    path = f"/stream/{quote(stream, safe='')}/group/{quote(group, safe='')}"
    created = api.call("POST", path, {"startId": "0"}).json
    assert (created["stream"], created["group"]) == (stream, group)
    message_id = add(api, stream, 1)
    read = api.call("GET", f"{path}/consumer/{quote(consumer, safe='')}").json
    assert (read["consumer"], ids_of(read["messages"])) == (consumer, [message_id])
    refused = api.call("POST", "/stream/no%0Aname/add", b"1")
    assert (refused.status, refused.json["code"]) == (400, "bad_request")


# ---- those it lacks ----


def test_pending_messages_are_listed_claimed_and_given_back(api: Api, queue: str) -> None:
    group = f"/stream/{queue}/group/g"
    api.call("POST", group, {"startId": "0"})
    added = [add(api, queue, number) for number in range(3)]
    api.call("GET", consumer_path(queue, count=3))
    listed = api.call("GET", f"{group}/pending").json
    assert (listed["count"], ids_of(listed["messages"])) == (3, added)
    assert {message["consumer"] for message in listed["messages"]} == {"c"}
    assert api.call("GET", f"{group}/consumer/other/pending").json["count"] == 0
    few = api.call("GET", f"{group}/pending?count=2").json
    assert ids_of(few["messages"]) == added[:2]
    assert api.call("GET", f"{group}/pending?count=-1").status == 400
    claim = {"consumer": "d", "minIdleMs": 0}
    named = api.call("POST", f"{group}/claim", claim | {"messageIds": added[1:2]}).json
    assert (named["consumer"], ids_of(named["messages"])) == ("d", added[1:2])
    assert named["messages"][0]["deliveryCount"] == 2
    assert ids_of(api.call("POST", f"{group}/claim", claim).json["messages"]) == added[:1]
    released = api.call("POST", f"{group}/nack", {"messageIds": added}).json
    assert released == {"status": "released", "count": 3}
    hour = claim | {"minIdleMs": 3_600_000, "count": 0}
    assert ids_of(api.call("POST", f"{group}/claim", hour).json["messages"]) == added
    gone = api.call("DELETE", f"{group}/consumer/d").json
    assert (gone["status"], gone["pending"]) == ("deleted", 3)
    assert api.call("GET", group).json["totalPending"] == 3


def test_messages_are_listed_deleted_and_trimmed(api: Api, queue: str) -> None:
    added = [add(api, queue, number) for number in range(6)]
    path = f"/stream/{queue}/messages"
    some = api.call("GET", f"{path}?from=({added[0]}&to={added[4]}&count=3").json
    assert (some["count"], ids_of(some["messages"])) == (3, added[1:4])
    deleted = api.call("POST", f"/stream/{queue}/delete", {"messageIds": added[:1]}).json
    assert deleted == {"status": "deleted", "count": 1}
    trimmed = api.call("POST", f"/stream/{queue}/trim", {"maxLength": 2}).json
    assert trimmed == {"status": "trimmed", "count": 3}
    assert api.call("GET", f"/stream/{queue}/length").json == {"stream": queue, "length": 2}
    listed = api.call("GET", f"/stream?pattern={queue}*").json
    assert listed == {"count": 1, "streams": [queue]}


def test_groups_are_shown_moved_and_deleted(api: Api, queue: str) -> None:
    group = f"/stream/{queue}/group/g"
    assert api.call("GET", group).status == 404
    assert api.call("PUT", group, {"startId": "0"}).status == 404
    assert api.call("PUT", f"{group}/delivery-limit", {"limit": 1}).status == 404
    added = add(api, queue, 1)
    api.call("POST", group)
    assert api.call("POST", group, {"strict": True}).status == 409
    assert api.call("PUT", group, {"startId": "0"}).json["status"] == "moved"
    assert ids_of(api.call("GET", consumer_path(queue)).json["messages"]) == [added]
    assert api.call("DELETE", group).json["status"] == "deleted"
    assert api.call("DELETE", group).status == 200
    assert api.call("GET", group).status == 404
    assert api.call("POST", group, {"startId": "nonsense"}).status == 400


def test_what_is_delivered_too_often_is_set_aside_and_comes_back(api: Api, queue: str) -> None:
    group = f"/stream/{queue}/group/g"
    api.call("POST", group)
    assert api.call("PUT", f"{group}/delivery-limit", {"limit": 1}).json["limit"] == 1
    message_id = add(api, queue, "poison")
    api.call("GET", consumer_path(queue))
    claim = {"consumer": "d", "minIdleMs": 0}
    assert api.call("POST", f"{group}/claim", claim).json["count"] == 0
    (letter,) = api.call("GET", f"/stream/{queue}.dlq/messages").json["messages"]
    origin = {"stream": queue, "group": "g", "id": message_id, "deliveries": 1}
    assert (letter["data"], letter["deadLetter"]) == ("poison", origin)
    redriven = api.call("POST", f"/stream/{queue}/redrive").json
    assert redriven == {"status": "redriven", "count": 1}
    assert [each["data"] for each in api.call("GET", consumer_path(queue)).json["messages"]] == [
        "poison"
    ]


# ---- waiting ----


def _has_consumer(api: Api, stream: str, consumer: str) -> bool:
    groups = api.call("GET", f"/stream/{stream}/info").json["groups"]
    return any(each["name"] == consumer for group in groups for each in group["consumers"])


def wait_as(api: Api, stream: str, consumer: str) -> Poll:
    poll = Poll(api, consumer_path(stream, consumer, block=_LONG_MS))
    until(lambda: _has_consumer(api, stream, consumer))
    return poll


def test_an_add_wakes_who_waits_on_any_server(api: Api, other_api: Api, queue: str) -> None:
    api.call("POST", f"/stream/{queue}/group/g")
    poll = wait_as(api, queue, "c")
    assert not poll.is_answered()
    added = add(other_api, queue, 1)
    assert ids_of(poll.messages()) == [added]
    poll.hang_up()


def test_a_wait_ends_with_its_group(api: Api, queue: str) -> None:
    api.call("POST", f"/stream/{queue}/group/g")
    poll = wait_as(api, queue, "c")
    api.call("DELETE", f"/stream/{queue}/group/g")
    assert poll.messages() == []
    poll.hang_up()


def test_who_hangs_up_is_given_nothing(api: Api, queue: str) -> None:
    api.call("POST", f"/stream/{queue}/group/g")
    wait_as(api, queue, "gone").hang_up()
    poll = wait_as(api, queue, "stays")
    # The one that is gone came first. When it has left, the next is served.
    added: list[str] = []

    def is_served() -> bool:
        added.append(add(api, queue, len(added)))
        return poll.is_answered(0.05)

    until(is_served)
    (served,) = ids_of(poll.messages())
    lost = api.call("GET", f"/stream/{queue}/group/g/consumer/gone/pending").json["messages"]
    assert served == added[len(lost)]
    assert len(lost) <= 1
    poll.hang_up()


def test_a_server_that_stops_answers_who_waits(start_server: Start, dsn: str, queue: str) -> None:
    running = start_server("--database-url", dsn)
    api = running.api()
    api.call("POST", f"/stream/{queue}/group/g")
    poll = wait_as(api, queue, "c")
    assert running.stop() == 0
    answer = poll.answer()
    assert (answer.status, answer.json["retryable"]) == (503, True)
    poll.hang_up()


# ---- other backends ----


def test_streams_may_be_in_memory(start_server: Start, dsn: str, api: Api, queue: str) -> None:
    running = start_server("--database-url", dsn, env={"QUEEN_STREAM_BACKEND": "memory"})
    own = running.api()
    own.call("POST", f"/stream/{queue}/group/g")
    poll = wait_as(own, queue, "c")
    added = add(own, queue, {"a": 1})
    assert ids_of(poll.messages()) == [added]
    poll.hang_up()
    assert "bounded" in own.call("GET", "/stream/capabilities").json["capabilities"]
    assert api.call("GET", f"/stream/{queue}/info").json["length"] == 0
    poll = wait_as(own, queue, "c")
    assert running.stop() == 0
    assert poll.answer().status == 503
    poll.hang_up()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--stream-backend", "kafka://host"), "is not known"),
        (("--stream-backend", "memory", "--workers", "2"), "one process"),
        (("--stream-backend", "redis://host:port"), "not a URL"),
    ],
)
def test_a_backend_that_cannot_be_is_told(arguments: tuple[str, ...], reason: str) -> None:
    refused = run("serve", *arguments)
    assert refused.returncode == 78
    assert reason in refused.stderr


async def test_entries_of_an_encrypted_queue_are_encrypted(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    entry_id = add(api, queue, {"secret": "plain words"})
    body = await connection.fetchval(
        "select s.body from queen.segments s join queen.queues q on q.id = s.queue_id"
        " where q.name = $1",
        queue,
    )
    assert isinstance(body, bytes)
    assert b"plain words" not in body
    # The other server has it from the database only.
    (message,) = other_api.call("GET", f"/stream/{queue}/messages").json["messages"]
    assert (message["id"], message["data"]) == (entry_id, {"secret": "plain words"})
