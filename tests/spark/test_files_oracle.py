"""Files hold what a simple program says: every value, once, also when a batch is written again.

Messages come at random, with nulls everywhere. Between two runs the last batch is as a driver
leaves it that was killed while it wrote: half a file, and no note in Spark's log.
`QUEEN_ORACLE_EVENTS` says how many messages there are.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from tests.api import Api
from tests.long import LONG
from tests.spark.history import canonical

MESSAGES = int(os.environ.get("QUEEN_ORACLE_EVENTS", "100"))
SCHEMA = "s string, n bigint, x double, b boolean, at timestamp"
COLUMNS = ("s", "n", "x", "b", "at")
TEXTS = ["ann", "ä✓𝄞", 'a"b,c', "null"]


def _payload(chance: random.Random) -> dict[str, Any]:
    at = datetime.fromtimestamp(chance.randrange(2**32), UTC)
    values = {
        "s": chance.choice(TEXTS),
        "n": chance.choice([0, 2**63 - 1, chance.randrange(10**6)]),
        "x": chance.choice([0.1, 5e-324, chance.random()]),
        "b": chance.random() < 0.5,
        "at": _iso(at.replace(microsecond=chance.randrange(10**6))),
    }
    return {name: value if chance.random() < 0.8 else None for name, value in values.items()}


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _rows(folder: Path, file_format: str) -> Iterator[dict[str, Any]]:
    """What plain programs read there."""
    if file_format == "parquet":
        files = pyarrow.dataset.dataset(folder, format=file_format, partitioning="hive")
        for row in files.to_table(columns=list(COLUMNS)).to_pylist():
            at = row["at"]
            yield {**row, "at": at and _iso(at.replace(tzinfo=UTC))}
        return
    for file in folder.glob(f"run=*/batch=*/part-*.{file_format}"):
        if file_format == "json":
            yield from map(json.loads, file.read_text().splitlines())
        else:
            with file.open(newline="") as lines:
                yield from map(_of_texts, csv.reader(lines, escapechar="\\"))


def _of_texts(texts: list[str]) -> dict[str, Any]:
    s, n, x, b, at = (text or None for text in texts)
    return {
        "s": s, "n": n and int(n), "x": x and float(x), "b": b and b == "true", "at": at,
    }  # fmt: skip


def _tear(checkpoint: Path, folder: Path) -> None:
    """Leave the last batch as a killed driver does."""
    commits = checkpoint / "commits"
    batch = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    for name in (str(batch), f".{batch}.crc"):
        (commits / name).unlink(missing_ok=True)
    (written,) = folder.glob(f"run=*/batch={batch:08d}")
    (written / "_SUCCESS").unlink()
    part = next(written.glob("part-*"))
    shutil.copy(part, written / f"part-99999{part.suffix}")
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])


@pytest.mark.parametrize(
    "file_format", ["json", *(pytest.param(name, marks=LONG) for name in ("parquet", "csv"))]
)
def test_files_have_every_value_once_although_a_batch_is_written_again(
    api: Api,
    queen: SyncQueen,
    spark: SparkSession,
    queue: str,
    tmp_path: Path,
    file_format: str,
) -> None:
    chance = random.Random(MESSAGES)
    folder, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    stream = queen.stream(f"p-{queue}").sources(queue).schema(SCHEMA)
    stream = stream.select(*(f"data.{name}" for name in COLUMNS)).to_files(str(folder), file_format)
    payloads: list[dict[str, Any]] = []
    for half in range(2):
        some = [_payload(chance) for _ in range(MESSAGES // 2)]
        payloads += some
        for first in range(0, len(some), 9):
            items = [{"queue": queue, "payload": payload} for payload in some[first : first + 9]]
            assert api.push(*items).status == 201
        if half:
            _tear(checkpoint, folder)
        running = stream.run(
            spark,
            checkpoint=str(checkpoint),
            available_now=True,
            starting="earliest",
            max_messages_per_trigger=MESSAGES // 4,
        )
        assert running.wait()
    assert canonical(_rows(folder, file_format)) == canonical(payloads)
