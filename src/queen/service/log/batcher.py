"""Group commit without a timer.

Work that arrives while a flush is in flight waits for it and then goes together. So batches
grow with load, and a lone request waits for nobody. One flush is in flight at a time:
measured against two, the batches are bigger and the commits fewer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from queen.core.pacing.shares import FairOrder
from queen.errors import Overloaded


class Sized(Protocol):
    @property
    def weight(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Batcher(Generic[T]):
    """Collects items and hands them to `flush` in order, as many as fit, one call at a time.

    `flush` answers each item itself and must not raise.
    """

    def __init__(
        self,
        flush: Callable[[list[T]], Awaitable[None]],
        *,
        max_items: int,
        max_weight: int,
        max_waiting_weight: int,
        at_once: bool = False,
        order: FairOrder[T] | None = None,
    ) -> None:
        self._flush = flush
        self._max_items = max_items
        self._max_weight = max_weight
        self._max_waiting_weight = max_waiting_weight
        # What belongs together is submitted together: nobody else has to be waited for.
        self._at_once = at_once
        # As it came, unless namespaces have weights.
        self._order = order
        self._waiting: deque[T] | FairOrder[T] = deque() if order is None else order
        self._waiting_weight = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting_weight(self) -> int:
        return self._waiting_weight

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def check_room(self, weight: int, item: T | None = None) -> None:
        """Raise `Overloaded` when so much more may not wait; `item` is what it is, if it is one."""
        if not self._waiting or self._waiting_weight + weight <= self._max_waiting_weight:
            return
        most = self._max_waiting_weight
        if self._order is None or item is None:
            raise Overloaded
        if not self._order.has_room(item, self._waiting_weight, most):
            raise Overloaded

    def submit(self, item: T) -> None:
        self._waiting.append(item)
        self._waiting_weight += item.weight
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def drain(self) -> None:
        """Return when nothing is waiting and nothing is in flight."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        if not self._at_once:
            # One turn of the loop first: requests that arrived together go together.
            await asyncio.sleep(0)
        try:
            while self._waiting:
                await self._flush(self._take())
        finally:
            self._task = None

    def _take(self) -> list[T]:
        taken: list[T] = []
        weight = 0
        while self._waiting and len(taken) < self._max_items:
            item = self._waiting[0]
            if taken and weight + item.weight > self._max_weight:
                break
            weight += item.weight
            taken.append(self._waiting.popleft())
        self._waiting_weight -= weight
        return taken
