"""`python -m benchmarks.workers`: what a message costs with one, two and four worker processes.

Each number of workers has a server and a PostgreSQL of its own; all of them run throughout, and
one is measured at a time, in turns. What is compared is the processor time of all processes of a
server and of its PostgreSQL for a message, which says on few cores what the rate cannot: whether
there would be anything to gain on many. Beside it stands how many transactions there were for a
thousand messages.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.postgres import PostgresAddress
from benchmarks.scenarios import Bench, Measurement, Options, Scenario, pop, push

_COMMITS = "select sum(xact_commit) from pg_stat_database"


class Cost(NamedTuple):
    """What one round says: microseconds of a processor and commits, for a message."""

    server_us: float
    postgres_us: float
    commits: float
    messages_per_s: float

    @property
    def total_us(self) -> float:
        return self.server_us + self.postgres_us


def _works(connections: int) -> list[Scenario]:
    works = [
        Scenario(f"push{size}", push(per_request=size, partitions=100, connections=connections))
        for size in (100, 10, 1)
    ]
    return [
        *works,
        Scenario("pop-ack", pop(partitions=100, connections=connections, ack=True)),
        Scenario("pop-autoack", pop(partitions=100, connections=connections, ack=False)),
    ]


async def _commits(address: PostgresAddress) -> int:
    connection = await address.connect("postgres")
    try:
        return int(await connection.fetchval(_COMMITS))
    finally:
        await connection.close()


class Side:
    """One server, and what was measured of it."""

    def __init__(self, workers: int, broker: Broker, options: Options) -> None:
        self.workers = workers
        self.costs: dict[str, list[Cost]] = defaultdict(list)
        self._broker = broker
        self._row: Measurement | None = None
        self._bench = Bench(broker, options, lambda name, number: None, self._note)

    def _note(self, row: Measurement) -> None:
        self._row = row

    def measure(self, work: Scenario, number: int) -> Cost:
        before = asyncio.run(_commits(self._broker.postgres))
        work.run(self._bench, work.name, number)
        commits = asyncio.run(_commits(self._broker.postgres)) - before
        row = self._row
        assert row is not None
        if row.errors:
            raise RuntimeError(f"{work.name} with {self.workers} workers: {row.first_error}")
        messages = row.messages_per_s * row.seconds
        cost = Cost(
            1e4 * row.server_cpu_percent / row.messages_per_s,
            1e4 * row.postgres_cpu_percent / row.messages_per_s,
            commits / messages,
            row.messages_per_s,
        )
        self.costs[work.name].append(cost)
        return cost

    def median(self, work: str) -> Cost:
        return Cost(*(median(values) for values in zip(*self.costs[work], strict=True)))


def _table(sides: list[Side], works: list[Scenario]) -> Table:
    table = Table(
        "work",
        "workers",
        "server µs",
        "postgres µs",
        "both",
        "of one worker",
        "commits/1000",
        "msg/s",
    )
    for work in works:
        first = sides[0].median(work.name)
        for side in sides:
            cost = side.median(work.name)
            table.add_row(
                work.name,
                str(side.workers),
                f"{cost.server_us:.2f}",
                f"{cost.postgres_us:.2f}",
                f"{cost.total_us:.2f}",
                f"{cost.total_us / first.total_us:.2f}",
                f"{1000 * cost.commits:.1f}",
                f"{cost.messages_per_s:,.0f}",
            )
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S")
    parser.add_argument("--connections", type=int, default=64, metavar="N")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORK", help="only these")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    options = Options(arguments.seconds, 1.0, arguments.rounds, 0)
    works = [
        work
        for work in _works(arguments.connections)
        if not arguments.only or work.name in arguments.only
    ]
    console = Console(width=110)
    with ExitStack() as ends, tempfile.TemporaryDirectory() as folder:
        sides = []
        for count in arguments.workers:
            broker = Broker(Path(folder) / str(count), "--workers", str(count))
            sides.append(Side(count, ends.enter_context(broker), options))
        for number in range(arguments.rounds):
            for work in works:
                for side in sides if number % 2 == 0 else reversed(sides):
                    cost = side.measure(work, number)
                    console.print(
                        f"round {number + 1}: {work.name}, {side.workers} workers: "
                        f"{cost.total_us:.2f} µs",
                        highlight=False,
                    )
        console.print(_table(sides, works))
        ends.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
