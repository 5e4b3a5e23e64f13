"""A worker beside a test, in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from queen import Queen
from queen.client.tasks.worker import Worker, WorkerOptions


@asynccontextmanager
async def working(
    queen: Queen,
    concurrency: int = 8,
    grace_s: float = 30,
    *,
    shared: bool | None = None,
    ahead: int = 1,
) -> AsyncIterator[Worker]:
    """Run what tasks a client knows, until the block ends; the first pop takes jobs ahead."""
    worker = Worker(queen, options=WorkerOptions(concurrency, grace_s, shared=shared))
    for consumer in worker.consumers:
        consumer._ahead.size = ahead
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running
