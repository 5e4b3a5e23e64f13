"""`python -m benchmarks.versions CHECKOUT`: this checkout beside another, in one run.

    git worktree add ../before v0.1.0 && make -C ../before setup
    .venv/bin/python -m benchmarks.versions ../before --only 'push100/p100/c16|pop-ack$'

Each round measures both, the one that begins in turn, each with its own environment, server and
PostgreSQL. What is compared is the median of the rounds, of messages a second and of what a message
costs the server in processor time; the latter is what a noisy machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

_HERE = Path(__file__).resolve().parent.parent
# A work that is slower than this against the other checkout is marked.
_FLOOR = 0.97


class Measured(NamedTuple):
    """What one round says of one work."""

    messages_per_s: float
    # Of the server's process.
    cpu_us_per_message: float


Rounds = dict[str, list[Measured]]


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout that has its own .venv")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each")
    parser.add_argument("--only", default=".", metavar="PATTERN", help="see benchmarks --only")
    parser.add_argument("--seconds", default="3", metavar="S", help="measured part of a scenario")
    return parser.parse_known_args()


def _measure(checkout: Path, only: str, seconds: str, more: list[str]) -> dict[str, Measured]:
    """Run the benchmarks of a checkout once; return what each scenario gave."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command: list[str | Path] = [checkout / ".venv/bin/python", "-m", "benchmarks", *more]
        command += ["--rounds", "1", "--only", only, "--seconds", seconds, "--json", file]
        subprocess.run(command, cwd=checkout, check=False, stdout=subprocess.DEVNULL)
        rows = json.loads(file.read_text())["results"]
    return {
        row["scenario"]: Measured(
            row["messages_per_s"], 1e4 * row["server_cpu_percent"] / row["messages_per_s"]
        )
        for row in rows
    }


def _table(before: Rounds, after: Rounds) -> Table:
    table = Table(
        "work", "other/s", "this/s", "ratio", "of each round", "cpu µs", "cpu µs", "ratio"
    )
    for name, rounds in after.items():
        if not before[name]:
            # Only this checkout knows it.
            continue
        old, new = _medians(before[name]), _medians(rounds)
        each = [
            now.messages_per_s / then.messages_per_s
            for now, then in zip(rounds, before[name], strict=False)
        ]
        table.add_row(
            name,
            f"{old.messages_per_s:,.0f}",
            f"{new.messages_per_s:,.0f}",
            _shown(new.messages_per_s / old.messages_per_s),
            " ".join(f"{ratio:.2f}" for ratio in each),
            f"{old.cpu_us_per_message:.2f}",
            f"{new.cpu_us_per_message:.2f}",
            _shown(old.cpu_us_per_message / new.cpu_us_per_message),
        )
    return table


def _medians(rounds: list[Measured]) -> Measured:
    return Measured(*(median(values) for values in zip(*rounds, strict=True)))


def _shown(ratio: float) -> str:
    """Return how much of the other this one does, marked when it is less than it may be."""
    return f"{ratio:.2f}" if ratio >= _FLOOR else f"[red]{ratio:.2f}[/]"


def main() -> int:
    arguments, more = _arguments()
    before: Rounds = defaultdict(list)
    after: Rounds = defaultdict(list)
    sides = [(arguments.checkout.resolve(), before), (_HERE, after)]
    console = Console(width=120)
    for number in range(arguments.rounds):
        for checkout, rounds in sides if number % 2 == 0 else reversed(sides):
            console.print(f"round {number + 1}: {checkout.name}", highlight=False)
            results = _measure(checkout, arguments.only, arguments.seconds, more)
            for name, measured in results.items():
                rounds[name].append(measured)
    console.print(_table(before, after))
    return 0


if __name__ == "__main__":
    sys.exit(main())
