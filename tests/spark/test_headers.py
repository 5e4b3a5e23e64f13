"""Headers as a map column: of queues and windows, and of rows that are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queen import Message, SyncQueen
from queen.spark import read as read_queue
from tests.conftest import ServerProcess

_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_SENT: dict[int, dict[str, str] | None] = {
    0: {"a": "1", "ä": 'x "y" \\'},
    1: None,
    2: {"traceparent": _TRACE},
}


def _push(queen: SyncQueen, queue: str) -> None:
    queen.queue(queue).push([Message(n, headers=headers) for n, headers in _SENT.items()])


def _by_number(frame: DataFrame) -> dict[int, Any]:
    return {int(row["data"]): row["headers"] for row in frame.collect()}


def _write(frame: DataFrame, server: ServerProcess, queue: str, **options: str) -> None:
    writer = frame.write.format("queen").options(url=server.url, queue=queue, **options)
    writer.mode("append").save()


def test_a_map_column_where_it_is_asked_for(
    read: Callable[..., DataFrame], queen: SyncQueen, queue: str, spark: SparkSession
) -> None:
    _push(queen, queue)
    assert _by_number(read(queue=queue, headers="true")) == _SENT
    assert _by_number(read("data STRING, headers MAP<STRING, STRING>", queue=queue)) == _SENT
    assert "headers" not in read(queue=queue).columns
    with pytest.raises(Exception, match="map<string,string>"):
        read("data STRING, headers STRING", queue=queue).collect()
    chosen = read_queue(
        spark, queue, columns=["data", "headers"], url=queen.asynchronous.cluster.urls[0]
    )
    assert _by_number(chosen) == _SENT


def test_what_a_column_holds_is_what_consumers_get(
    read: Callable[..., DataFrame], queen: SyncQueen, queue: str, server: ServerProcess
) -> None:
    _push(queen, queue)
    rows = read(queue=queue, headers="true").select("data", "headers")
    _write(rows, server, f"{queue}-copy")
    popped = queen.queue(f"{queue}-copy").pop(batch=10)
    assert {message.data: dict(message.headers) or None for message in popped} == _SENT
    traced = queue + "-traced"
    _write(rows, server, traced, traceparent=_TRACE.replace("b7", "c8"))
    popped = queen.queue(traced).pop(batch=10)
    traces = {message.data: message.headers["traceparent"] for message in popped}
    assert traces == {0: _TRACE.replace("b7", "c8"), 1: _TRACE.replace("b7", "c8"), 2: _TRACE}


def test_a_row_whose_headers_cannot_be_is_named(
    read: Callable[..., DataFrame], queen: SyncQueen, queue: str, server: ServerProcess
) -> None:
    _push(queen, queue)
    rows = read(queue=queue).select("data")
    long = rows.withColumn("headers", f.create_map(f.lit("k"), f.lit("v" * 9000)))
    with pytest.raises(Exception, match=r"row \d+: header 'k' has 9000 bytes"):
        _write(long, server, queue)
    numbers = rows.withColumn("headers", f.create_map(f.lit("k"), f.lit(1)))
    with pytest.raises(Exception, match="column 'headers' must be map<string,string>"):
        _write(numbers, server, queue)


def test_windows_have_them_and_give_them_on(
    queen: SyncQueen, queue: str, spark: SparkSession
) -> None:
    queen.stream(queue).sources(queue).count(len(_SENT)).grace_period(0).define()
    _push(queen, queue)
    seen: list[dict[int, Any]] = []

    def handle(window: Any, frame: DataFrame) -> None:
        seen.append(_by_number(frame))
        window.write(frame.select("data", "headers"), f"{queue}-out")
        window.push(f"{queue}-out", 3, headers={"b": "2"})

    consumer = queen.consumer(queue, "g").limit(1)
    consumer.process_frames(handle, spark, headers=True)
    assert seen == [_SENT]
    popped = queen.queue(f"{queue}-out").pop(batch=10)
    found = {message.data: dict(message.headers) or None for message in popped}
    assert found == {**_SENT, 3: {"b": "2"}}
