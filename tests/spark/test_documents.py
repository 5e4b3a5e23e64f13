"""Each payload becomes its own row, or is known not to fit, whatever stands beside it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from queen.spark.arrow.documents import parse_documents

LONG = pa.struct([("a", pa.int64())])


def parse(kind: pa.DataType, *payloads: bytes) -> tuple[list[Any], list[int]]:
    offsets = np.zeros(len(payloads) + 1, dtype=np.int32)
    np.cumsum([len(one) + 1 for one in payloads], out=offsets[1:])
    array, unfit = parse_documents(b"".join(one + b"\n" for one in payloads), offsets, kind)
    assert array.type == kind
    assert len(array) == len(payloads)
    return array.to_pylist(), unfit


def field(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("a", kind)])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), b"9223372036854775807", 2**63 - 1),
        (pa.int64(), b"null", None),
        (pa.float64(), b"1", 1.0),
        (pa.string(), '"grün"'.encode(), "grün"),
        (pa.string(), b'"\\ud83d\\ude00"', "\U0001f600"),
        (pa.bool_(), b"true", True),
        (pa.list_(pa.field("element", pa.int32())), b"[1, null]", [1, None]),
        (pa.decimal128(6, 2), b"12.3", "12.30"),
        (pa.decimal128(6, 2), b'"12.30"', "12.30"),
        (pa.date32(), b'"2024-02-29"', "2024-02-29"),
        (pa.date32(), b'"2024-02-29T23:00:00-05:00"', "2024-03-01"),
        (
            pa.timestamp("us", "UTC"),
            b'"2024-01-02T03:04:05.25Z"',
            "2024-01-02 03:04:05.250000Z",
        ),
        (pa.timestamp("us", "UTC"), b'"2024-01-02 05:04:05+02:00"', "2024-01-02 03:04:05Z"),
        (pa.timestamp("us", "UTC"), b'"2024-01-02T03:04:05"', "2024-01-02 03:04:05Z"),
    ],
)
def test_what_fits(kind: pa.DataType, text: bytes, value: Any) -> None:
    ((row,), unfit) = parse(field(kind), b'{"a": ' + text + b"}")
    found = row["a"]
    if isinstance(value, str) and not isinstance(found, str):
        found = str(found).replace("+00:00", "Z")
    assert found == value
    assert unfit == []


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (LONG, b'{"a": 1.5}'),
        (LONG, b'{"a": 1.0}'),
        (LONG, b'{"a": "12"}'),
        (LONG, b'{"a": true}'),
        (LONG, b'{"a": 9223372036854775808}'),
        (LONG, b'{"a": 1, "a": 2}'),
        (LONG, b'{"a": 1}{"a": 2}'),
        (LONG, b'{"a": 1} {"a": 2}'),
        (LONG, b'{"a": 1} rest'),
        (LONG, b'{"a": 1'),
        (LONG, b'{"a": {"b": 1}}'),
        (LONG, b""),
        (LONG, b"12"),
        (LONG, b'"text"'),
        (LONG, b"[1]"),
        (LONG, b"{"),
        (field(pa.string()), b'{"a": 1}'),
        (field(pa.string()), b'{"a": "\\ud800"}'),
        (field(pa.int8()), b'{"a": 300}'),
        (field(pa.float64()), b'{"a": 1e400}'),
        (field(pa.date32()), b'{"a": 5}'),
        (field(pa.timestamp("us", "UTC")), b'{"a": "2024-01-02T03:04:05.123456789Z"}'),
        (field(pa.timestamp("us", "UTC")), b'{"a": 1700000000}'),
        (field(pa.decimal128(4, 2)), b'{"a": 1.555}'),
        (pa.int64(), b"1.5"),
        (pa.list_(pa.field("element", pa.int64())), b"12"),
    ],
)
def test_what_does_not_fit_harms_no_neighbour(kind: pa.DataType, payload: bytes) -> None:
    good = b"{}" if pa.types.is_struct(kind) else b"null"
    rows, unfit = parse(kind, good, payload, good, payload)
    assert unfit == [1, 3]
    assert rows[1] is None
    assert rows[3] is None


def test_an_empty_payload_and_a_double_one_do_not_cancel_out() -> None:
    rows, unfit = parse(LONG, b"", b'{"a": 1}', b'{"a": 2}{"a": 3}')
    assert (rows, unfit) == ([None, {"a": 1}, None], [0, 2])


def test_null_is_null_and_fits() -> None:
    assert parse(LONG, b"null", b' {"a": 1} ', b"null") == ([None, {"a": 1}, None], [])
    assert parse(pa.int64(), b"null", b"1") == ([None, 1], [])


def test_fields_that_are_missing_or_unknown() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    rows, unfit = parse(kind, b"{}", b'{"x": [1, {"a": 2}], "a": 1}', b'{"b": {}}')
    assert rows == [{"a": None, "b": None}, {"a": 1, "b": None}, {"a": None, "b": {"c": None}}]
    assert unfit == []


def test_nothing_is_nothing() -> None:
    assert parse(LONG) == ([], [])


@pytest.mark.parametrize("bad_share", [0.0, 0.001, 0.05, 0.6])
def test_what_a_payload_becomes_does_not_depend_on_its_neighbours(bad_share: float) -> None:
    chosen = random.Random(7)
    choices = [b'{"a": 1.5}', b'{"a": 1, "a": 2}', b"", b"null", b"{}{}", b'"x"', b'{"a": "y"}']
    payloads = [
        chosen.choice(choices) if chosen.random() < bad_share else b'{"a": %d}' % n
        for n in range(1000)
    ]
    alone = {one: parse(LONG, one) for one in set(payloads)}
    rows, unfit = parse(LONG, *payloads)
    assert rows == [alone[one][0][0] for one in payloads]
    assert unfit == [n for n, one in enumerate(payloads) if alone[one][1]]
