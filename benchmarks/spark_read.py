"""`python -m benchmarks.spark_read`: the same aggregation over queues, JSON files and Parquet.

The same messages lie in queues of 1, 100 and 10,000 partitions, in JSON files and in Parquet
with typed columns. Each round reads all of them, one after the other; the first round warms up
and does not count, medians of the others are compared. Broker, database and Spark share the cores.
"""

from __future__ import annotations

import argparse
import http.client
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.frames import MEDIA_TYPE, frame
from benchmarks.messages import MessagePool, partition_for, partition_name
from benchmarks.report import machine
from benchmarks.spark_session import Cpu, broker_and_spark, cpu, url_of, wide_console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELDS = "order bigint, customer string, city string, amount double, at timestamp, note string"
_FILES = 8
_REQUEST_FRAMES = 50
_AIM = 0.8

Read = Callable[[], "DataFrame"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_read", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--segment", type=int, default=100, metavar="N", help="messages in a push")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 100, 10_000], metavar="N")
    parser.add_argument("--few", action="store_true", help="only the two columns that are used")
    return parser.parse_args()


def _payloads(count: int) -> Iterator[bytes]:
    """Yield varied messages of about 150 bytes."""
    chance = random.Random(7)
    pool = MessagePool(7).payloads
    for number in range(count):
        yield pool[number % len(pool)][:-2] + b' %016x"}' % chance.getrandbits(64)


def _push(port: int, queue: str, partitions: int, payloads: list[bytes], segment: int) -> None:
    """Push messages as frames: one for each request of a producer."""
    pool = MessagePool(partitions)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    waiting: list[bytes] = []

    def send() -> None:
        connection.request("POST", "/api/v1/push", b"".join(waiting), {"content-type": MEDIA_TYPE})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 201, said[:500]
        waiting.clear()

    for serial, first in enumerate(range(0, len(payloads), segment)):
        part = payloads[first : first + segment]
        name = partition_name(partition_for(serial, partitions))
        waiting.append(frame(queue, name, pool.transaction_ids(serial, segment)[: len(part)], part))
        if len(waiting) == _REQUEST_FRAMES:
            send()
    if waiting:
        send()
    connection.close()


def _write_files(spark: SparkSession, folder: Path, payloads: list[bytes], fields: str) -> None:
    json_folder = folder / "json"
    json_folder.mkdir()
    each = -(-len(payloads) // _FILES)
    for number in range(_FILES):
        lines = payloads[number * each : (number + 1) * each]
        (json_folder / f"{number}.json").write_bytes(b"\n".join(lines) + b"\n")
    spark.read.schema(fields).json(str(json_folder)).write.parquet(str(folder / "parquet"))


def _aggregated(rows: DataFrame) -> list[Any]:
    from pyspark.sql import functions as f

    sums = rows.groupBy("city").agg(
        f.count("*"), f.sum("amount"), f.count("customer"), f.max("at"), f.min("order"),
        f.sum(f.length("note")),
    )  # fmt: skip
    return sums.orderBy("city").collect()


def _aggregated_few(rows: DataFrame) -> list[Any]:
    from pyspark.sql import functions as f

    return rows.groupBy("city").agg(f.count("*"), f.sum("amount")).orderBy("city").collect()


def _queue_reader(spark: SparkSession, url: str, queue: str, fields: str) -> Read:
    def read() -> DataFrame:
        reader = spark.read.format("queen").option("url", url).option("queue", queue)
        return reader.schema(f"data struct<{fields}>").load().select("data.*")

    return read


class _Took(NamedTuple):
    """What one read cost."""

    seconds: float
    cpu: Cpu


def _measure(
    reads: dict[str, Read],
    rounds: int,
    work: Callable[[DataFrame], list[Any]],
    broker: Broker,
    console: Console,
) -> dict[str, list[_Took]]:
    """Read everything in turn; return the cost of each round but the first."""
    took: dict[str, list[_Took]] = {name: [] for name in reads}
    answers: dict[str, list[Any]] = {}
    for number in range(rounds + 1):
        for name, read in reads.items():
            before, started = cpu(broker), time.perf_counter()
            answers[name] = work(read())
            took_s = time.perf_counter() - started
            took[name].append(_Took(took_s, cpu(broker).since(before)))
        row = "  ".join(f"{name} {times[-1].seconds:.2f}" for name, times in took.items())
        console.print(f"{'warm-up' if number == 0 else number}: {row}", highlight=False)
    _check(answers)
    return {name: times[1:] for name, times in took.items()}


def _check(answers: dict[str, list[Any]]) -> None:
    """All have read the same; sums of doubles differ in their last digits by their order."""
    (_, first), *rest = answers.items()
    for name, answer in rest:
        assert len(answer) == len(first), name
        for one, other in zip(answer, first, strict=True):
            close = [
                abs(a - b) < 1e-6 * abs(b) if isinstance(a, float) else a == b
                for a, b in zip(one, other, strict=True)
            ]
            assert all(close), (name, one, other)


def main() -> None:
    arguments = _arguments()
    console = wide_console()
    fields = "city string, amount double" if arguments.few else _FIELDS
    work = _aggregated_few if arguments.few else _aggregated
    payloads = list(_payloads(arguments.messages))
    average = sum(map(len, payloads)) / len(payloads)
    console.print(f"{len(payloads):,} messages of {average:.0f} bytes on average", highlight=False)
    with broker_and_spark("spark-read") as (broker, spark, folder):
        _write_files(spark, folder, payloads, _FIELDS)
        json_folder, parquet = str(folder / "json"), str(folder / "parquet")
        reads: dict[str, Read] = {"json": lambda: spark.read.schema(fields).json(json_folder)}
        for partitions in arguments.partitions:
            queue = f"read-{partitions}"
            _push(broker.port, queue, partitions, payloads, arguments.segment)
            reads[queue] = _queue_reader(spark, url_of(broker), queue, fields)
        reads["parquet"] = lambda: spark.read.parquet(parquet)
        took = _measure(reads, arguments.rounds, work, broker, console)
    _print(console, took, len(payloads))
    console.print(machine())


def _print(console: Console, took: dict[str, list[_Took]], messages: int) -> None:
    medians = {
        name: statistics.median(one.seconds for one in times) for name, times in took.items()
    }
    table = Table("read from", "median s", "messages/s", "to JSON", "to Parquet", "best s")
    table.add_column("CPU s: Spark")
    table.add_column("broker")
    for name, median_s in medians.items():
        ratio = medians["json"] / median_s
        cells = [f"{median_s:.2f}", f"{messages / median_s:,.0f}", f"{ratio:.2f}"]
        cells += [f"{medians['parquet'] / median_s:.2f}"]
        cells += [f"{min(one.seconds for one in took[name]):.2f}"]
        cells += [f"{statistics.median(one.cpu.spark for one in took[name]):.2f}"]
        cells += [f"{statistics.median(one.cpu.broker for one in took[name]):.2f}"]
        is_slow = name.startswith("read-") and ratio < _AIM
        table.add_row(name, *cells, style="red" if is_slow else "")
    console.print(table)


if __name__ == "__main__":
    main()
