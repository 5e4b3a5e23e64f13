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
from typing import TYPE_CHECKING, Generic

from queen.client import tracing
from queen.client.leases.grants import Popped
from queen.client.leases.progress import Progress
from queen.client.queues.messages import M
from queen.client.queues.renewal import KeptLease

if TYPE_CHECKING:
    from queen.client.queues.consumer import Consumer


class Messages(Generic[M]):
    def __init__(self, consumer: Consumer[M]) -> None:
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        self._progress = Progress(Popped(), consumer.settle)
        # The place of the next message, and of the end of those that are still to come.
        self._next = self._end = 0
        # Whether the loop has a message in hand: the one before the next.
        self._is_at_work = False
        self._busy_at = time.monotonic()
        self._signals = contextlib.ExitStack()
        self._signals.enter_context(consumer.stop_on_signals())
        self._kept = KeptLease(None)
        self._is_over = False

    def __aiter__(self) -> Messages[M]:
        return self

    async def __anext__(self) -> M:
        if self._is_at_work:
            self._finish_message()
        lease = self._kept.lease
        if lease is not None and lease.is_lost and self._next < self._end:
            # Somebody else may be at work on the rest of the batch.
            self._consumer.leave(self._next, self._end)
            self._end = self._next
        if self._next < self._end and self._progress.is_due_at(time.monotonic()):
            await self._progress.say()
        while self._next == self._end or self._consumer.is_stopping:
            if self._is_over or not await self._take_batch():
                await self.aclose()
                raise StopAsyncIteration
        message: M = self._progress.batch.messages[self._next]
        self._next += 1
        self._is_at_work = True
        return message

    def _finish_message(self) -> None:
        self._is_at_work = False
        self._progress.done_to = self._next
        self._consumer.handled += 1
        batch, at = self._progress.batch, self._next - 1
        if self._consumer.is_in_turn and batch.is_given_back(at, self._next):
            self._give_back_waiting()

    async def _take_batch(self) -> bool:
        """Get more messages; false when it is time to end."""
        self._kept.let_go()
        if self._progress.count:
            self._consumer.note_pace(self._progress.count, self._busy_at)
        await self._progress.finish()
        said = self._progress.said()
        if not self._consumer.goes_with_pop(said):
            await self._consumer.settle(said)
        if self._consumer.is_stopping or self._consumer.is_at_limit:
            await self._consumer.settle(said)
            return False
        batch = await self._consumer.next_batch(self._busy_at, said)
        if batch is None:
            return False
        self._progress = Progress(batch, self._consumer.settle)
        self._next, self._end = 0, self._progress.count
        if tracing.is_on() and batch.messages:
            tracing.receiving(batch.messages)
        if batch:
            self._busy_at = time.monotonic()
            self._kept = self._consumer.keep_lease(batch)
        return True

    async def aclose(self) -> None:
        """Give back what is not done."""
        if self._is_over:
            return
        self._is_over = True
        self._signals.close()
        self._kept.let_go()
        if self._is_at_work:
            self._is_at_work = False
            at, batch = self._next - 1, self._progress.batch
            self._consumer.failed += not batch.messages[at].is_settled
            self._progress.fail(at, self._next, "the loop was left before it was done")
        self._give_back_waiting()
        await self._progress.say()

    def _give_back_waiting(self) -> None:
        if self._next < self._end:
            self._consumer.leave(self._next, self._end)
            self._progress.give_back(self._next)
            self._end = self._next

    def __del__(self) -> None:
        if not self._is_over and not self._loop.is_closed():
            self._consumer.finish(self._loop, self.aclose)
