"""What the server of the browser tests holds: ordinary things, and names that are not."""

from __future__ import annotations

from typing import Any

from tests.browser.stream_data import fill_streams
from tests.security.client import Client

ORDERS, STREAM = "orders", "order-seconds"
SCRIPT = '<script>alert("queue")</script>'
HEBREW = "שלום 'עולם' <b>"
LONG = "x" * 255
HOSTILE_NAMES = (SCRIPT, HEBREW, LONG)
HOSTILE_PAYLOAD = {"html": "<img src=x onerror=alert(1)>", "rtl": "مرحبا \"quoted\" 'single'"}
OTHER_NAMESPACE = "secret-plans"


def fill(admin: Client) -> None:
    """Two groups that are behind, dead letters, a lease, windows, a large payload, odd names."""
    for queue, namespace in ((ORDERS, "shop"), ("payments", "shop"), (OTHER_NAMESPACE, "hidden")):
        _configure(admin, queue, namespace, leaseTime=600, retryLimit=1)
        for partition in ("Default", "customer-1", "customer-2"):
            _push(admin, queue, partition, [{"n": n, "who": "ada"} for n in range(30)])
    for name in HOSTILE_NAMES:
        _configure(admin, name, "odd")
        _push(admin, name, name, [HOSTILE_PAYLOAD] * 3)
        _read(admin, name, name)
    _push(admin, ORDERS, "large", [{"blob": "y" * 1_000_000}])
    for _ in range(2):
        _fail(admin, ORDERS, "billing", 'card declined <b>"now"</b>')
    _read(admin, ORDERS, "audit")
    _define_stream(admin)
    fill_streams(admin, ORDERS, HOSTILE_NAMES)


def _configure(admin: Client, queue: str, namespace: str, **options: Any) -> None:
    body = {"queue": queue, "namespace": namespace, "options": options}
    assert admin.call("POST", "/api/v1/configure", body).status < 300


def _push(admin: Client, queue: str, partition: str, payloads: list[Any]) -> None:
    items = [{"queue": queue, "partition": partition, "payload": each} for each in payloads]
    answer = admin.push(*items)
    assert answer.status == 201, answer.raw


def _read(admin: Client, queue: str, group: str) -> list[Any]:
    return admin.messages(queue, consumerGroup=group, batch=5)


def _fail(admin: Client, queue: str, group: str, error: str) -> None:
    """Read some, do the first, and let the second die."""
    done, dead, *_ = _read(admin, queue, group)
    assert admin.ack(done).status == 200
    assert admin.ack(dead, "dlq", error=error).status == 200


def _define_stream(admin: Client) -> None:
    body = {
        "name": STREAM,
        "source_queue_names": [ORDERS],
        "partitioned": True,
        "window_type": "tumbling",
        "window_duration_ms": 1000,
    }
    answer = admin.call("POST", "/api/v1/stream/define", body)
    assert answer.status < 300, answer.raw
