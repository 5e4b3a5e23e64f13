"""`python -m benchmarks.streams`: windows, from the boundary to the ack.

Each part has a broker of its own data but one server. Where much has to be written before the
measurement, it is written by SQL: the planner does not care who filled the log.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.report import machine
from queen import Queen
from queen.client.streams.window import Window
from queen.core.frame import compress, encode_body, segment_of

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_GRACE_S = 0.2
_LONGEST_S = 60.0

# What was measured, how it came out, what is aimed at, and whether it is reached.
Row = tuple[str, str, str, bool]

# Partitions that are there, and in some of them one segment, written so many seconds ago.
_FILL = """
with q as (select id from queen.queues where name = $1),
p as (
    insert into queen.partitions (queue_id, name)
    select q.id, 'k' || i from q, generate_series(1, $2::integer) i
    on conflict (queue_id, name) do update set name = excluded.name returning id, queue_id, head
),
s as (
    insert into queen.segments
        (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
    select p.id, p.head, p.head + $4::integer,
           clock_timestamp() - $5::float8 * interval '1 second', p.queue_id, $6, null, $7
    from (select * from p order by id limit $3::integer) p returning partition_id, end_offset
)
select count(*) from s
"""
_MOVE = """
update queen.partitions p set head = w.head, head_at = w.at
from (select s.partition_id, max(s.end_offset) as head, max(s.created_at) as at
      from queen.segments s join queen.queues q on q.id = s.queue_id
      where q.name = $1 group by 1) w
where p.id = w.partition_id and p.head < w.head
"""
_PLANNED = "select planned_until from queen.streams where name = $1"


class Bench:
    def __init__(self, queen: Queen, connection: asyncpg.Connection, *, quick: bool) -> None:
        self.queen = queen
        self.connection = connection
        self.quick = quick

    async def fill(
        self, queue: str, *, keys: int, active: int, messages: int, age_s: float, size: int = 100
    ) -> None:
        """Write one segment to each of some partitions."""
        payload = b'{"text":"%b"}' % (b"x" * (size - 11))
        ids = [b"%032d" % at for at in range(messages)]
        codec, body = compress(encode_body(segment_of(ids, [payload] * messages)))
        await self.connection.execute(
            _FILL, queue, keys, active, messages, age_s, codec, body, timeout=300
        )
        await self.connection.execute(_MOVE, queue, timeout=300)

    async def define(self, name: str, seconds: float, *, grace_s: float = 0) -> None:
        made = self.queen.stream(name).sources([f"{name}-q"]).partitioned()
        await made.tumbling_time(seconds).grace_period(grace_s).define()

    async def planned(self, name: str, until: datetime) -> float:
        """Wait until everything before an instant is planned; return when that was."""
        async with asyncio.timeout(_LONGEST_S):
            while True:
                reached = await self.connection.fetchval(_PLANNED, name)
                if reached is not None and reached >= until:
                    return time.time()
                await asyncio.sleep(0.002)


async def idle(bench: Bench) -> list[Row]:
    """The last window of a queue to which nothing more is written."""
    await bench.define("idle", 1, grace_s=_GRACE_S)
    consumer = bench.queen.consumer("idle", "g")
    late: list[float] = []
    for _ in range(5 if bench.quick else 20):
        await asyncio.sleep(random.uniform(0, 1))
        await bench.queen.queue("idle-q").partition("k").push({"n": 1})
        window = await consumer.poll_window(timeout=30)
        assert window is not None
        late.append(time.time() - window.end.timestamp() - _GRACE_S)
        await window.ack()
    worst = max(late)
    return [("idle queue: window after end + grace", _spread(late), "< 1 s", worst < 1)]


async def latency(bench: Bench) -> list[Row]:
    """Poll and ack while windows are ready, one consumer."""
    await bench.define("ready", 1)
    count = 200 if bench.quick else 1000
    await bench.fill("ready-q", keys=count, active=count, messages=10, age_s=5)
    await bench.planned("ready", datetime.now(UTC).replace(microsecond=0))
    polls, acks = await _taken(bench, "ready", count)
    p99 = _percentile(polls, 0.99)
    return [
        ("poll of a ready window", _spread(polls), "p99 < 50 ms", p99 < 0.05),
        ("ack of a window", _spread(acks), "", True),
    ]


async def _taken(bench: Bench, stream: str, count: int) -> tuple[list[float], list[float]]:
    consumer = bench.queen.consumer(stream, "g")
    polls: list[float] = []
    acks: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        window = await consumer.poll_window(timeout=10)
        polled = time.perf_counter()
        assert window is not None
        await window.ack()
        polls.append(polled - began)
        acks.append(time.perf_counter() - polled)
    return polls, acks


async def many_keys(bench: Bench) -> list[Row]:
    """A boundary with 1,000 active keys of 100,000."""
    keys, active = (10_000, 1000) if bench.quick else (100_000, 1000)
    await bench.queen.queue("many-q").create()
    await bench.fill("many-q", keys=keys, active=keys, messages=1, age_s=3600)
    await bench.define("many", 5)
    await bench.planned("many", datetime.fromtimestamp(time.time() // 5 * 5 - 5, UTC))
    consumer = bench.queen.consumer("many", "g")
    await consumer.seek("now")
    took: list[float] = []
    for _ in range(3):
        await asyncio.sleep(5 - time.time() % 5 + 0.5)
        await bench.fill("many-q", keys=keys, active=active, messages=10, age_s=0)
        boundary = time.time() // 5 * 5 + 5
        seen = await bench.planned("many", datetime.fromtimestamp(boundary, UTC))
        took.append(seen - boundary)
    polls, _ = await _taken(bench, "many", active)
    name = f"{keys:,} keys, {active:,} active"
    p50 = statistics.median(polls)
    return [
        (f"{name}: boundary planned after", _spread(took), "< 1 s", statistics.median(took) < 1),
        (f"{name}: poll", _spread(polls), "p50 < 20 ms", p50 < 0.02),
    ]


async def empty(bench: Bench) -> list[Row]:
    """Two messages with 10,000 empty minutes between them."""
    await bench.queen.queue("empty-q").create()
    await bench.fill("empty-q", keys=1, active=1, messages=1, age_s=10_000 * 60)
    await bench.fill("empty-q", keys=1, active=1, messages=1, age_s=120)
    began = time.perf_counter()
    await bench.define("empty", 60)
    await bench.planned("empty", datetime.fromtimestamp(time.time() // 60 * 60 - 60, UTC))
    took = time.perf_counter() - began
    rows = await bench.connection.fetchval(
        "select count(*) from queen.stream_windows w join queen.streams s on s.id = w.stream_id"
        " where s.name = 'empty'"
    )
    shown = f"{took * 1000:.0f} ms, {rows} windows written"
    return [("10,000 empty minutes", shown, "2 windows", rows == 2)]


async def throughput(bench: Bench) -> list[Row]:
    """Windows through the client, delivered and acked."""
    windows, keys, messages = (10, 10, 1000) if bench.quick else (40, 10, 1000)
    await bench.queen.queue("fast-q").create()
    for at in range(windows):
        await bench.fill(
            "fast-q", keys=keys, active=keys, messages=messages, age_s=2 * (windows - at) + 5
        )
    await bench.define("fast", 1)
    await bench.planned("fast", datetime.fromtimestamp(int(time.time()) - 2, UTC))
    seen = 0

    def handler(window: Window) -> None:
        nonlocal seen
        seen += len(window.messages)

    began = time.perf_counter()
    consumer = bench.queen.consumer("fast", "g").concurrency(4).limit(windows * keys)
    await consumer.process(handler, signals=False)
    rate = seen / (time.perf_counter() - began)
    assert seen == windows * keys * messages
    shown = f"{rate:,.0f} messages/s, {rate / messages:,.0f} windows/s"
    return [(f"windows of {messages:,}, delivered and acked", shown, "30,000/s", rate >= 30_000)]


PARTS: dict[str, Callable[[Bench], Coroutine[Any, Any, list[Row]]]] = {
    "idle": idle,
    "latency": latency,
    "many-keys": many_keys,
    "empty": empty,
    "throughput": throughput,
}


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _spread(seconds: list[float]) -> str:
    shown = (statistics.median(seconds), _percentile(seconds, 0.99), max(seconds))
    return "p50 {:.1f}, p99 {:.1f}, worst {:.1f} ms".format(*(one * 1000 for one in shown))


async def _measure(broker: Broker, names: list[str], *, quick: bool) -> list[Row]:
    rows: list[Row] = []
    connection = await broker.postgres.connect("queen")
    async with Queen(f"http://127.0.0.1:{broker.port}") as queen:
        bench = Bench(queen, connection, quick=quick)
        for name in names:
            rows += await PARTS[name](bench)
    await connection.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--only", choices=sorted(PARTS), help="one part")
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(PARTS)
    console = Console()
    with Broker(_FOLDER) as broker:
        rows = asyncio.run(_measure(broker, names, quick=arguments.quick))
    table = Table("what", "measured", "aim", title="streams")
    for what, shown, aim, is_reached in rows:
        table.add_row(what, shown, aim, style="" if is_reached else "red")
    console.print(table)
    console.print(machine())


if __name__ == "__main__":
    main()
