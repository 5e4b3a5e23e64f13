"""Stream commands over RESP: this broker's log beside Valkey, in one run.

    python -m benchmarks.entry_streams [--seconds 4] [--rounds 3] [--connections 50]

XADD by many connections with pipelines of 1, 10 and 100, then XREADGROUP of 100 with XACK of
what came. Valkey runs with `appendfsync always` and `everysec`; the rounds of the three take
turns, and the table shows medians and their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias, cast

import hiredis
import uvloop

from benchmarks.streams_servers import Target, queen, valkey

_VALUE = b"x" * 16
_READ_COUNT = 100

Work: TypeAlias = Callable[[Target], Awaitable[float]]


def packed(*command: bytes) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
    return b"*%d\r\n" % len(command) + parts


class Load(asyncio.Protocol):
    """One connection that always has a request of so many commands under way."""

    def __init__(self, request: Callable[[], bytes], commands: int, done: Callable[[int], None]):
        self._request = request
        self._commands = commands
        self._done = done
        self._left = 0
        self._reader = hiredis.Reader()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is none by its type.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._left = self._commands
        self._transport.write(self._request())

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise SystemExit(f"a command failed: {reply}")
            self._left -= 1
        if self._left == 0:
            self._done(self._commands)
            self._send()


async def adds(target: Target, connections: int, pipeline: int, seconds: float) -> float:
    """Return how many entries a second are added."""
    request = packed(b"XADD", b"bench", b"*", b"field", _VALUE) * pipeline
    return await _rate(target, connections, lambda: request, pipeline, seconds)


async def _rate(
    target: Target, connections: int, request: Callable[[], bytes], commands: int, seconds: float
) -> float:
    count = 0

    def done(more: int) -> None:
        nonlocal count
        count += more

    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(
            lambda: Load(request, commands, done), "127.0.0.1", target.port
        )
        for _ in range(connections)
    ]
    await asyncio.sleep(0.3)
    before, began = count, time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (count - before) / (time.perf_counter() - began)
    for transport, _ in made:
        transport.abort()
    await asyncio.sleep(0.2)
    return rate


class Worker:
    """A connection that reads entries of a group and acknowledges them, one batch at a time."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._name = b"worker-%d" % number
        self.count = 0

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        parser = hiredis.Reader()
        read = packed(
            b"XREADGROUP", b"GROUP", b"g", self._name, b"COUNT", b"%d" % _READ_COUNT,
            b"STREAMS", b"bench", b">",
        )  # fmt: skip
        ids: list[bytes] = []
        try:
            while True:
                ack = packed(b"XACK", b"bench", b"g", *ids) if ids else b""
                writer.write(ack + read)
                replies: list[Any] = []
                while len(replies) < 1 + bool(ids):
                    parser.feed(await reader.read(1 << 20))
                    while (reply := parser.gets()) is not False:
                        replies.append(reply)
                entries = replies[-1][0][1] if replies[-1] else []
                self.count += len(entries)
                ids = [entry[0] for entry in entries]
                if not ids:
                    await asyncio.sleep(0.01)
        finally:
            writer.close()


async def reads(target: Target, entries: int, workers: int) -> float:
    """Return how many entries a second are read and acknowledged."""
    await _fill(target, entries)
    made = [Worker(target.port, number) for number in range(workers)]
    began = time.perf_counter()
    tasks = [asyncio.create_task(worker.run()) for worker in made]
    while sum(worker.count for worker in made) < entries:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    rate = entries / (time.perf_counter() - began)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return rate


async def _fill(target: Target, entries: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    parser, left = hiredis.Reader(), 2
    writer.write(packed(b"DEL", b"bench"))
    writer.write(packed(b"XGROUP", b"CREATE", b"bench", b"g", b"0", b"MKSTREAM"))
    add = packed(b"XADD", b"bench", b"*", b"field", _VALUE) * 1000
    for _ in range(entries // 1000):
        writer.write(add)
        left += 1000
        while left:
            parser.feed(await reader.read(1 << 20))
            while parser.gets() is not False:
                left -= 1
    writer.close()


def _adding(arguments: argparse.Namespace, pipeline: int) -> Work:
    return lambda target: adds(target, arguments.connections, pipeline, arguments.seconds)


async def measure(targets: list[Target], arguments: argparse.Namespace) -> None:
    works: dict[str, Work] = {
        f"xadd, pipelines of {pipeline}": _adding(arguments, pipeline) for pipeline in (1, 10, 100)
    }
    works[f"xreadgroup of {_READ_COUNT} and xack"] = lambda target: reads(target, 50_000, 10)
    print(f"{'':34}" + "".join(f"{target.name:>22}" for target in targets) + "    ratio")
    for name, work in works.items():
        rates: dict[str, list[float]] = {target.name: [] for target in targets}
        for _ in range(arguments.rounds):
            for target in targets:
                rates[target.name].append(await work(target))
        medians = {target.name: statistics.median(rates[target.name]) for target in targets}
        own = medians[targets[0].name]
        ratios = " ".join(f"{own / medians[target.name]:.2f}" for target in targets[1:])
        row = "".join(f"{medians[target.name]:>20,.0f}/s" for target in targets)
        print(f"{name:34}{row}    {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--only-queen", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        targets = [stack.enter_context(queen(Path(folder) / "queen"))]
        if not arguments.only_queen:
            for policy in ("always", "everysec"):
                targets.append(stack.enter_context(valkey(Path(folder) / policy, policy)))
        uvloop.run(measure(targets, arguments))


if __name__ == "__main__":
    main()
