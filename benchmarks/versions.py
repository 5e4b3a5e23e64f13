"""`python -m benchmarks.versions CHECKOUT`: this checkout beside another, in one run.

    git worktree add ../before v0.1.0 && make -C ../before setup
    .venv/bin/python -m benchmarks.versions ../before --only 'push100/p100/c16|pop-ack$'

Each round measures both, the one that begins in turn, each with its own environment, server and
PostgreSQL. What is compared is the median of the rounds; the ratio of each round stands beside it.
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

from rich.console import Console
from rich.table import Table

_HERE = Path(__file__).resolve().parent.parent
# A work that is slower than this against the other checkout is marked.
_FLOOR = 0.97

Rates = dict[str, list[float]]


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout that has its own .venv")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each")
    parser.add_argument("--only", default=".", metavar="PATTERN", help="see benchmarks --only")
    parser.add_argument("--seconds", default="3", metavar="S", help="measured part of a scenario")
    return parser.parse_known_args()


def _measure(checkout: Path, only: str, seconds: str, more: list[str]) -> Rates:
    """Run the benchmarks of a checkout once; return messages a second by scenario."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command: list[str | Path] = [checkout / ".venv/bin/python", "-m", "benchmarks", *more]
        command += ["--rounds", "1", "--only", only, "--seconds", seconds, "--json", file]
        subprocess.run(command, cwd=checkout, check=False, stdout=subprocess.DEVNULL)
        rates: Rates = defaultdict(list)
        for row in json.loads(file.read_text())["results"]:
            rates[row["scenario"]].append(row["messages_per_s"])
        return rates


def _table(before: Rates, after: Rates) -> Table:
    table = Table("work", "other", "this", "ratio", "of each round")
    for name, rates in after.items():
        old, new = median(before[name]), median(rates)
        rounds = [now / then for now, then in zip(rates, before[name], strict=False)]
        ratio = f"{new / old:.2f}" if new / old >= _FLOOR else f"[red]{new / old:.2f}[/]"
        shown = " ".join(f"{each:.2f}" for each in rounds)
        table.add_row(name, f"{old:,.0f}", f"{new:,.0f}", ratio, shown)
    return table


def main() -> int:
    arguments, more = _arguments()
    before: Rates = defaultdict(list)
    after: Rates = defaultdict(list)
    sides = [(arguments.checkout.resolve(), before), (_HERE, after)]
    console = Console(width=120)
    for number in range(arguments.rounds):
        for checkout, rates in sides if number % 2 == 0 else reversed(sides):
            console.print(f"round {number + 1}: {checkout.name}", highlight=False)
            for name, measured in _measure(
                checkout, arguments.only, arguments.seconds, more
            ).items():
                rates[name].append(median(measured))
    console.print(_table(before, after))
    return 0


if __name__ == "__main__":
    sys.exit(main())
