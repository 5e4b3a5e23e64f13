"""`python -m benchmarks.snapshot`: what a snapshot that is held open costs.

A dump, a long query or a transaction that somebody forgot keeps PostgreSQL from pruning the dead
versions of rows that are updated all the time: cursors and partitions. Small pushes to few
partitions, and pops with acks, are measured before, while, and after one is held, with the dead
rows of both tables beside them. A twin on which nobody holds one is measured in turns: what a
busy machine does to both is not the snapshot's.
"""

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.jobs import BenchError, HttpJob, JobResult, run_job
from benchmarks.report import machine
from benchmarks.roles import Pop, Push

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_QUEUE = "hot"
_GROUP = "g"
_PARTITIONS = 20
_CONNECTIONS = 8
_WARMUP_S = 0.5
_SHORTEST_S = 1.0
# Intervals while the snapshot is held, and before and after it; the latter lie within a minute.
_HELD = 6
_FREE = 3
# The longest interval of those, and of the twin.
_SHORT_S = 10.0

_DEAD_ROWS = """
select relname, n_dead_tup from pg_stat_user_tables
where schemaname = 'queen' and relname in ('cursors', 'partitions')
"""


@dataclass(frozen=True)
class Measured:
    """One interval."""

    when: str
    pushed_s: float
    popped_s: float
    # Of the twin, right after it.
    twin_s: float
    push_p99_ms: float
    dead: dict[str, int]

    @property
    def ratio(self) -> float:
        return self.pushed_s / self.twin_s


class Snapshot:
    """A transaction that has looked at the database and stays open."""

    def __init__(self, holder: asyncpg.Connection, watcher: asyncpg.Connection) -> None:
        self._holder = holder
        self._watcher = watcher

    async def hold(self) -> None:
        # PostgreSQL would end it after a minute. A dump is never idle.
        await self._holder.execute("set idle_in_transaction_session_timeout = 0")
        await self._holder.execute("begin isolation level repeatable read")
        await self._holder.fetchval("select count(*) from queen.queues")

    async def let_go(self) -> None:
        await self._holder.execute("rollback")

    async def dead_rows(self) -> dict[str, int]:
        rows = await self._watcher.fetch(_DEAD_ROWS)
        return {row["relname"]: row["n_dead_tup"] for row in rows}


def _load(broker: Broker, seconds: float, seed: int) -> JobResult:
    roles = (
        Push(_QUEUE, _PARTITIONS, 1, _CONNECTIONS),
        Pop(_QUEUE, _GROUP, _CONNECTIONS, ack=True, wait_ms=1000),
    )
    job = HttpJob(broker.port, roles, _WARMUP_S, seconds, seed)
    result = run_job(job, broker.usage())
    for role in result.roles:
        if role.errors:
            raise BenchError(role.first_error)
    return result


def _measure(
    runner: asyncio.Runner, broker: Broker, twin: Broker, snapshot: Snapshot, seconds: float
) -> list[Measured]:
    """Measure interval after interval; the snapshot is held in those in the middle."""
    intervals: list[Measured] = []
    short_s = min(seconds, _SHORT_S)
    for number in range(_FREE + _HELD + _FREE):
        if number == _FREE:
            runner.run(snapshot.hold())
        elif number == _FREE + _HELD:
            runner.run(snapshot.let_go())
        when = "before" if number < _FREE else "held" if number < _FREE + _HELD else "after"
        result = _load(broker, seconds if when == "held" else short_s, number)
        beside = _load(twin, short_s, number)
        push, pop = result.roles
        rates = push.messages / result.seconds, pop.messages / result.seconds
        twin_s = beside.roles[0].messages / beside.seconds
        dead = runner.run(snapshot.dead_rows())
        intervals.append(Measured(when, *rates, twin_s, push.p99_ms, dead))
    return intervals


async def _open(broker: Broker) -> Snapshot:
    address = broker.postgres
    return Snapshot(await address.connect("queen"), await address.connect("queen"))


def _mean(intervals: list[Measured], when: str) -> float:
    return fmean(each.ratio for each in intervals if each.when == when)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshot", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long it is held, about")
    return parser.parse_args()


def main() -> None:
    arguments, console = _arguments(), Console()
    seconds = max(arguments.seconds / _HELD, _SHORTEST_S)
    with Broker(_FOLDER) as broker, Broker(_FOLDER / "twin") as twin, asyncio.Runner() as runner:
        broker.configure(_QUEUE, "window")
        twin.configure(_QUEUE, "window")
        snapshot = runner.run(_open(broker))
        intervals = _measure(runner, broker, twin, snapshot, seconds)
    title = f"{_PARTITIONS} partitions, one message a push, held for {seconds * _HELD:.0f} s"
    table = Table(
        "snapshot", "push/s", "pop+ack/s", "twin push/s", "of twin", "push p99 ms",
        "dead cursors", "dead partitions", title=title,
    )  # fmt: skip
    for each in intervals:
        dead = [f"{each.dead.get(name, 0):,}" for name in ("cursors", "partitions")]
        rates = f"{each.pushed_s:,.0f}", f"{each.popped_s:,.0f}", f"{each.twin_s:,.0f}"
        table.add_row(each.when, *rates, f"{each.ratio:.2f}", f"{each.push_p99_ms:.1f}", *dead)
    console.print(table)
    before = _mean(intervals, "before")
    console.print(
        f"pushes beside the twin, of before: {_mean(intervals, 'held') / before:.2f} held, "
        f"{intervals[-_FREE - 1].ratio / before:.2f} at the end of it, "
        f"{_mean(intervals, 'after') / before:.2f} within a minute after it"
    )
    console.print(machine())


if __name__ == "__main__":
    main()
