"""What Spark has against a definition, before anything is read: for a live run and for history.

History is what a live run has given. So a backfill is refused where the live run would be, and in
the same words, although Spark could compute it of a batch.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from queen.errors import BadRequest
from queen.spark.launch.settings import pipeline_settings
from queen.spark.pipelines import reading
from queen.spark.pipelines.compiler import PARTITION, compile_definition, sets_aside
from queen.spark.pipelines.expressions.holders import check_streaming, holder_of_error
from queen.spark.pipelines.progress import last_line
from queen.spark.sink.json_text import check_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queen.spark.pipelines.compiler import CompiledPipeline
    from queen.wire.pipelines import Definition


def check_live(definition: Definition, compiled: CompiledPipeline) -> None:
    """Raise what a compiled definition could not do as a stream, or could not write."""
    if not compiled.result.isStreaming:
        return
    if definition.output.files is None and not compiled.is_message:
        _check_types(compiled.result)
    check_streaming(compiled.result, "update" if definition.emit == "updates" else "append")


def check_as_live(definition: Definition, spark: SparkSession) -> None:
    """Raise what a live run of a definition would be refused with."""
    # In the order of a live run, for what it says first.
    sets_aside(definition, reading.nothing(spark, definition))
    frames = reading.streams_of_nothing(spark, definition)
    check_live(definition, compile_definition(definition, frames))


def _check_types(result: DataFrame) -> None:
    for field in result.schema.fields:
        if field.name == PARTITION:
            continue
        try:
            check_type(field.dataType, field.name)
        except ValueError as error:
            raise BadRequest(str(error)) from None


@contextlib.contextmanager
def explain_errors(definition: Definition, spark: SparkSession) -> Iterator[None]:
    """Say in our words what Spark has against a definition, and which verb it is about."""
    try:
        with _without_log_of_queries():
            yield
    except PySparkException as error:
        text = last_line(error)
        hint = ""
        if any(side.schema is None for side in definition.reads) and "data" in text:
            hint = "; `data` is JSON text as long as nobody says .schema(…)"
        holder = _holder_of_error(definition, spark)
        where = "" if holder is None else f"{holder}: "
        raise BadRequest(f"pipeline {definition.name!r}: {where}{text}{hint}") from error


def _holder_of_error(definition: Definition, spark: SparkSession) -> str | None:
    if definition.kind == "function":
        return None
    with _without_log_of_queries(), pipeline_settings(spark, definition.time_zone):
        try:
            frames = reading.streams_of_nothing(spark, definition)
        except PySparkException:
            return "schema"
        return holder_of_error(definition, frames)


@contextlib.contextmanager
def _without_log_of_queries() -> Iterator[None]:
    """Let PySpark not write pages of Java about an error that is told in a sentence."""
    log = logging.getLogger("SQLQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
