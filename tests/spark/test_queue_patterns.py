"""Patterns of queues as one DataFrame: queues that are made meanwhile are read whole, once."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from queen import SyncQueen
from queen.errors import BadRequest
from tests.api import Api
from tests.contract.groupcalls import detail
from tests.spark.test_batch import push, values
from tests.spark.test_streaming import DATA, Collected
from tests.waiting import until

Read = Callable[..., DataFrame]


@pytest.fixture
def collected(checkpoint: str) -> Collected:
    return Collected(checkpoint)


def test_a_batch_reads_what_matches(api: Api, read: Read, queue: str) -> None:
    push(api, f"{queue}-a", 1)
    push(api, f"{queue}-b", 2)
    push(api, f"{queue}x", 3)
    assert values(read(queuePattern=f"{queue}-*")) == [1, 2]
    assert values(read(queuePattern=f"{queue}-?", partition="Default", startingOffset=0)) == [1, 2]
    # Nothing is there yet.
    assert values(read(queuePattern=f"{queue}-c*")) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "a", "queuePattern": "a*"}, "not both"),
        ({"queuePattern": ""}, "1 to 255 characters"),
        ({"queuePatern": "a*"}, "did you mean queuePattern"),
    ],
)
def test_what_a_pattern_cannot_mean_is_refused(
    read: Read, options: dict[str, str], says: str
) -> None:
    with pytest.raises(AnalysisException, match=says):
        read(**options).collect()


class Producer(threading.Thread):
    """Makes queues that match while somebody reads, and pushes to them."""

    def __init__(self, api: Api, prefix: str, seed: int) -> None:
        super().__init__()
        self._url = api.url
        self._prefix = prefix
        self._random = random.Random(seed)
        self.pushed: list[int] = []

    def run(self) -> None:
        with contextlib.closing(Api(self._url)) as api:
            for n in range(80):
                which = n if self._random.random() < 0.4 else self._random.randrange(n + 1)
                push(api, f"{self._prefix}-{which}", n, partition=f"p{n % 3}")
                self.pushed.append(n)


def test_a_running_query_reads_queues_that_are_made_meanwhile(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    frame = read_stream(DATA, queuePattern=f"{queue}-*", group=f"{queue}-report")
    query = collected.start(frame)
    # It waits: nothing matches yet.
    query.processAllAvailable()
    producer = Producer(api, queue, 7)
    producer.start()
    collected.wait_for_batches(2)
    query.stop()
    # Another one goes on from its checkpoint, and is limited.
    query = collected.start(
        read_stream(
            DATA, queuePattern=f"{queue}-*", group=f"{queue}-report", maxMessagesPerTrigger=20
        )
    )
    producer.join()
    query.processAllAvailable()
    push(api, f"{queue}-last", 1000)
    query.processAllAvailable()
    query.stop()
    batches: dict[int, list[Any]] = {}
    for number, rows in zip(collected.ids, collected.batches, strict=True):
        # The batch that was under way when the first was stopped is read again as it was.
        assert batches.setdefault(number, sorted(rows)) == sorted(rows)
    received = sorted(json.loads(row[0]) for rows in batches.values() for row in rows)
    assert received == sorted([*producer.pushed, 1000])


def test_a_batch_of_a_pattern_that_failed_is_read_again_as_it_was(
    api: Api, read_stream: Read, queue: str, checkpoint: str
) -> None:
    push(api, f"{queue}-a", 1)
    frame = read_stream(DATA, queuePattern=f"{queue}-*")

    def fail(rows: DataFrame, number: int) -> None:
        raise RuntimeError("the sink is away")

    writer = frame.writeStream.foreachBatch(fail).option("checkpointLocation", checkpoint)
    with pytest.raises(Exception, match="the sink is away"):
        writer.trigger(availableNow=True).start().awaitTermination(100)
    push(api, f"{queue}-b", 2)
    again = Collected(checkpoint).run(frame)
    assert [sorted(json.loads(row[0]) for row in batch) for batch in again.batches] == [[1], [2]]


def test_a_queue_that_is_deleted_is_read_no_further(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    push(api, f"{queue}-a", 1)
    push(api, f"{queue}-b", 2)
    frame = read_stream(DATA, queuePattern=f"{queue}-*", group=f"{queue}-report")
    query = collected.start(frame)
    query.processAllAvailable()
    assert api.call("DELETE", f"/api/v1/resources/queues/{queue}-a").status == 200
    push(api, f"{queue}-b", 3)
    query.processAllAvailable()
    # Another one under the same name.
    push(api, f"{queue}-a", 4)
    query.processAllAvailable()
    query.stop()
    assert collected.values() == [1, 2, 3, 4]


def test_the_group_is_that_of_new_queues_too(
    api: Api, read_stream: Read, queue: str, collected: Collected
) -> None:
    group = f"{queue}-report"
    push(api, f"{queue}-a", 1)
    query = collected.start(read_stream(DATA, queuePattern=f"{queue}-*", group=group))
    query.processAllAvailable()
    push(api, f"{queue}-b", 2)
    query.processAllAvailable()

    def lags() -> list[int]:
        names = (f"{queue}-a", f"{queue}-b")
        return [detail(api, group, name)["Default"]["offsetLag"] for name in names]

    until(lambda: lags() == [0, 0])
    query.stop()


def test_a_group_goes_on_with_a_new_checkpoint_where_it_stood(
    api: Api, read_stream: Read, queue: str, checkpoint: str
) -> None:
    """A queue that is new since then is read too; it is no reason to begin from the start."""
    push(api, f"{queue}-a", 1)
    frame = read_stream(DATA, queuePattern=f"{queue}-*", group=f"{queue}-report")
    # The second run tells what the first has done.
    Collected(checkpoint).run(frame)
    Collected(checkpoint).run(frame)
    push(api, f"{queue}-b", 2)
    push(api, f"{queue}-a", 3)
    assert Collected(f"{checkpoint}-2").run(frame).values() == [2, 3]


# ---- pipelines ----


@pytest.fixture
def totals(queen: SyncQueen, queue: str) -> Iterator[Any]:
    yield (
        queen.stream(f"{queue}-totals")
        .sources(pattern=f"{queue}-*")
        .schema("n bigint, ts timestamp")
        .event_time("data.ts")
        .key("queue")
        .tumbling_time(60)
        .grace_period(0)
        .aggregate(total="sum(data.n)")
        .to(f"out-{queue}")
    )


def test_a_pipeline_reads_a_pattern(
    api: Api, spark: SparkSession, queue: str, checkpoint: str, totals: Any
) -> None:
    push(api, f"{queue}-a", {"n": 1, "ts": "2020-01-01T00:00:10Z"})
    assert totals.run(spark, checkpoint=checkpoint, available_now=True).wait(100)
    push(api, f"{queue}-b", {"n": 2, "ts": "2020-01-01T00:00:20Z"})
    run = totals.run(spark, checkpoint=checkpoint, available_now=True)
    assert run.wait(100)
    # Of the queue that is new, too.
    assert run.progress.late_rows == 1
    shown = api.call("GET", f"/api/v1/pipelines/{queue}-totals").json
    assert shown["reads"] == [f"{queue}-*"]


def test_results_do_not_go_where_they_are_read(
    queen: SyncQueen, spark: SparkSession, queue: str, totals: Any
) -> None:
    copied = queen.stream(f"{queue}-copied").sources(pattern=f"{queue}-*").to(f"{queue}-out")
    with pytest.raises(BadRequest, match="it would never end"):
        copied.run(spark)
    with pytest.raises(ValueError, match="not both"):
        totals.sources("a", pattern="b*")
