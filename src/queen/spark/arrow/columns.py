"""The columns that a queue has as a DataFrame, and what a schema of the user's may ask for."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from queen.core.columns.headers import HEADERS
from queen.spark.options import truth

CORRUPT = "_corrupt"
RAW = "_raw"
SEALED = "sealed"
DATA = "data"
HEADERS_TYPE = MapType(StringType(), StringType())

# In this order when the user gives no schema; a user's schema names any of them in any order.
_ALWAYS: dict[str, DataType] = {
    "queue": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "id": StringType(),
    "transactionId": StringType(),
    "traceId": StringType(),
    "createdAt": TimestampType(),
    DATA: StringType(),
}
# Only of windows (options `stream` and `lease`): which one a message is in. A message may be in
# several, and is then in several rows.
WINDOW_COLUMNS: dict[str, DataType] = {
    "windowStart": TimestampType(),
    "windowEnd": TimestampType(),
    "key": StringType(),
}
# `sealed`, only with the option `markers`: the sealed time, in the one row of a micro-batch
# that is no message. Only when asked for: `headers`, null where a message has none; `_corrupt`,
# payloads that are not what `data` wants; and `_raw`, all payloads as they came. With a map in it
# rows cannot be compared, so nobody gets one who has not asked.
_SOMETIMES: dict[str, DataType] = {
    SEALED: TimestampType(),
    HEADERS: HEADERS_TYPE,
    CORRUPT: StringType(),
    RAW: StringType(),
}


# All that a message of a queue can have.
COLUMNS = (*_ALWAYS, HEADERS, CORRUPT, RAW)


def has_markers(options: Mapping[str, str]) -> bool:
    return truth(options, "markers", False)


def has_headers(options: Mapping[str, str]) -> bool:
    """Whether a read without a schema has the headers of messages."""
    return truth(options, "headers", False)


def has_windows(options: Mapping[str, str]) -> bool:
    """Whether windows are read, and not whole queues."""
    return "stream" in options or "lease" in options


def default_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of a read without a schema."""
    columns = _ALWAYS | (WINDOW_COLUMNS if has_windows(options) else {})
    fields = [StructField(name, kind) for name, kind in columns.items()]
    if has_headers(options):
        fields.append(StructField(HEADERS, HEADERS_TYPE))
    if has_markers(options):
        fields.append(StructField(SEALED, TimestampType()))
    return StructType(fields)


def check_schema(schema: StructType, options: Mapping[str, str]) -> None:
    """Raise `ValueError` for a schema that a queue does not have."""
    known = _ALWAYS | _SOMETIMES | (WINDOW_COLUMNS if has_windows(options) else {})
    for field in schema.fields:
        if field.name not in known:
            raise ValueError(
                f"a queue has no column {field.name!r}, only {', '.join(known)}: "
                f"fields of a payload stand inside data, as in `data STRUCT<{field.name}: …>`"
            )
        if field.name == DATA:
            _check_data(field.dataType, DATA)
        elif field.dataType != known[field.name]:
            right = known[field.name].simpleString()
            raise ValueError(f"column {field.name} is {right}, not {field.dataType.simpleString()}")
    if (SEALED in schema.names) != has_markers(options):
        raise ValueError("column sealed and option markers go together: have both, or neither")


def unfit_reason(kind: DataType) -> str:
    """Return what is said of a payload that is not what the type of `data` says."""
    return f"the payload is not what the schema says: {kind.simpleString()}"


def is_raw(kind: DataType) -> bool:
    """Whether payloads are handed on as they are."""
    return isinstance(kind, StringType | BinaryType)


def _check_data(kind: DataType, path: str) -> None:
    """Refuse types that payloads cannot be parsed into, before the first task finds out."""
    if isinstance(kind, MapType):
        raise ValueError(
            f"{path}: a map cannot be parsed into; name the fields in a STRUCT, or read data as "
            "STRING or VARIANT"
        )
    if isinstance(kind, VariantType) and path != DATA:
        raise ValueError(f"{path}: VARIANT is possible for all of data, not for a part of it")
    if isinstance(kind, StructType):
        if not kind.fields:
            raise ValueError(f"{path}: a STRUCT needs fields")
        for field in kind.fields:
            _check_data(field.dataType, f"{path}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_data(kind.elementType, f"{path}[]")
