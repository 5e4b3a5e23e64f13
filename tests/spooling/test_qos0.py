"""QoS 0 over HTTP: answered at once, stored a moment later, in order."""

from __future__ import annotations

from typing import Any

import pytest

from queen.core.frame import encode_frame
from tests.api import Api, push_of
from tests.waiting import until

SOON: dict[str, Any] = {"bufferMs": 50, "bufferMax": 100}
LATER: dict[str, Any] = {"bufferMs": 3000, "bufferMax": 10_000}


def push(api: Api, *items: dict[str, Any], **how: Any) -> Any:
    return api.call("POST", "/api/v1/push", {"items": list(items), **how})


def collect(api: Api, queue: str, count: int, **query: Any) -> list[Any]:
    """Pop with `autoAck` until so many came; return what they hold."""
    collected: list[Any] = []

    def is_complete() -> bool:
        collected.extend(api.data(queue, batch=100, autoAck="true", **query))
        return len(collected) >= count

    until(is_complete)
    return collected


@pytest.mark.parametrize("how", [SOON, {"qos0": True}, {"bufferMs": 10}, {"bufferMax": 5}])
def test_a_push_is_answered_as_buffered_and_stored(
    api: Api, queue: str, how: dict[str, Any]
) -> None:
    trace = "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11"
    items = [{"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(10)]
    answer = push(api, *items, {"queue": queue, "payload": "x", "traceId": trace}, **how)
    assert answer.status == 202
    assert [one["status"] for one in answer.json] == ["buffered"] * 11
    assert [one["index"] for one in answer.json] == list(range(11))
    assert answer.json[3]["transaction_id"] == "t3" and answer.json[10]["trace_id"] == trace
    assert {one["message_id"] for one in answer.json} == {None}
    assert collect(api, queue, 11) == [*range(10), "x"]


def test_what_was_delivered_with_auto_ack_does_not_come_again(api: Api, queue: str) -> None:
    push(api, *({"queue": queue, "payload": n} for n in range(5)), **SOON)
    assert collect(api, queue, 5) == list(range(5))
    assert api.messages(queue, batch=10) == []


def test_every_group_gets_it_with_auto_ack(api: Api, queue: str) -> None:
    push(api, *({"queue": queue, "payload": n} for n in range(5)), **SOON)
    for group in ("dashboard", "analytics", "billing"):
        query = {"consumerGroup": group, "subscriptionMode": "all"}
        assert collect(api, queue, 5, **query) == list(range(5))
        assert api.messages(queue, batch=10, **query) == []


def test_order_is_kept_within_a_partition(api: Api, queue: str) -> None:
    for n in range(100):
        push(api, {"queue": queue, "partition": f"p{n % 3}", "payload": n}, **SOON)
    found = collect(api, queue, 100)
    for rest in range(3):
        assert [n for n in found if n % 3 == rest] == list(range(rest, 100, 3))


def test_other_pushes_of_the_partition_go_behind_it_and_no_others(api: Api, queue: str) -> None:
    push(api, {"queue": queue, "payload": 0}, **LATER)
    behind = push(api, {"queue": queue, "payload": 1})
    beside = push(api, {"queue": queue, "partition": "other", "payload": "x"})
    assert (behind.status, beside.status) == (202, 201)
    mixed = push(
        api, {"queue": queue, "payload": 2}, {"queue": queue, "partition": "q", "payload": "y"}
    )
    # What has to wait is stored soon: it waits for no more than what is in front of it.
    assert [one["status"] for one in mixed.json] in (["buffered", "queued"], ["queued", "queued"])
    found = collect(api, queue, 5)
    assert [n for n in found if isinstance(n, int)] == [0, 1, 2]
    again = until(lambda: (a := push(api, {"queue": queue, "payload": 3})).status == 201 and a)
    assert again.json[0]["status"] == "queued"


def test_transactions_and_schedules_go_beside_it(api: Api, queue: str) -> None:
    answer = push(
        api, {"queue": queue, "payload": "now"}, {"queue": queue, "payload": 1, "delay": 1}, **SOON
    )
    assert [one["status"] for one in answer.json] == ["buffered", "scheduled"]
    assert answer.status == 202
    other = f"{queue}-other"
    assert api.transaction(push_of({"queue": other, "payload": 1})).status == 200
    assert collect(api, queue, 2) == ["now", 1]


def test_payloads_come_back_as_they_were_sent(api: Api, queue: str) -> None:
    events = [{"at": at, "text": "ü\n" * 10} for at in range(200)]
    payloads = [events, None, "", 0, -1.5, True, {}, [], {"a": {"b": [1, "x", None]}}]
    push(api, *({"queue": queue, "payload": each} for each in payloads), **SOON)
    assert collect(api, queue, len(payloads)) == payloads


def test_a_frame_is_buffered_when_the_query_says_so(api: Api, queue: str) -> None:
    frame = encode_frame(queue, "p", ["a", "b"], [b"1", b"2"])
    headers = {"content-type": "application/vnd.queen.segment"}
    answer = api.call("POST", "/api/v1/push?qos0=true&bufferMs=20", frame, headers)
    (result,) = answer.json
    assert answer.status == 202
    assert (result["status"], result["count"], result["queue"]) == ("buffered", 2, queue)
    assert collect(api, queue, 2) == [1, 2]


def test_ids_that_are_known_are_stored_once(api: Api, queue: str) -> None:
    item = {"queue": queue, "payload": 1, "transactionId": "same"}
    assert push(api, item).status == 201
    for _ in range(3):
        push(api, item, **SOON)
    push(api, {"queue": queue, "payload": "end"}, **SOON)
    assert collect(api, queue, 2) == [1, "end"]


def test_a_bad_item_is_told_and_the_others_are_buffered(api: Api, queue: str) -> None:
    answer = push(
        api,
        {"queue": queue, "payload": 1},
        {"queue": "", "payload": 2},
        {"queue": queue, "payload": 3},
        **SOON,
    )
    assert answer.status == 400
    assert [one["index"] for one in answer.json["items"]] == [1]
    assert [one["status"] for one in answer.json["results"]] == ["buffered", "buffered"]
    assert collect(api, queue, 2) == [1, 3]


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"bufferMs": -1}, "bufferMs"),
        ({"bufferMs": 60_001}, "bufferMs"),
        ({"bufferMs": "50"}, "bufferMs"),
        ({"bufferMax": 0}, "bufferMax"),
        ({"bufferMax": 1.5}, "bufferMax"),
        ({"qos0": "yes"}, "qos0"),
    ],
)
def test_what_means_nothing_is_refused(
    api: Api, queue: str, how: dict[str, Any], named: str
) -> None:
    answer = push(api, {"queue": queue, "payload": 1}, **how)
    assert answer.status == 400 and named in answer.json["error"]
    query = api.call(
        "POST", f"/api/v1/push?{named}=x", encode_frame(queue, "p", ["a"], [b"1"]),
        {"content-type": "application/vnd.queen.segment"},
    )  # fmt: skip
    assert query.status == 400 and named in query.json["error"]


def test_a_push_that_says_no_is_stored_at_once(api: Api, queue: str) -> None:
    assert push(api, {"queue": queue, "payload": 1}, qos0=False, bufferMs=50).status == 201
    body = {"items": [{"queue": queue, "payload": 1}]}
    no = {**body, "qos0": False}
    for query in ("qos0=false&bufferMax=5", "qos0=0&bufferMs=5"):
        assert api.call("POST", f"/api/v1/push?{query}", body).status == 201
    assert api.call("POST", "/api/v1/push?qos0=true", no).status == 201
    assert api.call("POST", "/api/v1/push?qos0=true", body).status == 202


def test_what_waits_is_shown(api: Api, queue: str) -> None:
    push(api, {"queue": queue, "payload": 1}, **LATER)
    state = api.call("GET", "/api/v1/spool").json
    assert state["enabled"] and state["database"] == "connected" and state["records"] >= 1
    assert state["oldestAt"] and state["bufferedMessages"] >= 1 and state["bytes"] > 0
    assert api.call("GET", "/api/v1/status/buffers").json["pending"] >= 1
    text = api.call("GET", "/metrics/prometheus").raw.decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("queen_sp"))
    assert float(lines["queen_spool_records"]) >= 1
    assert collect(api, queue, 1) == [1]
    until(lambda: api.call("GET", "/api/v1/spool").json["records"] == 0)
