"""The type that `data` has in Spark, from the type that Python decodes it to.

    class Order(msgspec.Struct):                 struct<user: string, total: double,
        user: str                          ─▶           lines: array<string>>
        total: float
        lines: list[str] = []

Structs of msgspec, dataclasses and typed dictionaries have fields that can be looked at. Of
other kinds, and of types that Spark has no place for, the schema has to be given by hand.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect
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

_PLAIN: dict[type[inspect.Type], type[DataType]] = {
    inspect.BoolType: BooleanType,
    inspect.IntType: LongType,
    inspect.FloatType: DoubleType,
    inspect.StrType: StringType,
    inspect.UUIDType: StringType,
    inspect.DateTimeType: TimestampType,
    inspect.DateType: DateType,
}
_WITH_FIELDS = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
_WITH_ITEMS = inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType


def type_of(kind: Any) -> DataType:
    """Return Spark's type for a type of Python's; raises `ValueError` when it has none."""
    return _spark(inspect.type_info(kind), getattr(kind, "__name__", str(kind)))


def _spark(kind: inspect.Type, place: str) -> DataType:
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]()
    if isinstance(kind, inspect.UnionType):
        others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        if len(others) == 1:
            return _spark(others[0], place)
    if isinstance(kind, inspect.LiteralType) and all(isinstance(one, str) for one in kind.values):
        return StringType()
    if isinstance(kind, _WITH_ITEMS):
        return ArrayType(_spark(kind.item_type, f"{place}[]"))
    if isinstance(kind, _WITH_FIELDS):
        return StructType([_field(one, place) for one in kind.fields])
    raise ValueError(
        f"{place}: Spark has no type for this; say what data is with schema='user string, …'"
    )


def _field(field: msgspec.inspect.Field, place: str) -> StructField:
    return StructField(field.encode_name, _spark(field.type, f"{place}.{field.name}"))
