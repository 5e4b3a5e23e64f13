"""What headers cost, and that they cost nothing where there are none.

    python -m benchmarks.headers [rounds]

Pushes, pops and acks of 100 messages a request, without headers and with two of them on each
message; pops come in frames, or as JSON. Printed is the processor time of client and server
together, a message; of the rounds, which are taken in turns, the middle one. To compare two
versions, run it in both.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
import uuid
from typing import Any

import psutil  # type: ignore[import-untyped]

from queen import Message, Queen
from queen.testing.process import RunningServer

_REQUESTS = 400
_EACH = 100
_PAYLOAD = {
    "order": 1042,
    "customer": "c-7",
    "items": [{"sku": "tea", "count": 2}],
    "note": "x" * 60,
}
_HEADERS = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "source": "shop",
}


def _cpu_s(server: psutil.Process) -> float:
    """Return the processor time of this process, of the server, and of its PostgreSQL."""
    family = [server, *server.children(recursive=True), psutil.Process(os.getpid())]
    return sum(sum(process.cpu_times()[:2]) for process in family)


async def _work(queen: Queen, headers: dict[str, str] | None) -> None:
    queue = queen.queue(f"bench-{uuid.uuid4().hex[:8]}")
    for _ in range(_REQUESTS):
        batch: list[Any] = [_PAYLOAD] * _EACH
        if headers is not None:
            batch = [Message(payload, headers=headers) for payload in batch]
        await queue.push(batch)
    for _ in range(_REQUESTS):
        messages = await queue.pop(batch=_EACH)
        for message in messages:
            if message.data is None:
                raise RuntimeError("a payload was lost")
        await queen.ack(messages)


async def _measure(rounds: int) -> None:
    with RunningServer() as server:
        broker = psutil.Process(server._process.pid)
        cases = {"no headers": None, "two headers": _HEADERS}
        if not hasattr(Message(1), "headers"):
            del cases["two headers"]
        taken: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds + 1):
            for language, frames in (("frames", True), ("JSON pops", False)):
                for name, headers in cases.items():
                    async with Queen(server.url, frames=frames) as queen:
                        before, began = _cpu_s(broker), time.monotonic()
                        await _work(queen, headers)
                        spent = _cpu_s(broker) - before
                    if number:
                        per_message = spent / (_REQUESTS * _EACH) * 1e6
                        taken.setdefault((language, name), []).append(per_message)
                    print(
                        f"{language:10} {name:12} {time.monotonic() - began:5.2f} s",
                        file=sys.stderr,
                    )
    for (language, name), spent_us in taken.items():
        print(f"{language:10} {name:12} {statistics.median(spent_us):6.1f} µs a message")


if __name__ == "__main__":
    asyncio.run(_measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
