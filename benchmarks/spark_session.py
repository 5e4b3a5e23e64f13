"""The Spark session of a benchmark, and the broker beside it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil  # type: ignore[import-untyped,unused-ignore]
from rich.console import Console

from benchmarks.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WIDTH_WITHOUT_TERMINAL = 140
_FOLDER = Path(__file__).resolve().parent.parent / ".bench"


@contextmanager
def broker_and_spark(name: str, *options: str) -> Iterator[tuple[Broker, SparkSession, Path]]:
    """Yield a broker of its own, a session on all cores, and a folder; all end with the block."""
    import queen.spark

    with Broker(_FOLDER, *options) as broker:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_FOLDER))
        spark = queen.spark.session(name, spark_ui_enabled=False, spark_driver_memory="2g")
        try:
            yield broker, spark, folder
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)


def wide_console() -> Console:
    """Return a console that has room for a table in a file too."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def url_of(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker.port}"


def seconds(work: Callable[[], object]) -> float:
    """Return how long something took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Cpu(NamedTuple):
    """Processor time in seconds. It says more than the clock does on a machine that is busy."""

    spark: float
    broker: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.spark - before.spark, self.broker - before.broker)


def cpu(broker: Broker) -> Cpu:
    """Return what this process and Spark have used so far, and what the broker and PostgreSQL."""
    theirs = [psutil.Process(pid) for pid in broker.pids]
    with_children = {one for each in theirs for one in (each, *each.children(recursive=True))}
    own = psutil.Process()
    everyone = {own, *own.children(recursive=True)}
    return Cpu(_used(everyone - with_children), _used(with_children))


def _used(processes: set[psutil.Process]) -> float:
    seconds = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            # Those that have ended are in the account of whoever started them.
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
