"""Backfills: what a pipeline gives for a stretch of history, computed as a batch.

The results are printed, or written once to where the caller says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from queen.errors import BadRequest
from queen.spark.broker import Broker
from queen.spark.launch.settings import check_classic, pipeline_settings
from queen.spark.options import queue_option
from queen.spark.pipelines import files, reading
from queen.spark.pipelines.checking import check_as_live, explain_errors
from queen.spark.pipelines.compiler import (
    JSON_OPTIONS,
    PARTITION,
    CompiledPipeline,
    compile_definition,
)
from queen.spark.pipelines.narrowing import compile_narrow
from queen.spark.pipelines.run import Options, checked_definition, results_of
from queen.spark.pipelines.writing import file_writer, messages, payload_columns
from queen.wire.answers import iso
from queen.wire.pipelines import is_read, needs_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queen.wire.pipelines import Definition


def backfill(
    definition: Definition,
    spark: SparkSession,
    options: Options,
    since: datetime | None,
    until: datetime | None,
    *,
    in_time: bool = False,
) -> CompiledPipeline:
    """Return, as a batch, what a live run gives between two times.

    That is a run that began at `since`, when sealed time has reached `until`; up to now, unless
    given.

    With `in_time` each message counts as written when it happened, so that none is late: for
    history that was pushed long after. Then all of the queues is read, and the two times are those
    of what happened: windows that began at `since` or later, and had closed by `until`.
    """
    check_classic(spark, "pipelines")
    if definition.kind == "function":
        raise BadRequest("a function says nothing of time: only a definition can be backfilled")
    for name, at in (("since", since), ("until", until)):
        if not isinstance(at, datetime | None):
            raise BadRequest(f"{name}: {at!r} is not a datetime")
    since, until = (None if at is None else at.astimezone(UTC) for at in (since, until))
    if since is not None and until is not None and since >= until:
        raise BadRequest(f"since: {iso(since)} is not before the end, {iso(until)}")
    with explain_errors(definition, spark), pipeline_settings(spark, definition.time_zone):
        check_as_live(definition, spark)
    sealed = _sealed_time(definition, options)
    until = sealed if until is None else min(until, sealed)
    if in_time:
        _check_in_time(definition, since, until)
    began, end = (None, sealed) if in_time else (since, until)
    with explain_errors(definition, spark), pipeline_settings(spark, definition.time_zone):
        given = options.broker_options()
        return compile_narrow(
            definition,
            lambda only: reading.history(spark, definition, given, began, end, only=only),
            lambda frames: compile_definition(
                definition,
                frames,
                until=until if needs_time(definition) else None,
                since=since if in_time else None,
                in_time=in_time,
            ),
            lambda compiled: compiled.result,
        )


def _check_in_time(definition: Definition, since: datetime | None, until: datetime) -> None:
    if not needs_time(definition):
        raise BadRequest(
            "in time: nothing can be late in a pipeline without a window, a join or dedup; "
            "backfill it without"
        )
    if since is not None and since >= until:
        raise BadRequest(f"in time: {iso(since)} is not before the end, {iso(until)}")


def backfill_definition(
    definition: Mapping[str, Any],
    spark: SparkSession,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    in_time: bool = False,
    **options: Any,
) -> DataFrame:
    """Return what a definition gives for a stretch of history; it need not be stored."""
    checked = checked_definition(definition)
    made = backfill(checked, spark, Options(**options), since, until, in_time=in_time)
    return results_of(made)


def _sealed_time(definition: Definition, options: Options) -> datetime:
    """Return the instant up to which all queues of a definition are complete."""
    queues = [queue for reads in definition.reads for queue in reads.queues]
    asked: list[dict[str, Any]] = [{"queues": queues}] if queues else []
    asked += [{"pattern": reads.pattern} for reads in definition.reads if reads.pattern]
    broker = Broker(options.address())
    sealed = min(broker.ask("POST", "/api/v1/fetch/cut", body)["sealed"] for body in asked)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=sealed)


def plain_rows(compiled: CompiledPipeline) -> Iterator[dict[str, Any]]:
    """Yield results as JSON has them."""
    payload = f.struct(*payload_columns(compiled.result))
    texts = compiled.result.select(f.to_json(payload, JSON_OPTIONS).alias("row"))
    for row in texts.toLocalIterator():
        yield json.loads(row["row"])


def deliver(
    definition: Definition,
    compiled: CompiledPipeline,
    options: Options,
    queue: str | None,
    folder: str | None,
) -> int:
    """Write results to a queue or a new folder; return how many."""
    if queue is not None and is_read(definition, queue):
        raise BadRequest(f"the pipeline reads {queue!r}: give its results another queue")
    if folder is not None and files.exists(compiled.result.sparkSession, folder):
        raise BadRequest(f"{folder} is there already: give a folder that is not, to be made")
    results = compiled.result.persist()
    try:
        count = results.count()
        if folder is not None:
            file_writer(results.drop(PARTITION), definition.output.format).save(folder)
        elif queue is not None:
            # Late messages are in their queue since they came.
            rows = messages(definition, compiled._replace(result=results))
            writer = rows.drop("queue").write.format("queen").mode("append")
            writer = writer.options(**options.broker_options())
            writer.option("queue", queue_option(queue)).save()
        return count
    finally:
        results.unpersist()
