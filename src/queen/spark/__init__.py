"""Queen and Spark: queues as DataFrames, in batches and as streams.

    spark = queen.spark.session("orders")
    orders = spark.read.format("queen").option("queue", "orders").load()

`session` makes a session with settings that fit, and finds a Java for it. Whoever has a
session already calls `register(spark)` once. Nothing here is needed by those who only push
and pop, so `import queen` leaves it alone, and this module loads Spark when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queen.spark.environment import session
from queen.spark.windowed import Windowed, timed, windowed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Windowed", "register", "session", "timed", "windowed"]


def register(spark: SparkSession) -> None:
    """Make `format("queen")` known to a session. Once is enough; twice does no harm."""
    from queen.spark.datasource import QueenDataSource

    spark.dataSource.register(QueenDataSource)
