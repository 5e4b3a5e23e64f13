"""A PostgreSQL that can be taken away and given back, and a load that does not care."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from queen.storage.embedded import EmbeddedPostgres
from queen.storage.tuning import settings_for
from tests.acceptance.client import HttpClient, NoAnswer
from tests.api import Api
from tests.ports import free_port
from tests.waiting import spend_async, until

_MEMORY_BYTES = 1024**3


class FickleDatabase:
    """PostgreSQL of a test's own, reached through a proxy that can swallow everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._postgres = self._start()
        self._proxy = _Proxy(_socket_of(self._postgres.dsn))
        self.dsn = f"postgresql://postgres@127.0.0.1:{self._proxy.port}/queen"

    def kill(self) -> None:
        """Take it away as the kernel does when there is no memory."""
        pid = self._postgres.postmaster_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def start_again(self) -> None:
        self._postgres.stop()
        self._postgres = self._start()

    def swallow(self) -> None:
        """Let nothing through any more, and tell nobody."""
        self._proxy.is_open = False

    def let_through(self) -> None:
        """The network is back; connections that hung in it are not."""
        self._proxy.is_open = True

    def stop(self) -> None:
        self._proxy.stop()
        self._postgres.stop()

    def _start(self) -> EmbeddedPostgres:
        postgres = EmbeddedPostgres(self._folder, settings_for(_MEMORY_BYTES, 2))
        postgres.start()
        return postgres


def _socket_of(dsn: str) -> str:
    said = parse_qs(urlsplit(dsn).query)
    return f"{said['host'][0]}/.s.PGSQL.{said['port'][0]}"


class _Proxy:
    """From TCP to a socket of PostgreSQL, in a thread of its own."""

    def __init__(self, path: str) -> None:
        self.port = free_port()
        self._path = path
        self.is_open = True
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = asyncio.start_server(self._serve, "127.0.0.1", self.port)
        server = self._loop.run_until_complete(serving)
        self._ready.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        # What was closed is gone a moment later.
        self._loop.run_until_complete(spend_async(0.05))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            if not self.is_open:
                # It is connected to something that never says a word.
                await self._wait_until_open()
                return
            behind, before = await asyncio.open_unix_connection(self._path)
            with closing(before):
                ways = [self._carry(reader, before), self._carry(behind, writer)]
                tasks = [asyncio.ensure_future(way) for way in ways]
                await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
                for task in tasks:
                    task.cancel()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.is_open:
                    await self._wait_until_open()
                    return
                target.write(data)
                await target.drain()
        except OSError:
            return

    async def _wait_until_open(self) -> None:
        while not self.is_open:
            await spend_async(0.02)


@dataclass
class Producer:
    """Pushes numbered messages to a partition of its own, and remembers what it was told."""

    queue: str
    name: str
    port: int
    repeats: bool
    # Numbers of messages that were taken, and of those of which nobody knows.
    taken: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    refused: list[Any] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    async def run(self, stop: asyncio.Event, per_second: float, batch: int) -> None:
        client = HttpClient(self.port)
        number = 0
        while not stop.is_set():
            numbers = list(range(number, number + batch))
            number += batch
            await self._push(client, numbers, stop)
            await spend_async(batch / per_second)
        await client.close()

    async def _push(self, client: HttpClient, numbers: list[int], stop: asyncio.Event) -> None:
        items = [
            {
                "queue": self.queue,
                "partition": self.name,
                "transactionId": f"{self.name}-{number}",
                "payload": {"n": number},
            }
            for number in numbers
        ]
        while True:
            try:
                answer = await client.call("POST", "/api/v1/push", {"items": items})
            except NoAnswer:
                await spend_async(0.05)
                if self.repeats and not stop.is_set():
                    continue
                self.unknown += numbers
                return
            self.statuses[answer.status] += 1
            if answer.status in (201, 202):
                self.taken += numbers
            else:
                self.refused.append((answer.status, answer.body))
            return


def read_all(api: Api, queue: str) -> dict[str, list[int]]:
    """Read everything of a queue; return the numbers of each partition in order."""
    found: dict[str, list[int]] = defaultdict(list)
    query = {"consumerGroup": "all", "subscriptionMode": "all", "autoAck": "true"}
    while messages := api.messages(queue, batch=1000, partitions=50, **query):
        for message in messages:
            found[message["partition"]].append(message["data"]["n"])
    return found


def check(producers: list[Producer], found: dict[str, list[int]]) -> None:
    """Everything that was taken is there once, in order, and nothing else but what is unknown."""
    for producer in producers:
        stored = found.get(producer.name, [])
        assert sorted(set(stored)) == sorted(stored), f"{producer.name}: something is there twice"
        assert stored == sorted(stored), f"{producer.name}: out of order"
        lost = set(producer.taken) - set(stored)
        assert not lost, f"{producer.name}: {len(lost)} lost, the first {min(lost)}"
        made_up = set(stored) - set(producer.taken) - set(producer.unknown)
        assert not made_up, f"{producer.name}: {len(made_up)} nobody has pushed"


def wait_until_drained(api: Api) -> None:
    def is_drained() -> bool:
        state = api.call("GET", "/api/v1/spool").json
        return bool(state["database"] == "connected" and state["records"] == 0 and state["counted"])

    until(is_drained, within_s=120.0)
