"""Push: what is stored, what is a duplicate, and what the answer says."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.contract.conftest import age, stored


def test_the_answer_is_an_array_in_item_order(api: Api, queue: str) -> None:
    trace = str(uuid.uuid4())
    answer = api.push(
        {"queue": queue, "payload": 1, "transactionId": "a"},
        {"queue": queue, "payload": 2, "transactionId": "b", "traceId": trace},
    )
    assert answer.status == 201
    assert answer.headers["content-type"] == "application/json"
    first, second = answer.json
    assert first.keys() >= {
        "index",
        "transaction_id",
        "status",
        "message_id",
        "partition_id",
        "trace_id",
        "queueName",
    }
    assert (first["index"], first["transaction_id"], first["status"]) == (0, "a", "queued")
    assert (second["index"], second["transaction_id"], second["status"]) == (1, "b", "queued")
    assert (first["trace_id"], second["trace_id"]) == (None, trace)
    assert first["queueName"] == queue
    assert first["partition_id"] == second["partition_id"]
    assert uuid.UUID(first["message_id"]) != uuid.UUID(second["message_id"])


def test_a_push_is_visible_to_the_very_next_pop(api: Api, queue: str) -> None:
    (transaction_id,) = api.push_many(queue, 1)
    (message,) = api.messages(queue, batch=10)
    assert message["transactionId"] == transaction_id
    assert message["data"] == {"n": 0}


def test_a_push_is_visible_to_every_next_pop(api: Api, queue: str) -> None:
    for n in range(30):
        api.push({"queue": queue, "partition": f"p{n % 3}", "payload": n})
        assert api.data(queue, autoAck="true") == [n]


def test_pop_gives_the_ids_that_push_answered(api: Api, queue: str) -> None:
    pushed = api.push({"queue": queue, "partition": "x", "payload": 0}).json[0]
    (message,) = api.messages(queue)
    assert message["id"] == pushed["message_id"]
    assert message["partitionId"] == pushed["partition_id"]
    assert message["transactionId"] == pushed["transaction_id"]


def test_no_items_is_an_empty_answer(api: Api) -> None:
    answer = api.push()
    assert (answer.status, answer.raw) == (201, b"[]")


async def test_a_push_creates_its_queue_with_labels_from_the_name(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for name, labels in [
        (f"{queue}.orders.new", (queue, "orders")),
        (f"{queue}.orders", (queue, "orders")),
        (queue, (queue, "")),
    ]:
        api.push({"queue": name, "payload": 1})
        row = await connection.fetchrow(
            "select namespace, task from queen.queues where name = $1", name
        )
        assert row is not None
        assert tuple(row) == labels


def test_an_item_without_a_partition_goes_to_default(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": 1}, {"queue": queue, "payload": 2, "partition": None})
    messages = api.messages(queue, "Default", batch=10)
    assert [one["partition"] for one in messages] == ["Default", "Default"]


def test_many_partitions_in_one_request_keep_the_order_of_the_answer(api: Api, queue: str) -> None:
    items = [
        {
            "queue": f"{queue}.{n % 3}",
            "partition": f"p{n % 7}",
            "payload": n,
            "transactionId": f"t{n}",
        }
        for n in range(300)
    ]
    answer = api.push(*items).json
    assert [one["index"] for one in answer] == list(range(300))
    assert [one["transaction_id"] for one in answer] == [f"t{n}" for n in range(300)]
    assert [one["queueName"] for one in answer] == [f"{queue}.{n % 3}" for n in range(300)]
    assert len({one["message_id"] for one in answer}) == 300
    assert len({one["partition_id"] for one in answer}) == 21
    # Every partition got its own items, in order.
    for n in range(21):
        data = api.data(f"{queue}.{n % 3}", f"p{n % 7}", batch=300)
        assert data == list(range(n, 300, 21))


def test_an_item_without_an_id_gets_one(api: Api, queue: str) -> None:
    made = api.push_many(queue, 50)
    assert len(set(made)) == 50
    assert [one["transactionId"] for one in api.messages(queue, batch=50)] == made


def test_given_and_made_ids_mix(api: Api, queue: str) -> None:
    answer = api.push(
        {"queue": queue, "payload": 1},
        {"queue": queue, "payload": 2, "transactionId": "mine"},
        {"queue": queue, "payload": 3, "transactionId": None},
    ).json
    assert answer[1]["transaction_id"] == "mine"
    assert len({one["transaction_id"] for one in answer}) == 3


def test_ids_with_odd_characters_come_back_as_they_were(api: Api, queue: str) -> None:
    ids = ['quote"', "back\\slash", "line\nbreak", "tab\t", "ü", "日本", "😀", "\x7f", "a b"]
    answer = api.push(*[{"queue": queue, "payload": 0, "transactionId": one} for one in ids])
    assert [one["transaction_id"] for one in answer.json] == ids
    messages = api.messages(queue, batch=20)
    assert [one["transactionId"] for one in messages] == ids
    results = api.ack_batch(messages).json["results"]
    assert [one["transactionId"] for one in results] == ids
    assert all(one["success"] for one in results)


# ---- duplicates ----


def test_a_duplicate_inside_a_request_names_the_first(api: Api, queue: str) -> None:
    item = {"queue": queue, "transactionId": "t"}
    answer = api.push(
        {**item, "payload": 1},
        {"queue": queue, "transactionId": "u", "payload": 2},
        {**item, "payload": 3},
    ).json
    assert [one["status"] for one in answer] == ["queued", "queued", "duplicate"]
    assert answer[2]["message_id"] == answer[0]["message_id"]
    assert api.data(queue, batch=10) == [1, 2]


def test_a_duplicate_of_an_earlier_request_names_the_original(api: Api, queue: str) -> None:
    first = api.push({"queue": queue, "payload": 1, "transactionId": "t"}).json[0]
    answer = api.push(
        {"queue": queue, "payload": 2, "transactionId": "s"},
        {"queue": queue, "payload": 3, "transactionId": "t"},
        {"queue": queue, "payload": 4, "transactionId": "u"},
    )
    assert answer.status == 201
    assert [one["status"] for one in answer.json] == ["queued", "duplicate", "queued"]
    assert answer.json[1]["message_id"] == first["message_id"]
    messages = api.messages(queue, batch=10)
    assert [one["data"] for one in messages] == [1, 2, 4]
    ids = [first["message_id"], answer.json[0]["message_id"], answer.json[2]["message_id"]]
    assert [one["id"] for one in messages] == ids


def test_a_duplicate_of_a_consumed_message_is_still_one(api: Api, queue: str) -> None:
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    api.push(item)
    api.messages(queue, autoAck="true")
    assert api.push(item).json[0]["status"] == "duplicate"
    assert api.pop(queue).status == 204


def test_a_whole_large_request_again_is_all_duplicates(api: Api, queue: str) -> None:
    items = [{"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(200)]
    first = api.push(*items).json
    again = api.push(*items).json
    assert {one["status"] for one in again} == {"duplicate"}
    assert [one["message_id"] for one in again] == [one["message_id"] for one in first]
    assert len(api.messages(queue, batch=1000)) == 200


def test_a_large_request_with_some_duplicates_stores_the_rest_in_order(
    api: Api, queue: str
) -> None:
    api.push(*[{"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(0, 100, 7)])
    answer = api.push(
        *[{"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(100)]
    ).json
    fresh = [n for n in range(100) if n % 7]
    assert [one["index"] for one in answer if one["status"] == "queued"] == fresh
    messages = api.messages(queue, batch=1000)
    assert [one["data"] for one in messages] == [*range(0, 100, 7), *fresh]
    by_id = {one["id"]: one["transactionId"] for one in messages}
    assert all(by_id[one["message_id"]] == one["transaction_id"] for one in answer)


def test_the_same_id_in_another_partition_or_queue_is_another_message(api: Api, queue: str) -> None:
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    answer = api.push(item, {**item, "partition": "p"}, {**item, "queue": f"{queue}.x"}).json
    assert [one["status"] for one in answer] == ["queued"] * 3
    assert len({one["message_id"] for one in answer}) == 3


def test_trace_ids_stay_with_their_messages_when_some_are_duplicates(api: Api, queue: str) -> None:
    traces = [str(uuid.uuid4()) if n % 3 else None for n in range(50)]
    api.push(*[{"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(0, 50, 5)])
    answer = api.push(
        *[
            {"queue": queue, "payload": n, "transactionId": f"t{n}", "traceId": traces[n]}
            for n in range(50)
        ]
    ).json
    assert [one["status"] == "queued" for one in answer] == [n % 5 != 0 for n in range(50)]
    fresh = [n for n in range(50) if n % 5]
    assert [answer[n]["trace_id"] for n in fresh] == [traces[n] for n in fresh]
    messages = api.messages(queue, batch=100)
    assert [one["traceId"] for one in messages[:10]] == [None] * 10
    assert [one["traceId"] for one in messages[10:]] == [traces[n] for n in fresh]


def test_trace_ids_of_small_pushes_come_back(api: Api, queue: str) -> None:
    traces = [str(uuid.uuid4()), None, str(uuid.uuid4())]
    for n, trace in enumerate(traces):
        api.push({"queue": queue, "payload": n, "traceId": trace})
    assert [one["traceId"] for one in api.messages(queue, batch=10)] == traces


async def test_within_the_window_a_repeat_is_a_duplicate_and_after_it_a_new_message(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, dedupWindowSeconds=60)
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    api.push(item)
    await age(connection, queue, 50)
    assert api.push(item).json[0]["status"] == "duplicate"
    await age(connection, queue, 11)
    assert api.push(item).json[0]["status"] == "queued"
    assert await stored(connection, queue) == 2


async def test_forever_finds_what_the_window_would_have_forgotten(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, dedup="forever", dedupWindowSeconds=1)
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    first = api.push(item).json[0]
    await age(connection, queue, 1_000_000)
    for one in (api, other_api):
        again = one.push(item, {"queue": queue, "payload": 2}).json
        assert [one["status"] for one in again] == ["duplicate", "queued"]
        assert again[0]["message_id"] == first["message_id"]


def test_forever_finds_duplicates_inside_a_request(api: Api, queue: str) -> None:
    api.configure(queue, dedup="forever")
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    assert [one["status"] for one in api.push(item, item).json] == ["queued", "duplicate"]


def test_a_queue_that_turns_to_forever_still_knows_its_window(api: Api, queue: str) -> None:
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    first = api.push(item).json[0]
    api.configure(queue, dedup="forever")
    again = api.push(item).json[0]
    assert (again["status"], again["message_id"]) == ("duplicate", first["message_id"])


def test_a_queue_that_turns_from_forever_to_window_still_knows_its_window(
    api: Api, queue: str
) -> None:
    api.configure(queue, dedup="forever")
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    first = api.push(item).json[0]
    api.configure(queue, dedup="window")
    again = api.push(item).json[0]
    assert (again["status"], again["message_id"]) == ("duplicate", first["message_id"])


def test_without_dedup_equal_ids_are_two_messages(api: Api, queue: str) -> None:
    api.configure(queue, dedup="off")
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    answer = api.push(item, item).json + api.push(item).json
    assert [one["status"] for one in answer] == ["queued"] * 3
    assert len({one["message_id"] for one in answer}) == 3
    assert len(api.messages(queue, batch=10)) == 3


# ---- many at once ----


@pytest.fixture
def crowd(api: Api) -> Iterator[list[Api]]:
    """Many connections to one server."""
    opened = [api.twin() for _ in range(30)]
    yield opened
    for one in opened:
        one.close()


def at_once(crowd: list[Api], *bodies: dict[str, Any]) -> list[Any]:
    """Send a push on each connection before any is answered; return the answers."""
    for one, body in zip(crowd, bodies, strict=False):
        one.send("POST", "/api/v1/push", body)
    answers = [one.receive() for one, _ in zip(crowd, bodies, strict=False)]
    return [answer.json for answer in answers]


def test_pushes_that_share_a_flush_are_answered_each_for_its_own(
    api: Api, crowd: list[Api], queue: str
) -> None:
    bodies = [
        {
            "items": [
                {"queue": queue, "partition": f"p{at % 2}", "payload": [n, at]}
                for at in range(1 + n % 4)
            ]
        }
        for n in range(len(crowd))
    ]
    payloads = {}
    for answer, body in zip(at_once(crowd, *bodies), bodies, strict=True):
        assert [one["index"] for one in answer] == list(range(len(body["items"])))
        for one, item in zip(answer, body["items"], strict=True):
            payloads[one["message_id"]] = item["payload"]
    messages = api.messages(queue, batch=1000, partitions=2)
    assert {one["id"]: one["data"] for one in messages} == payloads
    for partition in ("p0", "p1"):
        mine = [one for one in messages if one["partition"] == partition]
        assert [one["offset"] for one in mine] == list(range(len(mine)))


@pytest.mark.parametrize("dedup", ["window", "forever"])
def test_one_id_pushed_by_many_at_once_is_stored_once(
    api: Api, crowd: list[Api], queue: str, dedup: str
) -> None:
    api.configure(queue, dedup=dedup)
    bodies = [
        {
            "items": [
                {"queue": queue, "payload": n, "transactionId": f"own{n}"},
                {"queue": queue, "payload": "same", "transactionId": "same"},
            ]
        }
        for n in range(len(crowd))
    ]
    answers = at_once(crowd, *bodies)
    assert {answer[0]["status"] for answer in answers} == {"queued"}
    assert sorted(answer[1]["status"] for answer in answers).count("queued") == 1
    assert len({answer[1]["message_id"] for answer in answers}) == 1
    messages = api.messages(queue, batch=1000)
    assert len(messages) == len(crowd) + 1
    by_id = {one["id"]: one["transactionId"] for one in messages}
    for answer in answers:
        assert [by_id[one["message_id"]] for one in answer] == [
            one["transaction_id"] for one in answer
        ]


def test_a_bad_push_does_not_harm_the_others_of_the_flush(
    api: Api, crowd: list[Api], queue: str
) -> None:
    bodies = [
        {"items": [{"queue": queue, "payload": "\0" if n % 5 == 0 else n}]}
        for n in range(len(crowd))
    ]
    for n, answer in enumerate(at_once(crowd, *bodies)):
        if n % 5 == 0:
            assert "NUL" in answer["error"]
        else:
            assert answer[0]["status"] == "queued"
    good = [n for n in range(len(crowd)) if n % 5]
    assert sorted(api.data(queue, batch=100)) == good


# ---- offsets ----


def test_message_ids_are_right_across_the_4096_boundary(api: Api, queue: str) -> None:
    pushed: list[Any] = []
    for count in (4000, 5000, 10):
        items = [
            {"queue": queue, "payload": 0, "transactionId": f"{count}-{n}"} for n in range(count)
        ]
        pushed += api.push(*items).json
    messages = api.messages(queue, batch=10000)
    assert [one["offset"] for one in messages] == list(range(9010))
    assert [one["id"] for one in messages] == [one["message_id"] for one in pushed]
    assert [one["transactionId"] for one in messages] == [one["transaction_id"] for one in pushed]


def test_ten_thousand_items_are_the_most_a_request_may_hold(api: Api, queue: str) -> None:
    items = [{"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(10_001)]
    assert api.push(*items).status == 400
    assert api.pop(queue).status == 204
    answer = api.push(*items[:-1])
    assert answer.status == 201
    assert [one["index"] for one in answer.json] == list(range(10_000))
    assert api.data(queue, batch=10_000) == list(range(10_000))


# ---- payloads ----


@pytest.mark.parametrize(
    "payload",
    [
        "null",
        "true",
        "false",
        '""',
        "[]",
        "{}",
        "0",
        "-0",
        "1.0",
        "1e2",
        "1E+2",
        "0.10",
        "1e400",
        "12345678901234567890123456789",
        "1.0000000000000000000000000001",
        '"ü日本😀"',
        r'"é\n\t\"\\\/\ud83d\ude00"',
        r'"\\ud800"',
        r'"\\u0000"',
        '{"a":{"b":[1,2,{"c":null}]},"a":2}',
        '"\x7f"',
        '{"data":1,"payload":2,"":3}',
    ],
)
def test_a_payload_is_kept_as_it_was_written(api: Api, queue: str, payload: str) -> None:
    body = f'{{"items":[{{"queue":"{queue}","payload":{payload}}}]}}'
    assert api.call("POST", "/api/v1/push", body.encode()).status == 201
    answer = api.pop(queue)
    assert f'"data":{payload},'.encode() in answer.raw
    assert answer.messages[0]["data"] == json.loads(payload)


def test_a_missing_payload_is_null(api: Api, queue: str) -> None:
    api.push({"queue": queue})
    assert api.data(queue) == [None]


def test_a_pretty_printed_request_means_the_same(api: Api, queue: str) -> None:
    payload = {"a": [1, {"b": "line\nbreak"}], "c": {}}
    for indent, newline in ((2, "\n"), ("\t", "\r\n"), (1, "\r")):
        text = json.dumps({"items": [{"queue": queue, "payload": payload}]}, indent=indent)
        answer = api.call("POST", "/api/v1/push", text.replace("\n", newline))
        assert answer.status == 201
    assert api.data(queue, batch=10) == [payload] * 3


def test_pretty_printed_payloads_stay_apart(api: Api, queue: str) -> None:
    payloads = [{"n": n, "list": [n, n + 1]} for n in range(40)]
    items = [{"queue": queue, "payload": one, "transactionId": str(one["n"])} for one in payloads]
    answer = api.call("POST", "/api/v1/push", json.dumps({"items": items}, indent=4))
    assert answer.status == 201
    assert api.data(queue, batch=100) == payloads


def test_a_large_payload_comes_back_whole(api: Api, queue: str) -> None:
    payload = {"text": "abc😀" * 500_000}
    assert api.push({"queue": queue, "payload": payload}).status == 201
    assert api.data(queue) == [payload]


def test_the_content_type_of_json_is_not_asked_for(api: Api, queue: str) -> None:
    body = json.dumps({"items": [{"queue": queue, "payload": 1}]})
    for content_type in ("text/plain", "application/json; charset=utf-8", ""):
        answer = api.call("POST", "/api/v1/push", body, {"Content-Type": content_type})
        assert answer.status == 201


def test_unknown_fields_of_an_item_are_ignored(api: Api, queue: str) -> None:
    item = {"queue": queue, "payload": 1, "producerSub": "x", "namespace": None, "qos0": True}
    assert api.push(item).status == 201
    assert api.data(queue) == [1]
