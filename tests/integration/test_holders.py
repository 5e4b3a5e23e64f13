"""Who holds what, by name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from queen import Queen
from tests.api import Api
from tests.conftest import ServerProcess
from tests.waiting import until


def _held_by(api: Api, group: str) -> list[Any]:
    queues = api.call("GET", f"/api/v1/consumer-groups/{group}").json
    return [
        row["workerId"]
        for queue in queues.values()
        for row in queue["partitions"]
        if row["leaseActive"]
    ]


def test_a_pop_may_say_who_asks(api: Api, other_api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": 1, "partition": "a"})
    api.push({"queue": queue, "payload": 2, "partition": "b"})
    (message,) = api.messages(queue, "a", consumerGroup=queue, consumer="Käthe")
    # Any server can say it, as soon as the name is written down.
    until(lambda: _held_by(other_api, queue) == ["Käthe"])
    api.messages(queue, "b", consumerGroup=queue)
    assert sorted(_held_by(api, queue), key=str) == ["Käthe", None]
    assert api.ack(message, consumerGroup=queue).status == 200
    assert _held_by(api, queue) == [None]
    assert api.pop(queue, consumerGroup=queue, consumer="n" * 256).status == 400


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_clients_have_names(
    start_server: Callable[..., ServerProcess], dsn: str, queue: str, workers: str
) -> None:
    server = start_server("--database-url", dsn, "--workers", workers)
    async with Queen(server.url) as queen:
        consumer = queen.queue(queue).group(queue)
        await consumer.push([1, 2])
        (first,) = await consumer.pop()
        api = server.api()
        begins = f"{socket.gethostname()}:{os.getpid()}:"
        # The lease is there a moment before the name of its holder is written down.
        until(lambda: [str(name)[: len(begins)] for name in _held_by(api, queue)] == [begins])
        await first.ack()
        assert await consumer.named("mill-3").pop()
        until(lambda: _held_by(api, queue) == ["mill-3"])


@pytest.mark.parametrize("shared", [False, True], ids=["ordered", "shared"])
def test_a_message_says_who_holds_it(api: Api, other_api: Api, queue: str, *, shared: bool) -> None:
    api.configure(queue, sharedGroups=shared, leaseTime=600)
    api.push_many(queue, 1)
    (message,) = api.messages(queue, consumerGroup="g", consumer="mill-3")
    path = f"/api/v1/messages/{message['partitionId']}/{message['id']}"

    def standing() -> Any:
        (group,) = other_api.call("GET", path).json["consumerGroups"]
        return group

    until(lambda: standing()["consumer"] == "mill-3")
    assert standing()["attempt"] == 1 and standing()["leaseExpiresAt"]
    assert api.ack(message, "failed").status == 200
    assert (standing()["consumer"], standing()["attempt"]) == (None, None)
    until(lambda: api.messages(queue, consumerGroup="g", consumer="mill-4"))
    until(lambda: standing()["consumer"] == "mill-4")
    assert standing()["attempt"] == 2
