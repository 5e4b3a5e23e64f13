"""Clients for acceptance tests: HTTP over asyncio streams, every call in the history.

One client is one keep-alive connection with one request in flight. It never retries: what to
do about a call that got no answer is the decision of the actor that made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from tests.acceptance.history import Ack, Delivery, History, Item, Operation, Pop, Push

_LEASE_LOST = 409


class NoAnswer(Exception):
    """The connection broke, or the answer did not come in time."""


class Answer(NamedTuple):
    status: int
    body: Any


class HttpClient:
    def __init__(self, port: int, timeout_s: float = 30) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request and return its answer; raises `NoAnswer`, never anything else."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                return await self._exchange(*self._streams, method, path, body)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            await self.close()
            raise NoAnswer(repr(error)) from error
        except asyncio.CancelledError:
            await self.close()
            raise

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: object,
    ) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            await self.close()
        return Answer(status, json.loads(raw) if raw else None)

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Client:
    """The broker's verbs, as operations of a history."""

    def __init__(self, history: History, port: int) -> None:
        self._history = history
        self._http = HttpClient(port)

    async def close(self) -> None:
        await self._http.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def configure(self, queue: str, **options: object) -> None:
        answer = await self._http.call(
            "POST", "/api/v1/configure", {"queue": queue, "options": options}
        )
        assert answer.status == 201, answer

    async def is_healthy(self) -> bool:
        try:
            return (await self._http.call("GET", "/health")).status == 200
        except NoAnswer:
            return False

    async def push(self, queue: str, producer: str, items: Iterable[Item]) -> Push:
        push = self._history.push(producer, items)
        body = {
            "items": [
                {
                    "queue": queue,
                    "partition": item.partition,
                    "transactionId": item.transaction_id,
                    "payload": {"is": item.transaction_id},
                }
                for item in push.items
            ]
        }
        answer = await self._call(push, "POST", "/api/v1/push", body)
        if answer is not None:
            self._history.stored(push, _message_ids(push, answer.body))
        return push

    async def pop(
        self,
        queue: str,
        group: str,
        *,
        partition: str | None = None,
        auto: bool = False,
        wait_ms: int = 0,
        batch: int = 100,
        partitions: int = 1,
    ) -> Pop:
        pop = self._history.pop(group, auto=auto)
        path = f"/api/v1/pop/queue/{quote(queue)}"
        if partition is not None:
            path += f"/partition/{quote(partition)}"
        query = {
            "consumerGroup": group,
            "autoAck": str(auto).lower(),
            "wait": str(wait_ms > 0).lower(),
            "timeout": wait_ms,
            "batch": batch,
            "partitions": partitions,
        }
        answer = await self._call(pop, "GET", f"{path}?{urlencode(query)}")
        if answer is not None:
            body = answer.body or {"messages": [], "leaseId": ""}
            self._history.delivered(pop, body["leaseId"], map(_delivery, body["messages"]))
        return pop

    async def ack(self, pop: Pop, ids: Sequence[str]) -> Ack:
        """Ack messages of a pop in one request."""
        ack = self._history.ack(pop.group, pop.lease, ids)
        acks = [_ack_body(pop, one) for one in ids]
        body = {"acknowledgments": acks, "consumerGroup": pop.group}
        answer = await self._call(ack, "POST", "/api/v1/ack/batch", body)
        if answer is not None:
            results = answer.body["results"]
            assert [one["transactionId"] for one in results] == list(ids), results
            self._history.settled(
                ack,
                [one["transactionId"] for one in results if one["success"]],
                [one["transactionId"] for one in results if not one["success"]],
            )
        return ack

    async def ack_one(self, pop: Pop, transaction_id: str) -> Ack:
        """Ack one message of a pop through the route for single acks."""
        ack = self._history.ack(pop.group, pop.lease, [transaction_id])
        body = {**_ack_body(pop, transaction_id), "consumerGroup": pop.group}
        answer = await self._call(ack, "POST", "/api/v1/ack", body, also=_LEASE_LOST)
        if answer is not None and answer.status == _LEASE_LOST:
            self._history.settled(ack, [], [transaction_id])
        elif answer is not None:
            self._history.settled(ack, [transaction_id], [])
        return ack

    async def move(self, pop: Pop, ids: Sequence[str], queue: str) -> Ack:
        """Ack messages and push an output for each, in one transaction."""
        ack = self._history.ack(pop.group, pop.lease, ids, pushes=True)
        acks = [{"type": "ack", "consumerGroup": pop.group, **_ack_body(pop, one)} for one in ids]
        outputs = [
            {
                "queue": queue,
                "partition": one.partition,
                # Another lease makes another output: deduplication must not hide it.
                "transactionId": f"{one.transaction_id} {pop.lease}",
                "payload": {"is": f"{one.transaction_id} {pop.lease}"},
            }
            for one in pop.deliveries
            if one.transaction_id in set(ids)
        ]
        body = {"operations": [*acks, {"type": "push", "items": outputs}]}
        answer = await self._call(ack, "POST", "/api/v1/transaction", body, also=_LEASE_LOST)
        if answer is not None and answer.status == _LEASE_LOST:
            self._history.settled(ack, [], ids)
        elif answer is not None:
            self._history.settled(ack, ids, [])
        return ack

    async def _call(
        self,
        operation: Operation,
        method: str,
        path: str,
        body: object = None,
        also: int | None = None,
    ) -> Answer | None:
        """Return the answer if it says what happened; otherwise write down that it does not."""
        try:
            answer = await self._http.call(method, path, body)
        except NoAnswer:
            self._history.unknown(operation)
            return None
        self._history.answered(answer.status)
        if answer.status < 300 or answer.status == also:
            return answer
        if answer.status >= 500:
            # Also where the server means "not done": a request may be done in part.
            self._history.unknown(operation)
        else:
            self._history.failed(operation)
        return None


def _message_ids(push: Push, results: list[dict[str, Any]]) -> list[str]:
    """Return the message ids of an answer, which lists items in the order they were sent."""
    assert [one["transaction_id"] for one in results] == [one[0] for one in push.items], results
    return [one["message_id"] for one in results]


def _delivery(message: dict[str, Any]) -> Delivery:
    return Delivery(
        message["transactionId"],
        message["partition"],
        message["offset"],
        message["id"],
        message["partitionId"],
        message["data"]["is"],
    )


def _ack_body(pop: Pop, transaction_id: str) -> dict[str, str]:
    message = next(one for one in pop.deliveries if one.transaction_id == transaction_id)
    return {
        "transactionId": transaction_id,
        "partitionId": message.partition_id,
        "leaseId": pop.lease,
        "status": "completed",
    }
