"""Messages that are due later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from tests.api import Api, ack_of, push_of
from tests.contract.conftest import Park, stored
from tests.stopwatch import tries


def later(**delta: float) -> str:
    return (datetime.now(UTC) + timedelta(**delta)).isoformat()


def item(queue: str, payload: object = 1, **more: Any) -> dict[str, Any]:
    return {"queue": queue, "partition": "p", "payload": payload, **more}


def listed(api: Api, queue: str, **query: object) -> list[dict[str, Any]]:
    text = "".join(f"&{name}={value}" for name, value in query.items())
    answer = api.call("GET", f"/api/v1/scheduled?queue={quote(queue)}{text}")
    assert answer.status == 200, answer.raw
    found: list[dict[str, Any]] = answer.json["scheduled"]
    return found


def cancel(api: Api, queue: str, transaction_id: str) -> int:
    path = f"/api/v1/scheduled/{quote(queue, safe='')}/{quote(transaction_id, safe='')}"
    return api.call("DELETE", path).status


async def make_due(connection: asyncpg.Connection, queue: str) -> None:
    """Let the time of everything that is scheduled for a queue come now."""
    await connection.execute(
        "update queen.staged set deliver_at = clock_timestamp() where queue = $1", queue
    )


@pytest.mark.parametrize("when", [{"delay": 3600}, {"delayMs": 3_600_000}, {"deliverAt": None}])
def test_a_scheduled_message_is_answered_without_a_place(
    api: Api, queue: str, when: dict[str, Any]
) -> None:
    if "deliverAt" in when:
        when = {"deliverAt": later(hours=1)}
    answer = api.push(item(queue, transactionId="t1", **when))
    assert answer.status == 201, answer.raw
    (result,) = answer.json
    due = datetime.fromisoformat(result.pop("deliverAt"))
    assert abs((due - datetime.now(UTC)).total_seconds() - 3600) < 60
    assert result == {
        "index": 0,
        "transaction_id": "t1",
        "status": "scheduled",
        "message_id": None,
        "partition_id": None,
        "trace_id": None,
        "queueName": queue,
    }
    assert api.messages(queue) == []
    (row,) = listed(api, queue)
    assert (row["transactionId"], row["partition"], row["payloadBytes"]) == ("t1", "p", 1)


def test_it_comes_when_it_is_due_and_wakes_who_waits(api: Api, queue: str, park: Park) -> None:
    api.configure(queue)
    trace = "11111111-2222-3333-4444-555555555555"
    for delay_ms in (300, 1400):
        # The next due time is known to the relay: it does not wait for its next look.
        for stopwatch in tries(looks_every_s=1, after_s=delay_ms / 1000):
            poll = park(api, queue, "p", autoAck="true", timeout=20_000)
            with stopwatch:
                api.push(item(queue, {"n": delay_ms}, delayMs=delay_ms, traceId=trace))
                (message,) = poll.messages()
            assert message["data"] == {"n": delay_ms} and message["traceId"] == trace
    assert listed(api, queue) == []


def test_messages_come_in_the_order_of_their_times(api: Api, queue: str, park: Park) -> None:
    api.configure(queue)
    poll = park(api, queue, "p", autoAck="true")
    api.push(*(item(queue, n, delayMs=ms) for n, ms in ((3, 900), (1, 300), (2, 600))))
    seen = poll.data()
    while len(seen) < 3:
        seen += api.data(queue, "p", wait="true", timeout=20_000, autoAck="true")
    assert seen == [1, 2, 3]


def test_a_time_in_the_past_is_an_ordinary_push(api: Api, queue: str) -> None:
    answer = api.push(
        item(queue, 1),
        item(queue, 2, deliverAt=later(hours=-1)),
        item(queue, 3, delay=0),
        item(queue, 4, deliverAt="2020-01-01T00:00:00Z"),
        item(queue, 5),
    )
    assert [one["status"] for one in answer.json] == ["queued"] * 5
    assert api.data(queue, batch=10) == [1, 2, 3, 4, 5]


def test_neighbours_are_answered_in_the_order_of_the_request(api: Api, queue: str) -> None:
    answer = api.push(
        item(queue, 1, delay=60), item(queue, 2), item(f"{queue}-b", 3), item(queue, 4, delay=60)
    )
    assert [one["index"] for one in answer.json] == [0, 1, 2, 3]
    assert [one["status"] for one in answer.json] == ["scheduled", "queued", "queued", "scheduled"]
    assert api.data(queue) == [2]


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ({"delay": 1, "deliverAt": "2100-01-01"}, "one of deliverAt, delay and delayMs"),
        ({"delay": 1, "delayMs": 1}, "one of deliverAt, delay and delayMs"),
        ({"delay": -1}, "delay is negative"),
        ({"delayMs": -0.5}, "delayMs is negative"),
        ({"delay": 3651 * 86400}, "delay is more than 3650 days"),
        ({"delay": 1e300}, "delay is more than 3650 days"),
        ({"deliverAt": "2999-01-01T00:00:00Z"}, "deliverAt is more than 3650 days ahead"),
        ({"deliverAt": "tomorrow"}, "deliverAt is not an ISO-8601 time"),
        ({"deliverAt": ""}, "deliverAt is not an ISO-8601 time"),
        ({"deliverAt": 5}, "deliverAt"),
        ({"delay": "5"}, "delay"),
        ({"delay": True}, "delay"),
    ],
)
def test_a_bad_time_is_refused_and_its_neighbours_are_stored(
    api: Api, queue: str, when: dict[str, Any], reason: str
) -> None:
    answer = api.push(item(queue, 1), item(queue, 2, **when), item(queue, 3, delay=60))
    assert answer.status == 400
    (refused,) = answer.json["items"]
    assert refused["index"] == 1 and reason in refused["reason"]
    assert [one["status"] for one in answer.json["results"]] == ["queued", "scheduled"]
    assert api.data(queue) == [1]
    assert len(listed(api, queue)) == 1


def test_other_bad_items_are_refused_before_they_are_staged(api: Api, queue: str) -> None:
    deep = "[" * 129 + "]" * 129
    body = (
        f'{{"items": [{{"queue": "", "delay": 60}}, {{"queue": "{queue}", "delay": 60,'
        f' "payload": {deep}}}, {{"queue": "{queue}", "delay": 60, "transactionId": ""}},'
        f' {{"queue": "{queue}", "delay": 60, "traceId": "x"}}]}}'
    )
    answer = api.call("POST", "/api/v1/push", body)
    assert answer.status == 400
    assert [one["index"] for one in answer.json["items"]] == [0, 1, 2, 3]
    assert listed(api, queue) == []


def test_a_key_with_escapes_is_the_same_key(api: Api, queue: str) -> None:
    body = f'{{"items": [{{"queue": "{queue}", "payload": 1, "\\u0064elay": 60}}]}}'
    assert api.call("POST", "/api/v1/push", body).json[0]["status"] == "scheduled"


def test_nulls_mean_now(api: Api, queue: str) -> None:
    answer = api.push(item(queue, 1, delay=None, deliverAt=None, delayMs=None))
    assert answer.json[0]["status"] == "queued"


async def test_dedup_is_done_when_it_is_due(
    api: Api, queue: str, park: Park, connection: asyncpg.Connection
) -> None:
    api.push(item(queue, 1, transactionId="same", delay=60))
    api.push(item(queue, 2, transactionId="same", delay=61))
    assert api.push(item(queue, 3, transactionId="other")).json[0]["status"] == "queued"
    assert api.data(queue, autoAck="true") == [3]
    poll = park(api, queue, autoAck="true")
    await make_due(connection, queue)
    assert poll.data() == [1]
    api.push(item(queue, 4, transactionId="same"))
    assert await stored(connection, queue) == 2
    assert listed(api, queue) == []


def test_what_is_cancelled_never_comes(api: Api, queue: str) -> None:
    api.push(item(queue, 1, transactionId="a/b ü", delayMs=400), item(queue, 2, delayMs=600))
    assert cancel(api, queue, "a/b ü") == 200
    assert cancel(api, queue, "a/b ü") == 404
    assert api.data(queue, wait="true", timeout=20_000, batch=10, autoAck="true") == [2]
    assert api.data(queue) == []


def test_what_was_delivered_cannot_be_cancelled(api: Api, queue: str) -> None:
    api.push(item(queue, 1, transactionId="t", delayMs=50))
    assert api.data(queue, wait="true", timeout=20_000, autoAck="true") == [1]
    assert cancel(api, queue, "t") == 404


def test_a_bad_cancellation_names_what_is_wrong(api: Api, queue: str) -> None:
    assert cancel(api, queue, "x" * 256) == 400
    assert cancel(api, "a\nb", "x") == 400
    for query in ("limit=0", "limit=1001", "offset=-1", "limit=x", "queue=%00"):
        assert api.call("GET", f"/api/v1/scheduled?{query}").status == 400


def test_the_list_is_paged_soonest_first(api: Api, queue: str) -> None:
    ids = [f"t{n}" for n in range(5)]
    api.push(*(item(queue, n, transactionId=ids[n], delay=600 - n) for n in range(5)))
    pages = [listed(api, queue, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [row["transactionId"] for page in pages for row in page] == ids[::-1]
    assert [len(page) for page in pages] == [2, 2, 1]
    answer = api.call("GET", f"/api/v1/scheduled?queue={queue}&limit=2").json
    assert (answer["limit"], answer["offset"], answer["more"]) == (2, 0, True)
    everywhere = api.call("GET", "/api/v1/scheduled?limit=1000").json["scheduled"]
    assert set(ids) <= {row["transactionId"] for row in everywhere if row["queue"] == queue}


def test_a_deleted_queue_takes_its_scheduled_messages_with_it(api: Api, queue: str) -> None:
    api.push(item(queue, 1, delayMs=500), item(queue, 0))
    api.push(item(f"{queue}-b", 2, delayMs=500))
    api.delete_queue(queue)
    assert listed(api, queue) == []
    assert api.data(f"{queue}-b", wait="true", timeout=20_000) == [2]
    assert api.data(queue) == []


async def test_an_encrypted_queue_keeps_no_plain_text_while_it_waits(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    assert api.push(item(queue, "plain words", delay=60)).status == 201
    assert api.transaction(push_of(item(queue, "plain words", delay=61))).status == 200
    rows = await connection.fetch("select payload from queen.staged where queue = $1", queue)
    assert len(rows) == 2 and not any(b"plain" in row["payload"] for row in rows)
    await make_due(connection, queue)
    found = api.data(queue, "p", wait="true", timeout=20_000, batch=10, autoAck="true")
    assert found == ["plain words"] * 2
    bodies = await connection.fetch(
        "select s.body from queen.segments s join queen.queues q on q.id = s.queue_id"
        " where q.name = $1",
        queue,
    )
    assert bodies and not any(b"plain" in row["body"] for row in bodies)


# ---- transactions ----


def test_a_transaction_schedules_with_everything_else(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    answer = api.transaction(
        ack_of(message),
        push_of(item(f"{queue}-b", 1, transactionId="t", delay=60), item(f"{queue}-b", 2)),
        push_of(item(f"{queue}-b", 3, delayMs=50)),
    )
    assert answer.status == 200, answer.raw
    acked, pushed, single = answer.json["results"]
    assert acked["success"] and pushed["count"] == 2
    assert {one["status"] for one in pushed["items"]} == {"scheduled", "queued"}
    assert single["status"] == "scheduled" and single["messageId"] is None
    assert api.data(f"{queue}-b", autoAck="true") == [2]
    assert api.data(f"{queue}-b", wait="true", timeout=20_000, autoAck="true") == [3]
    assert [row["transactionId"] for row in listed(api, f"{queue}-b")] == ["t"]


def test_a_transaction_that_fails_schedules_nothing(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    assert api.ack(message).status == 200
    lost = {**message, "leaseId": "00000000-0000-4000-8000-000000000000"}
    answer = api.transaction(ack_of(lost), push_of(item(f"{queue}-b", 1, delay=60)))
    assert answer.status == 409
    answer = api.transaction(push_of(item(queue, 1, delay=60), item(queue, 2, delay=-1)))
    assert answer.status == 400 and "item 1: delay is negative" in answer.json["error"]
    assert listed(api, f"{queue}-b") == listed(api, queue) == []
