"""The type that `data` has in Spark, from the type that Python decodes it to.

    class Order(msgspec.Struct):                 struct<user: string, total: double,
        user: str                          ─▶           lines: array<string>>
        total: float
        lines: list[str] = []

Structs of msgspec, dataclasses and typed dictionaries have fields that can be looked at. Of
other kinds, and of types that Spark does not know, the schema has to be given by hand.
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
    return _spark_type(inspect.type_info(kind), getattr(kind, "__name__", str(kind)))


def _spark_type(kind: inspect.Type, path: str) -> DataType:
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]()
    if isinstance(kind, inspect.UnionType):
        others = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        if len(others) == 1:
            return _spark_type(others[0], path)
    if isinstance(kind, inspect.LiteralType) and all(
        isinstance(value, str) for value in kind.values
    ):
        return StringType()
    if isinstance(kind, _WITH_ITEMS):
        return ArrayType(_spark_type(kind.item_type, f"{path}[]"))
    if isinstance(kind, _WITH_FIELDS):
        return StructType([_field(field, path) for field in kind.fields])
    raise ValueError(
        f"{path}: Spark has no type for this; say what data is with schema='user string, …'"
    )


def _field(field: msgspec.inspect.Field, path: str) -> StructField:
    return StructField(field.encode_name, _spark_type(field.type, f"{path}.{field.name}"))
