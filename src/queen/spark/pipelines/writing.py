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
from queen.spark.pipelines.failures import FAILED
from queen.spark.sink.row_frames import DEAD_LETTER, TEXT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from queen.wire.pipelines import Definition

OBSERVED = "written"
_LATE, _ASIDE = "_late", "_aside"
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
    output = definition.output
    if output.queue is not None:
        rows = messages(definition, compiled)
        rows = rows.observe(OBSERVED, *_counts_of_messages(definition, rows))
        writer = rows.writeStream.format("queen").options(**target.options)
        return writer.option("deadLettersOf", definition.name).outputMode("append")
    rows = _with_others(definition, compiled)
    rows = rows.observe(OBSERVED, *_counts(f.col(_LATE).isNotNull(), f.col(_ASIDE).isNotNull()))
    deliver = batch_delivery(definition, target)

    def write_batch(batch: DataFrame, number: int) -> None:
        if batch.isEmpty():
            return
        batch = batch.persist()
        try:
            _write_others(definition, batch, number, target)
            is_result = f.col(_LATE).isNull() & f.col(_ASIDE).isNull()
            deliver(batch.where(is_result).drop(_LATE, _ASIDE, PARTITION), number)
        finally:
            batch.unpersist()

    return rows.writeStream.foreachBatch(write_batch).outputMode("append")


def batch_delivery(definition: Definition, target: Target) -> Callable[[DataFrame, int], None]:
    """Return what puts a batch of results into the table or the folder of a definition."""
    output = definition.output
    if output.files is not None:
        folder, file_format = output.files.rstrip("/"), output.format

        def write_files(rows: DataFrame, number: int) -> None:
            path = f"{folder}/run={target.transaction}/batch={number:08d}"
            rows.write.mode("overwrite").format(file_format).save(path)

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
    for others in (_late_messages(definition, compiled), _failed_messages(definition, compiled)):
        if others is not None:
            rows = rows.unionByName(others, allowMissingColumns=True)
    return rows


def _late_messages(definition: Definition, compiled: CompiledPipeline) -> DataFrame | None:
    if definition.late_to is None or compiled.late is None:
        return None
    return compiled.late.select(
        f.lit(definition.late_to).alias("queue"), "partition", late_payload().alias(TEXT)
    )


def _failed_messages(definition: Definition, compiled: CompiledPipeline) -> DataFrame | None:
    """Return messages that cannot be computed with: for their queue, or as dead letters."""
    if compiled.failed is None:
        return None
    if definition.errors_to is None:
        reason = f.col(FAILED).alias(TEXT)
        return compiled.failed.select("partition", reason, f.col("id").alias(DEAD_LETTER))
    queue = f.lit(definition.errors_to).alias("queue")
    return compiled.failed.select(queue, "partition", _failed_payload().alias(TEXT))


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


def _counts_of_messages(definition: Definition, rows: DataFrame) -> list[Column]:
    is_failed = f.col("queue") == (definition.errors_to or "")
    if DEAD_LETTER in rows.columns:
        is_failed = f.col(DEAD_LETTER).isNotNull()
    return _counts(f.col("queue") == (definition.late_to or ""), is_failed)


def _counts(is_late: Column, is_failed: Column) -> list[Column]:
    is_result = ~f.coalesce(is_late, f.lit(False)) & ~f.coalesce(is_failed, f.lit(False))
    return [
        f.count_if(is_result).alias("results"),
        f.count_if(is_late).alias("late"),
        f.count_if(is_failed).alias("failed"),
    ]


def _with_others(definition: Definition, compiled: CompiledPipeline) -> DataFrame:
    """Return results, late and failed messages in one DataFrame, each in columns of their own."""
    rows = compiled.result
    for name, others in (
        (_LATE, _late_messages(definition, compiled)),
        (_ASIDE, _failed_messages(definition, compiled)),
    ):
        if others is None:
            rows = rows.withColumn(name, f.lit(None).cast("struct<partition: string>"))
        else:
            row = others.select(f.struct(*others.columns).alias(name))
            rows = rows.unionByName(row, allowMissingColumns=True)
    return rows


def _write_others(definition: Definition, batch: DataFrame, number: int, target: Target) -> None:
    """Write what is late or has failed; named after the batch, so that nothing is written twice."""
    for name, what in ((_LATE, "late"), (_ASIDE, "failed")):
        rows = batch.where(f.col(name).isNotNull()).select(f"{name}.*")
        if TEXT not in rows.columns:
            continue
        writer = rows.withColumn("data", f.lit(None).cast("string")).write.format("queen")
        writer = writer.mode("append").options(**target.options)
        writer = writer.option("deadLettersOf", definition.name)
        # Dead letters go to none; the option is there for those who do.
        writer = writer.option("queue", definition.reads[0].queues[0])
        transaction = f"{target.transaction}:{what}"
        writer = writer.option("transactionName", transaction)
        writer.option("transactionBatch", str(number)).save()
