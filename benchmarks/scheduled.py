"""`python -m benchmarks.scheduled`: what a million scheduled messages cost those who push.

    python -m benchmarks.scheduled [--messages 1000000] [--seconds 4] [--rounds 3]

Pushes of 100 over 16 connections, on two brokers in turn: one with so many messages that are due
in a year, and one with none. The aim is 0.9 of the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.broker import Broker
from benchmarks.jobs import BenchError, HttpJob, run_job
from benchmarks.report import machine
from benchmarks.roles import Push

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_AIM = 0.9
_WARMUP_S = 1.0

_STAGE = """
insert into queen.staged (queue, partition, transaction_id, payload, deliver_at)
select 'later', (n % 100)::text, 'later-' || n, convert_to('{"n": ' || n || '}', 'UTF8'),
       clock_timestamp() + interval '365 days' + n * interval '1 second'
from generate_series(1, $1::integer) n
"""


async def schedule(broker: Broker, messages: int) -> None:
    """Put messages where pushes with a time put them."""
    connection = await broker.postgres.connect("queen")
    try:
        await connection.execute(_STAGE, messages, timeout=600)
        await connection.execute("vacuum analyze queen.staged", timeout=600)
        await connection.execute("checkpoint", timeout=600)
    finally:
        await connection.close()


def push_rate(broker: Broker, number: int, seconds: float) -> float:
    """Return messages per second into a queue of its own."""
    job = HttpJob(broker.port, (Push(f"now-{number}", 100, 100, 16),), _WARMUP_S, seconds, number)
    result = run_job(job, broker.usage())
    if result.roles[0].errors:
        raise BenchError(result.roles[0].first_error)
    return result.roles[0].messages / result.seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduled", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    console = Console()
    with Broker(_FOLDER / "few") as few, Broker(_FOLDER / "many") as many:
        asyncio.run(schedule(many, arguments.messages))
        ratios = []
        for number in range(arguments.rounds):
            without = push_rate(few, number, arguments.seconds)
            beside = push_rate(many, number, arguments.seconds)
            ratios.append(beside / without)
            console.print(f"{without:>11,.0f} msg/s without, {beside:>11,.0f} beside")
    ratio = statistics.median(ratios)
    console.print(f"{ratio:.2f} of the rate beside {arguments.messages:,} (aim {_AIM})")
    console.print(machine())
    return 0 if ratio >= _AIM else 1


if __name__ == "__main__":
    sys.exit(main())
