"""`python -m benchmarks`: start a broker, measure it, print the tables."""

import argparse
import asyncio
import re
import sys
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped,unused-ignore]
from rich.console import Console

from benchmarks import postgres, report
from benchmarks.broker import Broker
from benchmarks.jobs import BenchError
from benchmarks.scenarios import Bench, Measurement, Options, Scenario, plan

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_WIDTH_WITHOUT_TERMINAL = 140


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the raw results go")
    parser.add_argument("--only", metavar="PATTERN", help="a regular expression over the names")
    parser.add_argument("--seconds", type=float, metavar="S", help="measured part of a scenario")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of what is compared")
    parser.add_argument(
        "--partitions", type=int, metavar="N", help="the many of 10 against many partitions"
    )
    parser.add_argument("--quick", action="store_true", help="one short round, 10,000 partitions")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser.parse_args()


def _options(arguments: argparse.Namespace) -> Options:
    quick = arguments.quick
    return Options(
        seconds=arguments.seconds or (1.5 if quick else 4.0),
        warmup_s=0.3 if quick else 0.5,
        rounds=arguments.rounds or (1 if quick else 3),
        many_partitions=arguments.partitions or (10_000 if quick else 100_000),
    )


def _chosen(options: Options, pattern: str | None) -> list[tuple[Scenario, int]]:
    order = [step for group in plan(options) for step in group.order()]
    return [step for step in order if pattern is None or re.search(pattern, step[0].name)]


def _measure(bench: Bench, steps: list[tuple[Scenario, int]], console: Console) -> bool:
    """Run all steps. One that fails is reported and the others go on."""
    whole = True
    for scenario, number in steps:
        bench.on_start(scenario.name, number)
        try:
            scenario.run(bench, scenario.name, number)
        except (BenchError, OSError, psutil.Error, asyncpg.PostgresError) as error:
            whole = False
            console.print(f"{scenario.name} failed: {error}", style="red", markup=False)
    return whole


def _print_row(console: Console, row: Measurement) -> None:
    refused = f"  [red]{row.errors} refused[/]" if row.errors else ""
    rate = f"{row.messages_per_s:>11,.0f} msg/s  p50 {row.p50_ms:>7.2f} ms"
    console.print(f"{row.scenario:<28} {rate}{refused}", highlight=False)


def main() -> int:
    arguments = _arguments()
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    options = _options(arguments)
    steps = _chosen(options, arguments.only)
    if arguments.list or not steps:
        console.print("\n".join(dict.fromkeys(scenario.name for scenario, _ in steps)))
        return 0 if steps else 2
    about = report.machine()
    with Broker(_FOLDER) as broker, console.status("starting") as status:
        about["postgres"] = values = asyncio.run(postgres.settings(broker.postgres))
        console.print(f"PostgreSQL {values}", highlight=False)
        if weak := postgres.weak_settings(values):
            console.print(f"[red]not durable, the rates do not count: {', '.join(weak)}")
        bench = Bench(
            broker,
            options,
            on_start=lambda name, number: status.update(f"{name}, round {number + 1}"),
            on_row=lambda row: _print_row(console, row),
        )
        whole = _measure(bench, steps, console)
    reached = report.print_all(console, bench.results, options.many_partitions)
    file = arguments.json or _FOLDER / f"{str(about['at']).replace(':', '')}.json"
    report.write_json(file, about, bench.results, reached)
    console.print(f"raw results: {file}", highlight=False)
    return 0 if whole and not any(row.errors for row in bench.results) else 1


if __name__ == "__main__":
    sys.exit(main())
