"""A plain HTTP client for tests: no retries, no opinions, real status codes."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit


@dataclass
class Answer:
    status: int
    raw: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.raw) if self.raw else None


class Api:
    """One keep-alive connection to a server."""

    def __init__(self, url: str, timeout_s: float = 30) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    def close(self) -> None:
        self._connection.close()

    def call(
        self,
        method: str,
        path: str,
        body: bytes | str | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        self._connection.request(method, path, data, headers or {})
        response = self._connection.getresponse()
        raw = response.read()
        return Answer(response.status, raw, {k.lower(): v for k, v in response.getheaders()})

    def configure(self, queue: str, **options: Any) -> Answer:
        body = {"queue": queue, "namespace": None, "task": None, "options": options}
        return self.call("POST", "/api/v1/configure", body)

    def push(self, *items: dict[str, Any]) -> Answer:
        return self.call("POST", "/api/v1/push", {"items": list(items)})

    def push_many(self, queue: str, count: int, partition: str = "Default") -> list[str]:
        """Push numbered messages; return their transaction ids."""
        items = [
            {"queue": queue, "partition": partition, "payload": {"n": n}} for n in range(count)
        ]
        answer = self.push(*items)
        assert answer.status == 201, answer.raw
        return [one["transaction_id"] for one in answer.json]

    def pop(self, queue: str, partition: str | None = None, **query: Any) -> Answer:
        path = f"/api/v1/pop/queue/{quote(queue, safe='')}"
        if partition is not None:
            path += f"/partition/{quote(partition, safe='')}"
        return self.call("GET", f"{path}?{urlencode(query)}")

    def messages(self, queue: str, partition: str | None = None, **query: Any) -> list[Any]:
        answer = self.pop(queue, partition, **query)
        assert answer.status in (200, 204), answer.raw
        return answer.json["messages"] if answer.status == 200 else []

    def ack(self, message: dict[str, Any], status: str = "completed", **more: Any) -> Answer:
        body = {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
            "consumerGroup": message["consumerGroup"],
            "status": status,
            **more,
        }
        return self.call("POST", "/api/v1/ack", body)

    def ack_batch(
        self, messages: list[dict[str, Any]], status: str = "completed", group: str | None = None
    ) -> Answer:
        acks = [
            {
                "transactionId": one["transactionId"],
                "partitionId": one["partitionId"],
                "leaseId": one["leaseId"],
                "status": status,
            }
            for one in messages
        ]
        body = {"acknowledgments": acks, "consumerGroup": group}
        return self.call("POST", "/api/v1/ack/batch", body)

    def transaction(self, *operations: dict[str, Any], leases: list[str] | None = None) -> Answer:
        body = {"operations": list(operations), "requiredLeases": leases or []}
        return self.call("POST", "/api/v1/transaction", body)
