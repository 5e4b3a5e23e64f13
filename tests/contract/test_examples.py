"""Every example in the API document is sent for real and works.

Ids in examples are made up. Here they stand for a message that was just pushed and leased:
each is replaced by the real one before the request is sent.
"""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import quote

import pytest

from queen.core.frame import CONTENT_TYPE, encode_frame
from tests.api import Answer, Api
from tests.conftest import ServerProcess
from tests.documented import Documented

_PARTITION_ID = "00000000-0000-8007-bfff-ffffffffffff"
_LEASE_ID = "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11"
_TRANSACTION_ID = "order-1042"
_DEAD_LETTER = "40201"
_ACCESS_ID = "tok_example"
_WINDOW_LEASE = "00000007-0000-0000-002a-5f0c1d9e7a3b"
_QUERY_ID = "3f0c9a52-7a41-4c7b-9a55-0d2f6f6f1042"
# What can be asked only of a message that a group has given up.
_ABOUT_DEAD = {"/api/v1/messages/{partition}/{message}/retry"}


def _real_ids(api: Api, *, about_dead: bool) -> dict[str, str]:
    """Make the queue, group and lease that the examples speak of; return their ids."""
    assert api.configure("orders", leaseTime=60).status == 201
    assert api.call("POST", "/api/v1/consumer-groups/billing/resume").status < 500
    one = str(uuid.uuid4())
    for name in ("Default", one, f"dead-{one}"):
        item = {"queue": "orders", "partition": name, "transactionId": one, "payload": 1}
        assert api.push(item).status == 201
    (message,) = api.messages("orders", one, consumerGroup="billing")
    (dead,) = api.messages("orders", f"dead-{one}", consumerGroup="billing")
    assert api.ack(dead, "dlq").status == 200
    (letter,) = api.call("GET", "/api/v1/dlq?queue=orders&limit=1").json["messages"]
    later = {"queue": "orders", "transactionId": one, "payload": 1, "delay": 3600}
    assert api.push(later).status == 201
    named = {"name": "examples", "source_queue": "orders", "config_hash": "h"}
    query = api.call("POST", "/streams/v1/queries", named)
    pipeline = {
        "name": "orders-per-minute",
        "reads": [{"name": "orders", "queues": ["orders"]}],
        "output": {"queue": "totals"},
    }
    body = {"definition": pipeline, "replace": True}
    assert api.call("POST", "/api/v1/pipelines", body).status < 300
    schedule = {"name": "nightly-report", "queue": "jobs", "cron": "0 3 * * *", "replace": True}
    assert api.call("POST", "/api/v1/schedules", schedule).status < 300
    token = api.call("POST", "/api/v1/tokens", {"name": "billing", "role": "read-write"})
    if about_dead:
        message |= {"transactionId": dead["transactionId"], "partitionId": dead["partitionId"]}
    return {
        _TRANSACTION_ID: message["transactionId"],
        _PARTITION_ID: message["partitionId"],
        _LEASE_ID: message["leaseId"],
        _DEAD_LETTER: letter["id"],
        _ACCESS_ID: token.json["id"],
        _QUERY_ID: query.json["query_id"],
    }


def _leased_window(api: Api) -> dict[str, str]:
    """Make the stream that the examples speak of, and lease a window of it."""
    api.call("DELETE", "/api/v1/resources/streams/user-behaviour")
    stream = {
        "name": "user-behaviour",
        "namespace": "analytics",
        "source_queue_names": ["user-clicks"],
        "window_duration_ms": 100,
        "window_grace_period_ms": 0,
    }
    assert api.call("POST", "/api/v1/stream/define", stream).status == 201
    assert api.push({"queue": "user-clicks", "payload": 1}).status == 201
    wanted = {"streamName": "user-behaviour", "consumerGroup": "billing"}
    polled = api.call("POST", "/api/v1/stream/poll", wanted)
    return {_WINDOW_LEASE: polled.json["window"]["leaseId"]}


def _with(ids: dict[str, str], text: str) -> str:
    for example, real in ids.items():
        text = text.replace(example, real)
    return text


class Sender:
    """Sends the examples. Those that only look may look at the same things."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._seen: dict[str, str] = {}

    def send(self, method: str, path: str, operation: dict[str, Any]) -> Answer:
        only_looks = method in ("GET", "HEAD") and "/pop" not in path
        ids = self._seen if only_looks else {}
        ids = ids or _real_ids(self._api, about_dead=path in _ABOUT_DEAD)
        self._seen = ids if only_looks else {}
        return _send(self._api, method, path, operation, ids)


def _send(
    api: Api, method: str, path: str, operation: dict[str, Any], made: dict[str, str]
) -> Answer:
    ids = dict(made)
    if path.startswith("/stream/"):
        # With the verbs of Redis: whatever is asked of a group, there is one.
        assert api.call("POST", "/stream/user-behaviour/group/billing").status == 200
    elif "/stream" in path:
        ids |= _leased_window(api)
        if path.endswith("/define"):
            api.call("DELETE", "/api/v1/resources/streams/user-behaviour")
    query = []
    for param in operation.get("parameters", []):
        value = param.get("example")
        if param["in"] == "path":
            real = _with(ids, str(value if value is not None else "anything"))
            path = path.replace(f"{{{param['name']}}}", quote(real, safe=""))
        elif value is not None:
            query.append(f"{param['name']}={quote(_with(ids, str(value)))}")
    path = "?".join([path, "&".join(query)]).rstrip("?")
    kinds = operation.get("requestBody", {}).get("content", {})
    if list(kinds) == [CONTENT_TYPE]:
        frame = encode_frame("orders", "Default", [str(uuid.uuid4())], [b"1"])
        return api.call(method, path, frame, {"Content-Type": CONTENT_TYPE})
    content = kinds.get("application/json", {})
    body = _with(ids, json.dumps(content["example"])) if "example" in content else None
    return api.call(method, path, body)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_example_works(own_server: ServerProcess) -> None:
    api = own_server.api()
    document = Documented(api.call("GET", "/openapi.json").json)
    failed = []
    sender = Sender(api)
    # Those that only look first, so that nothing is gone which they look at.
    for method, path, operation in sorted(document.operations(), key=lambda one: one[0] != "GET"):
        answer = sender.send(method, path, operation)
        document.check(method, path, answer)
        # The routes of the streaming SDK tell of a refusal in the body.
        if answer.status >= 300 or b'"success":false' in answer.raw:
            failed.append(f"{method} {path}: {answer.status} {answer.raw.decode()}")
    assert not failed, "\n".join(failed)
