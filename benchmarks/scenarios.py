"""Scenarios: what is measured, in which order, and how often.

A **group** of scenarios is measured in rounds: A B C, A B C, A B C. The machine's mood changes by
the minute, so the two sides of a ratio are never far apart in time, and medians over the rounds are
compared. Every push scenario has a queue of its own in every round, so none inherits anything.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from benchmarks import baseline, postgres
from benchmarks.broker import Broker
from benchmarks.client import ClientJob
from benchmarks.jobs import BenchError, HttpJob, Job, JobResult, RoleResult, run_job
from benchmarks.roles import Fetch, Pop, PopFrames, Push, PushFrames, Role

# Enough frames for this rate; they are encoded before the clock starts and kept in memory.
_FRAMES_PER_S = 6_500
_FETCH_REQUESTS = 5_000
_NO_LIMIT_S = 1e6


@dataclass(frozen=True)
class Options:
    seconds: float
    warmup_s: float
    rounds: int
    many_partitions: int


@dataclass(frozen=True)
class Measurement:
    """One row of raw results: one scenario in one round."""

    scenario: str
    round: int
    messages_per_s: float
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    seconds: float
    server_cpu_percent: float
    postgres_cpu_percent: float
    client_cpu_percent: float
    server_rss_bytes: int
    stored_bytes_per_message: float | None = None
    empty: int = 0
    errors: int = 0
    first_error: str = ""


@dataclass
class Bench:
    """The running broker, what has been put into it, and what has been measured."""

    broker: Broker
    options: Options
    on_start: Callable[[str, int], None]
    on_row: Callable[[Measurement], None]
    results: list[Measurement] = field(default_factory=list)
    _seeds: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _filled: dict[str, int] = field(default_factory=dict)
    _consumed: dict[tuple[str, str], int] = field(default_factory=dict)

    def seed(self) -> int:
        return next(self._seeds)

    def stored_bytes(self) -> int:
        address = self.broker.postgres
        return asyncio.run(postgres.stored_bytes(address, without=baseline.DATABASE))

    def http_job(self, roles: tuple[Role, ...]) -> HttpJob:
        options = self.options
        return HttpJob(self.broker.port, roles, options.warmup_s, options.seconds, self.seed())

    def fill(self, queue: str, partitions: int, requests: int) -> None:
        """Push 100 messages per request, not timed. Done once for each queue."""
        if queue in self._filled:
            return
        self.on_start(f"fill {queue}", 0)
        self.broker.configure(queue, "window")
        role = Push(queue, partitions, per_request=100, connections=16, max_requests=requests)
        job = HttpJob(self.broker.port, (role,), 0.0, _NO_LIMIT_S, self.seed())
        result = run_job(job, self.broker.usage()).roles[0]
        if result.errors:
            raise BenchError(f"filling {queue}: {result.first_error}")
        self.pushed(queue, result.total_messages)

    def pushed(self, queue: str, messages: int) -> None:
        self._filled[queue] = self._filled.get(queue, 0) + messages

    def consumed(self, queue: str, group: str, messages: int) -> None:
        key = queue, group
        self._consumed[key] = self._consumed.get(key, 0) + messages

    def stored(self, queue: str) -> int:
        return self._filled[queue]

    def unread(self, queue: str, group: str) -> int:
        return self._filled[queue] - self._consumed.get((queue, group), 0)

    def measure(self, names: list[str], round_: int, job: Job) -> tuple[JobResult, "Rows"]:
        """Run a job; one measurement for each of its roles, under the name at the same place."""
        asyncio.run(postgres.checkpoint(self.broker.postgres))
        usage = self.broker.usage()
        result = run_job(job, usage)
        rows = [
            Measurement(
                scenario=name,
                round=round_,
                messages_per_s=role.messages / result.seconds,
                requests_per_s=role.requests / result.seconds,
                p50_ms=role.p50_ms,
                p99_ms=role.p99_ms,
                seconds=result.seconds,
                server_cpu_percent=100 * usage.server_cpu_s / result.seconds,
                postgres_cpu_percent=100 * usage.postgres_cpu_s / result.seconds,
                client_cpu_percent=100 * result.cpu_seconds / result.seconds,
                server_rss_bytes=usage.rss_bytes,
                empty=role.empty,
                errors=role.errors,
                first_error=role.first_error,
            )
            for name, role in zip(names, result.roles, strict=True)
        ]
        return result, rows

    def report(self, rows: "Rows") -> None:
        self.results.extend(rows)
        for row in rows:
            self.on_row(row)


Rows = list[Measurement]


@dataclass(frozen=True)
class Scenario:
    name: str
    run: Callable[[Bench, str, int], None]
    rounds: int = 1


@dataclass(frozen=True)
class Group:
    """Scenarios that are measured in turn, round by round."""

    scenarios: list[Scenario]

    def order(self) -> list[tuple[Scenario, int]]:
        rounds = max(scenario.rounds for scenario in self.scenarios)
        return [
            (scenario, number)
            for number in range(rounds)
            for scenario in self.scenarios
            if number < scenario.rounds
        ]


def _per_message(before: int, after: int, messages: int) -> float | None:
    return (after - before) / messages if messages else None


def _queue_name(name: str, round_: int) -> str:
    return f"{name.replace('/', '-')}-{round_}"


def push(
    *, per_request: int, partitions: int, connections: int, dedup: str = "window"
) -> Callable[[Bench, str, int], None]:
    def run(bench: Bench, name: str, round_: int) -> None:
        queue = _queue_name(name, round_)
        bench.broker.configure(queue, dedup)
        _measure_push(bench, name, round_, Push(queue, partitions, per_request, connections))

    return run


def push_frames(*, partitions: int, connections: int) -> Callable[[Bench, str, int], None]:
    def run(bench: Bench, name: str, round_: int) -> None:
        queue = _queue_name(name, round_)
        bench.broker.configure(queue, "window")
        frames = round(_FRAMES_PER_S * (bench.options.seconds + bench.options.warmup_s))
        role = PushFrames(queue, partitions, 100, connections, frames)
        _measure_push(bench, name, round_, role)

    return run


def _measure_push(bench: Bench, name: str, round_: int, role: Push | PushFrames) -> None:
    before = bench.stored_bytes()
    result, rows = bench.measure([name], round_, bench.http_job((role,)))
    messages = result.roles[0].total_messages
    bench.pushed(role.queue, messages)
    stored = _per_message(before, bench.stored_bytes(), messages)
    bench.report([replace(rows[0], stored_bytes_per_message=stored)])


def push_filled(*, partitions: int, connections: int) -> Callable[[Bench, str, int], None]:
    """Push 100 per request to a queue whose partitions all exist and hold messages already."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue = _many_queue(bench, partitions)
        _measure_push(bench, name, round_, Push(queue, partitions, 100, connections))

    return run


def pop_filled(*, partitions: int, connections: int) -> Callable[[Bench, str, int], None]:
    """Pop and ack from that queue, in all rounds as the same group."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue = _many_queue(bench, partitions)
        role = Pop(queue, "g", connections, ack=True, available=bench.unread(queue, "g"))
        _measure_pop(bench, name, round_, role)

    return run


def _many_queue(bench: Bench, partitions: int) -> str:
    queue = f"partitions-{partitions}"
    bench.fill(queue, partitions, requests=max(partitions, _requests_to_read(bench)))
    return queue


def _requests_to_read(bench: Bench) -> int:
    """Enough for a reader of 350,000 msg/s; the run of a faster one ends when all is read."""
    return round(3_500 * (bench.options.seconds + bench.options.warmup_s))


def pop(*, partitions: int, connections: int, ack: bool) -> Callable[[Bench, str, int], None]:
    """Read a queue that was filled before, from its beginning, as a group that is new."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue = f"pop-{partitions}"
        bench.fill(queue, partitions, requests=_requests_to_read(bench))
        group = f"{name}-{round_}"
        role = Pop(queue, group, connections, ack=ack, available=bench.stored(queue))
        _measure_pop(bench, name, round_, role)

    return run


def pop_frames(
    *, partitions: int, connections: int, ack: bool
) -> Callable[[Bench, str, int], None]:
    """The same as leased frames, acknowledged by offsets."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue = f"pop-{partitions}"
        bench.fill(queue, partitions, requests=_requests_to_read(bench))
        group = f"{name}-{round_}"
        role = PopFrames(queue, group, connections, ack=ack, available=bench.stored(queue))
        _measure_pop(bench, name, round_, role)

    return run


def _measure_pop(bench: Bench, name: str, round_: int, role: Pop | PopFrames) -> None:
    result, rows = bench.measure([name], round_, bench.http_job((role,)))
    bench.consumed(role.queue, role.group, result.roles[0].total_messages)
    bench.report(rows)


def mixed(*, partitions: int, connections: int) -> Callable[[Bench, str, int], None]:
    """Producers and consumers at once: half of the connections push, half pop with a long poll."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue = _queue_name(name, round_)
        bench.broker.configure(queue, "window")
        half = connections // 2
        roles = (
            Push(queue, partitions, 100, half),
            Pop(queue, "g", half, ack=True, wait_ms=1_000),
        )
        _, rows = bench.measure([f"{name}/push", f"{name}/pop-ack"], round_, bench.http_job(roles))
        bench.report(rows)

    return run


def fetch(*, connections: int) -> Callable[[Bench, str, int], None]:
    """Stream a stored queue. Messages are counted by bytes, after one fetch has been unpacked."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue = "fetch"
        bench.fill(queue, partitions=100, requests=_FETCH_REQUESTS)
        bench.broker.check_fetch(queue, bench.stored(queue))
        result, rows = bench.measure([name], round_, bench.http_job((Fetch(queue, connections),)))
        whole = _whole_queues(result.roles[0])
        rate = whole * bench.stored(queue) / result.seconds
        bench.report([replace(rows[0], messages_per_s=rate)])

    return run


def _whole_queues(fetched: RoleResult) -> float:
    """How many times the queue was read in the interval; a whole fetch counts as one message."""
    return fetched.received_bytes * fetched.total_messages / max(fetched.total_received_bytes, 1)


def rows(*, per_statement: int, connections: int) -> Callable[[Bench, str, int], None]:
    def run(bench: Bench, name: str, round_: int) -> None:
        address, options = bench.broker.postgres, bench.options
        asyncio.run(baseline.create_table(address))
        job = baseline.RowsJob(
            address,
            partitions=100,
            per_statement=per_statement,
            connections=connections,
            warmup_s=options.warmup_s,
            measure_s=options.seconds,
            seed=bench.seed(),
        )
        result, measured = bench.measure([name], round_, job)
        stored = _per_message(
            0, asyncio.run(baseline.table_bytes(address)), result.roles[0].total_messages
        )
        bench.report([replace(measured[0], stored_bytes_per_message=stored)])

    return run


def client_push(kind: str) -> Callable[[Bench, str, int], None]:
    """Push through the Python client."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue = _queue_name(name, round_)
        bench.broker.configure(queue, "window")
        options = bench.options
        job = ClientJob(
            bench.broker.port, kind, queue, options.warmup_s, options.seconds, bench.seed()
        )
        before = bench.stored_bytes()
        result, rows = bench.measure([name], round_, job)
        messages = result.roles[0].total_messages
        bench.broker.check_fetch(queue, messages)
        stored = _per_message(before, bench.stored_bytes(), messages)
        bench.report([replace(rows[0], stored_bytes_per_message=stored)])

    return run


def client_consume(kind: str) -> Callable[[Bench, str, int], None]:
    """Read the queue of the raw pops through the Python client, as a group that is new."""

    def run(bench: Bench, name: str, round_: int) -> None:
        queue, options = "pop-100", bench.options
        bench.fill(queue, 100, requests=_requests_to_read(bench))
        job = ClientJob(
            bench.broker.port,
            kind,
            queue,
            options.warmup_s,
            options.seconds,
            bench.seed(),
            group=f"{name}-{round_}",
            available=bench.stored(queue),
        )
        bench.report(bench.measure([name], round_, job)[1])

    return run


def plan(options: Options) -> list[Group]:
    many = options.many_partitions
    return [_headline(options.rounds), _matrix(), _mixed(), *_partitions(many, options.rounds)]


def _headline(rounds: int) -> Group:
    """The two sides of every ratio but that of the partitions."""
    return Group(
        [
            Scenario("rows100", rows(per_statement=100, connections=16), rounds),
            Scenario(
                "push100/p100/c16", push(per_request=100, partitions=100, connections=16), rounds
            ),
            Scenario(
                "dedup-off/push100",
                push(per_request=100, partitions=100, connections=16, dedup="off"),
                rounds,
            ),
            Scenario(
                "dedup-forever/push100",
                push(per_request=100, partitions=100, connections=16, dedup="forever"),
            ),
            Scenario("frames100", push_frames(partitions=100, connections=16), rounds),
            Scenario("fetch", fetch(connections=2)),
            Scenario("pop-autoack", pop(partitions=100, connections=16, ack=False), rounds),
            Scenario("pop-ack", pop(partitions=100, connections=16, ack=True), rounds),
            Scenario(
                "pop-frames-autoack", pop_frames(partitions=100, connections=16, ack=False), rounds
            ),
            Scenario(
                "pop-frames-ack", pop_frames(partitions=100, connections=16, ack=True), rounds
            ),
            Scenario("rows1", rows(per_statement=1, connections=64), rounds),
            Scenario("push1/p100/c64", push(per_request=1, partitions=100, connections=64), rounds),
            *_client(rounds),
        ]
    )


def _client(rounds: int) -> list[Scenario]:
    """Through the Python client, in turn with the raw load they are compared with."""
    return [
        Scenario("client/push-buffered", client_push("push-buffered"), rounds),
        Scenario("client/push-bulk", client_push("push-bulk"), rounds),
        Scenario("client/push-list", client_push("push-list"), rounds),
        Scenario("client/push-one", client_push("push-one"), rounds),
        Scenario("client/consume", client_consume("consume"), rounds),
        Scenario("client/consume-each", client_consume("consume-each"), rounds),
        Scenario("client/consume-plain", client_consume("consume-plain"), rounds),
    ]


def _matrix() -> Group:
    """Push of 1, 10 and 100 per request; the two that the headline has already are left out."""
    return Group(
        [
            Scenario(
                f"push{size}/p{partitions}/c{connections}",
                push(per_request=size, partitions=partitions, connections=connections),
            )
            for size in (1, 10, 100)
            for partitions in (1, 100)
            for connections in (16, 64)
            if (size, partitions, connections) not in {(100, 100, 16), (1, 100, 64)}
        ]
    )


def _mixed() -> Group:
    return Group([Scenario("mixed", mixed(partitions=100, connections=16))])


def _partitions(many: int, rounds: int) -> list[Group]:
    """Few against many. Eight connections, because ten partitions lend at most ten leases."""
    both = min(rounds, 2)
    return [
        Group(
            [
                Scenario(f"partitions-{n}/push100", push_filled(partitions=n, connections=8), both)
                for n in (10, many)
            ]
        ),
        Group(
            [
                Scenario(f"partitions-{n}/pop-ack", pop_filled(partitions=n, connections=8), both)
                for n in (10, many)
            ]
        ),
    ]
