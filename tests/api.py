"""A plain HTTP client for tests: no retries, no opinions, real status codes."""

from __future__ import annotations

import http.client
import json
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from queen.core.frame import CONTENT_TYPE, Frame, stored_frames


@dataclass
class Answer:
    status: int
    raw: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.raw) if self.raw else None

    @property
    def messages(self) -> list[Any]:
        """The messages of a pop; none for 204."""
        assert self.status in (200, 204), self
        return self.json["messages"] if self.status == 200 else []


# Half of the patience of a server.
_IDLE_S = 60.0


class Api:
    """One keep-alive connection to a server."""

    # Called with method, path and answer of everything received; the contract tests hold each
    # answer against the API document.
    observer: ClassVar[Callable[[str, str, Answer], None] | None] = None

    def __init__(self, url: str, timeout_s: float = 30) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self.url = url
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        self._used_at = time.monotonic()

    def close(self) -> None:
        self._connection.close()

    def twin(self) -> Api:
        """Another connection to the same server."""
        return Api(self.url)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | str | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        self.send(method, path, body, headers)
        return self.receive()

    def send(
        self,
        method: str,
        path: str,
        body: bytes | str | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a request without waiting for its answer."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        self._sent = (method, path)
        if time.monotonic() - self._used_at > _IDLE_S:
            # A server hangs up on those who are silent; it is opened again.
            self._connection.close()
        self._connection.request(method, path, data, headers or {})

    def receive(self) -> Answer:
        response = self._connection.getresponse()
        raw = response.read()
        self._used_at = time.monotonic()
        answer = Answer(response.status, raw, {k.lower(): v for k, v in response.getheaders()})
        if Api.observer is not None:
            Api.observer(*self._sent, answer)
        return answer

    def is_answered(self, within_s: float) -> bool:
        """Whether something comes back for what was sent within some seconds."""
        return bool(select.select([self._connection.sock], [], [], within_s)[0])

    # ---- queues ----

    def configure(self, queue: str, **options: Any) -> Answer:
        body = {"queue": queue, "namespace": None, "task": None, "options": options}
        return self.call("POST", "/api/v1/configure", body)

    def delete_queue(self, queue: str) -> Answer:
        return self.call("DELETE", f"/api/v1/resources/queues/{quote(queue, safe='')}")

    # ---- push ----

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

    def push_frames(self, data: bytes) -> Answer:
        return self.call("POST", "/api/v1/push", data, {"Content-Type": CONTENT_TYPE})

    # ---- pop ----

    def pop(self, queue: str, partition: str | None = None, **query: Any) -> Answer:
        return self.call("GET", pop_path(queue, partition, **query))

    def messages(self, queue: str, partition: str | None = None, **query: Any) -> list[Any]:
        return self.pop(queue, partition, **query).messages

    def data(self, queue: str, partition: str | None = None, **query: Any) -> list[Any]:
        """Pop, and return the payloads alone."""
        return [one["data"] for one in self.messages(queue, partition, **query)]

    def fetch(self, queue: str, partition: str | None = None, **query: Any) -> Answer:
        return self.call("GET", _partition_path("fetch", queue, partition, query))

    def frames(self, queue: str, partition: str | None = None, **query: Any) -> list[Frame]:
        answer = self.fetch(queue, partition, **query)
        assert answer.status == 200, answer.raw
        assert answer.headers["content-type"] == CONTENT_TYPE
        return list(stored_frames(answer.raw))

    # ---- ack ----

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

    def extend(self, lease_id: str, body: dict[str, Any] | None = None) -> Answer:
        return self.call("POST", f"/api/v1/lease/{lease_id}/extend", body)

    def transaction(self, *operations: dict[str, Any], leases: list[str] | None = None) -> Answer:
        body = {"operations": list(operations), "requiredLeases": leases or []}
        return self.call("POST", "/api/v1/transaction", body)


class Poll:
    """A long poll on a connection of its own: sent, and not answered yet."""

    def __init__(self, api: Api, path: str, headers: dict[str, str] | None = None) -> None:
        self._own = api.twin()
        self._own.send("GET", path, headers=headers)

    def is_answered(self, within_s: float = 0) -> bool:
        return self._own.is_answered(within_s)

    def answer(self) -> Answer:
        return self._own.receive()

    def messages(self) -> list[Any]:
        return self.answer().messages

    def data(self) -> list[Any]:
        return [one["data"] for one in self.messages()]

    def hang_up(self) -> None:
        self._own.close()


def pop_path(queue: str, partition: str | None = None, **query: Any) -> str:
    return _partition_path("pop", queue, partition, query)


def _partition_path(verb: str, queue: str, partition: str | None, query: dict[str, Any]) -> str:
    path = f"/api/v1/{verb}/queue/{quote(queue, safe='')}"
    if partition is not None:
        path += f"/partition/{quote(partition, safe='')}"
    return f"{path}?{urlencode(query)}" if query else path


def ack_of(message: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """Return the operation of a transaction that acknowledges a message."""
    return {
        "type": "ack",
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "consumerGroup": message["consumerGroup"],
        "status": status,
        **more,
    }


def push_of(*items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "push", "items": list(items)}
