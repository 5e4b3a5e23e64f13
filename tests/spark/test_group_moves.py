"""Pause and seek of a query's group, at random: what a query gives is what a model says.

The model is what the documentation promises: nothing while the group is paused in any of its
queues, and after a seek everything of that queue from there on, once more or not at all.
`QUEEN_ORACLE_CUTS` says how many walks there are.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from queen import SyncQueen
from queen.spark.source.streaming import stream_reader
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.groupcalls import detail, pause, resume, seek
from tests.spark.history import messages
from tests.spark.test_batch import push
from tests.spark.test_streaming import DATA, Collected, Read, sealed

RUNS = int(os.environ.get("QUEEN_ORACLE_CUTS", "1"))
STEPS = 14


class QueueModel:
    """One queue, and where a query is in it."""

    def __init__(self) -> None:
        # The numbers of each push, and when it was sealed.
        self.pushes: list[tuple[list[int], int]] = []
        self.position = 0

    def rest(self) -> list[int]:
        """Read what is there; return it."""
        numbers = [number for pushed, _ in self.pushes[self.position :] for number in pushed]
        self.position = len(self.pushes)
        return numbers


class Walk:
    """A query over two queues, and the model of it."""

    def __init__(self, api: Api, queues: list[str], collected: Collected, frame: DataFrame) -> None:
        self._api = api
        self._models = {queue: QueueModel() for queue in queues}
        self._collected = collected
        self._frame = frame
        self._numbers = iter(range(1_000_000))
        self._paused: set[str] = set()
        self._query: StreamingQuery | None = None
        self.group = "walk"
        self.wanted: list[int] = []
        self.again = self.skipped = 0

    def start(self) -> None:
        self._query = self._collected.start(self._frame)

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None

    # ---- steps ----

    def push(self, chance: random.Random) -> None:
        queue = chance.choice(list(self._models))
        numbers = [next(self._numbers) for _ in range(chance.randrange(1, 12))]
        for lane in range(2):
            push(self._api, queue, *numbers[lane::2], partition=f"p{lane}")
        self._models[queue].pushes.append((numbers, sealed(self._api, queue)))

    def pause(self, chance: random.Random) -> None:
        """Of the group in one of its queues: that is enough."""
        queue = chance.choice(list(self._models))
        assert pause(self._api, self.group, queue).status == 200
        self._paused.add(queue)

    def resume(self, _chance: random.Random) -> None:
        assert resume(self._api, self.group).status == 200
        self._paused.clear()

    def seek(self, chance: random.Random) -> None:
        queue = chance.choice(list(self._models))
        model = self._models[queue]
        to = chance.randrange(len(model.pushes) + 1)
        if to == 0:
            target: dict[str, Any] = {"toBeginning": True}
        elif to == len(model.pushes):
            target = {"toEnd": True}
        else:
            at = datetime.fromtimestamp(model.pushes[to - 1][1] / 1e6, UTC)
            target = {"timestamp": at.isoformat()}
        assert seek(self._api, self.group, queue, **target).status == 200
        self.again += max(model.position - to, 0)
        self.skipped += max(to - model.position, 0)
        model.position = to

    def restart(self, _chance: random.Random) -> None:
        if self._query is None:
            self.start()
        else:
            self.stop()

    def check(self) -> None:
        """Let the query come to rest, and compare."""
        if self._query is None:
            return
        self._query.processAllAvailable()
        if not self._paused:
            for model in self._models.values():
                self.wanted += model.rest()
        assert self._collected.values() == sorted(self.wanted)


@pytest.fixture
def walk(api: Api, read_stream: Read, queue: str, checkpoint: str, seed: int) -> Iterator[Walk]:
    queues = [queue, f"{queue}-2"]
    for name in queues:
        api.configure(name)
    limit = random.Random(seed).randrange(3, 20)
    options = {"queue": ",".join(queues), "group": "walk", "maxMessagesPerTrigger": limit}
    made = Walk(api, queues, Collected(checkpoint), read_stream(DATA, **options))
    yield made
    made.stop()


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_walk_of_pauses_and_seeks_gives_what_the_model_says(walk: Walk, seed: int) -> None:
    chance = random.Random(seed)
    walk.start()
    walk.check()
    steps: list[Callable[[random.Random], None]] = [
        walk.push, walk.push, walk.pause, walk.push, walk.seek, walk.resume, walk.push,
        walk.seek, walk.restart, walk.push, walk.seek, walk.restart,
    ]  # fmt: skip
    for number in range(STEPS):
        # All of them once, then as it comes.
        step = steps[number] if number < len(steps) else chance.choice(steps)
        step(chance)
        walk.check()
    walk.resume(chance)
    walk.stop()
    walk.start()
    walk.check()
    assert len(walk.wanted) > 10


class Failing(Collected):
    """Fails in the batches that it is told to, after it has seen them."""

    def __init__(self, checkpoint: str) -> None:
        super().__init__(checkpoint)
        self.fails = False
        self.seen: list[list[Any]] = []

    def _take(self, frame: DataFrame, number: int) -> None:
        if self.fails:
            self.seen.append(sorted(int(row.data) for row in frame.collect()))
            raise RuntimeError("the sink is broken")
        super()._take(frame, number)


def test_a_jump_that_failed_is_repeated_as_it_was_and_then_the_next_one_comes(
    api: Api, read_stream: Read, queue: str, checkpoint: str
) -> None:
    failing = Failing(checkpoint)
    frame = read_stream(DATA, queue=queue, group="jump")
    push(api, queue, 1, 2)
    failing.run(frame)
    middle = datetime.fromtimestamp(sealed(api, queue) / 1e6, UTC).isoformat()
    push(api, queue, 3)
    failing.run(frame)
    assert failing.values() == [1, 2, 3]
    assert seek(api, "jump", queue, toBeginning=True).status == 200
    failing.fails = True
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        failing.run(frame)
    assert failing.seen == [[1, 2, 3]]
    failing.fails = False
    push(api, queue, 4)
    assert seek(api, "jump", queue, timestamp=middle).status == 200
    failing.run(frame)
    # What the first jump gave, without what came since; then from the second on.
    assert [sorted(int(row[0]) for row in rows) for rows in failing.batches[2:]] == [
        [1, 2, 3],
        [3, 4],
    ]


def test_a_pipeline_whose_group_is_moved_repeats_its_results_and_no_others(
    api: Api, queen: SyncQueen, spark: SparkSession, queue: str, tmp_path: Any
) -> None:
    chance = random.Random(STEPS)
    numbers = [chance.randrange(1000) for _ in range(40)]
    stream = queen.stream(f"p-{queue}").sources(queue).select(n="data").to(f"out-{queue}")
    options = {"checkpoint": str(tmp_path), "starting": "earliest", "available_now": True}
    taken: Counter[int] = Counter()

    def run() -> list[int]:
        """Return what one run adds."""
        assert stream.run(spark, max_messages_per_trigger=9, **options).wait()
        added = Counter(int(row["n"]) for row in messages(api, f"out-{queue}")) - taken
        taken.update(added)
        return sorted(added.elements())

    def push_some(some: list[int]) -> None:
        for number in some:
            push(api, queue, number, partition=f"p{number % 3}")

    push_some(numbers[:25])
    assert run() == sorted(numbers[:25])
    push_some(numbers[25:])
    assert seek(api, stream.name, queue, toEnd=True).status == 200
    assert run() == []
    assert seek(api, stream.name, queue, toBeginning=True).status == 200
    assert run() == sorted(numbers)
    assert run() == []
    assert sum(one["offsetLag"] for one in detail(api, stream.name, queue).values()) == 0


def test_a_query_that_takes_what_is_there_reads_no_further_than_is_sealed_when_it_is_moved(
    api: Api, server: ServerProcess, queue: str, dsn: str
) -> None:
    """The queue that is moved is sealed by that; the other one is not."""
    queues = [queue, f"{queue}-2"]
    for name in queues:
        push(api, name, 1)
    group = uuid.uuid4().hex
    options = {"url": server.url, "queue": ",".join(queues), "group": group}
    reader: Any = stream_reader(options, StructType().add("data", "string"))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.prepareForTriggerAvailableNow()
    reader.latestOffset(start, ReadAllAvailable())
    assert seek(api, group, queue, toEnd=True).status == 200
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["from"]
    with psycopg.connect(dsn) as database:
        rows = database.execute(
            "select min(sealed_until) from queen.queues where name = any(%s)", (queues,)
        ).fetchall()
    assert end["sealed"] <= int(rows[0][0].timestamp() * 1e6 + 0.5)
