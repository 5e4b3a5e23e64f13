"""Compare random definitions: live, as backfills, and as plain Python.

python -m tests.spark.random_definitions --seed 7 --count 200
python -m tests.spark.random_definitions --only 42
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queen.spark import session
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.tuning import settings_for
from tests.conftest import ServerProcess
from tests.spark.random_definitions.runner import Broker, tried_all

_MEMORY_BYTES = 2 * 1024**3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.random_definitions")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--count", type=int, default=200, help="how many seeds, one after another")
    parser.add_argument("--only", type=int, nargs="+", help="these seeds, with all about them")
    parser.add_argument("--at-once", type=int, default=4, help="how many run at the same time")
    given = parser.parse_args()
    seeds = given.only or range(given.seed, given.seed + given.count)
    differing = []
    with _broker() as broker:
        for outcome in tried_all(broker, seeds, given.at_once):
            is_told = outcome.differences or given.only
            print(outcome.report if is_told else outcome.line, flush=True)
            differing += [outcome.spec.seed] if outcome.differences else []
    print(f"{len(seeds)} definitions, {len(differing)} differ: {differing}")
    return 1 if differing else 0


@contextmanager
def _broker() -> Iterator[Broker]:
    """Start a broker and Spark for all definitions."""
    with tempfile.TemporaryDirectory(prefix="queen-random-") as folder:
        postgres = EmbeddedPostgres(Path(folder, "pg"), settings_for(_MEMORY_BYTES, 2))
        postgres.start()
        server = ServerProcess("--database-url", postgres.dsn)
        spark = session(
            "random definitions",
            "local[2]",
            spark_sql_shuffle_partitions=2,
            spark_ui_enabled=False,
            spark_sql_codegen_wholeStage=False,
            spark_driver_memory="1g",
            spark_sql_warehouse_dir=str(Path(folder, "warehouse")),
        )
        try:
            yield Broker(server.url, postgres.dsn, spark, Path(folder, "checkpoints"))
        finally:
            spark.stop()
            server.stop()
            postgres.stop()


if __name__ == "__main__":
    sys.exit(main())
