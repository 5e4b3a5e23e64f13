"""Where results go: a queue, a table or files. Each gets every result once.

    queue   the sink's own transactions; late rows go along, each row says its queue
    table   one transaction for a micro-batch, which also notes the batch in the database
    files   a folder for each micro-batch, written over when the batch is repeated

Late rows travel in the same query as results: two queries could stop and fail one without the
other. The source is read once for each branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from queen.errors import BadRequest
from queen.spark.arrow.columns import RAW
from queen.spark.pipelines.compiler import JSON_OPTIONS, PARTITION, CompiledPipeline, passed_on
from queen.spark.pipelines.expressions.failures import FAILED
from queen.spark.sink.row_frames import DEAD_LETTER, TEXT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from queen.wire.pipelines import Definition

OBSERVED = "written"
_ASIDE = "_aside"
_PLACE = ("side", "queue", "partition", "offset", "transactionId", "createdAt")
Options = Mapping[str, str]


class Target(NamedTuple):
    """Where one run writes to, and under which name."""

    # By which the source and the sink find the broker: url and token.
    options: Options
    # The name of what is written, the same for all runs of a checkpoint.
    transaction: str
    # Of the database that tables are in.
    table_url: str | None = None


def query_writer(
    definition: Definition, compiled: CompiledPipeline, target: Target
) -> DataStreamWriter:
    """Return the writer of a live query, ready to start."""
    rows = written(definition, compiled)
    if definition.output.queue is not None:
        rows = rows.observe(OBSERVED, *_counts(definition, None, rows))
        writer = rows.writeStream.format("queen").options(**target.options)
        return writer.option("deadLettersOf", definition.name).outputMode("append")
    rows = rows.observe(OBSERVED, *_counts(definition, f.col(_ASIDE), rows))
    deliver = batch_delivery(definition, target)

    def write_batch(batch: DataFrame, number: int) -> None:
        if batch.isEmpty():
            return
        batch = batch.persist()
        try:
            if compiled.aside is not None:
                _write_aside(definition, batch, number, target)
            deliver(batch.where(f.col(_ASIDE).isNull()).drop(_ASIDE, PARTITION), number)
        finally:
            batch.unpersist()

    mode = "update" if definition.emit == "updates" else "append"
    return rows.writeStream.foreachBatch(write_batch).outputMode(mode)


def written(definition: Definition, compiled: CompiledPipeline) -> DataFrame:
    """Return all that a live query writes, as it goes to the sink."""
    if definition.output.queue is not None:
        return messages(definition, compiled)
    return _with_aside(definition, compiled)


def batch_delivery(definition: Definition, target: Target) -> Callable[[DataFrame, int], None]:
    """Return what puts a batch of results into the table or the folder of a definition."""
    output = definition.output
    if output.files is not None:
        folder, file_format = output.files.rstrip("/"), output.format

        def write_files(rows: DataFrame, number: int) -> None:
            path = f"{folder}/run={target.transaction}/batch={number:08d}"
            file_writer(rows, file_format).mode("overwrite").save(path)

        return write_files
    if target.table_url is None:
        raise BadRequest(
            f"results go to the table {output.table!r}: say in which database, with --table-url, "
            "QUEEN_TABLE_URL or run(spark, table_url=…)"
        )
    from queen.spark.pipelines.tables import Table

    assert output.table is not None
    table = Table(target.table_url, output.table, output.table_keys)
    return lambda rows, number: table.write(rows, target.transaction, number)


def file_writer(rows: DataFrame, file_format: str) -> DataFrameWriter:
    """Return what writes rows into files; texts hold times and nulls as those of queues do.

    By itself Spark cuts the times in texts to milliseconds.
    """
    options = JSON_OPTIONS if file_format in ("json", "csv") else {}
    return rows.write.format(file_format).options(**options)


def messages(definition: Definition, compiled: CompiledPipeline) -> DataFrame:
    """Return results, and what goes along with them, as the sink takes them."""
    payload = f.struct(*payload_columns(compiled.result))
    if compiled.is_message:
        payload = passed_on(compiled.result)
    rows = compiled.result.select(
        f.lit(definition.output.queue).alias("queue"),
        f.col(PARTITION).alias("partition"),
        payload.alias("data"),
    )
    aside = _aside_messages(definition, compiled)
    return rows if aside is None else rows.unionByName(aside, allowMissingColumns=True)


def _aside_messages(definition: Definition, compiled: CompiledPipeline) -> DataFrame | None:
    """Return what is set aside as the sink takes it: late messages go to their queue, those that
    cannot be computed with to theirs, or are dead letters."""
    if compiled.aside is None:
        return None
    is_late = f.col(FAILED).isNull()
    nothing = f.lit(None).cast("string")
    errors_to = nothing if definition.errors_to is None else f.lit(definition.errors_to)
    late_to = nothing if definition.late_to is None else f.lit(definition.late_to)
    reason = f.col(FAILED) if definition.errors_to is None else _failed_payload()
    dead = f.when(~is_late, f.col("id")) if definition.errors_to is None else nothing
    return compiled.aside.select(
        f.when(is_late, late_to).otherwise(errors_to).alias("queue"),
        "partition",
        f.when(is_late, late_payload()).otherwise(reason).alias(TEXT),
        dead.alias(DEAD_LETTER),
    )


def payload_columns(result: DataFrame) -> list[str]:
    """Return the columns of a result that are fields of its payload."""
    return [f"`{name}`" for name in result.columns if name not in (PARTITION, RAW)]


def late_payload() -> Column:
    """Return a late row as JSON: where it was, its window, and its payload as it came."""
    return _with_payload(f.struct(*_PLACE, "window"))


def _failed_payload() -> Column:
    return _with_payload(f.struct(*_PLACE, f.col(FAILED).alias("error")))


def _with_payload(about: Column) -> Column:
    """Return what is told of a message as JSON, its payload as it came in the field `data`."""
    text = f.to_json(about, JSON_OPTIONS)
    body = f.concat(f.lit(',"data":'), f.coalesce(f.col("payload"), f.lit("null")), f.lit("}"))
    return f.concat(f.substring(text, f.lit(1), f.length(text) - 1), body)


def _counts(definition: Definition, aside: Column | None, rows: DataFrame) -> list[Column]:
    """Return how many rows are results, late, and not to be computed with."""
    is_aside = f.lit(False)
    is_failed = f.lit(False)
    if aside is not None or TEXT in rows.columns:
        text, queue, dead = (
            f.col(name) if aside is None else aside[name] for name in (TEXT, "queue", DEAD_LETTER)
        )
        is_aside = text.isNotNull()
        is_failed = is_aside & (dead.isNotNull() | (queue == (definition.errors_to or "")))
    return [
        f.count_if(~is_aside).alias("results"),
        f.count_if(is_aside & ~f.coalesce(is_failed, f.lit(False))).alias("late"),
        f.count_if(is_failed).alias("failed"),
    ]


def _with_aside(definition: Definition, compiled: CompiledPipeline) -> DataFrame:
    """Return results and what is set aside in one DataFrame; the latter in a column of its own."""
    fields = ("queue", "partition", TEXT, DEAD_LETTER)
    kind = f"struct<{', '.join(f'{field}: string' for field in fields)}>"
    result = compiled.result.withColumn(_ASIDE, f.lit(None).cast(kind))
    aside = _aside_messages(definition, compiled)
    if aside is None:
        return result
    row = aside.select(f.struct(*fields).alias(_ASIDE))
    return result.unionByName(row, allowMissingColumns=True)


def _write_aside(definition: Definition, batch: DataFrame, number: int, target: Target) -> None:
    """Write what is set aside; named after the batch, so that nothing is written twice."""
    rows = batch.where(f.col(_ASIDE).isNotNull()).select(f"{_ASIDE}.*")
    writer = rows.withColumn("data", f.lit(None).cast("string")).write.format("queen")
    writer = writer.mode("append").options(**target.options)
    writer = writer.option("deadLettersOf", definition.name)
    name = f"{target.transaction}:late"
    writer.option("transactionName", name).option("transactionBatch", str(number)).save()
