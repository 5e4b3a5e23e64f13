"""Calls of the published streaming SDK, one by one."""

from __future__ import annotations

from typing import Any

from tests.api import Answer, Api

SECOND_MS = 1000


class QueryCalls:
    """A query over a queue, as a runner of the SDK would talk about it."""

    def __init__(self, api: Api, queue: str, name: str = "counted") -> None:
        self.api = api
        self.queue = queue
        self.name = name
        self.group = f"streams.{name}"
        self.sink = f"{queue}.out"
        self.id = self.register().json["query_id"]

    def register(self, config_hash: str = "h1", **more: Any) -> Answer:
        body = {"name": self.name, "source_queue": self.queue, "config_hash": config_hash, **more}
        return self.api.call("POST", "/streams/v1/queries", body)

    def leased(self, count: int = 1, partition: str = "Default", **query: Any) -> list[Any]:
        """Push messages and pop them as the query's group."""
        self.api.push_many(self.queue, count, partition)
        return self.again(batch=count, **query)

    def again(self, partition: str | None = None, **query: Any) -> list[Any]:
        """Pop as the query's group."""
        return self.api.messages(self.queue, partition, consumerGroup=self.group, **query)

    def cycle(self, partition_id: str, **more: Any) -> Any:
        """Commit a cycle, and return the answer's body."""
        body = {"query_id": self.id, "partition_id": partition_id, "consumer_group": self.group}
        answer = self.api.call("POST", "/streams/v1/cycle", {**body, **more})
        assert answer.status == 200, answer.raw
        return answer.json

    def state(self, partition_id: str, **more: Any) -> Any:
        body = {"query_id": self.id, "partition_id": partition_id, "keys": [], **more}
        answer = self.api.call("POST", "/streams/v1/state/get", body)
        assert answer.status == 200, answer.raw
        return answer.json

    def values(self, partition_id: str, **more: Any) -> dict[str, Any]:
        found = self.state(partition_id, **more)
        assert found["success"] is True, found
        return {row["key"]: row["value"] for row in found["rows"]}

    def results(self) -> list[Any]:
        """Take what is in the sink, from all of its partitions."""
        found: list[Any] = []
        while messages := self.api.messages(self.sink, batch=100, autoAck="true", partitions=10):
            found += [one["data"] for one in messages]
        return found

    def pushed(self, *payloads: Any) -> list[dict[str, Any]]:
        return [{"queue": self.sink, "partition": "p", "payload": one} for one in payloads]


def ack(message: dict[str, Any], count: int = 1, status: str = "completed", **more: Any) -> Any:
    names = {name: message[name] for name in ("transactionId", "leaseId")}
    return {**names, "status": status, "count": count, **more}


def upsert(key: str, value: Any) -> dict[str, Any]:
    return {"type": "upsert", "key": key, "value": value}


def delete(key: str) -> dict[str, Any]:
    return {"type": "delete", "key": key}


def window(count: int, start_ms: int = 0) -> dict[str, Any]:
    """State of a window of one second, long over."""
    return {"acc": count, "windowStart": start_ms, "windowEnd": start_ms + SECOND_MS}
