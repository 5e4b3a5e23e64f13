"""What flows on the server of the browser tests: windows, a pipeline, entries, schedules."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.api import ack_of, push_of
from tests.security.client import Client

RESULTS = "results"
COUNTS = "order-counts"
PIPELINE = "orders-per-minute"
JOBS = "jobs"
ERROR = 'boom <b>"bold"</b> אבג'
_REPORT = {
    "state": "running",
    "queryId": "query-1",
    "uiUrl": "http://127.0.0.1:4040",
    "batches": 7,
    "inputRows": 700,
    "outputRows": 35,
    "lateRows": 3,
    "inputRowsPerSecond": 42.0,
    "processedRowsPerSecond": 380.0,
    "batchMs": 340,
    "behindMs": 2400,
    "behindMessages": 100,
    "stateRows": 240,
    "error": f"AnalysisException: {ERROR}",
}


def fill_streams(admin: Client, source: str, odd: tuple[str, ...]) -> None:
    """Windows that are done, leased and dead, a pipeline with two runs, pending entries, messages
    that are due later; then the same under names that are not ordinary."""
    define_counts(admin, COUNTS, source)
    flow(admin, source)
    define_pipeline(admin, PIPELINE, source, RESULTS)
    for run in ("a", "b"):
        report(admin, PIPELINE, run)
    add_entries(admin, JOBS)
    schedule(admin, source, "tomorrow")
    for name in odd:
        define_counts(admin, name, name)
        define_pipeline(admin, name, name, f"{name[:200]}-out")
        report(admin, name, "a")
        kept = {"queue": entries_of(name), "namespace": "odd", "options": {}}
        assert admin.call("POST", "/api/v1/configure", kept).status < 300
        add_entries(admin, entries_of(name))
        schedule(admin, name, name)


def entries_of(name: str) -> str:
    """Return a name that is no less odd, and of which no queue is there yet."""
    return f"{name[:200]}-entries"


def define_counts(admin: Client, stream: str, source: str) -> None:
    """A stream of windows that are full with two messages and die of one failure."""
    body = {
        "name": stream,
        "namespace": "shop",
        "source_queue_names": [source],
        "partitioned": True,
        "window_type": "count",
        "window_size_count": 2,
        "window_grace_period_ms": 0,
        "retry_limit": 0,
        "window_lease_timeout_ms": 600_000,
    }
    answer = admin.call("POST", "/api/v1/stream/define", body)
    assert answer.status < 300, answer.raw


def poll(admin: Client, stream: str, group: str = "totals") -> dict[str, Any]:
    body = {"streamName": stream, "consumerGroup": group, "timeout": 20_000, "consumer": "worker-1"}
    answer = admin.call("POST", "/api/v1/stream/poll", body)
    assert answer.status == 200, answer.raw
    window: dict[str, Any] = answer.json["window"]
    return window


def settle(admin: Client, window: dict[str, Any], **more: Any) -> None:
    body = {"windowId": window["id"], "leaseId": window["leaseId"], **more}
    answer = admin.call("POST", "/api/v1/stream/ack", body)
    assert answer.status == 200, answer.raw


def flow(admin: Client, source: str) -> None:
    """Let a window be done with a result, one die, and one be leased; and a group push what it
    makes of a message."""
    settle(admin, poll(admin, COUNTS), push=[{"queue": RESULTS, "payload": 1}])
    settle(admin, poll(admin, COUNTS), success=False, error=ERROR)
    poll(admin, COUNTS)
    (message,) = admin.messages(source, consumerGroup="mapper")
    pushed = push_of({"queue": RESULTS, "payload": 1})
    assert admin.transaction(ack_of(message), pushed).status == 200


def define_pipeline(admin: Client, name: str, source: str, target: str) -> None:
    definition = {
        "name": name,
        "namespace": "shop",
        "reads": [{"name": "read", "queues": [source], "schema": "n int"}],
        "output": {"queue": target},
    }
    answer = admin.call("POST", "/api/v1/pipelines", {"definition": definition})
    assert answer.status == 201, answer.raw


def report(admin: Client, pipeline: str, run: str) -> None:
    path = f"/api/v1/pipelines/{quote(pipeline, safe='')}/progress"
    assert admin.call("POST", path, {"runId": run, **_REPORT}).status == 200


def add_entries(admin: Client, stream: str) -> None:
    """Six entries, of which a consumer has four pending."""
    path = f"/stream/{quote(stream, safe='')}"
    assert admin.call("POST", f"{path}/group/workers", {"startId": "0"}).status == 200
    for number in range(6):
        assert admin.call("POST", f"{path}/add", {"n": number, "what": ERROR}).status == 200
    assert admin.call("GET", f"{path}/group/workers/consumer/w1?count=4").status == 200


def schedule(admin: Client, queue: str, transaction_id: str) -> None:
    later = {"queue": queue, "payload": 1, "delay": 86_400, "transactionId": transaction_id[:200]}
    assert admin.push(later).status == 201
