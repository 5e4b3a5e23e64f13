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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from queen.wire.pipelines import Definition

OBSERVED = "written"
_LATE = "_late"
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
        rows = rows.observe(OBSERVED, *_counts(f.col("queue") == (definition.late_to or "")))
        return rows.writeStream.format("queen").options(**target.options).outputMode("append")
    rows = _with_late_rows(definition, compiled)
    rows = rows.observe(OBSERVED, *_counts(f.col(_LATE).isNotNull()))
    deliver = batch_delivery(definition, target)

    def write_batch(batch: DataFrame, number: int) -> None:
        if batch.isEmpty():
            return
        batch = batch.persist()
        try:
            _write_late_rows(definition, batch, number, target)
            deliver(batch.where(f.col(_LATE).isNull()).drop(_LATE, PARTITION), number)
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
    """Return results, and late rows if they are wanted, as the sink takes them."""
    late = compiled.late
    if definition.late_to is not None or compiled.is_message:
        # Late rows are texts, so results are too; in a backfill, which has none, as well. And a
        # message that is passed on may be one that did not fit its schema.
        payload = _payload_text(compiled)
    else:
        payload = f.struct(*payload_columns(compiled.result))
    results = compiled.result.select(
        f.lit(definition.output.queue).alias("queue"),
        f.col(PARTITION).alias("partition"),
        payload.alias("data"),
    )
    if definition.late_to is None or late is None:
        return results
    late_messages = late.select(
        f.lit(definition.late_to).alias("queue"), "partition", late_payload().alias("data")
    )
    return results.unionByName(late_messages)


def payload_columns(result: DataFrame) -> list[str]:
    """Return the columns of a result that are fields of its payload."""
    return [f"`{name}`" for name in result.columns if name not in (PARTITION, RAW)]


def late_payload() -> Column:
    """Return a late row as JSON: where it was, its window, and its payload as it came."""
    about = f.to_json(
        f.struct("side", "queue", "partition", "offset", "transactionId", "createdAt", "window"),
        JSON_OPTIONS,
    )
    body = f.concat(f.lit(',"data":'), f.coalesce(f.col("payload"), f.lit("null")), f.lit("}"))
    return f.concat(f.substring(about, f.lit(1), f.length(about) - 1), body)


def _payload_text(compiled: CompiledPipeline) -> Column:
    if not compiled.is_message:
        return f.to_json(f.struct(*payload_columns(compiled.result)), JSON_OPTIONS)
    return passed_on(compiled.result)


def _counts(is_late: Column) -> tuple[Column, Column]:
    return f.count_if(~is_late).alias("results"), f.count_if(is_late).alias("late")


def _with_late_rows(definition: Definition, compiled: CompiledPipeline) -> DataFrame:
    """Return results and late rows in one DataFrame; the latter in a column of their own."""
    kind = "struct<partition: string, data: string>"
    result = compiled.result.withColumn(_LATE, f.lit(None).cast(kind))
    if definition.late_to is None or compiled.late is None:
        return result
    row = f.struct(f.col("partition"), late_payload().alias("data"))
    return result.unionByName(compiled.late.select(row.alias(_LATE)), allowMissingColumns=True)


def _write_late_rows(definition: Definition, batch: DataFrame, number: int, target: Target) -> None:
    if definition.late_to is None:
        return
    rows = batch.where(f.col(_LATE).isNotNull()).select(f"{_LATE}.*")
    writer = rows.write.format("queen").mode("append").options(**target.options)
    writer = writer.option("queue", definition.late_to)
    # Named after the batch: when it is repeated, nothing is written twice.
    name = f"{target.transaction}:late"
    writer.option("transactionName", name).option("transactionBatch", str(number)).save()
