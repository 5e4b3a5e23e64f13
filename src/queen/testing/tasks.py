"""Tasks in tests: run at once without a worker, or by a worker until nothing is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from queen.client import Queen, SyncQueen
from queen.client.tasks.eager import EagerJobs
from queen.client.tasks.worker import Worker, WorkerOptions


@contextmanager
def eager(queen: Queen | SyncQueen) -> Iterator[EagerJobs]:
    """Let `delay`, `after` and `at` call their tasks at once, without a broker.

    Arguments and results travel as JSON, as they always do; what a task raises, its job's
    `result()` raises as `JobFailed`. The block's value has the `jobs`, in their order.
    """
    client = queen if isinstance(queen, Queen) else queen.asynchronous
    before, client.eager_jobs = client.eager_jobs, EagerJobs()
    try:
        yield client.eager_jobs
    finally:
        client.eager_jobs = before


async def run_jobs(
    queen: Queen, queues: Sequence[str] = (), *, concurrency: int = 8, idle_s: float = 0.5
) -> int:
    """Run the jobs that wait, as a worker does, until nothing came for `idle_s`; return how many
    were done."""
    worker = Worker(queen, queues, WorkerOptions(concurrency, idle_s=idle_s))
    await worker.run()
    return sum(consumer.handled for consumer in worker.consumers)
