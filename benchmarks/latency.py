"""`python -m benchmarks.latency`: one message at a time, with a consumer that waits for it.

    end to end    a producer pushes one message a call at a fixed rate, a consumer waits: from the
                  call of `push` to the handler, through the Python client; beside it the same
                  through a plain table in the same PostgreSQL (insert and NOTIFY; the consumer
                  takes rows FOR UPDATE SKIP LOCKED, handles and deletes them, in one transaction)
    lone push     a closed loop of one connection: a push over raw HTTP, beside an insert and its
                  commit over one connection to the same PostgreSQL
    idle          what a server uses while consumers wait and nothing comes

The two sides take turns, in rounds. Cores are processor time of everything that works for a side
(client, server, PostgreSQL) over the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker, Usage
from benchmarks.jobs import JobResult, RoleResult, percentiles_ms, run_job
from benchmarks.postgres import PostgresAddress
from benchmarks.report import machine
from queen import Queen, Received

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_DATABASE = "queen_bench_latency"
_TABLE = """
create table messages (id bigint generated always as identity primary key, payload text not null);
create table lone (like messages including all);
"""
_INSERT = "insert into lone (payload) values ($1)"
_INSERT_AND_TELL = """
with stored as (insert into messages (payload) values ($1) returning id)
select pg_notify('messages', '') from stored
"""
_TAKE = "select id, payload from messages order by id limit 100 for update skip locked"
_DELETE = "delete from messages where id = any ($1::bigint[])"
_WARMUP_S = 1.0
_PADDING = "x" * 100
# A lone push, and a lone insert, so many times in turn.
_LONE = 200

# Sends one message, which says when it was sent.
Send = Callable[[str], Awaitable[object]]
Seen = Callable[[int], None]


@dataclass(frozen=True)
class EndToEnd:
    """Messages at a fixed rate from a producer to a consumer, both in this process."""

    port: int
    address: PostgresAddress
    is_table: bool
    queue: str
    rate: int
    measure_s: float

    def work(self, on_phase: Callable[[str], None]) -> JobResult:
        return asyncio.run(self._work(on_phase))

    async def _work(self, on_phase: Callable[[str], None]) -> JobResult:
        latencies_ns = array("q")

        def saw(sent_ns: int) -> None:
            latencies_ns.append(time.monotonic_ns() - sent_ns)

        side = _table if self.is_table else _queen
        ready: asyncio.Future[Send] = asyncio.get_running_loop().create_future()
        working = asyncio.create_task(side(self, saw, ready))
        await asyncio.wait((working, ready), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        send = ready.result()
        await _send_at_rate(send, self.rate, _WARMUP_S)
        on_phase("measuring")
        start, cpu, began = len(latencies_ns), time.process_time(), time.perf_counter()
        pushes_ns = await _send_at_rate(send, self.rate, self.measure_s)
        end, seconds = len(latencies_ns), time.perf_counter() - began
        cpu_s = time.process_time() - cpu
        on_phase("measured")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return JobResult(seconds, cpu_s, [_role(latencies_ns, start, end), _role(pushes_ns)])


def _role(latencies_ns: array[int], start: int = 0, end: int | None = None) -> RoleResult:
    end = len(latencies_ns) if end is None else end
    p50_ms, p99_ms = percentiles_ms(latencies_ns, start, end)
    return RoleResult(end - start, end - start, 0, p50_ms, p99_ms, len(latencies_ns), 0)


async def _send_at_rate(send: Send, rate: int, seconds: float) -> array[int]:
    """Send at instants that are set beforehand; return how long each call took."""
    took_ns: array[int] = array("q")
    calls: set[asyncio.Task[None]] = set()

    async def call() -> None:
        sent_ns = time.monotonic_ns()
        await send(f"{sent_ns}{_PADDING}")
        took_ns.append(time.monotonic_ns() - sent_ns)

    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        ahead_s = began + number / rate - time.perf_counter()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        task = asyncio.create_task(call())
        calls.add(task)
        task.add_done_callback(calls.discard)
    await asyncio.gather(*calls)
    return took_ns


def _sent_ns(payload: str) -> int:
    return int(payload[: -len(_PADDING)])


async def _queen(job: EndToEnd, saw: Seen, ready: asyncio.Future[Send]) -> None:
    async with Queen(f"http://127.0.0.1:{job.port}") as queen:
        queue = queen.queue(job.queue)
        await queue.create()

        async def handle(message: Received) -> None:
            saw(_sent_ns(message.data))

        consumer = queue.group("bench").consume(handle, signals=False)
        ready.set_result(queue.push)
        await consumer


async def _table(job: EndToEnd, saw: Seen, ready: asyncio.Future[Send]) -> None:
    producer, consumer = [await job.address.connect(_DATABASE) for _ in range(2)]
    told, sending = asyncio.Event(), asyncio.Lock()
    await consumer.add_listener("messages", lambda *_: told.set())
    insert = await producer.prepare(_INSERT_AND_TELL)
    take, delete = await consumer.prepare(_TAKE), await consumer.prepare(_DELETE)

    async def send(payload: str) -> None:
        async with sending:
            await insert.fetch(payload)

    ready.set_result(send)
    try:
        while True:
            told.clear()
            async with consumer.transaction():
                rows = await take.fetch()
                for row in rows:
                    saw(_sent_ns(row["payload"]))
                if rows:
                    await delete.fetch([row["id"] for row in rows])
            if not rows:
                await told.wait()
    finally:
        producer.terminate()
        consumer.terminate()


# ---- a lone push ----


class RawPush:
    """One connection that pushes one message and waits for the answer."""

    def __init__(self, port: int, queue: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
        self._body = f'{{"items":[{{"queue":"{queue}","payload":"{_PADDING}"}}]}}'
        self._request = (self._head.format(len(self._body)) + self._body).encode()

    def push(self) -> None:
        self._socket.sendall(self._request)
        answer = self._socket.recv(65536)
        if b" 201 " not in answer[:20]:
            raise RuntimeError(answer.decode())

    def close(self) -> None:
        self._socket.close()


def _lone_pushes(raw: RawPush) -> list[float]:
    took = []
    for _ in range(_LONE):
        began = time.perf_counter()
        raw.push()
        took.append(time.perf_counter() - began)
    return took


async def _lone_inserts(connection: asyncpg.Connection) -> list[float]:
    statement = await connection.prepare(_INSERT)
    took = []
    for _ in range(_LONE):
        began = time.perf_counter()
        await statement.fetch(_PADDING)
        took.append(time.perf_counter() - began)
    return took


# ---- rounds ----


@dataclass(frozen=True)
class Measured:
    """One side of one round."""

    p50_ms: float
    p99_ms: float
    push_p50_ms: float
    cores: float
    client: float
    server: float
    postgres: float
    messages_s: float


def _end_to_end(broker: Broker, job: EndToEnd) -> Measured:
    usage = broker.usage()
    result = run_job(job, usage)
    delivered, pushes = result.roles
    server_s = 0.0 if job.is_table else usage.server_cpu_s
    busy_s = result.cpu_seconds, server_s, usage.postgres_cpu_s
    client, server, postgres = (each / result.seconds for each in busy_s)
    return Measured(
        p50_ms=delivered.p50_ms,
        p99_ms=delivered.p99_ms,
        push_p50_ms=pushes.p50_ms,
        cores=client + server + postgres,
        client=client,
        server=server,
        postgres=postgres,
        messages_s=delivered.messages / result.seconds,
    )


def _idle(broker: Broker, seconds: float, consumers: int) -> tuple[float, float]:
    """Return the cores that server and PostgreSQL use while consumers wait for nothing."""

    async def wait() -> Usage:
        usage = broker.usage()
        async with Queen(f"http://127.0.0.1:{broker.port}") as queen:
            queue = queen.queue("idle")
            await queue.create()
            waiting = queue.group("bench").concurrency(consumers).consume(_nothing, signals=False)
            task = asyncio.ensure_future(waiting)
            await asyncio.sleep(2.0)
            usage.begin()
            await asyncio.sleep(seconds)
            usage.end()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return usage

    usage = asyncio.run(wait())
    return usage.server_cpu_s / seconds, usage.postgres_cpu_s / seconds


async def _nothing(message: Any) -> None:
    """Handle what never comes."""


async def _make_table(address: PostgresAddress) -> None:
    admin = await address.connect("postgres")
    await admin.execute(f"create database {_DATABASE}")
    await admin.close()
    connection = await address.connect(_DATABASE)
    await connection.execute(_TABLE)
    await connection.close()


def _medians(rounds: Sequence[Measured], name: str) -> str:
    return f"{median(getattr(each, name) for each in rounds):.2f}"


def _show_end_to_end(console: Console, sides: dict[str, list[Measured]]) -> None:
    names = ("p50_ms", "p99_ms", "push_p50_ms", "cores", "client", "server", "postgres")
    table = Table("", "msg/s", *(name.replace("_ms", " ms").replace("_", " ") for name in names))
    for side, rounds in sides.items():
        rate = f"{median(each.messages_s for each in rounds):,.0f}"
        table.add_row(side, rate, *(_medians(rounds, name) for name in names))
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each side of a round")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds to be idle; 0 for none")
    return parser.parse_args()


def main() -> None:
    arguments, console = _arguments(), Console()
    console.print(machine())
    with Broker(_FOLDER) as broker, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_make_table(broker.postgres))
        if arguments.idle:
            server, postgres = _idle(broker, arguments.idle, 10)
            console.print(
                f"idle, 10 consumers wait: server {server:.3f}, PostgreSQL {postgres:.3f}"
            )
        sides: dict[str, list[Measured]] = {"queen": [], "table": []}
        pushes: list[float] = []
        inserts: list[float] = []
        connection = runner.run(broker.postgres.connect(_DATABASE))
        raw = RawPush(broker.port, "lone")
        _lone_pushes(raw)
        for number in range(arguments.rounds):
            for side, rounds in sides.items():
                is_table = side == "table"
                where = broker.port, broker.postgres, is_table, f"round-{number}"
                job = EndToEnd(*where, arguments.rate, arguments.seconds)
                rounds.append(_end_to_end(broker, job))
            pushes.append(median(_lone_pushes(raw)))
            inserts.append(median(runner.run(_lone_inserts(connection))))
        raw.close()
        runner.run(connection.close())
    _show_end_to_end(console, sides)
    push_ms, insert_ms = 1000 * median(pushes), 1000 * median(inserts)
    console.print(
        f"lone push {push_ms:.3f} ms, lone insert {insert_ms:.3f} ms: {push_ms / insert_ms:.2f}x"
    )


if __name__ == "__main__":
    main()
