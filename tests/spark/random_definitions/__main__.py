"""Compare random definitions: live, as backfills, and as plain Python.

python -m tests.spark.random_definitions --seed 7 --count 200
python -m tests.spark.random_definitions --only 42
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.spark.random_definitions.telling import tell

# Spark never ends the threads that watch over the processes of its sources, and with each of them
# a session stays. So after so many definitions there is a new JVM.
_AT_MOST = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.random_definitions")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--count", type=int, default=200, help="how many seeds, one after another")
    parser.add_argument("--only", type=int, nargs="+", help="these seeds, with all about them")
    parser.add_argument("--at-once", type=int, default=4, help="how many run at the same time")
    given = parser.parse_args()
    seeds = given.only or range(given.seed, given.seed + given.count)
    differing: list[int] = []
    for first in range(0, len(seeds), _AT_MOST):
        some = seeds[first : first + _AT_MOST]
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
            differing += own.submit(tell, some, given.at_once, bool(given.only)).result()
    print(f"{len(seeds)} definitions, {len(differing)} differ: {differing}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
