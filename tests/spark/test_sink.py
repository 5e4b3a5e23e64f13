"""Writing DataFrames into queues: what becomes of rows, and what is refused."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.api import Api
from tests.conftest import ServerProcess
from tests.ports import free_port

Write = Callable[..., None]


@pytest.fixture
def write(server: ServerProcess) -> Write:
    """Write a DataFrame to the shared server: `write(df, queue="orders")`."""

    def append(df: DataFrame, **options: str | int) -> None:
        writer = df.write.format("queen").mode("append").option("url", server.url)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.save()

    return append


def payloads(api: Api, queue: str, partition: str = "Default") -> list[bytes]:
    """Return what a partition holds, as it is stored, and see that its offsets are dense."""
    found: list[bytes] = []
    for one in api.frames(queue, partition):
        assert one.base_offset == len(found)
        found += one.segment().payloads()
    return found


def data(api: Api, queue: str, partition: str = "Default") -> list[Any]:
    return [json.loads(one) for one in payloads(api, queue, partition)]


def ids(api: Api, queue: str, partition: str = "Default") -> list[str]:
    frames = api.frames(queue, partition)
    return [one for frame in frames for one in frame.segment().transaction_ids()]


def refusal(act: Callable[[], None]) -> str:
    with pytest.raises(PySparkException) as caught:
        act()
    return str(caught.value)


# ---- what rows become ----


def test_rows_become_messages_in_order(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    df = spark.range(0, 3000, 1, 3).select(
        f.struct("id").alias("data"), (f.col("id") % 4).alias("partition")
    )
    write(df, queue=queue)
    for partition in range(4):
        wanted = [{"id": n} for n in range(partition, 3000, 4)]
        assert data(api, queue, str(partition)) == wanted
    all_ids = [one for partition in range(4) for one in ids(api, queue, str(partition))]
    assert len(set(all_ids)) == 3000


def test_a_row_says_where_it_goes(spark: SparkSession, api: Api, write: Write, queue: str) -> None:
    other, trace = f"{queue}-b", str(uuid.uuid4())
    rows = [
        (1, None, None, None, None),
        (2, other, "a", "id-2", trace),
        (3, other, "a", None, None),
        (4, queue, None, "id-4", None),
    ]
    schema = "data int, queue string, partition string, transactionId string, traceId string"
    write(spark.createDataFrame(rows, schema).coalesce(1), queue=queue)
    assert (data(api, queue), data(api, other, "a")) == ([1, 4], [2, 3])
    assert ids(api, queue)[1] == "id-4" and ids(api, other, "a")[0] == "id-2"
    (first, second) = api.messages(other, batch=2)
    assert (first["traceId"], second["traceId"]) == (trace, None)


_TYPES = """
    struct(
        cast(null as int) as nothing, true as yes, 7Y as tiny, 9223372036854775807L as long,
        cast(1.5 as float) as float, 0.1D as double, 1.0D as whole, 1e300D as huge,
        double('NaN') as nan, double('-Infinity') as inf,
        cast(12345678901234567890.123456789 as decimal(38, 9)) as decimal,
        'Grüße "quoted" \\\\ \\n\\t€😀' as text, '' as empty, x'00ff10' as bytes,
        timestamp'2026-11-15 12:00:00.000001Z' as at, timestamp_ntz'2026-11-15 12:00:00' as local,
        date'2026-11-15' as day, void(1) as nil,
        named_struct('a', 1, 'b c"', named_struct('x', array())) as inner,
        array(1, null, 3) as list, array(array('a'), array(), null) as lists,
        array(named_struct('k', 1), null) as structs,
        map('a', 1, 'b"', null) as map, map(1, array(true)) as numbered,
        map(date'2026-01-01', 1.5D) as dated
    )
"""


def test_variants_are_written_as_they_are(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    texts = ['{"a": [1, "x", null]}', "7", '"text"', "null"]
    rows = spark.createDataFrame([(one,) for one in texts], "text string").coalesce(1)
    write(rows.select(f.expr("parse_json(text) as data")), queue=queue)
    write(rows.select(f.expr("struct(parse_json(text) as inner) as data")), queue=f"{queue}-b")
    assert data(api, queue) == [json.loads(one) for one in texts]
    assert data(api, f"{queue}-b") == [{"inner": json.loads(one)} for one in texts]


def test_instants_are_the_same_in_every_zone(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        at = "timestamp'2026-07-01 12:00:00Z'"
        write(spark.range(1).select(f.expr(f"struct({at} as at) as data")), queue=queue)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert data(api, queue) == [{"at": "2026-07-01T12:00:00.000000Z"}]


def test_every_type_has_its_json(spark: SparkSession, api: Api, write: Write, queue: str) -> None:
    columns = _TYPES.replace("void(1) as nil", "null as nil")
    write(spark.range(1).select(f.expr(columns).alias("data")), queue=queue)
    (raw,) = payloads(api, queue)
    assert b'"decimal":12345678901234567890.123456789,' in raw
    assert json.loads(raw) == {
        "nothing": None,
        "yes": True,
        "tiny": 7,
        "long": 9223372036854775807,
        "float": 1.5,
        "double": 0.1,
        "whole": 1,
        "huge": 1e300,
        "nan": None,
        "inf": None,
        "decimal": 12345678901234567890.123456789,
        "text": 'Grüße "quoted" \\ \n\t€😀',
        "empty": "",
        "bytes": "AP8Q",
        "at": "2026-11-15T12:00:00.000001Z",
        "local": "2026-11-15T12:00:00.000000",
        "day": "2026-11-15",
        "nil": None,
        "inner": {"a": 1, 'b c"': {"x": []}},
        "list": [1, None, 3],
        "lists": [["a"], [], None],
        "structs": [{"k": 1}, None],
        "map": {"a": 1, 'b"': None},
        "numbered": {"1": [True]},
        "dated": {"2026-01-01": 1.5},
    }


def test_data_may_be_of_any_type(spark: SparkSession, api: Api, write: Write, queue: str) -> None:
    columns = {
        "id": 0,
        "map('a', id)": {"a": 0},
        "cast(null as struct<a: int>)": None,
        'parse_json(\'{"a": [1, 2.5, "x"]}\')': {"a": [1, 2.5, "x"]},
    }
    for number, (expression, wanted) in enumerate(columns.items()):
        write(spark.range(1).select(f.expr(expression).alias("data")), queue=f"{queue}-{number}")
        assert data(api, f"{queue}-{number}") == [wanted]


def test_a_string_is_json_text_unless_it_is_said_to_be_text(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    texts = ['{"a": 1}', " [1,\n\r\n2] ", '"x"', "17", "null"]
    df = spark.createDataFrame([(one,) for one in texts], "data string").coalesce(1)
    write(df, queue=queue)
    assert payloads(api, queue) == [b'{"a": 1}', b"[1,\t\t\t2]", b'"x"', b"17", b"null"]
    write(df, queue=f"{queue}-t", dataFormat="text")
    assert data(api, f"{queue}-t") == texts


def test_what_was_read_is_written_as_it_is(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    raw = [json.dumps({"n": n, "text": 'ü\n"' * (n % 3)}) for n in range(50)]
    df = spark.createDataFrame([(one,) for one in raw], "data string").coalesce(1)
    write(df, queue=queue)
    assert [one.decode() for one in payloads(api, queue)] == raw


def test_nothing_is_written_of_nothing(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    write(spark.range(0).select(f.struct("id").alias("data")), queue=queue)
    assert api.fetch(queue).status == 404


def test_large_rows_are_written_in_several_parts(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    df = spark.range(0, 40, 1, 1).select(
        f.struct("id", f.repeat(f.lit("x"), 1_000_000).alias("text")).alias("data")
    )
    write(df, queue=queue)
    found = data(api, queue)
    assert [one["id"] for one in found] == list(range(40))
    assert {len(one["text"]) for one in found} == {1_000_000}


def test_two_hundred_thousand_rows(spark: SparkSession, api: Api, write: Write, queue: str) -> None:
    df = spark.range(0, 200_000, 1, 4).select(
        f.struct("id", f.lit("some text to carry").alias("text")).alias("data"),
        f.concat(f.lit("p"), f.col("id") % 50).alias("partition"),
    )
    write(df, queue=queue)
    for partition in (0, 17, 49):
        found = [one["id"] for one in data(api, queue, f"p{partition}")]
        assert found == list(range(partition, 200_000, 50))


def test_an_encrypted_queue_is_written_like_any_other(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    api.configure(queue, encryptionEnabled=True)
    write(spark.range(10).coalesce(1).select(f.col("id").alias("data")), queue=queue)
    assert data(api, queue) == list(range(10))


# ---- once ----


def test_transaction_ids_that_are_stored_already_are_not_stored_again(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    df = spark.range(0, 10, 1, 2).select(
        f.col("id").alias("data"), f.concat(f.lit("t"), f.col("id")).alias("transactionId")
    )
    write(df.filter("id < 5"), queue=queue)
    write(df, queue=queue)
    assert sorted(data(api, queue)) == list(range(10))


def test_a_write_with_a_name_happens_once(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    df = spark.range(0, 10, 1, 2).select(f.col("id").alias("data"))
    for batch in (0, 0, 1, 0, 1):
        write(df, queue=queue, transactionName=f"load-{queue}", transactionBatch=batch)
    assert sorted(data(api, queue)) == sorted([*range(10), *range(10)])
    write(df, queue=queue)
    assert len(data(api, queue)) == 30


# ---- what is refused ----


def test_a_bad_row_is_named_and_nothing_is_written(
    spark: SparkSession, api: Api, write: Write, queue: str
) -> None:
    df = spark.createDataFrame([("{}",), ('{"a":',)], "data string").coalesce(1)
    reason = refusal(lambda: write(df, queue=queue))
    assert "task 0, row 1: payload is not valid JSON: Input data was truncated" in reason
    named = df.selectExpr("1 as data", "'' as transactionId")
    assert "task 0, row 0: transactionId is empty" in refusal(lambda: write(named, queue=queue))
    assert api.fetch(queue).status == 404


def test_what_cannot_be_planned_is_said_at_once(
    spark: SparkSession, server: ServerProcess, write: Write, queue: str
) -> None:
    df = spark.range(1)
    renamed = df.selectExpr("1 as data", "id as offset")
    assert "column 'offset' is not written" in refusal(lambda: write(renamed, queue=queue))
    good = df.selectExpr("1 as data")
    assert "no queue to write to" in refusal(lambda: write(good))
    closed = f"http://127.0.0.1:{free_port()}"
    said = refusal(lambda: write(good, queue=queue, url=closed, retrySeconds=0))
    assert f"no Queen server answers at {closed}" in said


def test_a_queue_cannot_be_overwritten(
    spark: SparkSession, server: ServerProcess, queue: str
) -> None:
    df = spark.range(1).select(f.col("id").alias("data"))
    writer = df.write.format("queen").mode("overwrite").options(url=server.url, queue=queue)
    assert "cannot be overwritten" in refusal(writer.save)
