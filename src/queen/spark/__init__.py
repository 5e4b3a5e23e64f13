"""Queen and Spark: queues as DataFrames, in batches and as streams.

    spark = queen.spark.session("orders")
    orders = spark.read.format("queen").option("queue", "orders").load()

`session` makes a session with settings that fit, and finds a Java for it. Whoever has a
session already calls `register(spark)` once. Nothing here is needed by those who only push
and pop, so `import queen` leaves it alone, and this module loads Spark when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queen.spark.environment import session
from queen.spark.pipelines.functions import pipeline
from queen.spark.windowed import Windowed, timed, windowed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queen.spark.pipelines.run import Running

__all__ = [
    "Windowed",
    "pipeline",
    "register",
    "run_pipeline",
    "session",
    "timed",
    "windowed",
]


def register(spark: SparkSession) -> None:
    """Make `format("queen")` known to a session. Once is enough; twice does no harm."""
    from queen.spark.datasource import QueenDataSource

    spark.dataSource.register(QueenDataSource)


def run_pipeline(name: str, spark: SparkSession, **options: Any) -> Running:
    """Start a pipeline that is stored in the broker; returns at once.

    Options are those of `queen.spark.pipelines.run.Options`: `url`, `token`, `checkpoint`,
    `every` (seconds), `available_now`, `starting`, `table_url`, `accept_changes`.
    """
    from queen.spark.pipelines.run import run_pipeline as run

    return run(name, spark, **options)
