"""Casts that Spark would make of texts by itself, written into a definition.

An expression that only names a column cannot fail, unless Spark makes something else of it: a
time of a text, or a number to compare a text with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as f
from pyspark.sql.types import (
    AtomicType,
    DataType,
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from queen.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from queen.wire.pipelines import Definition, Reads


def with_explicit_casts(definition: Definition, frames: Mapping[str, DataFrame]) -> Definition:
    """Return a definition with the casts in it that Spark would make of texts by itself."""
    sides = {reads.name: frames[reads.name] for reads in definition.reads}
    reads = [_with_time(side, sides[side.name]) for side in definition.reads]
    joins = []
    for at, join in enumerate(definition.joins):
        left = sides[reads[0].name] if at == 0 else as_pairs(sides)
        right = sides[reads[at + 1].name]
        on = [_of_one_type(pair, left, right) for pair in join.on]
        joins.append(msgspec.structs.replace(join, on=on))
    return msgspec.structs.replace(definition, reads=reads, joins=joins)


def _type_of(text: str, df: DataFrame) -> DataType:
    return df.select(f.expr(text)).schema[0].dataType


def _with_time(side: Reads, df: DataFrame) -> Reads:
    if side.event_time is None:
        return side
    kind = _type_of(side.event_time, df)
    if isinstance(kind, StringType):
        return msgspec.structs.replace(side, event_time=f"cast({side.event_time} as timestamp)")
    if not isinstance(kind, TimestampType | TimestampNTZType | DateType):
        raise BadRequest(
            f"event_time: {side.event_time} is a {kind.simpleString()} and not a time; make one of "
            "it, as in timestamp_millis(data.ms)"
        )
    return side


def as_pairs(sides: Mapping[str, DataFrame]) -> DataFrame:
    """Return what joined messages look like, without any."""
    fields = [StructField(name, df.schema) for name, df in sides.items()]
    some = next(iter(sides.values()))
    if some.isStreaming:
        nothing = (f.lit(None).cast(field.dataType).alias(field.name) for field in fields)
        return some.select(*nothing)
    return some.sparkSession.createDataFrame([], StructType(fields))


def _of_one_type(pair: tuple[str, str], left: DataFrame, right: DataFrame) -> tuple[str, str]:
    ours, theirs = _type_of(pair[0], left), _type_of(pair[1], right)
    if isinstance(ours, StringType) and isinstance(theirs, AtomicType) and ours != theirs:
        return f"cast({pair[0]} as {theirs.simpleString()})", pair[1]
    if isinstance(theirs, StringType) and isinstance(ours, AtomicType) and ours != theirs:
        return pair[0], f"cast({pair[1]} as {ours.simpleString()})"
    return pair
