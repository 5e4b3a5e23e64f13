"""The first act: orders through a queue, to two groups with four consumers each.

Everything goes over plain HTTP, as a program in any language would do it. Some requests are
sent twice, as a producer does that has lost the answer; what they hold is stored once.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import typer

from queen.cli.demo.counts import Count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_QUEUE = "demo.orders"
_MESSAGES = 10_000
_PARTITIONS = 100
_BATCH = 100
_GROUPS = ("billing", "analytics")
_CONSUMERS = 4
_GIVE_UP_S = 120
# One request in so many is sent again.
_TWICE = 20


class Http:
    """One keep-alive connection to the demo's server."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, method: str, path: str, body: object | None = None) -> Any:
        status, answer = self._exchange(method, path, body)
        if status >= 400:
            raise typer.Exit(code=1)
        return answer

    def try_call(self, method: str, path: str) -> Any:
        """Return the answer; None when the server cannot give one now."""
        status, answer = self._exchange(method, path, None)
        return answer if status < 400 else None

    def _exchange(self, method: str, path: str, body: object | None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"content-type": "application/json"})
        response = self._connection.getresponse()
        raw = response.read()
        return response.status, json.loads(raw) if raw else None


class _Group:
    """What one consumer group has seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: Counter[str] = Counter()
        self.by_consumer: Counter[str] = Counter()
        self.out_of_order = 0
        self.seconds = 0.0
        self._last: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, consumer: str, messages: list[dict[str, Any]]) -> None:
        with self._lock:
            for message in messages:
                self.seen[message["transactionId"]] += 1
                partition, offset = message["partition"], message["offset"]
                self.out_of_order += offset <= self._last.get(partition, -1)
                self._last[partition] = offset
            self.by_consumer[consumer] += len(messages)

    @property
    def is_complete(self) -> bool:
        return len(self.seen) >= _MESSAGES


def show_queues(port: int, console: Console) -> list[Count]:
    """Push, consume with two groups, and show who got what."""
    sent, duplicates, push_seconds = _produce(port)
    console.print(f"Pushed {len(sent):,} orders over {_PARTITIONS} partitions.")
    groups = [_Group(name) for name in _GROUPS]
    with ThreadPoolExecutor(len(groups) * _CONSUMERS) as pool:
        for group in groups:
            for number in range(_CONSUMERS):
                pool.submit(_consume, port, group, f"{group.name}-{number + 1}")
    console.print(_table(len(sent), push_seconds, groups))
    twice = _MESSAGES // _TWICE
    return [
        *(
            Count("orders", len(sent), f"read by {group.name}", _count_right(sent, group))
            for group in groups
        ),
        Count("orders sent twice", twice, "known as duplicates", duplicates),
    ]


def _produce(port: int) -> tuple[list[str], int, float]:
    server = Http(port)
    server.call("POST", "/api/v1/configure", {"queue": _QUEUE, "options": {"leaseTime": 30}})
    sent: list[str] = []
    duplicates = 0
    started = time.perf_counter()
    for batch in range(_MESSAGES // _BATCH):
        ids = [str(uuid.uuid4()) for _ in range(_BATCH)]
        items = [
            {
                "queue": _QUEUE,
                "partition": f"customer-{(batch + number) % _PARTITIONS}",
                "transactionId": transaction_id,
                "payload": {"order": batch * _BATCH + number, "total": number * 1.5},
            }
            for number, transaction_id in enumerate(ids)
        ]
        server.call("POST", "/api/v1/push", {"items": items})
        if batch % _TWICE == 0:
            again = server.call("POST", "/api/v1/push", {"items": items})
            duplicates += sum(result["status"] == "duplicate" for result in again)
        sent += ids
    return sent, duplicates, time.perf_counter() - started


def _consume(port: int, group: _Group, name: str) -> None:
    server = Http(port)
    started = time.perf_counter()
    query = f"batch={_BATCH}&wait=true&timeout=500&consumerGroup={group.name}"
    while not group.is_complete and time.perf_counter() - started < _GIVE_UP_S:
        answer = server.call("GET", f"/api/v1/pop/queue/{_QUEUE}?{query}")
        if not answer:
            continue
        messages = answer["messages"]
        group.add(name, messages)
        keys = ("transactionId", "partitionId", "leaseId")
        acks = [{key: message[key] for key in keys} for message in messages]
        body = {"acknowledgments": acks, "consumerGroup": group.name}
        server.call("POST", "/api/v1/ack/batch", body)
        group.seconds = time.perf_counter() - started


def _count_right(sent: list[str], group: _Group) -> int:
    """Return how many messages came once and in order."""
    once = sum(group.seen[transaction_id] == 1 for transaction_id in sent)
    return once - group.out_of_order - len(group.seen.keys() - set(sent))


def _table(sent: int, push_seconds: float, groups: list[_Group]) -> Table:
    from rich.table import Table

    table = Table(title="Orders, and who got them")
    for column in ("who", "messages", "messages/s", "redelivered", "out of order"):
        table.add_column(column, justify="left" if column == "who" else "right")
    table.add_row("producer", f"{sent:,}", f"{sent / push_seconds:,.0f}", "", "", end_section=True)
    for group in groups:
        total = sum(group.by_consumer.values())
        rate = total / group.seconds if group.seconds else 0
        again = total - len(group.seen)
        table.add_row(
            f"group {group.name}", f"{total:,}", f"{rate:,.0f}", str(again), str(group.out_of_order)
        )
        for consumer, count in sorted(group.by_consumer.items()):
            table.add_row(f"  {consumer}", f"{count:,}", "", "", "")
        table.add_section()
    return table
