"""`python -m benchmarks.shared_groups`: shared groups beside groups that read in order.

The same messages, consumed by as many workers through the Python client, with 1 and with 100
partitions, the two kinds in turns. On a machine that has other things to do, processor time a
message (of server and PostgreSQL) is the number to look at; rates are those of the moment.

.venv/bin/python -m benchmarks.shared_groups
.venv/bin/python -m benchmarks.shared_groups --messages 20000 --rounds 1
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.broker import Broker
from queen import Queen

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_PAYLOAD = {"user": 7, "kind": "click", "page": "/products/1042", "at": 1700000000, "ok": True}
_WORKERS, _BATCH = 8, 100
_AIM = 0.7


class Measured(NamedTuple):
    rate: float
    server_us: float
    postgres_us: float


async def _fill(queen: Queen, queue: str, partitions: int, messages: int) -> None:
    each = messages // partitions
    for number in range(partitions):
        await queen.queue(queue).partition(f"p{number}").push([_PAYLOAD] * each)


async def _consume(broker: Broker, queen: Queen, queue: str, group: str, count: int) -> Measured:
    async def handle(_messages: list[object]) -> None:
        pass

    wanted = queen.queue(queue).group(group).batch(_BATCH).concurrency(_WORKERS).limit(count)
    usage = broker.usage()
    usage.begin()
    began = time.perf_counter()
    await wanted.shared(group.startswith("shared")).consume(handle, signals=False)
    took = time.perf_counter() - began
    usage.end()
    micro = 1e6 / count
    return Measured(count / took, usage.server_cpu_s * micro, usage.postgres_cpu_s * micro)


async def _compare(broker: Broker, partitions: int, messages: int, rounds: int) -> None:
    queue = f"compared-{partitions}"
    async with Queen(f"http://127.0.0.1:{broker.port}") as queen:
        await _fill(queen, queue, partitions, messages)
        measured: dict[str, list[Measured]] = {"ordered": [], "shared": []}
        for number in range(rounds):
            for kind, rows in measured.items():
                group = f"{kind}-{number}"
                rows.append(await _consume(broker, queen, queue, group, messages))
    print(f"{partitions:>3} partitions{'msg/s':>14}{'server µs':>12}{'postgres µs':>14}")
    for kind, rows in measured.items():
        rate, server, postgres = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{kind:<14}{rate:>14,.0f}{server:>12.1f}{postgres:>14.1f}")
    costs = {kind: min(row[1] + row[2] for row in rows) for kind, rows in measured.items()}
    rates = {kind: max(row[0] for row in rows) for kind, rows in measured.items()}
    by_rate, by_cost = rates["shared"] / rates["ordered"], costs["ordered"] / costs["shared"]
    print(f"shared is {by_rate:.2f}x by rate, {by_cost:.2f}x by processor (aim: {_AIM}x)\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with Broker(_FOLDER) as broker:
        for partitions in (1, 100):
            asyncio.run(_compare(broker, partitions, options.messages, options.rounds))


if __name__ == "__main__":
    main()
