"""Retention that is quicker than a query: what a group still needs stays, the rest is missed
out loud.

A model knows what was pushed, what was read and what is gone; it says of every run whether it
must fail, and what it must give. `QUEEN_ORACLE_CUTS` says how many histories are made up.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from queen import SyncQueen
from queen.errors import PipelineFailed
from tests.api import Api
from tests.contract.groupcalls import detail, seek
from tests.spark.delivering import SCHEMA, SIZE_S, sums
from tests.spark.history import canonical, made_up, messages, write
from tests.spark.test_batch import push
from tests.spark.test_streaming import DATA, Collected, Read, sealed
from tests.waiting import until

RUNS = int(os.environ.get("QUEEN_ORACLE_CUTS", "1"))
EVENTS = int(os.environ.get("QUEEN_ORACLE_EVENTS", "600"))
GONE = r"retention has removed messages of"


class Broom:
    """Retention, at the moments that a test chooses."""

    def __init__(self, database: psycopg.Connection[Any], queue: str) -> None:
        self._database = database
        self._queue = queue

    def sweep(self, before: int | None = None, *, done_only: bool = False) -> int:
        """Remove what was written before an instant, now unless given; return how much."""
        at = datetime.now(UTC) if before is None else datetime.fromtimestamp(before / 1e6, UTC)
        live = "clock_timestamp() - interval '7 days'" if done_only else "null"
        row = self._database.execute(
            "select e.messages from queen.queues q, lateral queen.expire_segments("
            f"q.id, %s, '-infinity', {live}, 1000) e where q.name = %s",
            (at, self._queue),
        ).fetchone()
        return 0 if row is None else int(row[0])


@pytest.fixture
def broom(dsn: str, queue: str) -> Iterator[Broom]:
    with psycopg.connect(dsn, autocommit=True) as database:
        yield Broom(database, queue)


class Model:
    """What there is of a queue to which numbers are pushed, and what a query has read of it."""

    def __init__(self) -> None:
        # The numbers of each push, and when it was sealed.
        self.pushes: list[tuple[list[int], int]] = []
        # Pushes that were removed, and that were read or passed over: so many, from the first.
        self.gone = self.passed = 0
        self.read: list[int] = []

    @property
    def is_lossy(self) -> bool:
        """Whether something is gone that was not read."""
        return self.gone > self.passed

    def run(self) -> list[int]:
        """Read everything that is left; return all that was ever read."""
        first = max(self.gone, self.passed)
        self.read += [number for numbers, _ in self.pushes[first:] for number in numbers]
        self.passed = len(self.pushes)
        return sorted(self.read)


@pytest.mark.parametrize("seed", range(RUNS))
def test_without_a_group_what_is_gone_is_missed_out_loud(
    api: Api, read_stream: Read, queue: str, checkpoint: str, broom: Broom, seed: int
) -> None:
    chance = random.Random(seed)
    model, collected = Model(), Collected(checkpoint)
    api.configure(queue)
    limits = {"queue": queue, "maxMessagesPerTrigger": chance.randrange(3, 30)}
    strict = read_stream(DATA, **limits)
    lenient = read_stream(DATA, **limits, failOnDataLoss="false")
    # It begins when nothing is there, and has begun all the same.
    collected.run(strict)
    failed = number = 0
    for step in range(5):
        for _ in range(chance.randrange(1, 4)):
            numbers = list(range(number, number + chance.randrange(1, 20)))
            number += len(numbers)
            for lane in range(3):
                push(api, queue, *numbers[lane::3], partition=f"p{lane}")
            model.pushes.append((numbers, sealed(api, queue)))
        # Everything but the last at first, so that both happens in every history.
        wanted = len(model.pushes) - 1 if step == 0 else chance.randrange(len(model.pushes))
        if step != 1 and wanted > model.gone:
            broom.sweep(model.pushes[wanted - 1][1])
            model.gone = wanted
        if model.is_lossy:
            failed += 1
            with pytest.raises(StreamingQueryException, match=GONE):
                collected.run(strict)
            assert collected.values() == sorted(model.read)
            collected.run(lenient)
        else:
            collected.run(strict)
        assert collected.values() == model.run()
    assert failed or RUNS > 1 or len(model.pushes) == 1


def test_what_was_written_after_a_query_began_is_missed_though_it_had_read_nothing(
    api: Api, read_stream: Read, queue: str, collected: Collected, broom: Broom
) -> None:
    api.configure(queue)
    frame = read_stream(DATA, queue=queue)
    collected.run(frame)
    push(api, queue, 1, 2)
    sealed(api, queue)
    assert broom.sweep() == 2
    push(api, queue, 3)
    with pytest.raises(StreamingQueryException, match=GONE):
        collected.run(frame)
    assert collected.run(read_stream(DATA, queue=queue, failOnDataLoss="false")).values() == [3]


@pytest.fixture
def collected(checkpoint: str) -> Collected:
    return Collected(checkpoint)


@pytest.mark.parametrize("must_be_whole", [True, False])
def test_what_goes_between_the_plan_and_the_read_is_missed_too(
    api: Api,
    read_stream: Read,
    queue: str,
    collected: Collected,
    broom: Broom,
    must_be_whole: bool,
) -> None:
    push(api, queue, 1, 2)
    whole = str(must_be_whole).lower()
    frame = read_stream(DATA, queue=queue, failOnDataLoss=whole)
    collected.run(frame)
    push(api, queue, 3, 4, partition="a")
    seen: list[Any] = []

    def take(batch: DataFrame, _number: int) -> None:
        # The batch is planned, and its tasks have not begun.
        assert broom.sweep() == 4
        push(api, queue, 5)
        seen.extend(batch.collect())

    writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", collected._checkpoint).start()
    if must_be_whole:
        with pytest.raises(StreamingQueryException, match="2 messages were removed while they"):
            query.awaitTermination(100)
        with pytest.raises(StreamingQueryException, match=GONE):
            collected.run(frame)
        assert collected.values() == [1, 2]
    else:
        assert query.awaitTermination(100)
        assert collected.run(frame).values() == [1, 2, 5]
    assert seen == []


def test_a_query_that_has_missed_something_goes_on_where_its_group_is_moved_to(
    api: Api, read_stream: Read, queue: str, collected: Collected, broom: Broom
) -> None:
    frame = read_stream(DATA, queue=queue, group="mover")
    push(api, queue, 1)
    before = datetime.fromtimestamp(sealed(api, queue) / 1e6, UTC).isoformat()
    collected.run(frame)
    push(api, queue, 2)
    sealed(api, queue)
    assert broom.sweep() == 2
    push(api, queue, 3)
    # Neither from where it is, nor from where it was moved to, is everything there.
    for move in ({}, {"timestamp": before}):
        assert not move or seek(api, "mover", queue, **move).status == 200
        with pytest.raises(StreamingQueryException, match=GONE):
            collected.run(frame)
    assert collected.values() == [1]
    assert seek(api, "mover", queue, toBeginning=True).status == 200
    assert collected.run(frame).values() == [1, 3]


class Sweeping(threading.Thread):
    """Removes what is done, again and again."""

    def __init__(self, broom: Broom) -> None:
        super().__init__(daemon=True)
        self._broom = broom
        self._is_over = threading.Event()
        self.removed: list[int] = []

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            if count := self._broom.sweep(done_only=True):
                self.removed.append(count)

    def __enter__(self) -> Sweeping:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


@pytest.mark.parametrize("seed", range(RUNS))
def test_what_a_pipeline_is_behind_with_stays_for_it(
    api: Api,
    dsn: str,
    queen: SyncQueen,
    spark: SparkSession,
    queue: str,
    broom: Broom,
    tmp_path: Path,
    seed: int,
) -> None:
    """The clean-up runs all the time, the pipeline is stopped in the middle and goes on."""
    events = made_up(EVENTS, [queue], seed=EVENTS + seed)
    write(api, dsn, events)
    stream = queen.stream(f"p-{queue}").sources(queue).schema(SCHEMA).event_time("data.ts")
    stream = stream.key("data.user").tumbling_time(SIZE_S).grace_period(5)
    stream = stream.aggregate(total="sum(data.amount)", n="count(*)")
    stream = stream.to(f"out-{queue}").late_to(f"late-{queue}")
    limit = random.Random(seed).randrange(EVENTS // 10, EVENTS // 6)

    def run(**options: Any) -> Any:
        return stream.run(
            spark,
            checkpoint=str(tmp_path),
            starting="earliest",
            every=0.05,
            max_messages_per_trigger=limit,
            **options,
        )

    with Sweeping(broom) as sweeping:
        first = run()
        # What its last batch but one had is done, and goes while it is behind.
        until(lambda: sweeping.removed)
        first.stop()
        assert sum(sweeping.removed) < EVENTS
        assert run(available_now=True).wait()
    rows = messages(api, f"out-{queue}")
    assert canonical(rows) == canonical(sums(events))
    aside = [row["data"]["id"] for row in messages(api, f"late-{queue}")]
    assert len(aside) + sum(row["n"] for row in rows) == len(events)
    assert len(sweeping.removed) > 1


def test_a_pipeline_that_is_too_slow_for_retention_by_age_fails_and_says_so(
    api: Api, queen: SyncQueen, spark: SparkSession, queue: str, broom: Broom, tmp_path: Path
) -> None:
    api.configure(queue)
    stream = queen.stream(f"p-{queue}").sources(queue).select(n="data").to(f"out-{queue}")

    def run() -> None:
        options = {"checkpoint": str(tmp_path), "starting": "earliest", "available_now": True}
        assert stream.run(spark, **options).wait()

    push(api, queue, 1)
    run()
    push(api, queue, 2)
    sealed(api, queue)
    assert broom.sweep() == 2
    push(api, queue, 3)
    with pytest.raises(PipelineFailed, match=GONE):
        run()
    assert messages(api, f"out-{queue}") == [{"n": "1"}]
    assert detail(api, stream.name, queue)["Default"]["offsetLag"] == 1
