"""A worker: runs the jobs of an application's queues, and stops in good order.

Told to stop, it takes no more jobs and lets those that run go on for a while. What is not done by
then is given back, so that another worker has it at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from queen.client.queen import Queen
from queen.client.queues.queue import Queue
from queen.client.queues.running import run_all
from queen.client.tasks.running import TaskConsumer
from queen.client.tasks.task import DEFAULT_GROUP, BaseTask

_log = logging.getLogger("queen.worker")

DEFAULT_CONCURRENCY = 8
DEFAULT_GRACE_S = 30.0


class WorkerOptions(NamedTuple):
    """How much a worker does at once, and how it ends."""

    # How many jobs of a queue run at once.
    concurrency: int = DEFAULT_CONCURRENCY
    # How long jobs that run may take after it was told to stop.
    grace_s: float = DEFAULT_GRACE_S
    # It ends when nothing came for so long; None runs on.
    idle_s: float | None = None
    # Whether jobs of one partition run side by side; None: as the group is already.
    shared: bool | None = None


class Worker:
    """Runs the tasks that a client knows, of all its queues or of some."""

    def __init__(
        self, queen: Queen, queues: Sequence[str] = (), options: WorkerOptions | None = None
    ) -> None:
        self.options = options or WorkerOptions()
        unknown = [name for name in queues if name not in queen.tasks]
        if unknown or not queen.tasks:
            known = ", ".join(sorted(queen.tasks)) or "none"
            asked = ", ".join(unknown) or "any queue"
            raise ValueError(f"there are no tasks for {asked}; queues with tasks are {known}")
        self.queues = sorted(queues or queen.tasks)
        self._queen = queen
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_stopping = False
        self.consumers = [self._consumer(name, queen.tasks[name]) for name in self.queues]

    def _consumer(self, name: str, tasks: dict[str, BaseTask[Any, Any]]) -> TaskConsumer:
        # Options that one task's queue was given are those of all: they are of the queue.
        first = next(iter(tasks.values())).queue
        queue = Queue(self._queen, name)
        queue.__dict__.update(first.__dict__)
        queue._owner = self._queen
        queue = queue.concurrency(self.options.concurrency).subscription_mode("all")
        queue = queue if queue._group else queue.group(DEFAULT_GROUP)
        if self.options.idle_s is not None:
            queue = queue.idle(self.options.idle_s)
        if self.options.shared is not None:
            queue = queue.shared(self.options.shared)
        return TaskConsumer(queue, tasks)

    def stop(self) -> None:
        """Take no more jobs; finish those that run, as long as they may take. From any thread."""
        self.is_stopping = True
        for consumer in self.consumers:
            consumer.stop()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    @property
    def running(self) -> int:
        """How many jobs run now."""
        return sum(consumer.running for consumer in self.consumers)

    async def run(self) -> int:
        """Run until stopped; return how many jobs were given back because they took too long."""
        self._loop = asyncio.get_running_loop()
        if self.is_stopping:
            return 0
        work = asyncio.ensure_future(
            run_all([consumer.run() for consumer in self.consumers], self.stop)
        )
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait((work,), timeout=self.options.grace_s)
            if work.done():
                work.result()
                return 0
            return await self._give_up(work)
        finally:
            stopping.cancel()

    async def _give_up(self, work: asyncio.Future[None]) -> int:
        """Give back what still runs. Threads cannot be ended: the process has to be."""
        counts = [await consumer.give_back_open() for consumer in self.consumers]
        _log.warning(
            "%d jobs took more than %g s and were given back", sum(counts), self.options.grace_s
        )
        return sum(counts)
