"""Micro-batches into queues: each row once, whatever is repeated, killed or fenced."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from queen.service.broker import Broker
from queen.service.sinks.sinks import JOB
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.sinkcalls import Sink
from tests.long import LONG
from tests.spark.copying import Copy
from tests.spark.drivers import Driver
from tests.waiting import spend, until

_KILLS = int(os.environ.get("QUEEN_TEST_SPARK_KILLS", "0"))


@pytest.fixture
def copy(server: ServerProcess, queue: str, tmp_path: Path, checkpoint: str) -> Copy:
    return Copy(server.url, queue, str(tmp_path / "files"), checkpoint)


def stored(api: Api, queue: str, lanes: int = 3) -> dict[str, list[int]]:
    """Return the numbers of each partition in order, and see that offsets are dense."""
    found: dict[str, list[int]] = {}
    # A connection of its own: Spark may have taken longer than an idle one is kept.
    with closing(api.twin()) as own:
        for lane in (f"p{n}" for n in range(lanes)):
            numbers = found.setdefault(lane, [])
            for one in own.frames(queue, lane):
                assert one.base_offset == len(numbers)
                numbers += [json.loads(payload)["n"] for payload in one.segment().payloads()]
    return found


def once(rows: int, lanes: int = 3) -> dict[str, list[int]]:
    """What a queue holds when each row is there once, and in order."""
    return {f"p{lane}": list(range(lane, rows, lanes)) for lane in range(lanes)}


def test_each_row_of_each_batch_is_there_once_and_in_order(
    spark: SparkSession, api: Api, copy: Copy
) -> None:
    for number in range(3):
        copy.add(number, range(number * 300, number * 300 + 300))
    copy.run(spark)
    assert stored(api, copy.queue) == once(900)
    copy.run(spark)
    copy.add(3, range(900, 1000))
    copy.run(spark)
    assert stored(api, copy.queue) == once(1000)


def test_a_batch_that_was_committed_and_not_recorded_by_spark_is_there_once(
    spark: SparkSession, api: Api, copy: Copy
) -> None:
    for number in range(2):
        copy.add(number, range(number * 30, number * 30 + 30))
    copy.run(spark)
    copy.log("commits", 1).unlink()
    copy.log("commits", 1).with_name(".1.crc").unlink(missing_ok=True)
    copy.add(2, range(60, 90))
    copy.run(spark)
    assert copy.log("commits", 1).exists()
    assert stored(api, copy.queue) == once(90)


def test_a_new_checkpoint_is_a_new_query_unless_it_has_a_name(
    spark: SparkSession, api: Api, copy: Copy
) -> None:
    for number in range(2):
        copy.add(number, range(number * 30, number * 30 + 30))
    named = copy._replace(queue=f"{copy.queue}-n", name=f"name-{copy.queue}")
    for _ in range(2):
        for one in (copy, named):
            one.run(spark)
            shutil.rmtree(one.checkpoint)
    assert {lane: sorted(numbers) for lane, numbers in stored(api, copy.queue).items()} == {
        lane: sorted(numbers * 2) for lane, numbers in once(60).items()
    }
    assert stored(api, named.queue) == once(60)


def test_an_empty_batch_does_nothing(spark: SparkSession, api: Api, copy: Copy) -> None:
    copy.add(0, range(0))
    copy.add(1, range(30))
    copy.add(2, range(0))
    copy.run(spark)
    assert stored(api, copy.queue) == once(30)


def test_a_driver_is_fenced_when_another_one_has_started(
    spark: SparkSession, api: Api, copy: Copy
) -> None:
    copy.add(0, range(30))
    query = copy.start(spark, available_now=False)
    try:
        query.processAllAvailable()
        other = Sink(api, copy.query_id)
        assert other.open().json["lastBatch"] == 0
        copy.add(1, range(30, 60))
        with pytest.raises(StreamingQueryException) as caught:
            query.processAllAvailable()
        assert "another run of query" in str(caught.value)
        assert stored(api, copy.queue) == once(30)
    finally:
        query.stop()
    # Whoever starts last may write, and repeats what the fenced one could not.
    copy.run(spark)
    assert stored(api, copy.queue) == once(60)
    assert other.commit(batch=1).status == 409


def test_a_full_queue_holds_the_query_up_and_loses_nothing(
    spark: SparkSession, api: Api, copy: Copy
) -> None:
    api.configure(copy.queue, maxSize=40)
    copy.add(0, range(30))
    copy.add(1, range(30, 60))
    with pytest.raises(StreamingQueryException) as caught:
        copy._replace(retry_s=0).run(spark)
    assert "would exceed max capacity (40)" in str(caught.value)
    assert stored(api, copy.queue) == once(30)
    api.configure(copy.queue, maxSize=0)
    copy.run(spark)
    assert stored(api, copy.queue) == once(60)


# ---- drivers that are killed ----


def driver_of(copy: Copy, log: Path, master: str = "local[2]") -> Driver:
    return Driver("tests.spark.copying", {**copy._asdict(), "master": master}, log)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    with ExitStack() as stack:

        def start(copy: Copy, **more: Any) -> Driver:
            driver = driver_of(copy, tmp_path / "driver.log", **more)
            stack.callback(driver.kill)
            return driver

        yield start


async def staged(connection: asyncpg.Connection, query: str) -> list[int]:
    """Return how much each attempt of a task has staged, the least first."""
    rows = await connection.fetch(
        """
        select sum(messages)::integer from queen.sink_parts where query = $1
        group by task, attempt order by 1
        """,
        query,
    )
    return [row[0] for row in rows]


@LONG
@pytest.mark.timeout(400)
async def test_a_driver_killed_between_staging_and_commit_publishes_nothing_of_it(
    spark: SparkSession,
    api: Api,
    copy: Copy,
    tmp_path: Path,
    dsn: str,
    connection: asyncpg.Connection,
    drive: Callable[..., Driver],
) -> None:
    """A task fails after it has staged something, and is repeated. The queue is too small, so
    its batch is staged and cannot be committed. There the driver is killed."""
    fails = tmp_path / "fails"
    api.configure(copy.queue, maxSize=1000)
    copy.add(0, range(30))
    copy.add(1, range(30, 1230))
    fails.touch()
    driver = drive(
        copy._replace(fails=str(fails), fails_at=1229, padding=40_000), master="local[2,3]"
    )
    driver.until(lambda: copy.log("commits", 0).exists())
    while not await staged(connection, copy.query_id):
        driver.until(lambda: copy.log("offsets", 1).exists())
    fails.unlink()
    while (await staged(connection, copy.query_id))[-1] < 1200:
        driver.until(lambda: copy.log("offsets", 1).exists())
    driver.kill()
    assert len(await staged(connection, copy.query_id)) == 2
    assert stored(api, copy.queue) == once(30)
    assert not copy.log("commits", 1).exists()
    with closing(api.twin()) as own:
        own.configure(copy.queue, maxSize=0)
    copy.run(spark)
    assert stored(api, copy.queue) == once(1230)
    broker = await Broker.start(dsn)
    try:
        while await staged(connection, copy.query_id):
            await broker.jobs.run_once(JOB)
    finally:
        await broker.stop()


@pytest.mark.skipif(not _KILLS, reason="QUEEN_TEST_SPARK_KILLS says how often")
@pytest.mark.timeout(120 + 90 * _KILLS)
def test_a_driver_killed_anywhere_leaves_each_row_once(
    spark: SparkSession, api: Api, copy: Copy, tmp_path: Path, drive: Callable[..., Driver]
) -> None:
    copy = copy._replace(waits=str(tmp_path / "waits"))
    for kill in range(_KILLS):
        point = "abcd"[kill % 4] if kill < 8 else random.choice("abcd")
        _kill_at(point, api, copy, 2 * kill, drive)
    copy.run(spark)
    assert stored(api, copy.queue) == once(60 * _KILLS)


def _kill_at(point: str, api: Api, copy: Copy, batch: int, drive: Callable[..., Driver]) -> None:
    """Give a driver two more batches, and kill it: (a) and (d) behind the first or the second,
    (b) inside the first, (c) as soon as the second is published."""
    assert copy.waits is not None
    waits = Path(copy.waits)
    driver = drive(copy)
    # What the last one has left undone.
    driver.until(lambda: batch == 0 or copy.log("commits", batch - 1).exists())
    if point == "b":
        waits.touch()
    for number in (batch, batch + 1):
        copy.add(number, range(number * 30, number * 30 + 30))
    published = once(batch * 30 + 60)
    reached = {
        "a": lambda: copy.log("commits", batch).exists(),
        "b": lambda: copy.log("offsets", batch).exists(),
        "c": lambda: stored(api, copy.queue) == published,
        "d": lambda: copy.log("commits", batch + 1).exists(),
    }
    driver.until(reached[point])
    driver.kill()
    waits.unlink(missing_ok=True)


@pytest.mark.skipif(not _KILLS, reason="QUEEN_TEST_SPARK_KILLS says how often")
@pytest.mark.timeout(400)
def test_two_drivers_on_one_checkpoint_leave_each_row_once(
    spark: SparkSession, api: Api, copy: Copy, tmp_path: Path
) -> None:
    copy.add(0, range(30))
    drivers = [driver_of(copy, tmp_path / f"driver-{n}.log") for n in range(2)]
    try:
        for number in range(1, 40):
            copy.add(number, range(number * 30, number * 30 + 30))
            spend(0.5)
        with suppress(AssertionError):
            until(lambda: not all(one.is_running for one in drivers))
    finally:
        for driver in drivers:
            driver.kill()
    copy.run(spark)
    assert stored(api, copy.queue) == once(1200)
