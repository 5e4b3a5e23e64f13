"""The Spark session of a benchmark, and the broker beside it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"


@contextmanager
def broker_and_spark(name: str) -> Iterator[tuple[Broker, SparkSession, Path]]:
    """Yield a broker of its own, a session on all cores, and a folder; all end with the block."""
    import queen.spark

    with Broker(_FOLDER) as broker:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_FOLDER))
        spark = queen.spark.session(name, spark_ui_enabled=False, spark_driver_memory="2g")
        try:
            yield broker, spark, folder
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)


def url_of(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker.port}"


def seconds(work: Callable[[], object]) -> float:
    """Return how long something took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
