"""Outer joins in a backfill give what a live query has given at the same sealed time.

The streams are files that say themselves how far they are sealed, so that a query stops at any
millisecond: most events lie within a few of the instant at which something is decided.

`QUEEN_TEST_JOINS=all` tries every kind alone and every two in a row.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from queen.spark.pipelines.compiler import compile_definition
from queen.spark.pipelines.reading import schema_of
from queen.spark.pipelines.run import checked_definition, results_of
from queen.wire.pipelines import Definition
from tests.long import long

END = datetime(2026, 1, 1, 12, tzinfo=UTC)
GRACE_MS = 1000
WATERMARK = END - timedelta(milliseconds=GRACE_MS)
# One is no multiple of the other, so that no wait is like another one.
WITHIN_MS = (2000, 700)
CUTS = [END - timedelta(milliseconds=before_ms) for before_ms in (60_000, 2003, 701, 0)]
NAMES = ("orders", "payments", "shipments")
_KINDS = ("left", "full", "anti", "inner")
_ALL = [*((one,) for one in _KINDS[:3]), *itertools.product(_KINDS, repeat=2)]
_TRIES_ALL = "QUEEN_TEST_JOINS" in os.environ
_JOINS = _ALL if _TRIES_ALL else [("full",), *long(("left", "left"))]
_BEFORE_WINDOWS = _ALL if _TRIES_ALL else [("inner",)]


class Row(NamedTuple):
    side: str
    id: str
    key: str | None
    at: datetime

    def plain(self, offset: int) -> dict[str, Any]:
        return {
            "queue": self.side, "partition": "p", "offset": offset, "transactionId": self.id,
            "createdAt": self.at, "data": {"id": self.id, "k": self.key, "ts": self.at},
        }  # fmt: skip


def _definition(*hows: str, **more: Any) -> Definition:
    names = NAMES[: len(hows) + 1]
    on = [("data.k", "data.k"), ("orders.data.k", "data.k")]
    parts = zip(on, WITHIN_MS, hows, strict=False)
    schema = "id string, k string, ts timestamp"
    kept = [name for name, how in zip(names, ["", *hows], strict=True) if how != "anti"]
    given = {
        "name": "p",
        "reads": [
            {"name": name, "queues": [name], "schema": schema, "eventTime": "data.ts"}
            for name in names
        ],
        "joins": [{"on": [pair], "withinMs": ms, "how": how} for pair, ms, how in parts],
        "graceMs": GRACE_MS,
        "output": {"queue": "out"},
    }
    more = more or {"select": {name: f"{name}.data.id" for name in kept}}
    return checked_definition({**given, **more})


def _events(seed: int) -> list[Row]:
    """Events around every instant at which a join, or two, could decide; some without a key."""
    chance = random.Random(seed)
    waits_ms = [0, *WITHIN_MS, sum(WITHIN_MS), 2 * sum(WITHIN_MS)]
    apart_ms = [0, 1, -1, *WITHIN_MS, WITHIN_MS[0] + 1, -WITHIN_MS[1]]
    rows = []
    for number in range(400):
        key = f"k{number}" if chance.random() < 0.95 else None
        near_ms = chance.choice([-3, -2, -1, 0, 1, 2, 3, 500]) - chance.choice(waits_ms)
        at = WATERMARK + timedelta(milliseconds=near_ms, microseconds=chance.choice([0, 0, 1, 999]))
        for name in NAMES:
            for copy in range(chance.choice([0, 1, 1, 2])):
                apart = timedelta(milliseconds=chance.choice(apart_ms))
                rows.append(Row(name, f"{name}-{number}-{copy}", key, at + apart))
    return [one for one in rows if one.at < END]


def _of_side(rows: list[Row], side: str, since: datetime, until: datetime) -> list[dict[str, Any]]:
    some = [one for one in rows if one.side == side and since <= one.at < until]
    return [one.plain(offset) for offset, one in enumerate(some)]


def _texts(frame: DataFrame) -> list[str]:
    return [json.dumps(row.asDict(), default=str) for row in frame.collect()]


def _live(spark: SparkSession, definition: Definition, rows: list[Row], folder: Path) -> list[str]:
    """Run over files, each of which is one micro-batch and ends with its marker."""
    frames = {}
    for reads in definition.reads:
        schema, place = schema_of(reads, markers=True), str(folder / reads.name)
        for since, until in itertools.pairwise(CUTS):
            some = [*_of_side(rows, reads.name, since, until), {"sealed": until}]
            spark.createDataFrame(some, schema).coalesce(1).write.mode("append").parquet(place)
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        frames[reads.name] = stream.parquet(place)
    found: list[str] = []
    writer = results_of(compile_definition(definition, frames)).writeStream
    writer = writer.foreachBatch(lambda batch, _: found.extend(_texts(batch)))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(found)


def _backfill(spark: SparkSession, definition: Definition, rows: list[Row]) -> list[str]:
    frames = {
        reads.name: spark.createDataFrame(
            _of_side(rows, reads.name, CUTS[0], END), schema_of(reads, markers=False)
        )
        for reads in definition.reads
    }
    return sorted(_texts(results_of(compile_definition(definition, frames, until=END))))


@pytest.mark.parametrize("hows", _JOINS, ids="-".join)
def test_a_backfill_of_outer_joins_equals_a_live_run(
    spark: SparkSession, tmp_path: Path, hows: tuple[str, ...]
) -> None:
    rows = _events(len(hows))
    got = _live(spark, _definition(*hows), rows, tmp_path)
    assert len(got) > 10
    assert _backfill(spark, _definition(*hows), rows) == got


@pytest.mark.parametrize("hows", _BEFORE_WINDOWS, ids="-".join)
def test_windows_after_joins_close_at_the_same_millisecond(
    spark: SparkSession, tmp_path: Path, hows: tuple[str, ...]
) -> None:
    window = {"type": "tumbling", "sizeMs": 1}
    definition = _definition(*hows, window=window, aggregates={"n": "count(*)"})
    rows = _events(len(hows))
    got = _live(spark, definition, rows, tmp_path)
    assert got
    assert _backfill(spark, definition, rows) == got
