"""Work that waits for something slow, away from the work it would hold up.

One flush is in flight at a time, so whatever it waits for, everybody waits for. What turns out
to be slow (a partition that somebody else has locked, ids that have to be compared with stored
ones) leaves the flush and is tried alone, and what comes later for the same key waits behind
it. Keys do not wait for each other, but only a few are tried at the same time: each try takes
a connection to the database.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic

from queen.errors import Contended, QueenError
from queen.service.log.batcher import T

_AT_ONCE = 2
# What is locked is tried again after a pause, for so long.
_PAUSE_S = 0.05
_PATIENCE_S = 10.0


class Aside(Generic[T]):
    """Hands items of one key to `flush`, in order, one call at a time for each key.

    `flush` answers each item itself. It raises `Contended`, and nothing else, when somebody
    holds what it needs; after a while `fail` gets the items with that.
    """

    def __init__(
        self,
        flush: Callable[[list[T]], Awaitable[None]],
        fail: Callable[[list[T], QueenError], None],
        *,
        max_items: int,
        max_weight: int,
    ) -> None:
        self._flush = flush
        self._fail = fail
        self._max_items = max_items
        self._max_weight = max_weight
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting: dict[Hashable, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.weight = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def holds(self, key: Hashable) -> bool:
        """Whether something of a key is aside: what comes now must wait behind it."""
        return key in self._waiting

    def put(self, key: Hashable, items: Iterable[T]) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            task = asyncio.create_task(self._run(key, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for item in items:
            waiting.append(item)
            self.weight += item.weight

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, key: Hashable, waiting: deque[T]) -> None:
        try:
            while waiting:
                await self._flush_patiently(self._take(waiting))
        finally:
            del self._waiting[key]

    async def _flush_patiently(self, items: list[T]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                async with self._slots:
                    await self._flush(items)
                return
            except Contended as error:
                if time.monotonic() > deadline:
                    self._fail(items, error)
                    return
            await asyncio.sleep(_PAUSE_S)

    def _take(self, waiting: deque[T]) -> list[T]:
        taken: list[T] = []
        weight = 0
        while waiting and len(taken) < self._max_items:
            if taken and weight + waiting[0].weight > self._max_weight:
                break
            weight += waiting[0].weight
            taken.append(waiting.popleft())
        self.weight -= weight
        return taken
