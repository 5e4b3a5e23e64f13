"""`python -m benchmarks.nexmark`: events through queues and Spark, and how many in a second.

Each query reads what it needs of one history, from the queues into which it was pushed, and
writes its results into a queue. It runs twice; the second run counts, since the first one pays
for what a session does once. The time is that of the whole run: from the start of the query to
its end, with planning, state, and publishing. What comes out is counted against plain Python.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from rich.table import Table

from benchmarks.nexmark.events import events
from benchmarks.nexmark.filling import Queues, fill, new_queues
from benchmarks.nexmark.oracle import Oracle
from benchmarks.nexmark.queries import QUERIES, run
from benchmarks.nexmark.queries.query import Query
from benchmarks.report import machine
from benchmarks.spark_session import broker_and_spark, seconds, url_of, wide_console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PER_S = 10_000
_PARTITIONS = 8


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--events", type=int, default=500_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="the best one counts")
    parser.add_argument("--only", type=int, action="append", metavar="Q", help="only this query")
    return parser.parse_args()


def _measure(
    query: Query, url: str, spark: SparkSession, queues: Queues, folder: Path, number: int
) -> tuple[float, int]:
    """Run a query once; return how long it took and how many results it gave."""
    own = f"{queues.bids}-q{query.number}-{number}"
    results = 0

    def work() -> None:
        nonlocal results
        place = str(folder / own)
        running = run(query, url, spark, queues, own, files=f"{place}-files", checkpoint=place)
        running.wait()
        results = running.progress.output_rows

    return seconds(work), results


def main() -> int:
    arguments = _arguments()
    console = wide_console()
    history = list(events(arguments.events, per_s=_PER_S))
    table = Table("query", "what", "events read", "results", "s", "events/s", title="NEXMark")
    is_right = True
    differences: list[str] = []
    with broker_and_spark("nexmark") as (broker, spark, folder):
        queues = new_queues()
        oracle = Oracle(history, queues.begin)
        address = broker.postgres
        with psycopg.connect(
            host=address.host, port=address.port, user="postgres", dbname="queen", autocommit=True
        ) as database:
            pushed_s = seconds(lambda: fill(url_of(broker), database, history, queues, _PARTITIONS))
        console.print(f"{len(history):,} events in 3 queues, {pushed_s:.1f} s to push")
        for query in QUERIES:
            if arguments.only and query.number not in arguments.only:
                continue
            if query.differs:
                differences.append(f"q{query.number:<3} {query.differs}")
            runs = [
                _measure(query, url_of(broker), spark, queues, folder, number)
                for number in range(arguments.rounds)
            ]
            took_s = min(one for one, _ in runs)
            wanted = len(oracle.rows(query.number))
            good = all(results == wanted for _, results in runs)
            is_right &= good
            read = oracle.events(query.reads)
            found = f"{runs[0][1]:,}" if good else f"[red]{runs[0][1]:,}, not {wanted:,}"
            row = (f"q{query.number}", query.about, f"{read:,}", found)
            table.add_row(*row, f"{took_s:.2f}", f"{read / took_s:,.0f}")
            console.print(f"q{query.number:<3} {read / took_s:>10,.0f} events/s", highlight=False)
    console.print(table)
    console.print("Not as in the benchmark's SQL:", *differences, sep="\n", highlight=False)
    console.print(machine())
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
