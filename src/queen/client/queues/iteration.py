"""Messages one at a time, for a loop.

Asking for the next message acks the last. A loop that is left early, by `break`, `return` or an
exception, gives the message at hand back as failed, and the rest of its batch without fault:
Python tells an iterator nothing when a loop is left, so it cannot know whether that message is
done. Whoever leaves with it done acks it first, or sets a `limit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Generic

from queen.client.queues.messages import AckItem, M, ack_of

if TYPE_CHECKING:
    from queen.client.queues.consumer import Consumer
    from queen.client.queues.renewal import BatchLease


class Messages(Generic[M]):
    def __init__(self, consumer: Consumer[M]) -> None:
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[M] = deque()
        self._current: M | None = None
        self._done: list[AckItem] = []
        self._sent_at = self._busy_at = time.monotonic()
        self._signals = contextlib.ExitStack()
        self._signals.enter_context(consumer.stop_on_signals())
        self._renewal = contextlib.AsyncExitStack()
        self._lease: BatchLease | None = None
        # Who granted the lease of the batch at hand.
        self._server = ""
        self._is_over = False

    def __aiter__(self) -> Messages[M]:
        return self

    async def __anext__(self) -> M:
        from queen.client.queues.consumer import ack_items, is_time_to_settle

        if self._current is not None:
            self._done += ack_items([self._current], None)
            self._current = None
            self._consumer.handled += 1
        if self._done and (not self._waiting or is_time_to_settle(self._done, self._sent_at)):
            await self._settle()
        if self._lease is not None and self._lease.is_lost:
            # Somebody else may be at work on the rest of the batch.
            self._waiting.clear()
        while not self._waiting or self._consumer.is_stopping:
            if self._is_over or not await self._take_batch():
                await self.aclose()
                raise StopAsyncIteration
        self._current = self._waiting.popleft()
        return self._current

    async def _take_batch(self) -> bool:
        """Get more messages; false when it is time to end."""
        await self._renewal.aclose()
        if self._consumer.is_stopping or self._consumer.is_at_limit:
            return False
        batch = await self._consumer.next_batch(self._busy_at)
        if batch:
            self._waiting.extend(batch)
            self._sent_at = self._busy_at = time.monotonic()
            self._server = batch[0]._server
            self._lease = await self._renewal.enter_async_context(self._consumer.keep_lease(batch))
        return batch is not None

    async def _settle(self) -> None:
        done, self._done, self._sent_at = self._done, [], time.monotonic()
        await self._consumer.settle(done, self._server)

    async def aclose(self) -> None:
        """Give back what is not done."""
        from queen.client.queues.consumer import ack_items

        if self._is_over:
            return
        self._is_over = True
        self._signals.close()
        await self._renewal.aclose()
        if self._current is not None:
            self._done += ack_items([self._current], "the loop was left before it was done")
            self._consumer.failed += not self._current.is_settled
        self._done += [ack_of(message, "retry") for message in self._waiting]
        self._current = None
        self._waiting.clear()
        await self._settle()

    def __del__(self) -> None:
        if not self._is_over and not self._loop.is_closed():
            self._consumer.finish(self._loop, self.aclose)
