"""Payloads to typed columns: many JSON documents parsed by one call, and none lost.

`pyarrow.json` is the fastest parser there is for this, and not a careful one: it fails a whole
block for one bad row, drops empty lines, makes two rows of two documents on a line, and does not
survive a line that is `null`. So each payload must begin and end like an object before it is
parsed, and there must be as many rows as payloads afterwards; both together prove that each
payload became its own row. When that fails, the block is halved until the payloads that do not
fit stand alone. What a payload becomes depends on it alone, never on its neighbours.

Not an object, or a number that does not fit (`1.5` for a long, `"1"` for a number), a key twice,
a time with nanoseconds: the value is null, and the caller gets to know which. `null` is null, a
time without a zone is UTC, and a time where a date is wanted is its day in UTC.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

_OPEN, _CLOSE = ord("{"), ord("}")
_KEY = "data"
# What a parser says when it knows where it stopped.
_ROW = re.compile(r"in row (\d+)")
_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)

Offsets = np.ndarray[Any, np.dtype[np.int32]]


def parse_documents(
    lines: bytes, offsets: Offsets, kind: pa.DataType
) -> tuple[pa.Array, list[int]]:
    """Return payloads as an array of a type, and the numbers of those that do not fit.

    `lines` holds the payloads, each with a newline behind it; payload i is in
    `lines[offsets[i] : offsets[i + 1]]`.
    """
    unfit: set[int] = set()
    if pa.types.is_struct(kind):
        fields = list(kind)
        lines, offsets, absent = _replace_others(lines, offsets, unfit)
    else:
        # Anything that is not an object becomes one with a single key.
        fields, absent = [pa.field(_KEY, kind)], []
        lines, offsets = _wrap_in_objects(lines, offsets)
    readable = pa.schema([pa.field(field.name, _readable(field.type)) for field in fields])
    table = _Parser(lines, offsets, readable, pa.schema(fields)).table(unfit)
    columns = [_single_array(column) for column in table.columns]
    if not pa.types.is_struct(kind):
        return columns[0], sorted(unfit)
    is_null = np.zeros(len(offsets) - 1, dtype=bool)
    is_null[[*absent, *unfit]] = True
    array = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(is_null))
    return array, sorted(unfit)


def _replace_others(
    lines: bytes, offsets: Offsets, unfit: set[int]
) -> tuple[bytes, Offsets, list[int]]:
    """Put an empty object in place of every payload that is none; return which were null."""
    characters = np.frombuffer(lines, dtype=np.uint8)
    starts, ends = offsets[:-1], offsets[1:] - 2
    opens, closes = characters[starts] == _OPEN, characters[np.maximum(ends, 0)] == _CLOSE
    is_object = (ends > starts) & opens & closes
    if is_object.all():
        return lines, offsets, []
    payloads = lines_of(lines, offsets)
    absent = []
    for at in np.flatnonzero(~is_object).tolist():
        text = payloads[at].strip()
        if text.startswith(b"{") and text.endswith(b"}") and len(text) > 1:
            payloads[at] = text
            continue
        payloads[at] = b"{}"
        if text == b"null":
            absent.append(at)
        else:
            unfit.add(at)
    return *_join_lines(payloads), absent


def _wrap_in_objects(lines: bytes, offsets: Offsets) -> tuple[bytes, Offsets]:
    """Make `{"data": …}` of every payload."""
    before, after = b'{"%b":' % _KEY.encode(), b"}\n"
    wrapped = before + lines[:-1].replace(b"\n", b"}\n" + before) + after
    longer = len(before) + 1
    return wrapped, offsets + longer * np.arange(len(offsets), dtype=np.int32)


def lines_of(lines: bytes, offsets: Offsets) -> list[bytes]:
    """Return payloads one by one, without their newlines."""
    return [lines[start : stop - 1] for start, stop in pairwise(offsets.tolist())]


def _join_lines(payloads: list[bytes]) -> tuple[bytes, Offsets]:
    offsets = np.zeros(len(payloads) + 1, dtype=np.int32)
    np.cumsum([len(payload) + 1 for payload in payloads], out=offsets[1:])
    return b"\n".join(payloads) + b"\n", offsets


class _Parser:
    """Parses spans of lines, and finds those that do not fit."""

    def __init__(
        self, lines: bytes, offsets: Offsets, readable: pa.Schema, schema: pa.Schema
    ) -> None:
        self._lines = pa.py_buffer(lines)
        self._offsets = offsets
        self._schema = schema
        self._options = pj.ParseOptions(
            explicit_schema=readable, unexpected_field_behavior="ignore"
        )

    def table(self, unfit: set[int]) -> pa.Table:
        """Return all lines as a table, with a row of nulls for each that does not fit."""
        tables = []
        # Spans that are still to be read, the first one last.
        spans = [(0, len(self._offsets) - 1)]
        while spans:
            low, high = spans.pop()
            if low == high:
                continue
            try:
                tables.append(self._read(low, high))
            except _UNFIT as error:
                if high - low == 1:
                    unfit.add(low)
                    tables.append(self._null_row())
                else:
                    spans += self._split(low, high, str(error))
        return pa.concat_tables(tables) if tables else self._schema.empty_table()

    def _split(self, low: int, high: int, error: str) -> list[tuple[int, int]]:
        """Cut a span that does not fit; the first part comes last."""
        hint = _ROW.search(error)
        at = low + int(hint[1]) if hint else high
        if not low <= at < high:
            middle = (low + high) // 2
            return [(middle, high), (low, middle)]
        return [(at + 1, high), (at, at + 1), (low, at)]

    def _read(self, low: int, high: int) -> pa.Table:
        first, last = int(self._offsets[low]), int(self._offsets[high])
        span = self._lines.slice(first, last - first)
        options = pj.ReadOptions(use_threads=False, block_size=last - first + 1)
        table = pj.read_json(
            pa.BufferReader(span), read_options=options, parse_options=self._options
        )
        if table.num_rows != high - low:
            raise pa.ArrowInvalid("more documents than lines, or fewer")
        return table.cast(self._schema)

    def _null_row(self) -> pa.Table:
        columns = [pa.nulls(1, field.type) for field in self._schema]
        return pa.Table.from_arrays(columns, schema=self._schema)


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return what to read in place of a type that the parser does not know as it is written."""
    if pa.types.is_date(kind):
        # "2024-01-02"; the parser takes only numbers for dates.
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _readable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _readable(kind.value_type)))
    return kind


def _single_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(column.chunks)
