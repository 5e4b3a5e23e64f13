"""`python -m benchmarks.spark_latency`: what a micro-batch costs, and how late results are.

Three figures, on one broker and one session:

    floor     micro-batches of 1,000 messages, and where their time goes, from Spark's own report:
              latestOffset (our cut and plan), queryPlanning, walCommit and commitOffsets (files of
              the checkpoint), addBatch (tasks, state, and our commit)
    rate      a backlog in batches of 100,000, without and with windows
    latency   from a push to its result in a queue: of a pipeline without state, and of windows of
              one second, also counted from the end of the window
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.frames import MEDIA_TYPE, frame
from benchmarks.report import machine
from benchmarks.spark_session import broker_and_spark, seconds, url_of, wide_console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SCHEMA = "sent double, n bigint"
_BATCH = 1000
_BACKLOG, _BACKLOG_BATCH = 1_000_000, 100_000
_TRIGGER_MS = 100
_LANES = 4
_WINDOW_S = 1.0
_PARTS = ("latestOffset", "queryPlanning", "getBatch", "walCommit", "addBatch", "commitOffsets")
# The first batches of a query pay for what it does once.
_WARM_UP = 5
_LATENCY_WARM_UP_S = 15.0
_PATIENCE_S = 60.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_latency", description=__doc__)
    parser.add_argument("--batches", type=int, default=30, metavar="N", help="for the floor")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="for latency")
    parser.add_argument("--backlog", type=int, default=_BACKLOG, metavar="N", help="for the rate")
    return parser.parse_args()


class _Producer:
    """Pushes numbered messages, each with the time at which it was sent."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=60)
        self._queue = queue
        self._sent = 0

    def push(self, count: int) -> None:
        now = time.time()
        numbers = range(self._sent, self._sent + count)
        texts = [b'{"sent":%.6f,"n":%d}' % (now, number) for number in numbers]
        frames = b"".join(
            frame(self._queue, f"p{lane}", [uuid.uuid4().hex for _ in part], part)
            for lane in range(_LANES)
            if (part := texts[lane::_LANES])
        )
        self._connection.request("POST", "/api/v1/push", frames, {"content-type": MEDIA_TYPE})
        answer = self._connection.getresponse()
        said = answer.read()
        assert answer.status == 201, said[:500]
        self._sent += count


def _read(spark: SparkSession, broker: Broker, queue: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("queen").option("url", url_of(broker)).option("queue", queue)
    markers = ", sealed timestamp" if options.get("markers") == "true" else ""
    columns = f"createdAt timestamp, partition string, data struct<{_SCHEMA}>"
    return reader.options(**options).schema(columns + markers).load()


def _windows(df: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    import queen.spark

    rows = queen.spark.windowed(df, _WINDOW_S).rows
    sums = rows.groupBy("window", "partition").agg(
        f.count("*").alias("n"), f.min("data.sent").alias("first"), f.max("data.sent").alias("last")
    )
    end = f.col("window.end").alias("end")
    return sums.select("partition", f.struct(end, "n", "first", "last").alias("data"))


@contextmanager
def _running(
    df: DataFrame, broker: Broker, folder: Path, out: str | None, trigger: dict[str, Any]
) -> Iterator[StreamingQuery]:
    """Run a query; without a queue to write to, its rows go nowhere."""
    writer = df.writeStream.option("checkpointLocation", str(folder / uuid.uuid4().hex))
    if out is None:
        writer = writer.format("noop")
    else:
        writer = writer.format("queen").option("url", url_of(broker)).option("queue", out)
    query = writer.trigger(**trigger).start()
    try:
        yield query
    finally:
        query.stop()


# ---- the floor ----


def _kinds(
    spark: SparkSession, broker: Broker, queue: str, **options: Any
) -> dict[str, tuple[DataFrame, str | None]]:
    plain = _read(spark, broker, queue, **options)
    marked = _read(spark, broker, queue, **{**options, "markers": "true"})
    out = f"{queue}-out"
    return {
        "no state, no sink": (plain.select("data"), None),
        "no state, into a queue": (plain.select("partition", "data"), out),
        "windows, into a queue": (_windows(marked), out),
    }


def _floor(
    spark: SparkSession, broker: Broker, folder: Path, batches: int, console: Console
) -> None:
    queue = "floor"
    producer = _Producer(broker, queue)
    producer.push(1)
    table = Table("micro-batch of 1,000", "median ms", *_PARTS, "source commit etc.")
    for name, (df, out) in _kinds(spark, broker, queue, startingTime="earliest").items():
        with _running(df, broker, folder, out, {"processingTime": "0 seconds"}) as query:
            heard = _Heard(query)
            heard.until(1)
            for _ in range(batches + _WARM_UP):
                before = heard.rows
                producer.push(_BATCH)
                heard.until(before + _BATCH)
        table.add_row(name, *_medians([one["durationMs"] for one in heard.batches[-batches:]]))
    console.print(table)


class _Heard:
    """What Spark has said of the batches of a query; it keeps only the last hundred."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._found: dict[int, Any] = {}

    @property
    def batches(self) -> list[Any]:
        """Those that hold messages, and not only a marker."""
        return [one for one in self._found.values() if one["numInputRows"] >= _BATCH]

    @property
    def rows(self) -> int:
        return sum(one["numInputRows"] for one in self._found.values())

    def until(self, rows: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self.rows < rows:
            failure = self._query.exception()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.rows} rows after {_PATIENCE_S} s, not {rows}")
            time.sleep(0.005)
            for one in self._query.recentProgress:
                if one["numInputRows"]:
                    self._found[one["batchId"]] = one


def _full(query: StreamingQuery) -> list[Any]:
    """Return what Spark says of the batches that hold messages, and not only a marker."""
    return [one for one in query.recentProgress if one["numInputRows"] >= _BATCH]


def _medians(durations: list[dict[str, int]]) -> list[str]:
    totals = statistics.median(one["triggerExecution"] for one in durations)
    parts = [statistics.median(one.get(part, 0) for one in durations) for part in _PARTS]
    return [f"{one:.0f}" for one in (totals, *parts, max(totals - sum(parts), 0))]


# ---- the rate ----


def _rate(
    spark: SparkSession, broker: Broker, folder: Path, backlog: int, console: Console
) -> None:
    queue = "backlog"
    producer = _Producer(broker, queue)
    for _ in range(backlog // 10_000):
        producer.push(10_000)
    table = Table("backlog in batches of 100,000", "s", "messages/s", "of batches alone")
    limits = {"startingTime": "earliest", "maxMessagesPerTrigger": _BACKLOG_BATCH}
    for name, (df, out) in _kinds(spark, broker, queue, **limits).items():
        with _running(df, broker, folder, out, {"availableNow": True}) as query:
            took_s = seconds(lambda query=query: query.awaitTermination())  # type: ignore[misc]
            full = _full(query)
        rows = sum(one["numInputRows"] for one in full[1:])
        alone_s = sum(one["durationMs"]["triggerExecution"] for one in full[1:]) / 1000
        table.add_row(name, f"{took_s:.1f}", f"{backlog / took_s:,.0f}", f"{rows / alone_s:,.0f}")
    console.print(table)


# ---- latency ----


class _Consumer(threading.Thread):
    """Takes results as they come, and notes when."""

    def __init__(self, broker: Broker, queue: str, take: Callable[[float, Any], None]) -> None:
        super().__init__(daemon=True)
        self._port, self._queue, self._take = broker.port, queue, take
        self._is_over = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        path = f"/api/v1/pop/queue/{self._queue}?batch=1000&partitions=8&autoAck=true&wait=true"
        while not self._is_over.is_set():
            connection.request("GET", f"{path}&timeout=1000")
            answer = connection.getresponse()
            body = answer.read()
            now = time.time()
            if answer.status == 200:
                for message in json.loads(body)["messages"]:
                    self._take(now, message["data"])
        connection.close()

    def close(self) -> None:
        self._is_over.set()
        self.join()


class _Latencies:
    """How long results took, in seconds; those of the first while do not count."""

    def __init__(self) -> None:
        self._begins = time.time() + _LATENCY_WARM_UP_S
        self.found: dict[str, list[float]] = {}

    def take(self, now: float, data: Any) -> None:
        if "end" not in data:
            self._add("no state", data["sent"], now)
        elif data["first"] > self._begins:
            end = datetime.fromisoformat(data["end"]).timestamp()
            self._add("windows of 1 s, after their end", end, now)
            for one in ("first", "last"):
                self._add("windows of 1 s, after the push", data[one], now)

    def _add(self, what: str, since: float, now: float) -> None:
        if since > self._begins:
            self.found.setdefault(what, []).append(now - since)


def _latency(
    spark: SparkSession, broker: Broker, folder: Path, length_s: float, console: Console
) -> None:
    table = Table("push to result", "results", "p50 ms", "p99 ms", "most ms")
    for has_windows in (False, True):
        queue = f"latency-{has_windows}"
        producer = _Producer(broker, queue)
        producer.push(1)
        df = _read(spark, broker, queue, startingTime="latest", markers=str(has_windows).lower())
        df = _windows(df) if has_windows else df.select("partition", "data")
        latencies = _Latencies()
        consumer = _Consumer(broker, f"{queue}-out", latencies.take)
        trigger = {"processingTime": f"{_TRIGGER_MS} milliseconds"}
        with _running(df, broker, folder, f"{queue}-out", trigger):
            consumer.start()
            ends = time.monotonic() + _LATENCY_WARM_UP_S + length_s
            while time.monotonic() < ends:
                producer.push(10)
                time.sleep(0.05)
            consumer.close()
        for name, values in latencies.found.items():
            table.add_row(name, f"{len(values):,}", *_quantiles(values))
    console.print(table)


def _quantiles(values: list[float]) -> list[str]:
    cuts = statistics.quantiles(values, n=100)
    return [f"{one * 1000:,.0f}" for one in (cuts[49], cuts[98], max(values))]


def main() -> None:
    arguments = _arguments()
    console = wide_console()
    with broker_and_spark("spark-latency") as (broker, spark, folder):
        _floor(spark, broker, folder, arguments.batches, console)
        _latency(spark, broker, folder, arguments.seconds, console)
        _rate(spark, broker, folder, arguments.backlog, console)
    console.print(machine())


if __name__ == "__main__":
    main()
