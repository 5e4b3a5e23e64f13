"""Queen and Spark: queues as DataFrames, in batches and as streams.

    spark = queen.spark.session("orders")
    orders = spark.read.format("queen").option("queue", "orders").load()

`session` makes a session with settings that fit, and finds a Java for it. Whoever has a
session already calls `register(spark)` once. Nothing here is needed by those who only push
and pop, so `import queen` leaves it alone, and this module loads Spark when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queen.spark.launch.environment import session
from queen.spark.pipelines.functions import pipeline
from queen.spark.windows.event_time import Windowed, timed, windowed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queen.spark.pipelines.run import Running
    from queen.spark.source.inference import Inferred

__all__ = [
    "Windowed",
    "infer",
    "pipeline",
    "register",
    "run_pipeline",
    "session",
    "timed",
    "windowed",
]


def register(spark: SparkSession) -> None:
    """Make `format("queen")` known to a session. Once is enough; twice does no harm."""
    from queen.spark.launch.python import let_planner_import
    from queen.spark.source.datasource import QueenDataSource

    let_planner_import(spark)
    spark.dataSource.register(QueenDataSource)


def infer(
    queue: str, *, url: str | None = None, token: str | None = None, messages: int = 1000
) -> Inferred:
    """Propose a schema for the payloads of a queue from a sample of about so many of them.

    The result has `schema`, `ddl` (the same as text), how many `messages` were looked at, and
    what was `left_out` because it is not always of one type.
    """
    from queen.spark.source.inference import infer as look

    return look(queue, url=url, token=token, messages=messages)


def run_pipeline(name: str, spark: SparkSession, **options: Any) -> Running:
    """Start a pipeline that is stored in the broker; returns at once.

    Options are those of `queen.spark.pipelines.run.Options`: `url`, `token`, `checkpoint`,
    `every` (seconds), `available_now`, `starting`, `table_url`, `accept_changes`.
    """
    from queen.spark.pipelines.run import run_pipeline as run

    return run(name, spark, **options)
