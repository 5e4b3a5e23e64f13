"""Results in a table: one row for each key, whatever a batch brings, and no secret in errors."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.errors import BadRequest, Unavailable
from queen.spark.pipelines.tables import Table
from tests.conftest import ServerProcess


@pytest.fixture
def name() -> str:
    return f"results_{uuid.uuid4().hex[:12]}"


def _rows(dsn: str, name: str, columns: str) -> list[Any]:
    with psycopg.connect(dsn) as database:
        return database.execute(f"select {columns} from {name} order by 1, 2").fetchall()


def test_of_rows_with_the_same_key_the_latest_window_stays(
    spark: SparkSession, dsn: str, name: str
) -> None:
    ends = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 3, 2)]
    given = [("ann", end, at) for at, end in enumerate(ends)]
    rows = spark.createDataFrame(given, "user string, windowEnd timestamp, n int")
    table = Table(dsn, name, ["user"])
    table.write(rows, name, 0)
    assert _rows(dsn, name, '"user", n') == [("ann", 1)]
    table.write(rows.where("n = 2"), name, 1)
    assert _rows(dsn, name, '"user", n') == [("ann", 2)]


def test_of_rows_without_a_window_the_one_that_came_last_stays(
    spark: SparkSession, dsn: str, name: str
) -> None:
    given = [("ann", 3), ("bob", 1), ("ann", 2)]
    rows = spark.createDataFrame(given, "user string, n int").coalesce(1)
    Table(dsn, name, ["user"]).write(rows, name, 0)
    assert _rows(dsn, name, '"user", n') == [("ann", 2), ("bob", 1)]
    Table(dsn, f"{name}_all", []).write(rows, f"{name}_all", 0)
    assert len(_rows(dsn, f"{name}_all", '"user", n')) == 3


def test_a_null_is_a_key_like_any_other(spark: SparkSession, dsn: str, name: str) -> None:
    table = Table(dsn, name, ["user", "place"])
    for number in range(2):
        given = [(None, "x", number), ("ann", "x", number), (None, "x", number + 5)]
        rows = spark.createDataFrame(given, "user string, place string, n int").coalesce(1)
        table.write(rows, name, number)
    assert _rows(dsn, name, '"user", n') == [("ann", 1), (None, 6)]


def test_pipelines_that_begin_at_once_in_a_new_database_make_their_tables_there(
    spark: SparkSession, dsn: str, name: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(f"create schema {name}")
    new = make_conninfo(dsn, options=f"-c search_path={name}")
    together = threading.Barrier(3)

    def write(at: int) -> None:
        rows = spark.createDataFrame([(at, at)], "n int, m int")
        table = Table(new, "results", ["n"])
        together.wait()
        table.write(rows, f"{name}-{at}", 0)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    assert _rows(new, "results", "n, m") == [(at, at) for at in range(3)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_values_at_the_ends_are_stored_as_they_are(
    spark: SparkSession, dsn: str, name: str, zone: str
) -> None:
    first, last = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
    rows = spark.sql(
        f"select timestamp '{first} UTC' a, timestamp '{last} UTC' b, date '{first[:10]}' c, "
        f"timestamp_ntz '{last}' d, cast(null as timestamp) e, named_struct('x', r'\\u0000') f"
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        Table(dsn, name, []).write(rows, name, 0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    columns = "a at time zone 'UTC', b at time zone 'UTC', c, d, e, f"
    ((a, b, c, d, e, text),) = _rows(dsn, name, columns)
    assert (a.isoformat(" "), b.isoformat(" "), f"{c} 00:00:00") == (first, last, first)
    assert (d.isoformat(" "), e, text) == (last, None, {"x": "\\u0000"})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("concat('a', char(0))", "a text with a NUL"),
        ("array(named_struct('x', concat('a', char(0))))", "a text with a NUL"),
        ("timestamp_micros(253402300800000000)", "in no year from 1 to 9999"),
        ("timestamp_micros(-62135596800000001)", "in no year from 1 to 9999"),
        ("date_add(date '9999-12-31', 1)", "in no year from 1 to 9999"),
        ("timestamp_ntz '0000-12-31 00:00:00'", "in no year from 1 to 9999"),
    ],
)
def test_what_postgres_does_not_take_is_told_with_table_and_column(
    spark: SparkSession, dsn: str, name: str, value: str, reason: str
) -> None:
    rows = spark.sql(f"select 1 as n, {value} as odd")
    with pytest.raises(BadRequest, match=f"table '{name}', column 'odd': .*{reason}"):
        Table(dsn, name, []).write(rows, name, 0)
    # Of that batch nothing is there; the next time it may be different.
    Table(dsn, name, []).write(rows.select("n"), name, 0)
    assert _rows(dsn, name, "n, n") == [(1, 1)]


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://u:secret@h/db",
        "postgresql://u:%zzsecret@h/db",
        "postgresql://u:p@secret@h/db",
        "postgresql://u:secret/p@h/db",
    ],
)
def test_a_url_that_is_wrong_is_refused_at_the_start_and_not_repeated(
    server: ServerProcess, spark: SparkSession, queue: str, name: str, tmp_path: Path, url: str
) -> None:
    with SyncQueen(server.url) as queen:
        queen.queue(queue).push([{"n": 1}])
        stream = queen.stream(name).sources(queue).select("data").to_table(name)
        with pytest.raises(BadRequest, match="postgresql://USER") as refused:
            stream.run(spark, checkpoint=str(tmp_path), table_url=url)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_a_database_that_refuses_us_is_told_without_the_password(
    spark: SparkSession, dsn: str, name: str
) -> None:
    rows = spark.createDataFrame([(1,)], "n int")
    secret = f"secret-{name}"
    nowhere = Table(make_conninfo(dsn, dbname="no_such_db", password=secret), name, [])
    with pytest.raises(Unavailable, match="no_such_db") as refused:
        nowhere.write(rows, name, 0)
    assert "\n" not in str(refused.value)
    # As in an error that repeats the password.
    torn = Table(make_conninfo(dsn, dbname=secret, password=secret), name, [])
    with pytest.raises(Unavailable) as refused:
        torn.write(rows, name, 0)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is refused.value.__context__ is None
