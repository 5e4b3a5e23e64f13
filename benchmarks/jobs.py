"""Jobs: one measurement, done in a process of its own.

The parent watches processor time and memory of the server and of PostgreSQL while the child makes
the load. The child says when its measured interval begins and ends, and then sends its result:

    child ──"measuring"──▶ ──"measured"──▶ ──JobResult | Failure──▶ parent
"""

import multiprocessing
import traceback
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Protocol

import numpy as np

from benchmarks import load
from benchmarks.roles import Role

_SAMPLE_S = 0.5


class BenchError(Exception):
    """A measurement could not be made; the message says why."""


@dataclass(frozen=True)
class RoleResult:
    """What one role did in the measured interval and, as `total`, from first to last request."""

    messages: int
    requests: int
    received_bytes: int
    p50_ms: float
    p99_ms: float
    total_messages: int
    total_received_bytes: int
    empty: int = 0
    errors: int = 0
    first_error: str = ""


@dataclass(frozen=True)
class JobResult:
    seconds: float
    cpu_seconds: float
    roles: list[RoleResult]


@dataclass(frozen=True)
class Failure:
    text: str


class Job(Protocol):
    def work(self, on_phase: Callable[[str], None]) -> JobResult:
        """Make the load. Runs in the child."""


class Watch(Protocol):
    """The parent's side: told of the phases and, in between, asked to take a sample."""

    def begin(self) -> None: ...
    def sample(self) -> None: ...
    def end(self) -> None: ...


def percentiles_ms(latencies_ns: "array[int]", start: int, end: int) -> tuple[float, float]:
    taken = np.frombuffer(latencies_ns, np.int64)[start:end]
    if not len(taken):
        return 0.0, 0.0
    p50, p99 = np.percentile(taken, (50, 99))
    return float(p50) / 1e6, float(p99) / 1e6


@dataclass(frozen=True)
class HttpJob:
    """Roles against the broker's HTTP port, all in one process."""

    port: int
    roles: tuple[Role, ...]
    warmup_s: float
    measure_s: float
    seed: int

    def work(self, on_phase: Callable[[str], None]) -> JobResult:
        host = f"127.0.0.1:{self.port}"
        exchanges = [
            exchange
            for number, role in enumerate(self.roles)
            for exchange in role.exchanges(host, self.seed * 16 + number)
        ]
        tallies = list({id(exchange.tally): exchange.tally for exchange in exchanges}.values())
        run = load.Run(
            [load.Connection(("127.0.0.1", self.port), exchange) for exchange in exchanges],
            warmup_s=self.warmup_s,
            measure_s=self.measure_s,
            on_phase=on_phase,
        )
        interval = run.drive()
        results = [
            _role_result(tally, before, after)
            for tally, (before, after) in zip(tallies, interval.marks, strict=True)
        ]
        return JobResult(interval.seconds, interval.cpu_seconds, results)


def _role_result(tally: load.Tally, before: load.Mark, after: load.Mark) -> RoleResult:
    p50_ms, p99_ms = percentiles_ms(tally.latencies_ns, before.requests, after.requests)
    return RoleResult(
        messages=after.messages - before.messages,
        requests=after.requests - before.requests,
        received_bytes=after.received_bytes - before.received_bytes,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        total_messages=tally.messages,
        total_received_bytes=tally.received_bytes,
        empty=after.empty - before.empty,
        errors=tally.errors,
        first_error=tally.first_error,
    )


def _child(job: Job, pipe: Pipe) -> None:
    try:
        pipe.send(job.work(pipe.send))
    except Exception:
        pipe.send(Failure(traceback.format_exc()))


def run_job(job: Job, watch: Watch) -> JobResult:
    """Run a job in a new process and keep the watch informed."""
    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    process = context.Process(target=_child, args=(job, far_end), daemon=True)
    process.start()
    far_end.close()
    try:
        return _follow(pipe, watch)
    except EOFError:
        raise BenchError("the load process died") from None
    finally:
        pipe.close()
        process.join()


def _follow(pipe: Pipe, watch: Watch) -> JobResult:
    measuring = False
    while True:
        if measuring and not pipe.poll(_SAMPLE_S):
            watch.sample()
            continue
        event = pipe.recv()
        if event == "measuring":
            watch.begin()
            measuring = True
        elif event == "measured":
            watch.end()
            measuring = False
        elif isinstance(event, Failure):
            raise BenchError(event.text)
        else:
            assert isinstance(event, JobResult)
            return event
