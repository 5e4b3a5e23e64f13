"""Many random definitions in one process, with a broker and a session of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from queen.spark import session
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.tuning import settings_for
from tests.conftest import ServerProcess
from tests.spark.random_definitions.runner import Broker, tried_all

_MEMORY_BYTES = 2 * 1024**3


def tell(seeds: Sequence[int], at_once: int, is_all_told: bool) -> list[int]:
    """Try definitions, print what became of them, and return those that differ."""
    differing = []
    with _broker() as broker:
        for outcome in tried_all(broker, seeds, at_once):
            is_told = outcome.differences or is_all_told
            print(outcome.report if is_told else outcome.line, flush=True)
            differing += [outcome.spec.seed] if outcome.differences else []
    return differing


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
