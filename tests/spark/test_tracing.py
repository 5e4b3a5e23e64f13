"""One trace from a producer over a queue, a window and a Spark batch to a consumer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queen import SyncQueen
from tests.spans import context_of, is_below, linked, recorded, trace_of


def test_one_trace_from_producer_to_consumer(
    queen: SyncQueen, queue: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, sums = queue, f"{queue}-sums"
    queen.stream(queue).sources(orders).count(3).grace_period(0).define()

    def total(window: Any, frame: DataFrame) -> None:
        window.write(frame.agg(f.sum("data.amount").alias("amount")), sums)

    with recorded(monkeypatch) as spans:
        with spans.root("request"):
            queen.queue(orders).push([{"amount": amount} for amount in (1.0, 2.0, 3.0)])
        queen.consumer(queue, "totals").limit(1).process_frames(
            total, spark, schema="amount double"
        )
        received: list[Any] = []
        queen.queue(sums).limit(1).consume(received.append)
        assert [message.data for message in received] == [{"amount": 6.0}]
        way = [
            spans.only("request"),
            spans.only(f"send {orders}"),
            spans.only(f"process window {queue}"),
            spans.only(f"spark batch {queue}"),
            spans.only(f"process {sums}"),
            spans.only(f"settle {sums}"),
        ]
    assert len(set(map(trace_of, way))) == 1
    for span, above in zip(way[1:], way, strict=False):
        assert is_below(span, above), span.name


def test_batches_of_a_pipeline_are_linked_with_what_they_read(
    queen: SyncQueen,
    queue: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    name = f"p-{queue}"
    stream: Any = queen.stream(name).sources(queue).schema("amount double")
    with recorded(monkeypatch) as spans:
        queen.queue(queue).push({"amount": 1.0})
        queen.queue(queue).push([{"amount": 2.0}, {"amount": 3.0}])
        running = (
            stream.where("data.amount > 0")
            .to(f"{queue}-out")
            .run(spark, checkpoint=str(tmp_path), available_now=True, starting="earliest")
        )
        assert running.wait()
        batches = spans.named(f"pipeline batch {name}")
        linked_to = set().union(*map(linked, batches))
        assert linked_to == {context_of(span).span_id for span in spans.named(f"send {queue}")}
    counts = [(span.attributes or {})["messaging.batch.message_count"] for span in batches]
    assert counts == [3]
