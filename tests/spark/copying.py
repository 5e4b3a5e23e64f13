"""A streaming query that copies numbered rows from files into a queue; a driver of its own too.

Run as a program it is a driver that can be killed: `python -m tests.spark.copying` with the
arguments of `Copy` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.waiting import until

SCHEMA = "n long, lane string"
# Longer than any test leaves a task waiting.
_WAITS_S = 600.0


class Copy(NamedTuple):
    """What to copy, and what goes wrong on the way."""

    url: str
    queue: str
    folder: str
    checkpoint: str
    name: str | None = None
    # A task that comes to the row `fails_at` while this file exists waits until it is gone, and
    # fails then.
    fails: str | None = None
    fails_at: int = 0
    # A task waits as long as this file exists.
    waits: str | None = None
    # Bytes added to each row.
    padding: int = 0
    retry_s: int = 60

    def start(self, spark: SparkSession, *, available_now: bool = True) -> StreamingQuery:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(self.folder)
        if self.fails or self.waits:
            # What it returns must be large: small results stay in the task until it ends.
            padding = f.udf(_Trouble(self), "string", useArrow=False)("n")
        else:
            padding = f.repeat(f.lit("x"), self.padding)
        data = f.struct("n", padding.alias("padding"))
        df = rows.select(data.alias("data"), f.col("lane").alias("partition"))
        writer = df.writeStream.format("queen").option("checkpointLocation", self.checkpoint)
        writer = writer.option("url", self.url).option("queue", self.queue)
        writer = writer.option("retrySeconds", self.retry_s)
        if self.name is not None:
            writer = writer.option("transactionName", self.name)
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime="100 milliseconds")
        return writer.start()

    def run(self, spark: SparkSession) -> None:
        """Copy everything that is there."""
        query = self.start(spark)
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    def add(self, number: int, rows: range, lanes: int = 3) -> None:
        """Add a file; each file is one micro-batch."""
        folder = Path(self.folder)
        folder.mkdir(exist_ok=True)
        lines = [json.dumps({"n": n, "lane": f"p{n % lanes}"}) for n in rows]
        written = folder / f".{number:04}"
        written.write_text("\n".join(lines))
        # Files are read in the order of their times.
        at_s = 1_700_000_000 + number
        os.utime(written, (at_s, at_s))
        written.rename(folder / f"{number:04}.json")

    def log(self, kind: str, batch: int) -> Path:
        """The entry that Spark has for a batch in its log of offsets or of commits."""
        return Path(self.checkpoint) / kind / str(batch)

    @property
    def query_id(self) -> str:
        found: str = json.loads((Path(self.checkpoint) / "metadata").read_text())["id"]
        return found


class _Trouble:
    """Runs in tasks: fails once, or waits."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def __call__(self, n: int) -> str:
        copy = self._copy
        if copy.fails is not None and n == copy.fails_at and Path(copy.fails).exists():
            _until_gone(copy.fails)
            raise RuntimeError("a task fails, as it was asked to")
        if copy.waits is not None:
            _until_gone(copy.waits)
        return "x" * copy.padding


def _until_gone(path: str) -> None:
    until(lambda: not Path(path).exists(), _WAITS_S)


def main(arguments: dict[str, Any]) -> None:
    import queen.spark

    master = arguments.pop("master", "local[2]")
    spark = queen.spark.session(
        "copying",
        master,
        spark_ui_enabled=False,
        spark_driver_memory="600m",
        # A task hands its rows on a few at a time, so that some are staged before others are made.
        spark_sql_execution_arrow_maxRecordsPerBatch=100,
    )
    query = Copy(**arguments).start(spark, available_now=False)
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
