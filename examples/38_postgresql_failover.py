"""PostgreSQL is killed in the middle of a stream of pushes, and nobody notices.

This example starts a broker of its own, in a new folder, and kills the PostgreSQL that belongs to
it. The broker starts it again. Until then pushes are kept in files and answered `buffered`; the
consumer waits and goes on. It needs `queen[server]`.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queen import Queen, Received

COUNT = 300


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a broker of one's own and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).parent / "queen"), "serve", "--port", str(port)]
    process = subprocess.Popen(  # noqa: S603
        [*command, "--data-dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("queen ready"), "the broker did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def kill_postgresql(folder: Path) -> None:
    first, *_ = (folder / "postgres" / "postmaster.pid").read_text().splitlines()
    os.kill(int(first), signal.SIGKILL)


async def produce(queen: Queen, folder: Path) -> Counter[str]:
    statuses: Counter[str] = Counter()
    orders = queen.queue("orders").partition("customer-7")
    for number in range(COUNT):
        if number == COUNT // 3:
            kill_postgresql(folder)
            print("PostgreSQL is killed")
        (pushed,) = await orders.push({"order": number})
        statuses[pushed.status] += 1
        await asyncio.sleep(0.01)
    return statuses


async def consume(queen: Queen) -> list[int]:
    """Return the orders as they were first seen: one whose ack was lost comes again."""
    seen: dict[int, None] = {}

    async def handle(message: Received) -> None:
        seen.setdefault(message.data["order"])
        if len(seen) == COUNT:
            consumer.stop()

    # If PostgreSQL dies just as it has leased messages to us, they come again after this time.
    await queen.queue("orders").config(lease_time=2).create()
    consumer = queen.queue("orders").consume(handle)
    await consumer
    return list(seen)


async def show(url: str, folder: Path) -> None:
    async with Queen(url) as queen:
        statuses, seen = await asyncio.gather(produce(queen, folder), consume(queen))
        print(f"pushes that were answered: {statuses.total()}")
        print(f"some were buffered: {statuses['buffered'] > 0}")
        print(f"{len(seen)} orders, in order: {seen == list(range(COUNT))}")
        state = await queen.request("GET", "/api/v1/spool")
        print(f"left in the spool: {state['records']}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        with broker(folder) as url:
            await show(url, folder)


asyncio.run(main())
