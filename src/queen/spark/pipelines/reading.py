"""What a pipeline reads, as DataFrames: live, or a stretch of history."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from queen.spark.arrow.columns import RAW
from queen.spark.options import queue_option
from queen.spark.pipelines.compiler import needs_raw
from queen.spark.pipelines.expressions.failures import checks_schema
from queen.wire.answers import iso
from queen.wire.pipelines import needs_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from queen.wire.pipelines import Definition, Reads

Options = Mapping[str, str]

_COLUMNS = (
    "queue string, partition string, offset bigint, id string, transactionId string, "
    "traceId string, createdAt timestamp"
)


def live(
    spark: SparkSession,
    definition: Definition,
    options: Options,
    *,
    markers: bool | None = None,
    has_aside: bool = True,
    only: Collection[str] | None = None,
) -> dict[str, DataFrame]:
    """Return the streams that a definition reads, by the names of its sides; with all columns, or
    only some.

    Without a branch for what is set aside, the source makes dead letters of payloads that are not
    what the schema says.
    """
    markers = needs_time(definition) if markers is None else markers
    sets_aside = not has_aside and definition.on_error != "fail"
    frames = {}
    for number, reads in enumerate(definition.reads):
        schema = schema_of(reads, markers=markers, raw=needs_raw(definition), only=only)
        reader = spark.readStream.format("queen").schema(schema)
        if sets_aside and checks_schema(definition, number):
            reader = reader.option("deadLettersOf", definition.name)
        given = {**_queues(reads), "group": definition.name, **options}
        frames[reads.name] = reader.options(**given).option("markers", str(markers).lower()).load()
    return frames


def history(
    spark: SparkSession,
    definition: Definition,
    options: Options,
    since: datetime | None,
    until: datetime,
    *,
    only: Collection[str] | None = None,
) -> dict[str, DataFrame]:
    """Return what was written in a stretch of time, by the names of the sides."""
    frames = {}
    for reads in definition.reads:
        given = {**_queues(reads), "endingTime": iso(until), **options}
        if since is not None:
            given["startingTime"] = iso(since.astimezone(UTC))
        schema = schema_of(reads, markers=False, raw=needs_raw(definition), only=only)
        reader = spark.read.format("queen").schema(schema)
        frames[reads.name] = reader.options(**given).load()
    return frames


def nothing(spark: SparkSession, definition: Definition) -> dict[str, DataFrame]:
    """Return what a definition reads, without any messages: to look at its columns."""
    return {
        reads.name: spark.createDataFrame([], schema_of(reads, markers=False))
        for reads in definition.reads
    }


def streams_of_nothing(spark: SparkSession, definition: Definition) -> dict[str, DataFrame]:
    """Return streams like those that a live run reads, to ask Spark what it has against them."""
    from pyspark.sql import functions as f

    markers, raw = needs_time(definition), needs_raw(definition)
    rows = spark.readStream.format("rate").load()
    return {
        reads.name: rows.select(
            *(
                f.lit(None).cast(field.dataType).alias(field.name)
                for field in schema_of(reads, markers=markers, raw=raw).fields
            )
        )
        for reads in definition.reads
    }


def _queues(reads: Reads) -> dict[str, str]:
    """Return the option that says what is read."""
    if reads.pattern is not None:
        return {"queuePattern": reads.pattern}
    return {"queue": queue_option(*reads.queues)}


def schema_of(
    reads: Reads, *, markers: bool, raw: bool = False, only: Collection[str] | None = None
) -> StructType:
    """Return the columns of one side: all, or some of them."""
    from pyspark.sql.types import StructType

    columns = cast("StructType", StructType.fromDDL(_COLUMNS))
    if reads.schema:
        columns.add("data", StructType.fromDDL(reads.schema)).add("_corrupt", "string")
        if raw:
            columns.add(RAW, "string")
    else:
        columns.add("data", "string")
    if only is not None:
        columns = StructType([field for field in columns.fields if field.name in only])
    if markers:
        columns.add("sealed", "timestamp")
    return columns
