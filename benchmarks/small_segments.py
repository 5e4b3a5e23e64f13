"""`python -m benchmarks.small_segments`: messages stored one by one, beside the same in hundreds.

A queue that is fed one message per request has a segment for each, until they are merged. The same
messages are written to three queues by SQL, as the broker would store them: one message a segment,
the same and then merged, and a hundred a segment. What the merged ones take is told of tables
that are written anew: as they are, they have room for what comes next.

Then all are read in turn: as frames by whoever asks for them, through the client, by pops, and by
Spark with `--spark`. Processor time is the figure to believe; answers are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.frames import (
    ANY_ORDER_MEDIA_TYPE,
    JOINED_MEDIA_TYPE,
    MEDIA_TYPE,
    count_messages,
    stored_row,
)
from benchmarks.messages import MessagePool, partition_name
from benchmarks.report import machine
from benchmarks.spark_session import broker_and_spark, cpu, url_of, wide_console
from queen import Queen
from queen.core.cipher import KeyRing
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.merging import Merger
from queen.service.upkeep.jobs import Jobs
from queen.storage.database import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_MERGED = "merged"
_SIZES = {_MERGED: 1, "one by one": 1, "in hundreds": 100}
_POP = 100
_SERVE = ("--merge-after", "0")
_BETWEEN = timedelta(milliseconds=1)
_COLUMNS = ["partition_id", "base_offset", "end_offset", "created_at", "queue_id", "codec"]
_MAKE = """
with q as (insert into queen.queues (name) values ($1) returning id)
insert into queen.partitions (queue_id, name)
select q.id, w.name from q, unnest($2::text[]) w (name)
returning id, name, queue_id
"""
_ADVANCE = """
update queen.partitions p set head = s.head, head_at = s.head_at
from (select partition_id, max(end_offset) as head, max(created_at) as head_at
      from queen.segments group by 1) s
where s.partition_id = p.id
"""
_BYTES = """
select sum(pg_total_relation_size(name::regclass))::bigint as stored,
       sum(pg_indexes_size(name::regclass))::bigint as indexes
from unnest(array['queen.segments', 'queen.merged_segments']) w (name)
"""

Read = Callable[[str], int]


class Cost(NamedTuple):
    """Processor time in µs a message: of the reader, and of the broker with PostgreSQL."""

    reader: float
    broker: float
    seconds: float


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_segments", description=__doc__
    )
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--partitions", type=int, default=10, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument(
        "--only", nargs="+", metavar="READER", help="fetch, joined, any order, replay, pop"
    )
    parser.add_argument("--spark", action="store_true", help="read with Spark too")
    return parser.parse_args()


def _queue(name: str) -> str:
    return name.replace(" ", "-")


# ---- what is stored ----


async def _fill(connection: asyncpg.Connection, queue: str, size: int, options: object) -> None:
    """Write a queue in segments of so many messages; time goes on with every message."""
    messages, partitions = options.messages, options.partitions  # type: ignore[attr-defined]
    names = [partition_name(number) for number in range(partitions)]
    made = await connection.fetch(_MAKE, queue, names)
    await connection.copy_records_to_table(
        "segments",
        schema_name="queen",
        columns=[*_COLUMNS, "hashes", "body"],
        records=_rows([row["id"] for row in made], made[0]["queue_id"], size, messages),
        timeout=600,
    )
    await connection.execute(_ADVANCE, timeout=600)
    await connection.execute("vacuum analyze queen.segments", timeout=600)


async def _merge(broker: Broker, connection: asyncpg.Connection, console: Console) -> None:
    """Merge what there is, as the server does in the background; it is told not to."""
    database = await Database.connect(broker.postgres.dsn("queen"), size=1)
    merger = Merger(SegmentEncryption(KeyRing()), 0, 0)
    jobs = Jobs(database)
    jobs.add("merge", 1, merger.merge_some)
    before, began = cpu(broker), time.perf_counter()
    while await jobs.run_once("merge"):
        pass
    used, took_s = cpu(broker).since(before), time.perf_counter() - began
    await database.close()
    each = 1e6 / merger.rows_merged
    console.print(
        f"{merger.rows_merged:,} segments merged into {merger.rows_made:,} in {took_s:.1f} s: "
        f"{used.spark * each:.1f} µs each here, {used.broker * each:.1f} in PostgreSQL"
    )
    for table in ("segments", "merged_segments"):
        await connection.execute(f"vacuum full queen.{table}", timeout=600)
        await connection.execute(f"vacuum analyze queen.{table}", timeout=600)


def _rows(
    partitions: list[int], queue_id: int, size: int, messages: int
) -> Iterator[tuple[object, ...]]:
    pool = MessagePool(7)
    heads = dict.fromkeys(partitions, 0)
    at = datetime.now(UTC) - timedelta(hours=1) - messages * _BETWEEN
    for serial in range(messages // size):
        partition = partitions[serial % len(partitions)]
        payloads = [
            pool.payloads[number % len(pool.payloads)]
            for number in range(serial * size, (serial + 1) * size)
        ]
        codec, hashes, body = stored_row(pool.transaction_ids(serial, size), payloads)
        base = heads[partition]
        heads[partition] = base + size
        at += size * _BETWEEN
        yield partition, base, base + size, at, queue_id, codec, hashes, body


# ---- reading ----


def _fetch(broker: Broker, accept: str) -> Read:
    """Read frames and decode them, and look at nothing in them."""

    def read(queue: str) -> int:
        path = f"/api/v1/fetch/queue/{queue}"
        connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=600)
        connection.request("GET", path, headers={"accept": accept})
        frames = connection.getresponse().read()
        connection.close()
        return count_messages(frames)

    return read


def _replay(broker: Broker) -> Read:
    async def count(queue: str) -> int:
        async with Queen(url_of(broker)) as queen:
            messages = 0
            async for _ in queen.queue(queue).replay():
                messages += 1
            return messages

    return lambda queue: asyncio.run(count(queue))


def _pop(broker: Broker) -> Read:
    """Pop everything as a new group; acknowledged by itself."""
    groups = iter(range(1_000_000))

    def read(queue: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=600)
        path = f"/api/v1/pop/queue/{queue}?batch={_POP}&autoAck=true"
        path += f"&consumerGroup=g{next(groups)}&subscriptionMode=all"
        messages = 0
        while True:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == http.HTTPStatus.NO_CONTENT:
                connection.close()
                return messages
            messages += len(json.loads(body)["messages"])

    return read


def _spark_read(spark: SparkSession, broker: Broker) -> Read:
    def read(queue: str) -> int:
        from pyspark.sql import functions as f

        reader = spark.read.format("queen").option("url", url_of(broker)).option("queue", queue)
        rows = reader.schema("createdAt timestamp, data struct<city string, amount double>").load()
        sums = rows.agg(f.count("*"), f.sum("data.amount"), f.max("createdAt")).collect()
        return int(sums[0][0])

    return read


def _measure(
    reads: dict[str, Read], broker: Broker, options: argparse.Namespace, console: Console
) -> dict[tuple[str, str], list[Cost]]:
    """Read both queues in turn; the first round warms up."""
    costs: dict[tuple[str, str], list[Cost]] = {}
    for number in range(options.rounds + 1):
        for kind, read in reads.items():
            for name in _SIZES:
                before, started = cpu(broker), time.perf_counter()
                seen = read(_queue(name))
                assert seen == options.messages, (kind, name, seen)
                used, took_s = cpu(broker).since(before), time.perf_counter() - started
                each = 1e6 / seen
                cost = Cost(used.spark * each, used.broker * each, took_s)
                if number:
                    costs.setdefault((kind, name), []).append(cost)
        console.print(f"round {number} of {options.rounds}", highlight=False)
    return costs


def _print(console: Console, costs: dict[tuple[str, str], list[Cost]], messages: int) -> None:
    table = Table("read by", "stored", "reader µs", "broker µs", "both µs", "messages/s", "ratio")
    for kind in dict.fromkeys(kind for kind, _ in costs):
        both = {
            name: statistics.median(cost.reader + cost.broker for cost in costs[kind, name])
            for name in _SIZES
        }
        for name in _SIZES:
            rows = costs[kind, name]
            took_s = statistics.median(cost.seconds for cost in rows)
            table.add_row(
                kind,
                name,
                f"{statistics.median(cost.reader for cost in rows):.2f}",
                f"{statistics.median(cost.broker for cost in rows):.2f}",
                f"{both[name]:.2f}",
                f"{messages / took_s:,.0f}",
                f"{both['in hundreds'] / both[name]:.2f}",
            )
    console.print(table)
    console.print("ratio: processor time in hundreds to that of the row; 1 is as good", style="dim")


async def _bytes(connection: asyncpg.Connection) -> tuple[int, int]:
    (row,) = await connection.fetch(_BYTES)
    return row["stored"], row["indexes"]


async def _store(broker: Broker, options: argparse.Namespace, console: Console) -> None:
    connection = await broker.postgres.connect("queen")
    table = Table("stored", "bytes a message", "of that indexes")
    try:
        for name, size in _SIZES.items():
            before = await _bytes(connection)
            await _fill(connection, _queue(name), size, options)
            if name == _MERGED:
                await _merge(broker, connection, console)
            after = await _bytes(connection)
            each = [(after[part] - before[part]) / options.messages for part in (0, 1)]
            table.add_row(name, f"{each[0]:.0f}", f"{each[1]:.0f}")
    finally:
        await connection.close()
    console.print(table)


def _run(
    broker: Broker, spark: SparkSession | None, options: argparse.Namespace, console: Console
) -> None:
    asyncio.run(_store(broker, options, console))
    reads = {
        "fetch": _fetch(broker, MEDIA_TYPE),
        "joined": _fetch(broker, JOINED_MEDIA_TYPE),
        "any order": _fetch(broker, ANY_ORDER_MEDIA_TYPE),
        "replay": _replay(broker),
        "pop": _pop(broker),
    }
    reads = {kind: read for kind, read in reads.items() if kind in (options.only or reads)}
    if spark is not None:
        reads["spark"] = _spark_read(spark, broker)
    _print(console, _measure(reads, broker, options, console), options.messages)
    console.print(machine())


def main() -> None:
    options = _arguments()
    console = wide_console()
    if options.spark:
        with broker_and_spark("small-segments", *_SERVE) as (broker, spark, _):
            _run(broker, spark, options, console)
    else:
        with Broker(_FOLDER, *_SERVE) as broker:
            _run(broker, None, options, console)


if __name__ == "__main__":
    main()
