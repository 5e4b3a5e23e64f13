"""Bad input: a 4xx that says what is wrong and where, and no harm to anything else."""

from __future__ import annotations

import json
import uuid
from typing import Any

import asyncpg
import pytest

from queen.core.frame import CONTENT_TYPE
from tests.api import Api
from tests.contract.conftest import stored
from tests.contract.rawhttp import RawConnection, request

POSTS = [
    "/api/v1/push",
    "/api/v1/ack",
    "/api/v1/ack/batch",
    "/api/v1/transaction",
    "/api/v1/configure",
]


def refused(answer: Any, status: int = 400) -> str:
    """Check that an answer is a proper refusal; return its reason."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert body["retryable"] is False
    assert body["code"]
    reason: str = body["error"]
    assert reason
    # No internals: no SQL, no class names, no places in our code.
    for word in ("SQLSTATE", "Traceback", "asyncpg", "msgspec", ".py"):
        assert word not in reason
    return reason


# ---- bodies that are not what they should be ----


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[",
        b"}",
        b"nonsense",
        b'{"items":[}',
        b'{"items":[{"queue":"q"}]',
        b'{"items":[]} trailing',
        b"{'items':[]}",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe",
        b'{"items":"\xff"}',
        b"\0",
        b" ",
        b"null",
        b"1",
        b'"text"',
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=range(21),
)
def test_a_body_that_is_not_the_right_json_is_refused(api: Api, path: str, body: bytes) -> None:
    refused(api.call("POST", path, body))
    assert api.call("GET", "/health/live").status == 200


@pytest.mark.parametrize("path", POSTS)
def test_an_empty_body_is_refused(api: Api, path: str) -> None:
    assert "Empty" in refused(api.call("POST", path, b""))


@pytest.mark.parametrize(
    "body",
    [
        {"items": None},
        {"items": {}},
        {"items": "x"},
        {"items": 1},
        {"queue": "q", "payload": 1},
    ],
)
def test_a_push_needs_a_list_of_items(api: Api, body: dict[str, Any]) -> None:
    refused(api.call("POST", "/api/v1/push", body))


@pytest.mark.parametrize(
    "wrong",
    [
        {"transactionId": None},
        {"transactionId": 1},
        {"transactionId": ["t"]},
        {"partitionId": None},
        {"partitionId": 7},
        {"leaseId": 7},
        {"status": 7},
        {"error": 7},
        {"consumerGroup": 7},
    ],
)
def test_an_ack_with_a_wrong_type_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    ack = {"transactionId": "t", "partitionId": str(uuid.uuid4()), **wrong}
    refused(api.call("POST", "/api/v1/ack", ack))
    refused(api.call("POST", "/api/v1/ack/batch", {"acknowledgments": [ack]}))
    operation = {"operations": [{"type": "ack", **ack}]}
    refused(api.call("POST", "/api/v1/transaction", operation))


def test_too_many_acknowledgments_are_refused(api: Api) -> None:
    ack = {"transactionId": "t", "partitionId": "p"}
    refused(api.call("POST", "/api/v1/ack/batch", {"acknowledgments": [ack] * 20_001}))


# ---- single items ----

BAD_ITEMS: dict[str, tuple[dict[str, Any], str]] = {
    "no queue": ({"queue": None}, "queue"),
    "queue is a number": ({"queue": 1}, "queue"),
    "queue is empty": ({"queue": ""}, "queue name is empty"),
    "queue is too long": ({"queue": "x" * 256}, "255"),
    "queue is too long in bytes": ({"queue": "ü" * 128}, "255"),
    "queue has a NUL": ({"queue": "a\0b"}, "printable"),
    "queue has a line break": ({"queue": "a\nb"}, "printable"),
    "queue has an escape character": ({"queue": "a\x1b[31mb"}, "printable"),
    "queue has an invisible character": ({"queue": "a\u200bb"}, "printable"),
    "queue changes direction": ({"queue": "a\u202eb"}, "printable"),
    "queue has a lone surrogate": ({"queue": "a\ud800b"}, ""),
    "partition is a number": ({"partition": 1}, "partition"),
    "partition is empty": ({"partition": ""}, "partition name is empty"),
    "partition is too long": ({"partition": "x" * 256}, "255"),
    "partition has a NUL": ({"partition": "\0"}, "printable"),
    "partition has a lone surrogate": ({"partition": "\udfff"}, ""),
    "id is a number": ({"transactionId": 1}, "transactionId"),
    "id is empty": ({"transactionId": ""}, "transactionId is empty"),
    "id is too long": ({"transactionId": "x" * 256}, "255"),
    "id is too long in bytes": ({"transactionId": "ü" * 128}, "255"),
    "id has a NUL": ({"transactionId": "a\0b"}, "NUL"),
    "id has a lone surrogate": ({"transactionId": "a\udc00"}, ""),
    "trace id is a number": ({"traceId": 1}, "traceId"),
    "trace id is not a UUID": ({"traceId": "x"}, "traceId"),
    "trace id is nearly a UUID": ({"traceId": f"{uuid.uuid4()}\n"}, "traceId"),
    "payload has a NUL": ({"payload": {"a": ["b\0"]}}, "NUL"),
    "payload has a NUL in a key": ({"payload": {"\0": 1}}, "NUL"),
    "payload has a lone surrogate": ({"payload": ["\ud83d"]}, "surrogate"),
    "payload has a lone low surrogate": ({"payload": "\udc00 text"}, "surrogate"),
    "payload has surrogates the wrong way round": ({"payload": "\udc00\ud800"}, "surrogate"),
    "payload has a surrogate in a key": ({"payload": {"\ud800": 1}}, "surrogate"),
}


@pytest.mark.parametrize("case", BAD_ITEMS)
async def test_a_bad_item_is_named_and_the_others_are_stored(
    api: Api, queue: str, connection: asyncpg.Connection, case: str
) -> None:
    bad, reason = BAD_ITEMS[case]
    good = {"queue": queue, "payload": 1}
    answer = api.push(
        {**good, "transactionId": "a"}, {**good, **bad}, {**good, "transactionId": "c"}
    )
    error = refused(answer)
    assert "item 1" in error
    assert reason in error
    (item,) = answer.json["items"]
    assert item["index"] == 1
    assert reason in item["reason"]
    results = answer.json["results"]
    assert [(one["index"], one["transaction_id"]) for one in results] == [(0, "a"), (2, "c")]
    assert {one["status"] for one in results} == {"queued"}
    assert [one["transactionId"] for one in api.messages(queue, batch=9)] == ["a", "c"]
    assert await stored(connection, queue) == 2


@pytest.mark.parametrize("position", [0, 49, 99])
def test_a_bad_item_among_many_is_named_wherever_it_stands(
    api: Api, queue: str, position: int
) -> None:
    items: list[dict[str, Any]] = [
        {"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(100)
    ]
    items[position]["payload"] = "\0"
    answer = api.push(*items)
    assert f"item {position}:" in refused(answer)
    assert len(answer.json["results"]) == 99
    left = [n for n in range(100) if n != position]
    assert [one["index"] for one in answer.json["results"]] == left
    assert api.data(queue, batch=100) == left


def test_every_bad_item_is_named(api: Api, queue: str) -> None:
    items: list[dict[str, Any]] = [{"queue": queue, "payload": n} for n in range(10)]
    items[2]["queue"] = ""
    items[5]["transactionId"] = "x" * 300
    items[7]["queue"] = 1
    answer = api.push(*items)
    assert "item 2:" in refused(answer)
    assert [one["index"] for one in answer.json["items"]] == [2, 5, 7]
    assert api.data(queue, batch=10) == [0, 1, 3, 4, 6, 8, 9]


@pytest.mark.parametrize("item", [None, 1, "x", [], {}])
def test_an_item_that_is_not_an_object_is_named(api: Api, queue: str, item: Any) -> None:
    answer = api.push({"queue": queue, "payload": 0}, item)
    assert "item 1:" in refused(answer)
    assert api.data(queue) == [0]


def test_a_request_of_only_bad_items_stores_nothing(api: Api, queue: str) -> None:
    answer = api.push({"queue": queue, "payload": "\0"}, {"queue": queue, "partition": ""})
    refused(answer)
    assert answer.json["results"] == []
    assert api.pop(queue).status == 204


# What JSON does not allow inside a payload. Each stands where a payload would.
NOT_JSON = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"-",
    b"+1",
    b"01",
    b"1.",
    b".5",
    b"1e",
    b"0x10",
    b"'a'",
    b"True",
    b"nul",
    b"undefined",
    b"[1,]",
    b'{"a":1,}',
    b"{a:1}",
    b'{"a"}',
    b"{1:2}",
    b'"a',
    b'"\\x41"',
    b'"\\u12"',
    b'"\\u12g4"',
    b'"\\"',
    b'"a\tb"',
    b'"a\nb"',
    b'"a\rb"',
    b'"a\x00b"',
    b'"a\x1fb"',
    b"/* */ 1",
    b"1 2",
    b"",
]


@pytest.mark.parametrize("payload", NOT_JSON)
def test_a_payload_that_is_not_json_is_refused(api: Api, queue: str, payload: bytes) -> None:
    body = b'{"items":[{"queue":"%b","payload":%b}]}' % (queue.encode(), payload)
    refused(api.call("POST", "/api/v1/push", body))
    # The same where the payload is long enough to be looked at by itself.
    padding = b'["' + b"x" * 300 + b'",'
    body = b'{"items":[{"queue":"%b","payload":%b%b]}]}' % (queue.encode(), padding, payload)
    refused(api.call("POST", "/api/v1/push", body))
    assert api.pop(queue).status == 204


@pytest.mark.parametrize(
    "payload",
    [b'"\xff"', b'"\xc3"', b'"\xc3\x28"', b'"\xed\xa0\x80"', b'"\xf5\x80\x80\x80"', b'"\xc0\xaf"'],
)
def test_a_payload_that_is_not_utf8_is_refused(api: Api, queue: str, payload: bytes) -> None:
    good = b'{"queue":"%b","payload":1}' % queue.encode()
    bad = b'{"queue":"%b","payload":%b}' % (queue.encode(), payload)
    answer = api.call("POST", "/api/v1/push", b'{"items":[%b,%b]}' % (good, bad))
    assert "UTF-8" in refused(answer)
    assert api.data(queue, batch=5) in ([1], [])


@pytest.mark.parametrize("field", ["queue", "partition", "transactionId"])
def test_a_name_that_is_not_utf8_is_refused(api: Api, queue: str, field: str) -> None:
    item = {"queue": queue, "payload": 1, field: "@@"}
    body = json.dumps({"items": [item]}).encode().replace(b"@@", b"\xff\xfe")
    refused(api.call("POST", "/api/v1/push", body))
    assert api.pop(queue).status == 204


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def test_payloads_may_be_128_levels_deep_and_no_deeper(api: Api, queue: str) -> None:
    assert api.push({"queue": queue, "payload": nested(128)}).status == 201
    answer = api.push({"queue": queue, "payload": 0}, {"queue": queue, "payload": nested(129)})
    assert "128" in refused(answer)
    assert answer.json["items"][0]["index"] == 1
    assert api.data(queue, batch=5) == [nested(128), 0]


def test_brackets_inside_strings_are_not_depth(api: Api, queue: str) -> None:
    payload = {"text": '[{"' * 500, "quote": '\\"' * 100}
    assert api.push({"queue": queue, "payload": payload}).status == 201
    assert api.data(queue) == [payload]


def test_a_payload_of_a_hundred_thousand_levels_is_refused(api: Api, queue: str) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    body = b'{"items":[{"queue":"%b","payload":%b}]}' % (queue.encode(), deep)
    refused(api.call("POST", "/api/v1/push", body))


def test_a_payload_over_its_limit_is_refused_and_the_others_are_stored(
    api: Api, queue: str
) -> None:
    large = "x" * (16 * 1024 * 1024)
    answer = api.push({"queue": queue, "payload": large}, {"queue": queue, "payload": 1})
    assert answer.status in (400, 413)
    assert "16777216" in answer.json["error"]
    assert api.data(queue) == [1]


# ---- bodies over the limit ----

LIMIT = 64 * 1024 * 1024


def test_a_body_over_the_limit_is_refused_before_it_is_sent(raw: RawConnection) -> None:
    raw.send(request("POST", "/api/v1/push", headers=f"Content-Length: {LIMIT + 1}\r\n"))
    answer = raw.answer()
    assert answer.status == 413
    assert answer.json["code"] == "too_large"
    assert raw.is_closed()


@pytest.mark.parametrize("length", ["9" * 18, "9" * 30])
def test_a_length_beyond_all_bounds_is_refused(raw: RawConnection, length: str) -> None:
    raw.send(request("POST", "/api/v1/push", headers=f"Content-Length: {length}\r\n"))
    assert raw.answer().status in (400, 413)


def test_a_chunked_body_over_the_limit_is_refused(raw: RawConnection, api: Api) -> None:
    raw.send(request("POST", "/api/v1/push", headers="Transfer-Encoding: chunked\r\n"))
    part = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    raw.send_until_refused(part, 80 * 1024 * 1024)
    assert raw.answer().status == 413
    assert api.call("GET", "/health").status == 200


def test_a_refused_expectation_sends_no_body(raw: RawConnection) -> None:
    headers = f"Content-Length: {LIMIT + 1}\r\nExpect: 100-continue\r\n"
    raw.send(request("POST", "/api/v1/push", headers=headers))
    assert raw.answer().status == 413


# ---- queries ----


@pytest.mark.parametrize(
    "query",
    [
        "batch=0",
        "batch=-1",
        "batch=10001",
        "batch=x",
        "batch=1.5",
        "batch=1e3",
        "batch=" + "9" * 5000,
        "partitions=0",
        "partitions=-1",
        "partitions=1001",
        "partitions=all",
        "timeout=-1&wait=true",
        "timeout=3600001&wait=true",
        "timeout=soon&wait=true",
        "consumerGroup=" + "x" * 256,
        "consumerGroup=%00",
        "consumerGroup=%0a",
        "consumerGroup=%ff",
    ],
)
@pytest.mark.parametrize("exists", [True, False], ids=["queue exists", "queue unknown"])
def test_a_query_that_makes_no_sense_is_refused(
    api: Api, queue: str, query: str, exists: bool
) -> None:
    if exists:
        api.push_many(queue, 1)
    reason = refused(api.call("GET", f"/api/v1/pop/queue/{queue}?{query}"))
    if "%ff" not in query:
        name = query.partition("=")[0]
        assert name in reason or "consumer group" in reason
    refused(api.call("GET", f"/api/v1/pop?namespace={queue}&{query}"))


def test_too_many_parameters_are_refused(api: Api, queue: str) -> None:
    query = "&".join(f"p{n}=1" for n in range(65))
    refused(api.call("GET", f"/api/v1/pop/queue/{queue}?{query}"))


BAD_NAMES = ["", "%00", "%0a", "a%00b", "%e2%80%ae", "x" * 256, "%c3%bc" * 128, "%ff", "%ed%a0%80"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_in_a_path_is_refused_everywhere(api: Api, queue: str, name: str) -> None:
    api.push_many(queue, 1)
    for method, path in [
        ("GET", f"/api/v1/pop/queue/{name}"),
        ("GET", f"/api/v1/pop/queue/{name}?wait=true&timeout=1000"),
        ("GET", f"/api/v1/pop/queue/{name}/partition/p"),
        ("GET", f"/api/v1/pop/queue/{queue}/partition/{name}"),
        ("GET", f"/api/v1/fetch/queue/{name}"),
        ("GET", f"/api/v1/fetch/queue/{name}/partition/p"),
        ("GET", f"/api/v1/fetch/queue/{queue}/partition/{name}"),
    ]:
        answer = api.call(method, path)
        assert answer.status in (400, 404), (method, path, answer)
        refused(answer, answer.status)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_queue_that_cannot_exist_can_be_deleted_or_is_refused(api: Api, name: str) -> None:
    answer = api.call("DELETE", f"/api/v1/resources/queues/{name}")
    assert answer.status in (200, 400, 404), answer
    assert answer.status != 200 or answer.json["existed"] is False


@pytest.mark.parametrize("name", BAD_NAMES[1:])
@pytest.mark.parametrize("label", ["namespace", "task"])
def test_a_bad_label_finds_nothing_or_is_refused(api: Api, name: str, label: str) -> None:
    answer = api.call("GET", f"/api/v1/pop?{label}={name}")
    assert answer.status in (204, 400), answer


# ---- texts that go into the database with an ack ----


@pytest.mark.parametrize("error", ["a\0b", "\0", "a\ud800b", "x" * 1_000_000, "\x1b[31m"])
async def test_any_error_text_of_an_ack_is_taken_or_refused(
    api: Api, queue: str, connection: asyncpg.Connection, error: str
) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    answer = api.ack(message, "dlq", error=error)
    assert answer.status in (200, 400), answer
    if answer.status == 400:
        refused(answer)
        # Refused as a whole: the message is still there, to be declared dead in other words.
        assert api.ack(message, "dlq", error="in other words").status == 200
    count = await connection.fetchval(
        "select count(*) from queen.dead_letters where transaction_id = $1",
        message["transactionId"],
    )
    assert count == 1


def test_a_bad_error_text_does_not_harm_the_other_acks_of_the_flush(
    api: Api, twin: Api, queue: str
) -> None:
    for n in range(20):
        api.push(*[{"queue": queue, "partition": f"{n}-{p}", "payload": p} for p in ("a", "b")])
        (a,) = api.messages(queue, f"{n}-a")
        (b,) = api.messages(queue, f"{n}-b")
        for one, message, error in ((twin, a, "\0"), (api, b, "fine")):
            body = {
                "transactionId": message["transactionId"],
                "partitionId": message["partitionId"],
                "leaseId": message["leaseId"],
                "status": "dlq",
                "error": error,
            }
            one.send("POST", "/api/v1/ack", body)
        assert twin.receive().status in (200, 400)
        assert api.receive().status == 200


@pytest.mark.parametrize("group", ["a\0b", "x" * 5000, "\n", "\ud800"])
def test_a_bad_group_name_in_an_ack_is_refused(api: Api, queue: str, group: str) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    answer = api.ack(message, consumerGroup=group)
    assert answer.status in (400, 409), answer
    batch = api.ack_batch([message], group=group)
    assert batch.status in (200, 400), batch
    if batch.status == 200:
        assert batch.json["results"][0]["success"] is False
    assert api.ack(message).status == 200


@pytest.mark.parametrize(
    "text", ["a\0b", "x" * 100_000, "\n", "{", "00000000-0000-8001-bfff-ffffffffffff0"]
)
@pytest.mark.parametrize("field", ["transactionId", "partitionId", "leaseId"])
def test_any_text_in_an_ack_is_refused_in_order(
    api: Api, queue: str, field: str, text: str
) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    answer = api.ack(message, **{field: text})
    assert answer.status in (400, 404, 409), answer
    batch = api.ack_batch([{**message, field: text}, message])
    assert [one["success"] for one in batch.json["results"]] == [False, True]


@pytest.mark.parametrize(
    "media_type",
    [
        "application/octet-stream",
        "application/msgpack",
        "application/vnd.queen.binary",
        "image/png",
        "application/xml; charset=utf-8",
    ],
)
def test_a_push_of_another_type_is_told_so(api: Api, queue: str, media_type: str) -> None:
    answer = api.call("POST", "/api/v1/push", b"\x93\x00\xff", {"Content-Type": media_type})
    assert (answer.status, answer.json["code"]) == (415, "unsupported_media")
    assert media_type.partition(";")[0] in answer.json["error"]
    assert "application/json" in answer.json["error"]


@pytest.mark.parametrize(
    "media_type",
    [
        None,
        "",
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/problem+json",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
    ],
)
def test_json_is_taken_under_the_types_that_clients_send_it_with(
    api: Api, queue: str, media_type: str | None
) -> None:
    body = json.dumps({"items": [{"queue": queue, "payload": 1}]})
    headers = {} if media_type is None else {"Content-Type": media_type}
    assert api.call("POST", "/api/v1/push", body, headers).status == 201
    assert api.data(queue) == [1]


def test_json_under_the_content_type_of_frames_is_refused(api: Api, queue: str) -> None:
    body = json.dumps({"items": [{"queue": queue}]})
    answer = api.call("POST", "/api/v1/push", body, {"Content-Type": CONTENT_TYPE})
    assert "frame 0" in refused(answer)


def test_frames_under_the_content_type_of_json_are_refused(api: Api) -> None:
    refused(api.call("POST", "/api/v1/push", b"QSEG" + b"\0" * 100))


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/analytics/system-metrics?hostname=a%00b",
        "/api/v1/dlq?error=%00",
        "/api/v1/pop?namespace=%00",
    ],
)
def test_a_nul_in_a_query_is_refused(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert answer.status == 400
    assert "NUL" in answer.json["error"]
