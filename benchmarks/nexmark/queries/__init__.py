"""The queries: definitions, as a user of queues would write them, and functions where none will do.

They differ from the benchmark's SQL where that never ends: a stream that only adds rows has no
place for an answer that is taken back. Each query says in what it `differs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.filling import Queues
from benchmarks.nexmark.queries.ended_auctions import ENDED_AUCTIONS
from benchmarks.nexmark.queries.joins import JOINS
from benchmarks.nexmark.queries.query import Query
from benchmarks.nexmark.queries.stateless import STATELESS
from benchmarks.nexmark.queries.top import MOST
from benchmarks.nexmark.queries.windows import WINDOWS
from queen.spark.pipelines.functions import Function
from queen.spark.pipelines.run import Options, Running, start_pipeline, store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = tuple(
    sorted((*STATELESS, *WINDOWS, *MOST, *JOINS, *ENDED_AUCTIONS), key=lambda query: query.number)
)


def run(
    query: Query,
    url: str,
    spark: SparkSession,
    queues: Queues,
    out: str,
    *,
    files: str,
    checkpoint: str,
) -> Running:
    """Start a query over everything that is in the queues now.

    Its results go to the queue `out`, which is also its name, or into the folder `files`.
    """
    from queen import SyncQueen

    options: dict[str, Any] = {
        "url": url,
        "available_now": True,
        "starting": "earliest",
        "checkpoint": checkpoint,
    }
    with SyncQueen(url) as queen:
        made = query.build(queen, queues, out)
        if not isinstance(made, Function):
            if query.writes_files:
                made = made.to_files(files, "json")
            else:
                made = made.to(out, partition=query.partition)
            running: Running = made.run(spark, **options)
            return running
    store(made.definition, Options(**options))
    return start_pipeline(made.definition, spark, Options(**options), made)
