"""Leased windows as DataFrames: handled, written with the ack, retried, cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import VariantType

from queen import Queen, SyncQueen
from queen.spark.arrow.typed import type_of
from queen.spark.windows.leased_windows import schema_of
from tests.conftest import ServerProcess

_SCHEMA = "user string, amount bigint"


class Order(msgspec.Struct):
    user: str
    amount: int | None = None


class Line(msgspec.Struct, rename="camel"):
    article_id: int
    price: float | None


class Basket(msgspec.Struct):
    lines: list[Line]
    paid: bool = False


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Queen]:
    async with Queen(server.url, retry_s=5) as made:
        yield made


@pytest.fixture
def sync_client(server: ServerProcess) -> Iterator[SyncQueen]:
    with SyncQueen(server.url, retry_s=5) as made:
        yield made


def orders(count: int) -> list[dict[str, Any]]:
    return [{"user": f"u{n % 3}", "amount": n} for n in range(count)]


async def filled(
    client: Queen, queue: str, windows: int = 1, size: int = 10, lease_s: float = 60
) -> None:
    """A stream with so many windows of so many orders, ready to be handed out."""
    stream = client.stream(queue).sources(queue).count(size).grace_period(0)
    await stream.max_in_flight(windows).retry_delay(0.05).lease_timeout(lease_s).define()
    await client.queue(queue).push(orders(windows * size))


async def stored(client: Queen, queue: str) -> list[Any]:
    return [one.data async for one in client.queue(queue).replay()]


def totals(frame: DataFrame) -> DataFrame:
    return frame.groupBy("data.user").agg(f.sum("data.amount").alias("total"))


_TOTALS = [{"user": "u0", "total": 18}, {"user": "u1", "total": 12}, {"user": "u2", "total": 15}]


@pytest.mark.parametrize("is_large", [False, True])
async def test_a_window_has_the_columns_of_its_messages(
    client: Queen, spark: SparkSession, queue: str, is_large: bool
) -> None:
    await filled(client, queue)
    seen: list[Any] = []

    def handler(window: Any, frame: DataFrame) -> None:
        assert (window.count, window.attempt, window.lost) == (10, 1, 0)
        seen.extend(frame.orderBy("offset").collect())

    consumer = client.consumer(queue, "g").limit(1)
    # Tasks read what is larger than this.
    consumer = consumer.max_inline_bytes(0) if is_large else consumer
    done = await consumer.process_frames(handler, spark)
    assert (done.handled, done.failed, done.lost) == (1, 0, 0)
    assert [msgspec.json.decode(row.data) for row in seen] == orders(10)
    assert [row.offset for row in seen] == list(range(10))
    plain = await client.consumer(queue, "other").poll_window(20)
    assert plain is not None
    for row, message in zip(seen, plain.all_messages, strict=True):
        assert (row.queue, row.partition, row.traceId) == (queue, "Default", None)
        assert (row.transactionId, row.id) == (message.transaction_id, message.id)


@pytest.mark.parametrize("is_large", [False, True])
async def test_what_is_written_appears_with_the_ack(
    client: Queen, spark: SparkSession, queue: str, is_large: bool
) -> None:
    await filled(client, queue)
    out = f"{queue}-out"
    there: list[int] = []
    told: list[str] = []

    def handler(window: Any, frame: DataFrame) -> None:
        window.write(totals(frame), out)
        window.write(frame.selectExpr("data", "'copies' as partition").limit(3), out)
        window.write(frame.where("false").select("data"), out)
        window.push(out, {"pushed": True}, partition="p", trace_id=str(uuid.uuid4()))
        if window.attempt == 1:
            raise ValueError("after the writes")

    consumer = client.consumer(queue, "g").into(Order).limit(2)
    consumer = consumer.max_inline_bytes(0) if is_large else consumer
    consumer = consumer.on_success(lambda _window: there.append(1))
    consumer = consumer.on_error(lambda _window, error: told.append(str(error)))
    done = await consumer.process_frames(handler, spark)
    assert told == ["after the writes"]
    assert (done.handled, done.failed, there) == (1, 1, [1])
    rows = await stored(client, out)
    assert sorted((row for row in rows if "total" in row), key=lambda row: row["user"]) == _TOTALS
    assert len([row for row in rows if "amount" in row]) == 3
    assert [row for row in rows if "pushed" in row] == [{"pushed": True}]
    assert len(rows) == 7
    (group,) = await client.stream(queue).consumers()
    assert (group["totalWindowsConsumed"], group["dead"]) == (1, 0)


async def test_nothing_appears_when_a_job_fails(
    client: Queen, spark: SparkSession, queue: str
) -> None:
    await filled(client, queue)
    out = f"{queue}-out"
    told: list[str] = []

    def handler(window: Any, frame: DataFrame) -> None:
        if window.attempt == 1:
            window.write(frame.selectExpr("1 as data"), out)
            frame = frame.where("raise_error('no good') is null")
        window.write(frame.selectExpr("data.amount as data"), out)

    consumer = client.consumer(queue, "g").limit(2)
    consumer = consumer.on_error(lambda _window, error: told.append(str(error)))
    done = await consumer.process_frames(handler, spark, schema=_SCHEMA)
    assert (done.handled, done.failed) == (1, 1)
    assert "no good" in told[0]
    assert sorted(await stored(client, out)) == list(range(10))


async def test_an_async_handler_runs_jobs_in_threads_two_windows_at_once(
    client: Queen, spark: SparkSession, queue: str
) -> None:
    await filled(client, queue, windows=2)
    out = f"{queue}-out"
    together = asyncio.Barrier(2)

    async def handler(window: Any, frame: DataFrame) -> None:
        await together.wait()
        row = await window.run(frame.selectExpr("sum(data.amount)").first)
        window.write(frame.selectExpr("count(*) as n"), out).push(out, {"sum": row[0]})
        if row[0] > 100:
            # By hand: it takes everything with it too.
            await window.ack()

    consumer = client.consumer(queue, "g").concurrency(2).limit(2)
    done = await consumer.process_frames(handler, spark, schema=_SCHEMA)
    assert (done.handled, done.failed, done.lost) == (2, 0, 0)
    rows = sorted(await stored(client, out), key=str)
    assert rows == [{"n": 10}, {"n": 10}, {"sum": 145}, {"sum": 45}]


async def test_the_job_is_cancelled_when_the_lease_is_lost(
    client: Queen, spark: SparkSession, queue: str
) -> None:
    await filled(client, queue, lease_s=5)
    out, started = f"{queue}-out", threading.Event()
    errors: list[str] = []

    def handler(window: Any, frame: DataFrame) -> None:
        window.write(totals(frame), out)
        if started.is_set():
            # To seek makes a first attempt of it again.
            return
        started.set()
        try:
            # It would take hours.
            spark.range(10**15).selectExpr("sum(id % 7)").collect()
        except Exception as error:
            errors.append(str(error))
            raise

    async def lose() -> None:
        await asyncio.to_thread(started.wait)
        # As an operator does: every lease of the group is over.
        await client.stream(queue).seek("g", "beginning")

    consumer = client.consumer(queue, "g").limit(2)
    losing = asyncio.create_task(lose())
    done = await consumer.process_frames(handler, spark, schema=_SCHEMA)
    assert started.is_set()
    await losing
    assert (done.received, done.handled, done.lost) == (2, 1, 1)
    assert "cancel" in errors[0].lower()
    assert sorted(await stored(client, out), key=lambda row: row["user"]) == _TOTALS


def test_without_asyncio(sync_client: SyncQueen, spark: SparkSession, queue: str) -> None:
    stream = sync_client.stream(queue).sources(queue).count(10).grace_period(0)
    stream.define()
    sync_client.queue(queue).push(orders(10))
    out = f"{queue}-out"

    def handler(window: Any, frame: DataFrame) -> None:
        assert frame.count() == 10
        window.write(totals(frame), out)
        window.ack()

    done = sync_client.consumer(queue, "g").limit(1).process_frames(handler, spark, schema=_SCHEMA)
    assert (done.handled, done.failed) == (1, 0)
    rows = [one.data for one in sync_client.queue(out).replay()]
    assert sorted(rows, key=lambda row: row["user"]) == _TOTALS


async def test_a_payload_that_does_not_fit_is_kept(
    client: Queen, spark: SparkSession, queue: str
) -> None:
    await client.stream(queue).sources(queue).count(2).grace_period(0).define()
    await client.queue(queue).push([{"user": "ann", "amount": 1}, {"user": "bob", "amount": "x"}])
    seen: list[Any] = []

    def handler(_window: Any, frame: DataFrame) -> None:
        seen.extend(frame.orderBy("offset").select("data.user", "_corrupt").collect())

    await client.consumer(queue, "g").limit(1).process_frames(handler, spark, schema=_SCHEMA)
    assert [tuple(row) for row in seen] == [("ann", None), (None, '{"user":"bob","amount":"x"}')]


async def test_data_may_be_a_variant(client: Queen, spark: SparkSession, queue: str) -> None:
    await client.stream(queue).sources(queue).count(2).grace_period(0).define()
    await client.queue(queue).push([{"a": 1}, [2]])

    def handler(window: Any, frame: DataFrame) -> None:
        window.write(frame.selectExpr("to_json(data) as data"), f"{queue}-out")

    consumer = client.consumer(queue, "g").limit(1)
    await consumer.process_frames(handler, spark, schema=VariantType())
    assert sorted(await stored(client, f"{queue}-out"), key=str) == [[2], {"a": 1}]


async def test_an_empty_window_is_an_empty_frame(
    client: Queen, spark: SparkSession, queue: str
) -> None:
    stream = client.stream(queue).sources(queue).tumbling_time(0.2).grace_period(0)
    await stream.emit_empty().define()
    await client.queue(queue).push(orders(1))
    counts: list[int] = []

    def handler(window: Any, frame: DataFrame) -> None:
        assert frame.count() == window.count
        counts.append(window.count)
        window.write(totals(frame), f"{queue}-out")

    consumer = client.consumer(queue, "g").limit(2)
    done = await consumer.process_frames(handler, spark, schema=_SCHEMA)
    assert (done.handled, counts) == (2, [1, 0])
    assert await stored(client, f"{queue}-out") == [{"user": "u0", "total": 0}]


async def test_a_frame_that_is_no_message_is_refused_at_once(
    client: Queen, spark: SparkSession, queue: str
) -> None:
    await filled(client, queue)
    told: list[str] = []

    def handler(window: Any, frame: DataFrame) -> None:
        if window.attempt == 1:
            window.write(frame)

    consumer = client.consumer(queue, "g").limit(2)
    consumer = consumer.on_error(lambda _window, error: told.append(str(error)))
    await consumer.process_frames(handler, spark)
    assert len(told) == 1
    assert "column 'offset' is not written" in told[0]


def test_python_types_have_a_schema() -> None:
    expected = "struct<lines:array<struct<articleId:bigint,price:double>>,paid:boolean>"
    assert type_of(Basket).simpleString() == expected
    assert schema_of(Basket)["data"].dataType.simpleString() == expected
    with pytest.raises(ValueError, match=r"dict.*no type.*schema="):
        type_of(dict[str, int])


def test_the_client_does_not_load_spark() -> None:
    code = "import queen, queen.client.streams.sync, sys; print('pyspark' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
