"""From columns to frames, without Spark: what is exact, and what is refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    _parse_datatype_string,
)

from queen.core.columns.framecheck import check_ids, check_payloads
from queen.spark.options import queue_option
from queen.spark.sink.json_text import json_texts
from queen.spark.sink.row_frames import Layout, RowFrame, frames_of, layout_of, reason_with_row


def texts(values: list[Any], kind: DataType, arrow: pa.DataType) -> list[str]:
    """Return JSON texts; the column is a slice, as columns of Spark may be."""
    column = pa.array([None, *values, None], arrow).slice(1, len(values))
    found: list[str] = json_texts(column, kind).to_pylist()
    return found


_DAY = date(2026, 11, 15)
_number = pa.struct([("n", pa.int64()), ("f", pa.float64()), ("t", pa.string())])
_nested = pa.struct(
    [("many", pa.list_(_number)), ("by", pa.map_(pa.string(), _number)), ("one", _number)]
)
_NESTED = StructType()
_NUMBER = StructType().add("n", LongType()).add("f", DoubleType()).add("t", StringType())
_NESTED.add("many", ArrayType(_NUMBER)).add("by", MapType(StringType(), _NUMBER))
_NESTED.add("one", _NUMBER)

_texts = st.text(st.characters(codec="utf-8"), max_size=8)
_numbers = st.none() | st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(),
        "t": st.none() | _texts,
    }
)
_values = st.none() | st.fixed_dictionaries(
    {
        "many": st.none() | st.lists(_numbers, max_size=3),
        "by": st.none() | st.dictionaries(_texts, _numbers, max_size=3),
        "one": _numbers,
    }
)


def plain(value: Any) -> Any:
    """What JSON can say of a value: no NaN, no infinities."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case list():
            return [plain(one) for one in value]
    return value


@given(st.lists(_values, max_size=6))
def test_nested_columns_read_back_as_they_were(values: list[Any]) -> None:
    arrow = [
        None if one is None else {**one, "by": one["by"] and list(one["by"].items())}
        for one in values
    ]
    found = [json.loads(one) for one in texts(arrow, _NESTED, _nested)]
    assert found == [
        plain(one and {**one, "by": one["by"] or ({} if one["by"] == {} else None)})
        for one in values
    ]


@pytest.mark.parametrize(
    ("ddl", "arrow", "value", "wanted"),
    [
        ("boolean", pa.bool_(), True, "true"),
        ("tinyint", pa.int8(), -7, "-7"),
        ("bigint", pa.int64(), 2**63 - 1, "9223372036854775807"),
        ("float", pa.float32(), 1.1, "1.1"),
        ("double", pa.float64(), 1e300, "1e+300"),
        ("double", pa.float64(), 0.1, "0.1"),
        ("double", pa.float64(), 8.0, "8.0"),
        ("decimal(38,9)", pa.decimal128(38, 9), Decimal("-1.5"), "-1.500000000"),
        ("decimal(38,18)", pa.decimal128(38, 18), Decimal("1e-18"), "1E-18"),
        ("string", pa.string(), 'a"\\\n\x1f€😀', '"a\\"\\\\\\n\\u001f€😀"'),
        ("string", pa.large_string(), "a", '"a"'),
        ("binary", pa.binary(), b"\0\xff\x10", '"AP8Q"'),
        ("date", pa.date32(), _DAY, '"2026-11-15"'),
        (
            "timestamp",
            pa.timestamp("us", "UTC"),
            datetime(2026, 11, 15, 12, 0, 0, 1, UTC),
            '"2026-11-15T12:00:00.000001Z"',
        ),
        (
            "timestamp_ntz",
            pa.timestamp("us"),
            datetime(1, 1, 1),
            '"0001-01-01T00:00:00.000000"',
        ),
        ("void", pa.null(), None, "null"),
        ("struct<>", pa.struct([]), {}, "{}"),
        ("array<int>", pa.list_(pa.int32()), [], "[]"),
        ("map<int, boolean>", pa.map_(pa.int32(), pa.bool_()), [(1, True)], '{"1":true}'),
        (
            "map<date, int>",
            pa.map_(pa.date32(), pa.int32()),
            [(date(2026, 1, 2), 3)],
            '{"2026-01-02":3}',
        ),
    ],
)
def test_each_type_has_one_form(
    spark: SparkSession, ddl: str, arrow: pa.DataType, value: Any, wanted: str
) -> None:
    kind = StructType() if ddl == "struct<>" else _parse_datatype_string(ddl)
    assert texts([value, None], kind, arrow) == [wanted, "null"]


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (10**18, "+33658-09-27T01:46:40.000000Z"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807Z"),
        (1 - 2**63, "-290308-12-21T19:59:05.224193Z"),
        (0, "1970-01-01T00:00:00.000000Z"),
    ],
)
def test_a_year_may_have_more_than_four_digits(us: int, text: str) -> None:
    column = pa.array([us, None], pa.timestamp("us", "UTC"))
    found = json_texts(column, TimestampType()).to_pylist()
    assert found == [f'"{text}"', "null"]
    days = pa.array([us // 86_400_000_000, 0], pa.int32()).cast(pa.date32())
    assert json_texts(days, DateType()).to_pylist() == [
        f'"{text.partition("T")[0]}"',
        '"1970-01-01"',
    ]


# ---- layouts ----


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        ("data int, offset long", {"queue": "q"}, "column 'offset' is not written to a queue"),
        ("value int", {"queue": "q"}, "column 'value' is not written"),
        ("partition string", {"queue": "q"}, "there is no column 'data'"),
        ("data int", {}, "no queue to write to"),
        ("data int", {"queue": "a,b"}, "'a,b' names 2 queues, and rows go to one"),
        ("data int, queue int", {}, "column 'queue' must be a string, not int"),
        ("data int", {"queue": "q", "dataformat": "xml"}, "option dataFormat is 'xml'"),
        ("data interval day", {"queue": "q"}, "column data: interval day has no form in JSON"),
        ("data struct<a: array<interval day>>", {"queue": "q"}, "column data.a[]: interval day"),
        ("data map<struct<a: int>, int>", {"queue": "q"}, "the keys of a map must be text"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(
    spark: SparkSession, schema: str, options: dict[str, str], reason: str
) -> None:
    kind = _parse_datatype_string(schema)
    assert isinstance(kind, StructType)
    with pytest.raises(ValueError, match=reason.replace("[]", r"\[\]")):
        layout_of(options, kind)


def test_a_queue_with_a_comma_is_named_in_a_list(spark: SparkSession) -> None:
    kind = _parse_datatype_string("data int")
    assert isinstance(kind, StructType)
    assert layout_of({"queue": queue_option("a,b")}, kind).default_queue == "a,b"


# ---- frames ----

_RAW = Layout(StringType(), "json", "q")
_TEXT = Layout(StringType(), "text", "q")


def framed(layout: Layout = _RAW, **columns: list[Any]) -> list[RowFrame]:
    return list(frames_of([pa.record_batch(columns)], layout, "query:0:0:"))


def test_frames_are_what_the_broker_takes() -> None:
    found = framed(
        data=['{"n": 0}', " [1,\n2] ", None, "3"],
        partition=["b", "a", "b", None],
        transactionId=[None, "own", None, None],
    )
    for one in found:
        check_ids(one.segment)
        check_payloads(one.segment)
    assert [one.segment.payloads() for one in found] == [
        [b'{"n": 0}', b"null"],
        [b"[1,\t2]"],
        [b"3"],
    ]
    assert [one.segment.transaction_ids() for one in found] == [
        ["query:0:0:0", "query:0:0:2"],
        ["own"],
        ["query:0:0:3"],
    ]
    assert [one.rows.tolist() for one in found] == [[0, 2], [1], [3]]


@pytest.mark.parametrize("rows", [1, 9_999, 10_001, 450_000])
def test_no_row_is_lost_or_moved_between_frames(rows: int) -> None:
    batch = pa.record_batch(
        {
            "data": [str(n) for n in range(rows)],
            "partition": [f"p{n % 3}" for n in range(rows)],
        }
    )
    batches = [batch.slice(at, 7_000) for at in range(0, rows, 7_000)]
    lanes: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for one in frames_of(batches, _RAW, ":"):
        found = [int(payload) for payload in one.segment.payloads()]
        assert found == one.rows.tolist()
        assert one.segment.transaction_ids() == [f":{n}" for n in found]
        lanes[found[0] % 3] += found
    assert all(lanes[n] == list(range(n, rows, 3)) for n in range(3))


def test_large_rows_are_cut_into_frames_that_fit() -> None:
    found = framed(_TEXT, data=["x" * 3_000_000] * 30, partition=["a", "b"] * 15)
    assert sum(one.segment.count for one in found) == 30
    assert max(len(one.segment.data) for one in found) < 32 * 1024 * 1024


@pytest.mark.parametrize(
    ("rows", "layout", "reason"),
    [
        (["{}", '{"a":'], _RAW, "row 1: payload is not valid JSON"),
        (["{}", ""], _RAW, "row 1: "),
        (["{} {}"], _RAW, "row 0: "),
        (["1", '{"a": "x\ny"}'], _RAW, "row 1: payload is not valid JSON"),
        (["1", '"\\u0000"'], _RAW, "row 1: payload has a NUL character"),
        (["1", "a\0b"], _TEXT, "row 1: payload has a NUL character"),
        (["[" * 200 + "]" * 200], _RAW, "row 0: payload is nested deeper than 128"),
    ],
)
def test_a_bad_row_is_found(rows: list[str], layout: Layout, reason: str) -> None:
    found = reason_with_row(framed(layout, data=rows))
    assert found is not None and found.startswith(reason)
    assert reason_with_row(framed(layout, data=["1"])) is None


@pytest.mark.parametrize(
    ("columns", "layout", "reason"),
    [
        ({"queue": [None]}, Layout(StringType(), "json", None), "row 0: its queue is null"),
        ({"queue": ["q", None]}, Layout(StringType(), "json", None), "row 1: its queue is null"),
        ({"partition": ["a\nb"]}, _RAW, "partition name has a character"),
        ({"partition": ["a", ""]}, _RAW, "partition name is empty"),
        ({"transactionId": ["a", ""]}, _RAW, "row 1: transactionId is empty"),
        ({"transactionId": ["ü" * 128]}, _RAW, "row 0: transactionId is longer than 255"),
    ],
)
def test_a_row_that_goes_nowhere_is_named(
    columns: dict[str, list[Any]], layout: Layout, reason: str
) -> None:
    typed = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    count = len(next(iter(typed.values())))
    batch = pa.record_batch({"data": ["1"] * count, **typed})
    with pytest.raises(ValueError, match=reason):
        list(frames_of([batch], layout, ":"))
