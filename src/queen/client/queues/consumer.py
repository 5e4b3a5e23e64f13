"""Consumers: pop, handle, ack, and stop in good order.

A worker leases a batch, gives it to the handler, and tells the broker what became of it. While
the handler works, the lease is prolonged at half its time; one that is lost nevertheless ends the
batch, because what is left of it comes to somebody else. When it is told to stop, it finishes the
message it is at, gives the rest of its batch back without fault, and takes no more: nothing is
lost and nothing is done twice.

There are as many slots as handlers may run at once, and twice as many workers. A worker holds a
slot from its pop until its handler returns; while its acks are on their way, another one uses
the slot. So the next batch is fetched while the last one is acked, but none is leased that no
handler is free for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic

from queen.client.queues.iteration import Messages
from queen.client.queues.messages import AckItem, M, ack_of
from queen.client.queues.renewal import BatchLease
from queen.client.queues.running import Runner, pause_after_nothing
from queen.client.transport.http import Poll
from queen.errors import QueenError

if TYPE_CHECKING:
    from queen.client.queues.queue import QueueBuilder

# Takes one message (with `each`, or a batch of one) or a list of them.
Handler = Callable[[Any], Awaitable[Any] | Any]

_log = logging.getLogger("queen.client")

# Acks of messages that are handled one by one are sent together, but not kept for long.
_ACK_EVERY = 100
_ACK_EVERY_S = 0.1
# What a pop that failed for good waits before it is tried again.
_PAUSE_S = 1.0


class Consumer(Runner, Generic[M]):
    """Awaited, it runs its handler; iterated over, it yields messages."""

    def __init__(self, queue: QueueBuilder, handler: Handler | None, *, signals: bool) -> None:
        super().__init__(queue._queen, concurrency=queue._concurrency, signals=signals)
        self._queue = queue
        self._handler = handler
        self._left = queue._limit
        self._lease_s = 0.0
        # When something was last handled.
        self._busy_at = time.monotonic()

    def __await__(self) -> Generator[Any, None, Consumer[M]]:
        return self.run().__await__()

    async def run(self) -> Consumer[M]:
        """Consume until stopped, until the limit, or until idle for too long."""
        if self._handler is None:
            raise ValueError("consume() was given no handler: await consume(handler)")
        slots = asyncio.Semaphore(self._queue._concurrency)
        workers = [self._work(self._handler, slots) for _ in range(2 * self._queue._concurrency)]
        self._busy_at = time.monotonic()
        await self._run_all(workers)
        return self

    def __aiter__(self) -> Messages[M]:
        """Yield messages one at a time; asking for the next acks the last."""
        return Messages(self)

    @property
    def is_at_limit(self) -> bool:
        return self._left == 0

    # ---- a worker ----

    async def _work(self, handler: Handler, slots: asyncio.Semaphore) -> None:
        while await self._work_once(handler, slots):
            pass

    async def _work_once(self, handler: Handler, slots: asyncio.Semaphore) -> bool:
        """Take a batch, handle it, say what became of it; return whether to go on."""
        async with contextlib.AsyncExitStack() as lease:
            async with slots:
                if self.is_stopping or self.is_at_limit:
                    return False
                batch = await self.next_batch(self._busy_at)
                if not batch:
                    return batch is not None
                kept_lease = await lease.enter_async_context(self.keep_lease(batch))
                acks = await self._handle_batch(handler, batch, kept_lease)
                self._busy_at = time.monotonic()
            await self.settle(acks, batch[0]._server)
        return True

    async def next_batch(self, busy_at: float) -> list[Any] | None:
        """Return the next batch; empty when none came, None when it is time to end."""
        size, wait_s = self._queue._batch, self._queue._wait_s
        if self._queue._idle_s is not None:
            idle_left_s = busy_at + self._queue._idle_s - time.monotonic()
            if idle_left_s <= 0:
                return None
            wait_s = min(wait_s, idle_left_s)
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
        batch = await self._pop_unless_stopped(wait_s, size)
        if self._left is not None:
            self._left += size - len(batch)
        self.received += len(batch)
        return batch

    async def _pop(self, wait_s: float, size: int, poll: Poll) -> list[Any]:
        asked_at = time.monotonic()
        try:
            popped = await self._queue._pop(wait_s, size, False, poll)
        except QueenError as error:
            if poll.is_given_up:
                return []
            if not error.retryable:
                raise
            _log.warning("pop: %s", error)
            await asyncio.sleep(_PAUSE_S)
            return []
        self._lease_s = popped.lease_s
        if not popped.messages:
            await pause_after_nothing(asked_at)
        return popped.messages

    async def _pop_unless_stopped(self, wait_s: float, size: int) -> list[Any]:
        """Pop. When told to stop meanwhile, take only what the server has sent already."""
        poll = Poll()
        return await self._ask_unless_stopped(poll, self._pop(wait_s, size, poll)) or []

    async def _handle_batch(
        self, handler: Handler, batch: list[Any], lease: BatchLease | None
    ) -> list[AckItem]:
        """Give a batch to the handler; return what is still to be said of it."""
        if self._queue._each:
            return await self._handle_each(handler, batch, lease)
        given = batch[0] if self._queue._batch == 1 else batch
        error = await self._run_handler(handler, given, batch)
        return ack_items(batch, error)

    async def _handle_each(
        self, handler: Handler, batch: list[Any], lease: BatchLease | None
    ) -> list[AckItem]:
        acks: list[AckItem] = []
        sent_at = time.monotonic()
        for message in batch:
            if lease is not None and lease.is_lost:
                # Somebody else may be at work on the rest.
                break
            if self.is_stopping:
                acks.append(ack_of(message, "retry"))
                continue
            error = await self._run_handler(handler, message, [message])
            acks += ack_items([message], error)
            if is_time_to_settle(acks, sent_at):
                await self.settle(acks, message._server)
                acks, sent_at = [], time.monotonic()
        return acks

    async def _run_handler(
        self, handler: Handler, given: Any, messages: list[Any]
    ) -> Exception | None:
        """Run the handler; return what it raised."""
        try:
            await self._call(handler, given)
        except Exception as error:
            self.failed += len(messages)
            _log.warning("a handler failed: %s", type(error).__name__)
            await self._tell(self._queue._on_error, messages, error)
            return error
        self.handled += len(messages)
        await self._tell(self._queue._on_success, messages)
        return None

    async def settle(self, acks: list[AckItem], server: str) -> None:
        """Say what became of messages to the server that granted their lease."""
        if not acks or not self._queue._auto_ack:
            return
        try:
            results = await self._queue._queen.settle(acks, self._queue._group, server)
        except QueenError as error:
            if not error.retryable:
                raise
            _log.warning("%d messages could not be settled; they come again: %s", len(acks), error)
            return
        lost = sum(not result.success for result in results)
        if lost:
            _log.warning("%d messages were no longer leased to us; they come again", lost)

    @contextlib.asynccontextmanager
    async def keep_lease(self, batch: list[Any]) -> AsyncIterator[BatchLease | None]:
        """Keep the lease of a batch alive while it is worked on, if it is to be."""
        if not self._queue._renews or not self._lease_s or not batch[0].lease_id:
            yield None
            return
        lease = BatchLease(self._queue._queen, batch[0], self._lease_s)
        renewing = asyncio.create_task(lease.keep())
        try:
            yield lease
        finally:
            renewing.cancel()


def ack_items(messages: list[Any], error: Exception | str | None) -> list[AckItem]:
    """Say what became of messages, but for those whose handler has said so itself."""
    status = "completed" if error is None else "failed"
    return [ack_of(message, status, error) for message in messages if not message.is_settled]


def is_time_to_settle(acks: list[AckItem], sent_at: float) -> bool:
    return len(acks) >= _ACK_EVERY or time.monotonic() - sent_at > _ACK_EVERY_S
