"""Pipelines over one queue into tables, files and queues, all in one driver, which can be killed.

    latest   sums of each user in windows, into a table with one row for each user
    sums     the same into a table without keys, late messages into a queue
    copies   every message into files
    named    a function: each message with what a static table says of its user
    regions  a function: sums in windows by what a static table says of the user

Run as a program: `python -m tests.spark.delivering` with the arguments of `Deliveries` as JSON.
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

from queen import SyncQueen
from queen.spark import pipeline, windowed
from queen.spark.pipelines.functions import Function
from queen.spark.pipelines.run import Running
from tests.spark.history import Event
from tests.spark.summing import SHUFFLE_PARTITIONS

SCHEMA = "user string, id string, ts timestamp, amount bigint"
SIZE_S, GRACE_S = 10, 5
KINDS = ("latest", "sums", "copies", "named", "regions")
# Some users have none, some have two.
REGIONS = [(f"u{n}", region) for n in range(8) for region in ("north", "south")[: 1 + n % 3 // 2]]


class Deliveries(NamedTuple):
    """What is delivered, and where to."""

    url: str
    dsn: str
    queue: str
    folder: str
    messages_per_batch: int = 80

    def name(self, kind: str) -> str:
        """Of the pipeline, and of its group."""
        return f"{kind}-{self.queue}"

    def table(self, kind: str) -> str:
        return self.name(kind).replace("-", "_")

    @property
    def files(self) -> str:
        return f"{self.folder}/files"

    def out(self, kind: str) -> str:
        return f"out-{self.name(kind)}"

    # ---- what they compute ----

    def stream(self, queen: SyncQueen, kind: str) -> Any:
        """Return the pipeline of a kind that is not a function."""
        stream = queen.stream(self.name(kind)).sources(self.queue).schema(SCHEMA)
        if kind == "copies":
            return stream.select("data.id", "data.user", "data.amount").to_files(self.files)
        stream = stream.event_time("data.ts").key("data.user").tumbling_time(SIZE_S)
        stream = stream.grace_period(GRACE_S).aggregate(total="sum(data.amount)", n="count(*)")
        if kind == "latest":
            return stream.to_table(self.table(kind), keys=["user"])
        return stream.to_table(self.table(kind)).late_to(self.out(kind))

    def function(self, kind: str) -> Function:
        made = pipeline(
            reads={self.queue: SCHEMA},
            writes=self.out(kind),
            name=self.name(kind),
            markers=kind == "regions",
        )
        return made(_named if kind == "named" else _regions)

    # ---- running ----

    def start(self, spark: SparkSession, queen: SyncQueen, kind: str, **options: Any) -> Running:
        given = {
            "url": self.url,
            "checkpoint": f"{self.folder}/{kind}",
            "every": 0.05,
            "starting": "earliest",
            "max_messages_per_trigger": self.messages_per_batch,
            **options,
        }
        if kind in ("named", "regions"):
            return self.function(kind).run(spark, **given)
        running: Running = self.stream(queen, kind).run(spark, table_url=self.dsn, **given)
        return running

    def last(self, kind: str, log: str) -> int:
        """Return the last batch that Spark has in its log of offsets, or of commits."""
        folder = Path(self.folder) / kind / log
        names = folder.iterdir() if folder.exists() else iter(())
        return max((int(file.name) for file in names if file.name.isdecimal()), default=-1)

    def forget_commit(self, kind: str) -> None:
        """Leave everything as if the last commit had not been noted yet."""
        batch = self.last(kind, "commits")
        for name in (str(batch), f".{batch}.crc"):
            (Path(self.folder) / kind / "commits" / name).unlink(missing_ok=True)

    def transaction(self, kind: str) -> str | None:
        """Return the name under which a checkpoint's batches are noted."""
        note = Path(self.folder) / kind / "queen.json"
        return json.loads(note.read_bytes())["transaction"] if note.exists() else None


def _static(events: DataFrame) -> DataFrame:
    return events.sparkSession.createDataFrame(REGIONS, "who string, region string")


def _named(events: DataFrame) -> DataFrame:
    static = _static(events)
    joined = events.join(static, events["data"]["user"] == static["who"], "left")
    return joined.select("data.id", "data.user", "region")


def _regions(events: DataFrame) -> DataFrame:
    rows, _ = windowed(events, SIZE_S, time="data.ts", grace=GRACE_S)
    static = _static(events)
    joined = rows.join(static, rows["data"]["user"] == static["who"])
    totals = joined.groupBy("window", "region").agg(f.sum("data.amount").alias("total"))
    return totals.select(f.col("window.start").alias("start"), "region", "total")


# ---- the same in plain Python ----


def window_of(event: Event) -> tuple[int, bool] | None:
    """Return when the window of an event starts, and whether it came in time for it."""
    if event.ts is None:
        return None
    start_s = int(event.ts.timestamp()) // SIZE_S * SIZE_S
    end = datetime.fromtimestamp(start_s + SIZE_S, UTC)
    return start_s, end + timedelta(seconds=GRACE_S) > event.written


def sums(events: Iterable[Event]) -> list[dict[str, Any]]:
    amounts: dict[tuple[int, str], list[int]] = defaultdict(list)
    for event in events:
        place = window_of(event)
        if place is not None and place[1]:
            amounts[place[0], event.user].append(event.amount)
    return [
        {
            "windowStart": iso(start_s),
            "windowEnd": iso(start_s + SIZE_S),
            "user": user,
            "total": sum(some),
            "n": len(some),
        }
        for (start_s, user), some in amounts.items()
    ]


def latest(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Windows close in the order of their ends, so what stays of a user is the last of them."""
    rows = sorted(sums(events), key=lambda row: str(row["windowEnd"]))
    return list({row["user"]: row for row in rows}.values())


def late(events: Iterable[Event]) -> list[str]:
    return [event.id for event in events if (place := window_of(event)) is None or not place[1]]


def copies(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [{"id": event.id, "user": event.user, "amount": event.amount} for event in events]


def named(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        {"id": event.id, "user": event.user, "region": region}
        for event in events
        for region in _regions_of(event.user) or [None]
    ]


def regions(events: Iterable[Event]) -> list[dict[str, Any]]:
    totals: dict[tuple[int, str | None], int] = defaultdict(int)
    for event in events:
        place = window_of(event)
        if place is not None and place[1]:
            for region in _regions_of(event.user):
                totals[place[0], region] += event.amount
    return [
        {"start": iso(start_s), "region": region, "total": total}
        for (start_s, region), total in totals.items()
    ]


def _regions_of(user: str) -> list[str | None]:
    return [region for who, region in REGIONS if who == user]


def iso(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")


def main(arguments: dict[str, Any]) -> None:
    import queen.spark

    spark = queen.spark.session(
        "delivering",
        "local[2]",
        spark_sql_shuffle_partitions=SHUFFLE_PARTITIONS,
        spark_ui_enabled=False,
        spark_sql_codegen_wholeStage=False,
        spark_driver_memory="600m",
    )
    deliveries = Deliveries(**arguments)
    with SyncQueen(deliveries.url) as client:
        running = [deliveries.start(spark, client, kind) for kind in KINDS]
    while not any(run.wait(1) for run in running):
        pass


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
