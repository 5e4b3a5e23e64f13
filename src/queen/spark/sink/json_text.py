"""From Arrow columns to JSON text, column by column.

Each function turns a whole column into a column of JSON texts; a struct is its fields' texts
joined, a list its elements'. Values are converted one by one only where nothing else is exact:
a text with something to escape, binary, and VARIANT.

    null                    null, also inside a struct: fields are never left out
    boolean, integers       as they are
    float, double           the shortest text that reads back the same, 8.0 and not 8; NaN and
                            the infinities have no form in JSON and are null
    decimal                 a number with all its digits
    string                  a string
    binary                  a string, base64
    timestamp               a string, "2026-11-15T12:00:00.000000Z"
    timestamp_ntz           the same without the Z
    date, time              a string, "2026-11-15", "12:00:00.000000"
    struct, map, array      an object, an object, an array; the keys of a map become texts
    variant                 its own JSON
    interval                refused: cast it to what you mean by it
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    VariantVal,
)

# Arrow's own classes say nothing to a type checker.
Column: TypeAlias = Any

_NULL = pa.scalar("null", pa.string())
# What a JSON string cannot hold as it is.
_TO_ESCAPE = '["\\\\\\x00-\\x1f]'
# The times of which the year has four digits.
_CALENDAR_US = (-62_167_219_200_000_000, 253_402_300_799_999_999)
_CALENDAR_DAYS = (-719_528, 2_932_896)
_KEYS = (StringType, IntegralType, BooleanType, DateType, TimestampType, TimestampNTZType)


def check_type(kind: DataType, where: str) -> None:
    """Raise `ValueError` when values of a type have no form in JSON."""
    match kind:
        case StructType():
            for field in kind.fields:
                check_type(field.dataType, f"{where}.{field.name}")
        case ArrayType():
            check_type(kind.elementType, f"{where}[]")
        case MapType():
            if not isinstance(kind.keyType, _KEYS):
                raise ValueError(
                    f"column {where}: the keys of a map must be text, numbers or times, "
                    f"not {kind.keyType.simpleString()}"
                )
            check_type(kind.valueType, f"{where}[]")
        case _ if _form_of(kind) is None:
            raise ValueError(
                f"column {where}: {kind.simpleString()} has no form in JSON; "
                "cast it to a string or a number"
            )


def json_texts(column: Column, kind: DataType) -> Column:
    """Return each value of a column as JSON text. The column has no nulls any more."""
    return pc.fill_null(_texts(column, kind), _NULL)


def _texts(column: Column, kind: DataType) -> Column:
    """The same, with nulls where there are nulls or no JSON."""
    match kind:
        case StructType():
            return _objects(column, kind)
        case ArrayType():
            inner = json_texts(column.flatten(), kind.elementType)
            return _enclose("[", _join_elements(column, inner), "]")
        case MapType():
            return _maps(column, kind)
    form = _form_of(kind)
    assert form is not None
    return form(column)


def _form_of(kind: DataType) -> Callable[[Column], Column] | None:
    """Return what turns a column of a simple type into texts; None if nothing does."""
    return next((_FORMS[base] for base in type(kind).__mro__ if base in _FORMS), None)


def _as_text(column: Column) -> Column:
    return pc.cast(column, pa.string())


def _numbers(column: Column) -> Column:
    finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))
    # 8.0, not 8: whoever reads it finds the type that it had.
    return pc.replace_substring_regex(_as_text(finite), r"^(-?\d+)$", r"\1.0")


def _nothing(column: Column) -> Column:
    return pa.nulls(len(column), pa.string())


def _plain_strings(column: Column) -> Column:
    return _enclose('"', _as_text(column), '"')


def _instants(column: Column) -> Column:
    # Spark hands them over in the zone of the session.
    column = pc.cast(column, pa.timestamp("us", "UTC"))
    if _is_beyond_calendar(column):
        return _far_times(column, "us", "Z")
    return pc.strftime(column, format='"%Y-%m-%dT%H:%M:%SZ"', locale="C")


def _local_times(column: Column) -> Column:
    if _is_beyond_calendar(column):
        return _far_times(column, "us", "")
    return pc.strftime(column, format='"%Y-%m-%dT%H:%M:%S"', locale="C")


def _days(column: Column) -> Column:
    if _is_beyond_calendar(column):
        return _far_times(column, "D", "")
    return _plain_strings(column)


def _is_beyond_calendar(column: Column) -> bool:
    """Whether a time has a year of less or more than four digits, which Arrow writes wrongly."""
    ends = pc.min_max(pc.cast(column, pa.int64() if _has_time(column) else pa.int32())).as_py()
    if ends["min"] is None:
        return False
    first, last = _CALENDAR_US if _has_time(column) else _CALENDAR_DAYS
    return bool(ends["min"] < first or ends["max"] > last)


def _has_time(column: Column) -> bool:
    return bool(pa.types.is_timestamp(column.type))


def _far_times(column: Column, unit: Any, zone: str) -> Column:
    """Return times as texts, one by one, with the sign of a year above 9999 as Spark has it."""
    numbers = pc.cast(column, pa.int64() if _has_time(column) else pa.int32()).to_pylist()
    texts = [
        # The very first microsecond of all means something else to numpy.
        None if number is None else str(np.datetime64(max(number, 1 - 2**63), unit))
        for number in numbers
    ]
    return pa.array(
        [None if text is None else f'"{_signed_year(text)}{zone}"' for text in texts], pa.string()
    )


def _signed_year(text: str) -> str:
    return f"+{text}" if len(text.partition("-")[0]) > 4 else text


def json_strings(column: Column) -> Column:
    """Return texts as JSON strings."""
    texts = pc.cast(column, pa.string())
    to_escape = pc.fill_null(pc.match_substring_regex(texts, _TO_ESCAPE), pa.scalar(False))
    plain = _enclose('"', texts, '"')
    if not pc.any(to_escape).as_py():
        return plain
    escaped = [msgspec.json.encode(text).decode() for text in texts.filter(to_escape).to_pylist()]
    return pc.replace_with_mask(plain, to_escape, pa.array(escaped, pa.string()))


def _enclose(left: str, texts: Column, right: str) -> Column:
    return pc.binary_join_element_wise(pa.scalar(left), texts, pa.scalar(right), "")


def _join_elements(column: Column, inner: Column) -> Column:
    """Return, for each list of a column, its elements' texts with commas between them."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = np.zeros(len(column) + 1, dtype=np.int32)
    np.cumsum(np.asarray(lengths), out=offsets[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), inner), ",")
    return pc.if_else(pc.is_valid(column), joined, pa.scalar(None, pa.string()))


def _objects(column: Column, kind: StructType) -> Column:
    if not kind.fields:
        return pc.if_else(pc.is_valid(column), pa.scalar("{}"), pa.scalar(None, pa.string()))
    parts: list[Any] = []
    for number, (field, child) in enumerate(zip(kind.fields, column.flatten(), strict=True)):
        name = msgspec.json.encode(field.name).decode()
        parts += [pa.scalar(f"{',' if number else '{'}{name}:"), json_texts(child, field.dataType)]
    objects = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
    return pc.if_else(pc.is_valid(column), objects, pa.scalar(None, pa.string()))


def _maps(column: Column, kind: MapType) -> Column:
    entries = column.type.key_field, column.type.item_field
    column = pc.cast(column, pa.list_(pa.struct(entries)))
    keys, values = column.flatten().flatten()
    names = json_texts(keys, kind.keyType)
    if not isinstance(kind.keyType, StringType | DateType | TimestampType | TimestampNTZType):
        names = _enclose('"', names, '"')
    pairs = pc.binary_join_element_wise(names, json_texts(values, kind.valueType), ":")
    return _enclose("{", _join_elements(column, pairs), "}")


def _convert_each(column: Column, text_of: Callable[[Any], str]) -> Column:
    texts = [None if value is None else text_of(value) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def _binaries(column: Column) -> Column:
    return _convert_each(column, lambda value: f'"{base64.b64encode(value).decode()}"')


def _variants(column: Column) -> Column:
    return _convert_each(
        column, lambda value: VariantVal(value["value"], value["metadata"]).toJson()
    )


_FORMS: dict[type, Callable[[Column], Column]] = {
    NullType: _nothing,
    BooleanType: _as_text,
    IntegralType: _as_text,
    DecimalType: _as_text,
    FloatType: _numbers,
    DoubleType: _numbers,
    StringType: json_strings,
    BinaryType: _binaries,
    DateType: _days,
    TimeType: _plain_strings,
    TimestampType: _instants,
    TimestampNTZType: _local_times,
    VariantType: _variants,
}
