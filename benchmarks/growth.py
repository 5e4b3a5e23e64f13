"""`python -m benchmarks.growth`: what a message costs when there is more of everything.

Each row makes one thing grow and leaves the others as they are:

    partitions  a queue of 10 to 1,000,000 partitions that the server has all met: push, pop + ack,
                and what the server's memory grew by for each of them
    groups      1 to 50 groups read the same messages
    payloads    messages of 100 bytes to 1 MB, for each megabyte
    backlog     pops from a queue that holds more and more
    workers     1 to 4 server processes

What is compared is processor time, of the server and of PostgreSQL together, for each message
(or megabyte), because that means the same on a machine that others use too. A ratio is that
of the smallest size to this one: 1 is flat, 0.5 twice the cost.

    .venv/bin/python -m benchmarks.growth --quick           small sizes, short turns
    .venv/bin/python -m benchmarks.growth --only partitions --partitions 10,1000000
"""

from __future__ import annotations

import argparse
import http.client
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker, Usage
from benchmarks.jobs import BenchError, HttpJob, run_job
from benchmarks.messages import partition_name
from benchmarks.report import machine
from benchmarks.roles import Pop, Push, Role

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_CONNECTIONS = 8
_WARMUP_S = 0.5
_PER_REQUEST = 100
# Messages of one request that meets many partitions.
_AT_ONCE = 1000
_PAYLOAD_REQUEST_BYTES = 2_000_000
_BAR = 30
# The memory of partitions is looked at so often.
_STEPS = 5

SIZES = {
    "partitions": (10, 1_000, 10_000, 100_000, 1_000_000),
    "groups": (1, 10, 50),
    "payloads": (100, 1_000, 10_000, 100_000, 1_000_000),
    "backlog": (100_000, 1_000_000, 20_000_000),
    "workers": (1, 2, 4),
}
QUICK = {
    "partitions": (10, 1_000, 10_000),
    "groups": (1, 5),
    "payloads": (100, 10_000, 1_000_000),
    "backlog": (20_000, 100_000),
    "workers": (1, 2),
}


class Cost(NamedTuple):
    """What one size of one row costs, in microseconds of processor time for each unit."""

    work: str
    size: int
    server_us: float
    postgres_us: float
    note: str = ""

    @property
    def us(self) -> float:
        return self.server_us + self.postgres_us


class Bench:
    """A broker of its own, and what work on it costs."""

    def __init__(self, broker: Broker, seconds: float) -> None:
        self.broker = broker
        self.seconds = seconds
        self._seed = 0

    def load(self, work: str, size: int, *roles: Role, seconds: float | None = None) -> Cost:
        """Make a load for a while; return what a message of it costs."""
        self._seed += 1
        usage = self.broker.usage()
        job = HttpJob(self.broker.port, roles, _WARMUP_S, seconds or self.seconds, self._seed)
        result = run_job(job, usage)
        for role in result.roles:
            if role.errors:
                raise BenchError(role.first_error)
        return _cost(work, size, usage, sum(role.messages for role in result.roles))

    def fill(self, queue: str, messages: int, partitions: int) -> None:
        """Push so many messages, as fast as it goes."""
        self._seed += 1
        requests = messages // _PER_REQUEST
        role = Push(queue, partitions, _PER_REQUEST, _CONNECTIONS, requests)
        run_job(HttpJob(self.broker.port, (role,), 0.0, 600.0, self._seed), self.broker.usage())

    def send(self, items: Sequence[dict[str, object]]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.port, timeout=120)
        try:
            connection.request("POST", "/api/v1/push", json.dumps({"items": items}))
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status not in (200, 201):
            raise BenchError(f"a push was answered {answer.status}: {body[:500]!r}")


def _cost(work: str, size: int, usage: Usage, units: float, note: str = "") -> Cost:
    if not units:
        raise BenchError(f"{work} with {size:,} did nothing")
    per_unit = 1e6 / units
    return Cost(work, size, usage.server_cpu_s * per_unit, usage.postgres_cpu_s * per_unit, note)


def _partitions(bench: Bench, size: int) -> Iterator[Cost]:
    queue = f"partitions-{size}"
    bench.broker.configure(queue, "window")
    memory: list[int] = []
    for start in range(0, size, _AT_ONCE):
        if start % (size // _STEPS) == 0:
            memory.append(_memory(bench))
        numbers = range(start, min(start + _AT_ONCE, size))
        bench.send([_item(queue, partition_name(number)) for number in numbers])
    memory.append(_memory(bench))
    push = bench.load("push", size, Push(queue, size, _PER_REQUEST, _CONNECTIONS))
    # With the segments of their first messages, as long as there is room for them: what the server
    # keeps for a handful says nothing of one of them.
    yield push._replace(note=_grown(memory, size) if size >= 100_000 else "")
    # One message at a time: the first partitions of many hold one each.
    yield bench.load("pop + ack of 1", size, Pop(queue, "g", _CONNECTIONS, ack=True, batch=1))


def _grown(memory: list[int], size: int) -> str:
    """Say what the memory grew by, and by what when the caches have what they may hold."""
    all_of_it = (memory[-1] - memory[0]) / size
    late = (memory[-1] - memory[1]) / (size - size // _STEPS)
    return f"{all_of_it:,.0f} bytes each, {late:,.0f} after the first fifth"


def _groups(bench: Bench, size: int) -> Iterator[Cost]:
    queue = f"groups-{size}"
    bench.broker.configure(queue, "window")
    bench.fill(queue, 200_000, 100)
    roles = [Pop(queue, f"g{number}", 1, ack=True) for number in range(size)]
    yield bench.load("pop + ack", size, *roles)
    yield bench.load("push", size, Push(queue, 100, _PER_REQUEST, _CONNECTIONS))


def _payloads(bench: Bench, size: int) -> Iterator[Cost]:
    queue = f"payloads-{size}"
    bench.broker.configure(queue, "window")
    count = max(1, min(_PAYLOAD_REQUEST_BYTES // size, _AT_ONCE))
    requests = max(4, int(20_000_000 / (count * size) * min(1.0, bench.seconds / 3)))
    requests = min(requests, 200)
    bench.send([_item(queue, "p0", size)])
    usage = bench.broker.usage()
    usage.begin()
    for number in range(requests):
        bench.send([_item(queue, f"p{number % 10}", size) for _ in range(count)])
    usage.end()
    yield _cost("push", size, usage, requests * count * size / 1e6, "of a megabyte")


def _backlog(bench: Bench, size: int) -> Iterator[Cost]:
    queue = f"backlog-{size}"
    bench.broker.configure(queue, "window")
    bench.fill(queue, size, 100)
    role = Pop(queue, "g", _CONNECTIONS, ack=True, available=size)
    yield bench.load("pop + ack", size, role)


def _workers(bench: Bench, size: int) -> Iterator[Cost]:
    bench.broker.configure("workers", "window")
    for per_request, connections in ((100, 16), (10, 64), (1, 64)):
        role = Push("workers", 100, per_request, connections)
        yield bench.load(f"push of {per_request}", size, role)
    yield bench.load("pop + ack", size, Pop("workers", "g", 16, ack=True))


def _item(queue: str, partition: str, payload_bytes: int = 100) -> dict[str, object]:
    payload = uuid.uuid4().hex * (payload_bytes // 32 + 1)
    return {"queue": queue, "partition": partition, "payload": payload[:payload_bytes]}


def _memory(bench: Bench) -> int:
    usage = bench.broker.usage()
    usage.begin()
    usage.end()
    return usage.rss_bytes


ROWS: dict[str, Callable[[Bench, int], Iterator[Cost]]] = {
    "partitions": _partitions,
    "groups": _groups,
    "payloads": _payloads,
    "backlog": _backlog,
    "workers": _workers,
}


def measure(row: str, sizes: Sequence[int], seconds: float) -> list[Cost]:
    """Measure one row. Workers are processes of the server, so each size has a server of its own;
    so have partitions, whose memory is compared."""
    costs: list[Cost] = []
    for size in sizes:
        workers = size if row == "workers" else 1
        with Broker(_FOLDER, "--workers", str(workers)) as broker:
            costs += ROWS[row](Bench(broker, seconds), size)
    return costs


def print_row(console: Console, row: str, costs: Sequence[Cost]) -> None:
    table = Table("work", row, "server us", "PostgreSQL us", "ratio", "", "", title=row)
    smallest: dict[str, float] = {}
    for cost in sorted(costs, key=lambda cost: (cost.work, cost.size)):
        ratio = smallest.setdefault(cost.work, cost.us) / cost.us
        spent = f"{cost.server_us:,.1f}", f"{cost.postgres_us:,.1f}"
        bar = "#" * min(round(ratio * _BAR / 2), _BAR)
        table.add_row(cost.work, f"{cost.size:,}", *spent, f"{ratio:.2f}", bar, cost.note)
    console.print(table)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, short turns")
    parser.add_argument("--only", default=",".join(ROWS), metavar="ROWS", help="some of the rows")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each turn")
    for row in ROWS:
        parser.add_argument(f"--{row}", type=_sizes, metavar="N,N", help="sizes of this row")
    return parser.parse_args()


def main() -> None:
    arguments, console = _arguments(), Console(width=110)
    sizes = QUICK if arguments.quick else SIZES
    seconds = arguments.seconds or (1.5 if arguments.quick else 4.0)
    for row in arguments.only.split(","):
        chosen = getattr(arguments, row) or sizes[row]
        print_row(console, row, measure(row, chosen, seconds))
    console.print(machine())


if __name__ == "__main__":
    main()
