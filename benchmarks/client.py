"""Load through the Python client, as a user's program makes it.

The same job protocol as the raw load generator, in a process of its own, on plain asyncio. What
is counted is what the user's code sees: a push that has returned, a message that a handler got.
Buffered pushes count when they are stored, not when `push` returns.

    push-buffered   one task pushes one message at a time into a buffer of 5,000; frames are sent
    push-bulk       two tasks push lists of 1,000; frames are sent
    push-list       16 tasks push lists of 100; frames are sent, several lists in a request
    push-one        64 tasks await one message at a time, and share requests
    consume         4 consumers, batches of 100, a handler that does nothing
    consume-each    the same, one message at a time to the handler
    consume-plain   `consume(handler)` with nothing else said, and a handler that reads one field
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.jobs import JobResult, RoleResult, percentiles_ms
from benchmarks.load import Mark, Tally
from benchmarks.messages import MessagePool, partition_for, partition_name
from queen import Queen, Received

_BULK = 1_000
_BULK_TASKS = 2
_LIST = 100
_LIST_TASKS = 16
_ONE_TASKS = 64
_BUFFER = 5_000
_CONSUMERS = 4
_BATCH = 100
_LOOK_S = 0.01
_GIVE_UP_S = 60.0


@dataclass(frozen=True)
class ClientJob:
    """One way to use the client, measured for a while."""

    port: int
    kind: str
    queue: str
    warmup_s: float
    measure_s: float
    seed: int
    partitions: int = 100
    group: str = ""
    available: int | None = None

    def work(self, on_phase: Callable[[str], None]) -> JobResult:
        return asyncio.run(self._work(on_phase))

    async def _work(self, on_phase: Callable[[str], None]) -> JobResult:
        load = _Load(self)
        async with Queen(f"http://127.0.0.1:{self.port}") as queen:
            working = asyncio.create_task(_run(self.kind, queen, load))
            seconds, cpu_s, before, after = await _measured(self, load, working, on_phase)
            load.stopping = True
            load.stop()
            await working
        p50_ms, p99_ms = percentiles_ms(load.tally.latencies_ns, before.requests, after.requests)
        role = RoleResult(
            messages=after.messages - before.messages,
            requests=after.requests - before.requests,
            received_bytes=0,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            total_messages=load.tally.messages,
            total_received_bytes=0,
            errors=load.tally.errors,
            first_error=load.tally.first_error,
        )
        return JobResult(seconds, cpu_s, [role])


@dataclass
class _Load:
    """What the tasks of a job share."""

    job: ClientJob
    tally: Tally = field(default_factory=Tally)
    stopping: bool = False
    stop: Callable[[], None] = lambda: None

    def payloads(self) -> Iterator[tuple[str, Any]]:
        """Decoded payloads with the partition of each; a hundred to one, then the next."""
        pool = [msgspec.json.decode(one) for one in MessagePool(self.job.seed).payloads]
        for serial in itertools.count():
            partition = partition_name(partition_for(serial, self.job.partitions))
            at = serial * 100 % (len(pool) - 100)
            for payload in pool[at : at + 100]:
                yield partition, payload

    def took(self, began_ns: int, messages: int) -> None:
        self.tally.latencies_ns.append(time.perf_counter_ns() - began_ns)
        self.tally.messages += messages


async def _measured(
    job: ClientJob, load: _Load, working: "asyncio.Task[None]", on_phase: Callable[[str], None]
) -> tuple[float, float, Mark, Mark]:
    await _until(lambda: load.tally.messages > 0, _GIVE_UP_S, working)
    await _until(lambda: False, job.warmup_s, working)
    on_phase("measuring")
    began, began_cpu, before = time.perf_counter(), time.process_time(), _mark(load.tally)
    await _until(lambda: load.tally.exhausted, job.measure_s, working)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    after = _mark(load.tally)
    on_phase("measured")
    return seconds, cpu_s, before, after


async def _until(holds: Callable[[], bool], limit_s: float, working: "asyncio.Task[None]") -> None:
    ends = time.perf_counter() + limit_s
    # A counter that is cheap to raise, and a clock: there is no event to wait for.
    while not holds() and not working.done() and time.perf_counter() < ends:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)


def _mark(tally: Tally) -> Mark:
    return Mark(tally.messages, len(tally.latencies_ns), 0, 0)


async def _push_buffered(queen: Queen, load: _Load) -> None:
    """Count a message when it has left the buffer, which it does once it is stored."""
    builders = {
        name: queen.queue(load.job.queue).partition(name).buffer(_BUFFER)
        for name in map(partition_name, range(load.job.partitions))
    }
    pushed = 0
    for partition, payload in load.payloads():
        await builders[partition].push(payload)
        pushed += 1
        if pushed % 100 == 0:
            # A task that never waits would let nobody else run.
            await asyncio.sleep(0)
            load.tally.messages = pushed - len(queen.buffers)
            if load.stopping:
                break
    await queen.flush()
    load.tally.messages = pushed


async def _push_bulk(queen: Queen, load: _Load) -> None:
    await _push_lists(queen, load, _BULK, _BULK_TASKS)


async def _push_list(queen: Queen, load: _Load) -> None:
    await _push_lists(queen, load, _LIST, _LIST_TASKS)


async def _push_lists(queen: Queen, load: _Load, size: int, tasks: int) -> None:
    payloads = load.payloads()
    numbers = itertools.count()

    async def task() -> None:
        while not load.stopping:
            partition = partition_name(partition_for(next(numbers), load.job.partitions))
            many = [payload for _, payload in itertools.islice(payloads, size)]
            began_ns = time.perf_counter_ns()
            await queen.queue(load.job.queue).partition(partition).push(many)
            load.took(began_ns, len(many))

    await asyncio.gather(*(task() for _ in range(tasks)))


async def _push_one(queen: Queen, load: _Load) -> None:
    payloads = load.payloads()

    async def task() -> None:
        while not load.stopping:
            partition, payload = next(payloads)
            began_ns = time.perf_counter_ns()
            await queen.queue(load.job.queue).partition(partition).push(payload)
            load.took(began_ns, 1)

    await asyncio.gather(*(task() for _ in range(_ONE_TASKS)))


async def _consume(queen: Queen, load: _Load, *, each: bool = False) -> None:
    queue = queen.queue(load.job.queue).group(load.job.group)
    queue = queue.batch(_BATCH).concurrency(_CONSUMERS).wait(1)
    tally, available = load.tally, load.job.available

    async def handle(given: Any) -> None:
        tally.messages += 1 if each else len(given)
        tally.exhausted = available is not None and tally.messages >= available

    consumer = (queue.each() if each else queue).consume(handle, signals=False)
    load.stop = consumer.stop
    await consumer
    if consumer.failed:
        tally.fail(0, b"a handler failed")


async def _consume_each(queen: Queen, load: _Load) -> None:
    await _consume(queen, load, each=True)


async def _consume_plain(queen: Queen, load: _Load) -> None:
    tally, available = load.tally, load.job.available

    async def handle(message: Received) -> None:
        tally.messages += 1 if message.data is not None else 0
        tally.exhausted = available is not None and tally.messages >= available

    queue = queen.queue(load.job.queue).group(load.job.group).wait(1)
    consumer = queue.consume(handle, signals=False)
    load.stop = consumer.stop
    await consumer
    if consumer.failed:
        tally.fail(0, b"a handler failed")


async def _run(kind: str, queen: Queen, load: _Load) -> None:
    await _KINDS[kind](queen, load)


_KINDS: dict[str, Callable[[Queen, _Load], Awaitable[None]]] = {
    "push-buffered": _push_buffered,
    "push-bulk": _push_bulk,
    "push-list": _push_list,
    "push-one": _push_one,
    "consume": _consume,
    "consume-each": _consume_each,
    "consume-plain": _consume_plain,
}
