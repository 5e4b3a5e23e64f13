"""`python -m benchmarks.upkeep`: what the jobs of a broker cost over a large log.

First one round of each job, alone. Then how fast pushes are while the jobs run, against how fast
they are while the jobs are held back: measured in turn, in pairs. Jobs are held back by taking
their locks, as another server that is at them would, so both sides are the same broker.

The side with the jobs pays more than its due: a count of everything, which rests twenty times
as long as it takes, is overdue whenever its lock was held, so one falls into every interval.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.dashboard import count
from benchmarks.jobs import BenchError, HttpJob, run_job
from benchmarks.report import machine
from benchmarks.roles import Push
from benchmarks.volume import MESSAGES_EACH, PARTITIONS, QUEUE, fill
from queen.service.admin.traces import JOB as TRACES
from queen.service.stats.statistics import JOB as STATISTICS
from queen.service.upkeep.retention import Retention
from queen.storage.database import Database, Transaction

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_AIM = 0.8
_WARMUP_S = 1.0
_REPEATS = 5
_JOBS = ("retention", "idle_partitions", STATISTICS, "forget_activity", TRACES)

# Old enough for nothing, and for everything that is done: which is no whole segment.
_NOTHING = '{"retentionEnabled": true, "retentionSeconds": 864000}'
_COMPLETED = '{"retentionEnabled": true, "completedRetentionSeconds": 1}'

Times = dict[str, float]


class Upkeep:
    """The broker's database, and the right to run its jobs."""

    def __init__(self, connection: asyncpg.Connection, database: Database) -> None:
        self._connection = connection
        self._database = database

    async def hold(self) -> None:
        """Wait for the jobs to end, and let none begin."""
        for name in _JOBS:
            await self._connection.execute("select pg_advisory_lock(7002, hashtext($1))", name)

    async def release(self) -> None:
        await self._connection.execute("select pg_advisory_unlock_all()")

    async def configure(self, options: str) -> None:
        await self._connection.execute(
            "update queen.queues set options = $2::jsonb where name = $1", QUEUE, options
        )

    async def clean_up(self) -> Times:
        """Time rounds of the clean-up, while the broker's own is held back."""
        times: Times = {}
        await self.configure(_NOTHING)
        times["retention, nothing to do"] = await self._median_ms(
            lambda work: Retention(7, 30).remove_old(work)
        )
        await self.configure(_COMPLETED)
        walk = Retention(7, 30)
        times["completed retention, one round"] = await self._median_ms(walk.remove_old)
        times["completed retention, all rounds"] = await self._walk_ms()
        idle = Retention(7, 30)
        times["idle partitions, one round"] = await self._median_ms(idle.drop_idle)
        return times

    async def counting(self) -> Times:
        row = await self._connection.fetchrow("select * from queen.stats_round")
        assert row is not None
        return {
            "statistics": row["took_ms"],
            "statistics, bytes of all segments": row["bytes_took_ms"],
        }

    async def _walk_ms(self) -> float:
        walk, more, started = Retention(7, 30), True, time.perf_counter()
        while more:
            async with self._database.transaction() as transaction:
                more = await walk.remove_old(transaction)
        return (time.perf_counter() - started) * 1000

    async def _median_ms(self, work: Callable[[Transaction], Awaitable[bool]]) -> float:
        times = []
        for _ in range(_REPEATS):
            started = time.perf_counter()
            async with self._database.transaction() as transaction:
                await work(transaction)
            times.append((time.perf_counter() - started) * 1000)
        return statistics.median(times)


def _push_rate(broker: Broker, name: str, seconds: float, seed: int) -> float:
    """Return messages per second into a queue of its own."""
    broker.configure(name, "window")
    job = HttpJob(broker.port, (Push(name, 100, 100, 16),), _WARMUP_S, seconds, seed)
    result = run_job(job, broker.usage())
    if result.roles[0].errors:
        raise BenchError(result.roles[0].first_error)
    return result.roles[0].messages / result.seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upkeep", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each interval")
    parser.add_argument("--pairs", type=int, default=5, help="how often both are measured")
    return parser.parse_args()


async def _open(broker: Broker) -> Upkeep:
    address = broker.postgres
    connection = await address.connect("queen")
    await fill(connection)
    dsn = f"postgresql:///queen?host={address.host}&port={address.port}&user=postgres"
    return Upkeep(connection, await Database.connect(dsn, size=2))


def _pairs(
    runner: asyncio.Runner, broker: Broker, upkeep: Upkeep, arguments: argparse.Namespace
) -> list[tuple[float, float]]:
    """Return push rates with the jobs running and held back; which comes first changes."""
    pairs = []
    for number in range(arguments.pairs):
        rates = {}
        for running in (True, False) if number % 2 else (False, True):
            runner.run(upkeep.release() if running else upkeep.hold())
            name = f"push-{number}-{running}"
            rates[running] = _push_rate(broker, name, arguments.seconds, 2 * number + running)
        runner.run(upkeep.release())
        pairs.append((rates[True], rates[False]))
    return pairs


def main() -> None:
    arguments, console = _arguments(), Console()
    with Broker(_FOLDER) as broker, asyncio.Runner() as runner:
        upkeep = runner.run(_open(broker))
        count(f"http://127.0.0.1:{broker.port}")
        runner.run(upkeep.hold())
        times = runner.run(upkeep.clean_up())
        times |= runner.run(upkeep.counting())
        pairs = _pairs(runner, broker, upkeep, arguments)
        for what, took_ms in runner.run(upkeep.counting()).items():
            times[f"{what}, under load"] = took_ms
    table = Table("job", "ms", title=f"{PARTITIONS:,} partitions of {MESSAGES_EACH}")
    for what, took_ms in times.items():
        table.add_row(what, f"{took_ms:,.1f}")
    console.print(table)
    pushes = Table("push, jobs running", "held back", "ratio", title="messages per second")
    for running, held in pairs:
        pushes.add_row(f"{running:,.0f}", f"{held:,.0f}", f"{running / held:.2f}")
    console.print(pushes)
    ratio = statistics.median(running / held for running, held in pairs)
    console.print(f"median ratio {ratio:.2f}, aim {_AIM}", style="" if ratio >= _AIM else "red")
    console.print(machine())


if __name__ == "__main__":
    main()
