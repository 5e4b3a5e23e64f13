"""The baseline: the same messages, row per message, straight into the same PostgreSQL.

The table and its two indexes are those of the original broker. No HTTP and no broker stand in
between, so this is the best that a row-per-message broker could do on the machine at hand.
"""

import asyncio
import itertools
import time
import uuid
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import asyncpg
import uvloop

from benchmarks.jobs import JobResult, RoleResult, percentiles_ms
from benchmarks.messages import MessagePool, partition_for
from benchmarks.postgres import PostgresAddress

DATABASE = "queen_bench_rows"

_SCHEMA = """
drop table if exists messages;
create table messages (
    id uuid primary key default gen_random_uuid(),
    transaction_id varchar(255) not null,
    trace_id uuid,
    partition_id uuid not null,
    payload jsonb not null,
    created_at timestamptz default now(),
    is_encrypted bool default false
);
create unique index messages_partition_transaction_unique
    on messages (partition_id, transaction_id);
create index messages_partition_created on messages (partition_id, created_at, id);
"""

_INSERT_ONE = """
insert into messages (partition_id, transaction_id, payload) values ($1, $2, $3)
"""

_INSERT_MANY = """
insert into messages (partition_id, transaction_id, payload)
select $1, transaction_id, payload
from unnest($2::varchar[], $3::jsonb[]) as new (transaction_id, payload)
"""

Insert = Callable[[int], Awaitable[object]]


async def create_table(address: PostgresAddress) -> None:
    admin = await address.connect("postgres")
    try:
        if not await admin.fetchval("select 1 from pg_database where datname = $1", DATABASE):
            await admin.execute(f"create database {DATABASE}")
    finally:
        await admin.close()
    connection = await address.connect(DATABASE)
    try:
        await connection.execute(_SCHEMA)
    finally:
        await connection.close()


async def table_bytes(address: PostgresAddress) -> int:
    connection = await address.connect(DATABASE)
    try:
        return int(await connection.fetchval("select pg_total_relation_size('messages')"))
    finally:
        await connection.close()


class _Clock:
    """The measured interval of a run whose connections are coroutines."""

    def __init__(self, warmup_s: float, measure_s: float, on_phase: Callable[[str], None]) -> None:
        self.latencies_ns = array("q")
        self.stopped = False
        self.marks: list[int] = []
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._warmup_s = warmup_s
        self._measure_s = measure_s
        self._on_phase = on_phase

    async def run(self) -> None:
        await asyncio.sleep(self._warmup_s)
        began, began_cpu = time.perf_counter(), time.process_time()
        self.marks.append(len(self.latencies_ns))
        self._on_phase("measuring")
        await asyncio.sleep(self._measure_s)
        self.marks.append(len(self.latencies_ns))
        self.seconds = time.perf_counter() - began
        self.cpu_seconds = time.process_time() - began_cpu
        self.stopped = True
        self._on_phase("measured")


@dataclass(frozen=True)
class RowsJob:
    """Insert `per_statement` messages per autocommit statement over `connections` connections."""

    address: PostgresAddress
    partitions: int
    per_statement: int
    connections: int
    warmup_s: float
    measure_s: float
    seed: int

    def work(self, on_phase: Callable[[str], None]) -> JobResult:
        return uvloop.run(self._run(on_phase))

    async def _run(self, on_phase: Callable[[str], None]) -> JobResult:
        pool = MessagePool(self.seed)
        payloads = [payload.decode() for payload in pool.payloads]
        partition_ids = [uuid.UUID(int=self.seed * 10**6 + n) for n in range(self.partitions)]
        serials = itertools.count()
        clock = _Clock(self.warmup_s, self.measure_s, on_phase)
        connections = [await self.address.connect(DATABASE) for _ in range(self.connections)]
        writers = [
            self._write(await self._insert(c, pool, payloads, partition_ids), serials, clock)
            for c in connections
        ]
        await asyncio.gather(clock.run(), *writers)
        for connection in connections:
            await connection.close()
        return self._result(clock)

    async def _insert(
        self,
        connection: "asyncpg.Connection[asyncpg.Record]",
        pool: MessagePool,
        payloads: list[str],
        partition_ids: list[uuid.UUID],
    ) -> Insert:
        count = self.per_statement
        statement = await connection.prepare(_INSERT_ONE if count == 1 else _INSERT_MANY)

        async def insert(serial: int) -> None:
            partition_id = partition_ids[partition_for(serial, self.partitions)]
            ids = pool.transaction_ids(serial, count)
            head, _ = pool.place(serial, count)
            if count == 1:
                await statement.fetch(partition_id, ids[0], payloads[head])
            else:
                await statement.fetch(partition_id, ids, payloads[head : head + count])

        return insert

    async def _write(self, insert: Insert, serials: Iterator[int], clock: _Clock) -> None:
        while not clock.stopped:
            sent_ns = time.perf_counter_ns()
            await insert(next(serials))
            clock.latencies_ns.append(time.perf_counter_ns() - sent_ns)

    def _result(self, clock: _Clock) -> JobResult:
        before, after = clock.marks
        p50_ms, p99_ms = percentiles_ms(clock.latencies_ns, before, after)
        role = RoleResult(
            messages=(after - before) * self.per_statement,
            requests=after - before,
            received_bytes=0,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            total_messages=len(clock.latencies_ns) * self.per_statement,
            total_received_bytes=0,
        )
        return JobResult(clock.seconds, clock.cpu_seconds, [role])
