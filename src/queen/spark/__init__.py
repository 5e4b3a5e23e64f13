"""Queen and Spark: queues as DataFrames, in batches and as streams.

    spark = queen.spark.session("orders")
    orders = spark.read.format("queen").option("queue", "orders").load()

`session` makes a session with settings that fit, and finds a Java for it. Whoever has a
session already calls `register(spark)` once. Nothing here is needed by those who only push
and pop, so `import queen` leaves it alone, and this module loads Spark when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queen.extras import require
from queen.spark.launch.environment import session
from queen.spark.pipelines.functions import pipeline
from queen.spark.windows.event_time import Windowed, timed, windowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from queen.spark.pipelines.run import Running
    from queen.spark.source.inference import Inferred
    from queen.spark.source.load import Moment, Names, Schema

__all__ = [
    "Windowed",
    "infer",
    "pipeline",
    "read",
    "read_stream",
    "register",
    "run_pipeline",
    "session",
    "timed",
    "windowed",
]


def register(spark: SparkSession) -> None:
    """Make `format("queen")` known to a session. Once is enough; twice does no harm."""
    require("spark", "Spark on queues")
    from queen.spark.launch.python import let_planner_import
    from queen.spark.source.datasource import QueenDataSource

    let_planner_import(spark)
    spark.dataSource.register(QueenDataSource)


def read(
    spark: SparkSession,
    queue: Names | None = None,
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    partitions: Names | None = None,
    from_offset: int | None = None,
    to_offset: int | None = None,
    schema: Schema | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return queues as a DataFrame, as they are now: of a stretch of time, some partitions, some
    offsets of one of them, some columns. Only that is fetched, and only that is decoded.

    A time is a `datetime` (UTC, unless it has a zone), a `timedelta`, so long ago, or a text. The
    end of a stretch is not a part of it. `schema` says what is in `data`: text as Spark writes it,
    `"user string, amount double"`, a type of Spark's, a msgspec `Struct` or a dataclass; what does
    not fit is then in `_corrupt`. Other options of `format("queen")` go by their names, such
    as `url`, `token`, `queuePattern` and `tasks`. Raises `ValueError` for what means nothing.
    """
    register(spark)
    from queen.spark.source.load import read as load

    return load(
        spark,
        queue,
        since=since,
        until=until,
        partitions=partitions,
        from_offset=from_offset,
        to_offset=to_offset,
        schema=schema,
        columns=columns,
        options=options,
    )


def read_stream(
    spark: SparkSession,
    queue: Names | None = None,
    *,
    since: Moment | None = None,
    partitions: Names | None = None,
    schema: Schema | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return queues as a stream, asked for as with `read`. `since` is where a new checkpoint
    begins; an old one goes on."""
    register(spark)
    from queen.spark.source.load import read_stream as load

    return load(
        spark,
        queue,
        since=since,
        partitions=partitions,
        schema=schema,
        columns=columns,
        options=options,
    )


def infer(
    queue: str, *, url: str | None = None, token: str | None = None, messages: int = 1000
) -> Inferred:
    """Propose a schema for the payloads of a queue from a sample of about so many of them.

    The result has `schema`, `ddl` (the same as text), how many `messages` were looked at, and
    what was `left_out` because it is not always of one type.
    """
    require("spark", "a schema of Spark's")
    from queen.spark.source.inference import infer as look

    return look(queue, url=url, token=token, messages=messages)


def run_pipeline(name: str, spark: SparkSession, **options: Any) -> Running:
    """Start a pipeline that is stored in the broker; returns at once.

    Options are those of `queen.spark.pipelines.run.Options`: `url`, `token`, `checkpoint`,
    `every` (seconds), `available_now`, `starting`, `table_url`, `accept_changes`.
    """
    require("spark", "a pipeline")
    from queen.spark.pipelines.run import run_pipeline as run

    return run(name, spark, **options)
