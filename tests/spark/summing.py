"""A stateful pipeline from queue to queue: sums of each user in windows of half a minute.

Run as a program it is a driver that can be killed: `python -m tests.spark.summing` with the
arguments of `Sums` as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queen.spark import pipeline, windowed
from queen.spark.pipelines.functions import Function
from queen.spark.pipelines.run import Options, Running, start_pipeline, store
from tests.spark.history import Event
from tests.waiting import until

SCHEMA = "user string, id string, ts timestamp, amount bigint"
SIZE_S, GRACE_S = 30, 5
# Longer than any test leaves a task waiting.
_WAITS_S = 600.0
# Of all drivers of a checkpoint the same.
SHUFFLE_PARTITIONS = 2


class Sums(NamedTuple):
    """What is summed up, and where to."""

    url: str
    queue: str
    out: str
    checkpoint: str
    # A task waits as long as this file exists.
    waits: str
    messages_per_batch: int = 40

    @property
    def name(self) -> str:
        """Of the pipeline, and of its group."""
        return f"sums-{self.queue}"

    def function(self) -> Function:
        waits = self.waits

        def sums(events: DataFrame) -> DataFrame:
            rows, _ = windowed(events, SIZE_S, time="data.ts", grace=GRACE_S)
            held = f.udf(_Waiting(waits), "long", useArrow=False)
            amounts = rows.select("window", "data.user", held("data.amount").alias("amount"))
            totals = amounts.groupBy("window", "user").agg(
                f.sum("amount").alias("total"), f.count("*").alias("n")
            )
            return totals.select(f.col("window.start").alias("start"), "user", "total", "n")

        made = pipeline(reads={self.queue: SCHEMA}, writes=self.out, name=self.name, markers=True)
        return made(sums)

    def start(self, spark: SparkSession, *, available_now: bool) -> Running:
        options = Options(
            url=self.url,
            checkpoint=self.checkpoint,
            every=0.05,
            available_now=available_now,
            starting="earliest",
            max_messages_per_trigger=self.messages_per_batch,
        )
        function = self.function()
        store(function.definition, options)
        return start_pipeline(function.definition, spark, options, function)

    def numbers(self, kind: str) -> list[int]:
        """Return the batches that Spark has in its log of offsets, or of commits."""
        folder = Path(self.checkpoint) / kind
        if not folder.exists():
            return []
        return sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal())

    def last(self, kind: str) -> int:
        return max(self.numbers(kind), default=-1)

    def forget_commit(self, batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (Path(self.checkpoint) / "commits" / name).unlink(missing_ok=True)

    @property
    def query_id(self) -> str | None:
        file = Path(self.checkpoint) / "metadata"
        if not file.exists():
            return None
        found: str = json.loads(file.read_text())["id"]
        return found


class _Waiting:
    """Runs in tasks."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, amount: int) -> int:
        until(lambda: not Path(self._path).exists(), _WAITS_S)
        return amount


def oracle(events: Iterable[Event]) -> list[dict[str, Any]]:
    """What the sums are: no stream, no state, only the rule."""
    amounts: dict[tuple[int, str], list[int]] = defaultdict(list)
    for event in events:
        if event.ts is None:
            continue
        start_s = int(event.ts.timestamp()) // SIZE_S * SIZE_S
        end = datetime.fromtimestamp(start_s + SIZE_S, UTC)
        if end + timedelta(seconds=GRACE_S) > event.written:
            amounts[start_s, event.user].append(event.amount)
    return [
        {
            "start": datetime.fromtimestamp(start_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
            "user": user,
            "total": sum(found),
            "n": len(found),
        }
        for (start_s, user), found in amounts.items()
    ]


def main(arguments: dict[str, Any]) -> None:
    import queen.spark

    # Four attempts: a task whose worker was killed is repeated.
    spark = queen.spark.session(
        "summing",
        "local[2,4]",
        spark_sql_shuffle_partitions=SHUFFLE_PARTITIONS,
        spark_ui_enabled=False,
        spark_driver_memory="600m",
    )
    Sums(**arguments).start(spark, available_now=False).wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
