"""Queues as DataFrames, asked for with values of Python's.

    queen.spark.read(spark, "orders", since=timedelta(hours=1), schema="user string")

What is chosen here, times, partitions, offsets and columns, reaches the broker and the parser:
nothing else is fetched or decoded. A `where` or a `select` of Spark's does not; `batch.py` says
why. All of it becomes options of `format("queen")`, and is checked before Spark sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StringType, StructField, StructType

from queen.core.columns.headers import HEADERS
from queen.spark.arrow.columns import (
    CORRUPT,
    DATA,
    HEADERS_TYPE,
    RAW,
    default_schema,
    has_markers,
)
from queen.spark.arrow.typed import type_of
from queen.spark.options import queue_option
from queen.spark.source.batch import batch_reader
from queen.spark.source.streaming import stream_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A time, how long ago, or a text: `earliest`, `latest` or a time.
Moment = datetime | timedelta | str
# Names, or one of them.
Names = str | Sequence[str]
# Of the payload: as Spark writes it, as a type of Spark's, or as a class with fields.
Schema = str | DataType | type


def read(
    spark: SparkSession,
    queue: Names | None,
    *,
    since: Moment | None,
    until: Moment | None,
    partitions: Names | None,
    from_offset: int | None,
    to_offset: int | None,
    schema: Schema | None,
    columns: Sequence[str] | None,
    options: dict[str, Any],
) -> DataFrame:
    """Return a stretch of queues."""
    given = _options(queue, partitions, since, options)
    given |= _texts(
        endingTime=None if until is None else _time("until", until),
        startingOffset=from_offset,
        endingOffset=to_offset,
    )
    lowered = {name.lower(): text for name, text in given.items()}
    chosen = _columns(lowered, schema, columns)
    # Now, and not when Spark gets to it.
    batch_reader(lowered, chosen)
    return spark.read.format("queen").schema(chosen).options(**given).load()


def read_stream(
    spark: SparkSession,
    queue: Names | None,
    *,
    since: Moment | None,
    partitions: Names | None,
    schema: Schema | None,
    columns: Sequence[str] | None,
    options: dict[str, Any],
) -> DataFrame:
    """Return queues as a stream."""
    given = _options(queue, partitions, since, options)
    lowered = {name.lower(): text for name, text in given.items()}
    chosen = _columns(lowered, schema, columns)
    stream_reader(lowered, chosen)
    return spark.readStream.format("queen").schema(chosen).options(**given).load()


def _options(
    queue: Names | None, partitions: Names | None, since: Moment | None, options: dict[str, Any]
) -> dict[str, str]:
    given = _texts(
        queue=None if queue is None else _names("queue", queue),
        partition=None if partitions is None else _names("partitions", partitions),
        startingTime=None if since is None else _time("since", since),
    )
    others = _texts(**options)
    known = {name.lower() for name in given}
    twice = [name for name in others if name.lower() in known]
    if twice:
        raise ValueError(f"option {twice[0]} says again what an argument has said")
    return given | others


def _texts(**values: Any) -> dict[str, str]:
    """Return options as Spark takes them, without those that are not given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _names(what: str, names: Names) -> str:
    """Return names as an option takes them."""
    listed = [names] if isinstance(names, str) else names
    is_list = isinstance(listed, Sequence) and len(listed) > 0
    if not is_list or not all(isinstance(name, str) and name for name in listed):
        raise ValueError(f"{what}: a name or several of them, not {names!r}")
    return queue_option(*listed)


def _time(what: str, moment: Moment) -> str:
    """Return a moment as the options take it; without a zone it is UTC."""
    if isinstance(moment, str):
        return moment
    if isinstance(moment, timedelta):
        if moment < timedelta():
            raise ValueError(f"{what}: how long ago, which is not {moment}")
        # Nothing is older than the epoch.
        now = datetime.now(UTC)
        moment = now - min(moment, now - _EPOCH)
    if not isinstance(moment, datetime):
        raise ValueError(
            f"{what}: a datetime, a timedelta (so long ago), or a text like 'earliest' or "
            f"'2026-01-31T12:00:00Z', not {moment!r}"
        )
    return moment.isoformat()


def _columns(
    options: dict[str, str], schema: Schema | None, columns: Sequence[str] | None
) -> StructType:
    """Return the columns to be made: those asked for, or all."""
    kind = StringType() if schema is None else _data_type(schema)
    fields = {
        field.name: StructField(field.name, kind if field.name == DATA else field.dataType)
        for field in default_schema(options)
    }
    if columns is None:
        if schema is not None:
            fields[CORRUPT] = StructField(CORRUPT, StringType())
        return StructType(list(fields.values()))
    known = {**fields, **{name: StructField(name, StringType()) for name in (CORRUPT, RAW)}}
    known[HEADERS] = StructField(HEADERS, HEADERS_TYPE)
    asked = [columns] if isinstance(columns, str) else list(columns)
    if schema is not None and not {DATA, CORRUPT} & set(asked):
        raise ValueError("schema says what data is, but columns leaves data out")
    if has_markers(options) and "sealed" not in asked:
        asked.append("sealed")
    _check_columns(asked, list(known))
    return StructType([known[name] for name in asked])


def _check_columns(asked: list[str], known: list[str]) -> None:
    if not asked:
        raise ValueError("columns: none is asked for; leave it out to have all")
    for name in asked:
        if name in known:
            continue
        close = get_close_matches(str(name), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise ValueError(f"columns: a queue has no column {name!r}: {hint}")
    if len(set(asked)) < len(asked):
        raise ValueError("columns: one is there twice")


def _data_type(schema: Schema) -> DataType:
    """Return the type of `data`."""
    if isinstance(schema, DataType):
        return schema
    if isinstance(schema, str):
        try:
            parsed: DataType = StructType.fromDDL(schema)
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"schema: {schema!r} is not as Spark writes it: {reason}") from None
        return parsed
    if isinstance(schema, type):
        return type_of(schema)
    raise ValueError(
        "schema: what is in data, as text ('user string, amount double'), as a type of Spark's, "
        f"or as a class with fields, not {schema!r}"
    )
