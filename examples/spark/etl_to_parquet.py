"""Logs into Parquet files: extract, transform, load; each line once.

The job takes what is there and ends, so it can be run by a scheduler. It remembers how far it
was: the second run finds only what came since. A payload that is no JSON object of this schema
is not lost and stops nobody; it stands in the column `_corrupt` and is left out here.
"""

import os
import tempfile
import uuid
from typing import Any

from pyspark.sql import SparkSession

import queen.spark
from queen import SyncQueen

RUN = uuid.uuid4().hex[:8]
LOGS = f"application-logs-{RUN}"


def push(queen: SyncQueen, first: int) -> None:
    levels = ("debug", "info", "error")
    lines = [
        {"level": levels[number % 3], "text": f"line {number}", "host": {"name": "web-1"}}
        for number in range(first, first + 30)
    ]
    queen.queue(LOGS).push([*lines, "not a log line"])


def main(url: str, spark: SparkSession) -> list[Any]:
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        load = (
            broker.stream(f"logs-to-files-{RUN}", "etl")
            .sources(LOGS)
            .schema("level string, text string, host struct<name: string>")
            .where("_corrupt is null", "data.level != 'debug'")
            .select("data.level", "data.text", host="data.host.name", at="createdAt")
            .to_files(f"{folder}/logs")
        )
        for first in (0, 30):
            push(broker, first)
            checkpoint = f"{folder}/checkpoint"
            load.run(spark, checkpoint=checkpoint, starting="earliest", available_now=True).wait()
        logs = spark.read.parquet(f"{folder}/logs")
        found = [row.asDict() for row in logs.select("level", "text", "host").collect()]
    errors = [row for row in found if row["level"] == "error"]
    print(f"{len(found)} lines in files, {len(errors)} of them errors")
    return found


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("etl"))
