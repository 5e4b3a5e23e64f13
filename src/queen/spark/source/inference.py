"""A schema for the payloads of a queue, proposed from a sample of them.

The sample is taken from all over the queue. A proposal is only that: what does not fit it later
ends in `_corrupt`, so that nothing depends on the sample having seen everything. What cannot be
one type (a number here, an object there) is left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queen.spark.arrow.columns import CORRUPT, DATA, default_schema
from queen.spark.options import EARLIEST
from queen.spark.source.planning import Planner, selection_of
from queen.spark.source.slices import read_slice

_SAMPLE_TASKS = 20
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RAW = StructType([StructField(DATA, StringType())])


class Inferred(NamedTuple):
    """What payloads look like."""

    # All columns of a read, `data` as it was found, and `_corrupt`; for `.schema(…)`.
    schema: StructType
    # The same as text.
    ddl: str
    # How many payloads were looked at.
    messages: int
    # What could not be one type, as `data.x.y`.
    left_out: list[str]


def infer(
    queue: str, *, url: str | None = None, token: str | None = None, messages: int = 1000
) -> Inferred:
    """Propose a schema for the payloads of a queue from a sample of about so many of them."""
    options = {"queue": queue, "url": url or "", "token": token or ""}
    payloads = list(_sample({key: text for key, text in options.items() if text}, messages))
    left_out: list[str] = []
    kind = _kind_of(payloads, DATA, left_out) or StringType()
    fields = [
        StructField(field.name, kind if field.name == DATA else field.dataType)
        for field in default_schema({})
    ]
    schema = StructType([*fields, StructField(CORRUPT, StringType())])
    text = ", ".join(f"{field.name} {ddl_of(field.dataType)}" for field in schema)
    return Inferred(schema, text, len(payloads), left_out)


def _sample(options: Mapping[str, str], messages: int) -> Iterator[Any]:
    """Yield payloads from the beginnings of parts of a queue."""
    planner = Planner(selection_of({**options, "tasks": str(_SAMPLE_TASKS)}, must_be_whole=False))
    since = dict.fromkeys(planner.selection.queues, EARLIEST)
    plan = planner.plan(since, planner.cut().sealed)
    tasks = [planner.task(planned) for planned in plan.slices]
    each = -(-messages // max(len(tasks), 1))
    for task in tasks:
        left = each
        for batch in read_slice(task, _RAW):
            texts = batch.column(0).slice(0, left).to_pylist()
            yield from map(msgspec.json.decode, texts)
            left -= len(texts)
            if left <= 0:
                break


def _kind_of(values: Iterable[Any], path: str, left_out: list[str]) -> DataType | None:
    """Return the one type that all values have; None when there is none, or nothing to see."""
    present = [value for value in values if value is not None]
    families = {_family(value) for value in present}
    if len(families) != 1:
        if families:
            left_out.append(path)
        return None
    (family,) = families
    if family is dict:
        return _struct_of(present, path, left_out)
    if family is list:
        items = [item for value in present for item in value]
        element = _kind_of(items, f"{path}[]", left_out)
        # Of lists that were always empty nothing is known.
        return ArrayType(element or StringType()) if element or not items else None
    return _scalar_of(family, present)


def _struct_of(values: list[dict[str, Any]], path: str, left_out: list[str]) -> DataType | None:
    names: dict[str, str] = {}
    for name in (name for value in values for name in value):
        # To Spark these are the same name.
        if names.setdefault(name.lower(), name) != name and f"{path}.{name}" not in left_out:
            left_out.append(f"{path}.{name}")
    fields = []
    for name in names.values():
        seen = [value.get(name) for value in values]
        kind = _kind_of(seen, f"{path}.{name}", left_out)
        if kind is None and all(value is None for value in seen):
            kind = StringType()
        if kind is not None:
            fields.append(StructField(name, kind))
    if not fields:
        left_out.append(path)
        return None
    return StructType(fields)


def _family(value: Any) -> type:
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, int | float) else type(value)


def _scalar_of(family: type, values: list[Any]) -> DataType:
    if family is bool:
        return BooleanType()
    if family is float:
        is_long = all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in values)
        return LongType() if is_long else DoubleType()
    if all(_DAY.fullmatch(value) for value in values):
        return DateType()
    return TimestampType() if all(_INSTANT.fullmatch(value) for value in values) else StringType()


def ddl_of(kind: DataType) -> str:
    """Return a type as it is written in a schema.

    >>> ddl_of(StructType([StructField("a b", ArrayType(LongType()))]))
    'STRUCT<`a b`: ARRAY<BIGINT>>'
    """
    if isinstance(kind, StructType):
        inside = ", ".join(
            f"{_quoted_name(field.name)}: {ddl_of(field.dataType)}" for field in kind.fields
        )
        return f"STRUCT<{inside}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{ddl_of(kind.elementType)}>"
    return kind.simpleString().upper()


def _quoted_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"
