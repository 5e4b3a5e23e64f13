"""Consumers: pop, handle, ack, and stop in good order.

A worker leases a batch, gives it to the handler, and tells the broker what became of it. While
the handler works, the lease is prolonged at half its time; one that is lost nevertheless ends the
batch, because what is left of it comes to somebody else. When it is told to stop, it finishes the
message it is at, gives the rest of its batch back without fault, and takes no more: nothing is
lost and nothing is done twice.

There are as many slots as handlers may run at once, and twice as many workers. A worker holds a
slot from its pop until its handler returns, and then says what became of the batch in the request
for the next one. To a server that does not know that, or where it cannot be said so, it says it by
itself, and another worker uses the slot meanwhile. No batch is leased that no handler is free for.

A handler that is quick gets what was taken ahead of it, a message or a list at a time, as if each
had been taken alone: when one fails, those that were taken with it are given back, and it comes
again before them. With `each`, and in a shared group, a message that fails holds up no other.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic

from queen.client import tracing
from queen.client.leases.acks import LostAcks, Said
from queen.client.leases.grants import Popped
from queen.client.leases.progress import Progress
from queen.client.leases.stretch import Stretch
from queen.client.queues.ahead import Ahead
from queen.client.queues.iteration import Messages
from queen.client.queues.messages import M
from queen.client.queues.one_partition import OnePartition
from queen.client.queues.renewal import BatchLease, KeptLease
from queen.client.queues.running import (
    Runnable,
    Runner,
    failure_of,
    is_ours,
    pause_after_nothing,
)
from queen.client.transport.http import Poll
from queen.errors import HandlerTimeout, LeaseLost, QueenError

if TYPE_CHECKING:
    from queen.client.queues.queue import QueueBuilder

# Takes one message (with `each`, or a batch of one) or a list of them.
Handler = Callable[[Any], Awaitable[Any] | Any]

_log = logging.getLogger("queen.client")

# What a pop that failed for good waits before it is tried again.
_PAUSE_S = 1.0


class Consumer(Runner, Runnable["Consumer[M]"], Generic[M]):
    """Awaited, it runs its handler; iterated over, it yields messages."""

    def __init__(self, queue: QueueBuilder, handler: Handler | None, *, signals: bool) -> None:
        super().__init__(queue._queen, concurrency=queue._concurrency, signals=signals)
        self._queue = queue
        self._handler = handler
        self._rules = queue._rules
        self._is_async = inspect.iscoroutinefunction(handler)
        # Whether it is no coroutine function, and makes coroutines nevertheless.
        self._is_awaited = False
        # Handlers in several threads are counted.
        self._counting = threading.Lock()
        self._left = queue._limit
        batch = queue._batch or 1
        # How many messages a handler gets at once; 0 when it gets one, and no list.
        self._list_size = batch if batch > 1 and handler is not None and not queue._each else 0
        # Whether what fails comes again before the next message, or list, is handled.
        comes_singly = queue._batch is None or self._list_size > 0
        self.is_in_turn = comes_singly and not queue._shared
        # Whoever acks by hand, lets leases lapse, asks for one, or loops over so many, counts on
        # having no more.
        is_free = queue._auto_ack and queue._renews
        self._takes_ahead = is_free and (comes_singly or (batch > 1 and handler is not None))
        self._ahead = Ahead(batch)
        # When something was last handled.
        self._busy_at = time.monotonic()
        watched = 1 if queue._shared else queue._concurrency
        self._one_partition = OnePartition(watched, self._describe())

    def _describe(self) -> str:
        queue, group = self._queue, self._queue._group
        name = queue.name or f"namespace={queue._namespace!r} task={queue._task!r}"
        partition = f"/{queue._partition}" if queue._partition else ""
        return f"{name}{partition} group={group!r}" if group else f"{name}{partition}"

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
        """Take batches and handle them, for as long as what became of one can be said in the
        request for the next; then say it, and return whether to go on."""
        kept = KeptLease(None)
        said = Said()
        overdue: asyncio.Future[Any] | None = None
        try:
            async with slots:
                while overdue is None and not (self.is_stopping or self.is_at_limit):
                    kept.let_go()
                    batch = await self.next_batch(self._busy_at, said)
                    if not batch:
                        return batch is not None
                    kept = self.keep_lease(batch)
                    said, overdue = await self._handle_kept(handler, batch, kept.lease)
                    if not self.goes_with_pop(said):
                        break
                if overdue is not None:
                    await self.settle(said)
                    kept.let_go()
                    # Nothing else is begun in its stead: no more handlers run than were asked for.
                    await asyncio.wait((overdue,))
                    return True
            await self.settle(said)
        finally:
            kept.let_go()
        return not (self.is_stopping or self.is_at_limit)

    async def _handle_kept(
        self, handler: Handler, batch: Popped[Any], lease: BatchLease | None
    ) -> tuple[Said, asyncio.Future[Any] | None]:
        began = self._one_partition.begin(batch.messages[0].partition, time.monotonic())
        try:
            return await self._handle_batch(handler, Progress(batch, self.settle), lease)
        finally:
            self._busy_at = time.monotonic()
            self._one_partition.end(began, self._busy_at)

    async def next_batch(self, busy_at: float, said: Said) -> Popped[Any] | None:
        """Return the next batch; empty when none came, None when it is time to end. What is still
        to be said of the last one is said."""
        size, wait_s = self._size(), self._queue._wait_s
        if self._queue._idle_s is not None:
            idle_left_s = busy_at + self._queue._idle_s - time.monotonic()
            if idle_left_s <= 0:
                await self.settle(said)
                return None
            wait_s = min(wait_s, idle_left_s)
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
        batch = await self._pop_unless_stopped(wait_s, size, said)
        count = len(batch)
        if self._left is not None:
            self._left += size - count
        self.received += count
        return batch

    def _size(self) -> int:
        """Return how many messages to take."""
        return self._ahead.size if self._takes_ahead else self._queue._batch or 1

    async def _pop(self, wait_s: float, size: int, said: Said, poll: Poll) -> Popped[Any]:
        asked_at = time.monotonic()
        try:
            batch = await self._queue._pop(wait_s, size, False, poll, said.body())
        except LeaseLost as error:
            if not said.acks.count:
                raise
            # Nothing was leased because of that.
            self._warn_of_lost(said.take().lost_of_pop(error))
            return Popped()
        except QueenError as error:
            if poll.is_given_up:
                return Popped()
            said_more = said.acks.count > 0
            await self.settle(said)
            if error.retryable:
                _log.warning("pop: %s", error)
                await asyncio.sleep(_PAUSE_S)
            elif not said_more:
                raise
            # Another server may have taken the place of one that takes acks; the next pop shows.
            return Popped()
        said.take()
        if not batch:
            await pause_after_nothing(asked_at)
        return batch

    async def _pop_unless_stopped(self, wait_s: float, size: int, said: Said) -> Popped[Any]:
        """Pop. When told to stop meanwhile, take only what the server has sent already."""
        poll = Poll()
        batch = await self._ask_unless_stopped(poll, self._pop(wait_s, size, said, poll))
        # Said again where nobody knows whether it was heard.
        await self.settle(said)
        return batch or Popped()

    async def _handle_batch(
        self, handler: Handler, progress: Progress, lease: BatchLease | None
    ) -> tuple[Said, asyncio.Future[Any] | None]:
        """Give a batch to the handler; return what is still to be said of it, and what runs
        although its time is over."""
        try:
            overdue = await self._handle_in_order(handler, progress, lease)
            await progress.finish()
        except BaseException:
            await progress.cancel()
            raise
        return progress.said(), overdue

    async def _handle_in_order(
        self, handler: Handler, progress: Progress, lease: BatchLease | None
    ) -> asyncio.Future[Any] | None:
        """Give a batch to the handler, as much at once as it wants; return what runs although its
        time is over."""
        batch, count, start = progress.batch, progress.count, 0
        began = time.monotonic()
        while start < count:
            now = time.monotonic()
            if lease is not None and lease.is_lost_at(now):
                # Somebody else may be at work on the rest.
                self.leave(start, count)
                return None
            if self._stopping.is_set():
                self.leave(start, count)
                progress.give_back(start)
                return None
            if start and progress.is_due_at(now):
                await progress.say()
            if self._is_async:
                stop, error = await self._hand_over(handler, progress, start)
            else:
                stop, error = await self._hand_over_in_thread(handler, progress, start, lease)
            overdue = error.running if isinstance(error, HandlerTimeout) else None
            # Of those that a thread was given, the last.
            failed_at = start if self._list_size else stop - 1
            comes_again = False
            if error is not None:
                comes_again = not self._gives_up(batch.messages[failed_at], error)
                await self._note_failure(batch.messages[failed_at:stop], error)
                # Not earlier: in turn, what follows must be given back in the same moment.
                progress.fail(failed_at, stop, error, for_good=not comes_again)
            is_next = self.is_in_turn and (comes_again or batch.is_given_back(start, stop))
            if is_next or overdue is not None:
                self.leave(stop, count)
                progress.give_back(stop)
                return overdue
            start = progress.done_to = stop
        self.note_pace(count, began)
        return None

    async def _hand_over(
        self, handler: Handler, progress: Progress, start: int
    ) -> tuple[int, Exception | None]:
        """Give the handler what comes next; return up to where that was, and what it raised."""
        messages, size = progress.batch.messages, self._list_size
        stop = min(start + size, len(messages)) if size else start + 1
        given = messages[start:stop] if size else messages[start]
        try:
            with tracing.processing(messages[start:stop], progress.note_span):
                if self._is_async and self._rules.timeout_s is None:
                    await handler(given)
                else:
                    await self._call_in_time(self._rules.timeout_s, handler, given)
        except (Exception, asyncio.CancelledError) as error:
            if is_ours(error):
                raise
            return stop, failure_of(error)
        self.handled += stop - start
        if self._queue._on_success is not None:
            await self._tell(self._queue._on_success, messages[start:stop])
        return stop, None

    async def _hand_over_in_thread(
        self, handler: Handler, progress: Progress, start: int, lease: BatchLease | None
    ) -> tuple[int, Exception | None]:
        """The same for a handler without asyncio, which may get several messages one by one."""
        batch = progress.batch
        is_watched = self._queue._on_success is not None or self._rules.timeout_s is not None
        if self._list_size or self._is_awaited or is_watched or start + 1 == len(batch):
            return await self._hand_over(handler, progress, start)

        def may_go_on(now: float) -> bool:
            return not (self.is_stopping or (lease is not None and lease.is_lost_at(now)))

        stretch = Stretch(progress, start, may_go_on, self._note_handled, self.is_in_turn)
        context = contextvars.copy_context()
        if tracing.is_on():
            handler = tracing.traced(handler, progress.note_span)
        with progress.in_thread():
            await self._in_thread(stretch.run, handler, context, cancel=stretch.cancel)
        if stretch.awaitable is None:
            return stretch.end, None if stretch.error is None else failure_of(stretch.error)
        # It makes coroutines, which run here. It says so once.
        self._is_awaited = True
        try:
            await stretch.awaitable
        except (Exception, asyncio.CancelledError) as error:
            if is_ours(error):
                raise
            return stretch.end, failure_of(error)
        self._note_handled()
        return stretch.end, None

    def _gives_up(self, message: Any, error: Exception) -> bool:
        """Whether a message that has failed is not tried again."""
        return self._rules.gives_up(error)

    def _note_handled(self) -> None:
        with self._counting:
            self.handled += 1

    async def _note_failure(self, messages: list[Any], error: Exception) -> None:
        self.failed += len(messages)
        _log.warning(
            "a handler failed: %s, on %s",
            type(error).__name__,
            _whereabouts(messages),
            exc_info=error,
        )
        await self._tell(self._queue._on_error, messages, error)

    def leave(self, start: int, stop: int) -> None:
        """Nobody came to some messages of a batch: count as not taken what was taken ahead."""
        if not self.is_in_turn:
            # Those that were asked for together were taken; the others would not have been yet.
            asked = self._queue._batch or 1
            start = min(stop, max(1, -(-start // asked)) * asked)
        messages = stop - start
        self.received -= messages
        if self._left is not None:
            self._left += messages

    def note_pace(self, messages: int, began: float) -> None:
        """Remember how long messages took that were handled one after the other."""
        self._ahead.note(messages, time.monotonic() - began)

    def goes_with_pop(self, said: Said) -> bool:
        """Whether what became of a batch can be said in the request for the next."""
        return (
            self._queue._auto_ack
            and said.batch.takes_acks
            and said.acks.fits_a_pop
            and self._queue._may_say_with_pop(said.batch.server)
            # It has a span of its own.
            and not tracing.is_on()
        )

    async def settle(self, said: Said) -> None:
        """Say what became of messages to the server that granted their lease."""
        acks = said.take()
        if not acks.count or not self._queue._auto_ack:
            return
        server = said.batch.server
        try:
            with tracing.settling(self._queue.name or "*", acks.count, acks.spans):
                lost = await self._queue._queen.settle(acks, self._queue._group, server)
        except QueenError as error:
            if not error.retryable:
                raise
            _log.warning("%d messages could not be settled; they come again: %s", acks.count, error)
            return
        self._warn_of_lost(lost)

    def _warn_of_lost(self, lost: LostAcks) -> None:
        if lost.messages:
            _log.warning("%d messages were no longer leased to us; they come again", lost.messages)

    def keep_lease(self, batch: Popped[Any]) -> KeptLease:
        """Keep the lease of a batch alive while it is worked on, if it is to be."""
        if not self._queue._renews or not batch.lease_s or not batch.lease_id:
            return KeptLease(None)
        return KeptLease(
            BatchLease(self._queue._queen, batch.lease_id, batch.server, batch.lease_s)
        )


def _whereabouts(messages: list[Any]) -> str:
    """Say which messages these are; what is in them stays out of logs."""
    first, count = messages[0], len(messages)
    named = (
        f"queue {first.queue!r} partition {first.partition!r} offset {first.offset} "
        f"transaction {first.transaction_id!r} attempt {first.retry_count + 1}"
    )
    return named if count == 1 else f"{named} and {count - 1} more of its batch"
