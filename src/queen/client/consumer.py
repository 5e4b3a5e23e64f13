"""Consumers: pop, handle, ack, and stop in good order.

A worker leases a batch, gives it to the handler, and tells the broker what became of it. While
the handler works, the lease is prolonged at half its time, so one lost renewal still leaves
time for another. When it is told to stop, it finishes the message it is at, gives the rest of
its batch back without fault, and takes no more: nothing is lost and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, cast

from queen.client.messages import AckItem, Delivered, ack_of
from queen.errors import LeaseLost, QueenError

if TYPE_CHECKING:
    from queen.client.queue import QueueBuilder

# Takes one message (with `each`, or a batch of one) or a list of them.
Handler = Callable[[Any], Awaitable[Any] | Any]

_log = logging.getLogger("queen.client")

# Acks of messages that are handled one by one are sent together, but not kept for long.
_ACK_EVERY = 50
_ACK_EVERY_S = 0.1
# What a pop that failed for good waits before it is tried again.
_PAUSE_S = 1.0


class Consumer:
    """Awaited, it runs its handler; iterated over, it yields messages."""

    def __init__(self, queue: QueueBuilder, handler: Handler | None, *, signals: bool) -> None:
        self._queue = queue
        self._handler = handler
        self._signals = signals
        self._stopping = asyncio.Event()
        self._left = queue._limit
        self._lease_s = 0.0
        self.received = 0
        self.handled = 0
        self.failed = 0

    def stop(self) -> None:
        """Finish what is under way, give the rest back, take no more."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def __await__(self) -> Generator[Any, None, Consumer]:
        return self.run().__await__()

    async def run(self) -> Consumer:
        """Consume until stopped, until the limit, or until idle for too long."""
        if self._handler is None:
            raise ValueError("consume() was given no handler: await consume(handler)")
        with stopped_by_signals(self.stop) if self._signals else contextlib.nullcontext():
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._queue._concurrency):
                    workers.create_task(self._work(self._handler))
        return self

    # ---- a worker ----

    async def _work(self, handler: Handler) -> None:
        busy_at = time.monotonic()
        while not self.is_stopping and self._left != 0:
            batch = await self._next(busy_at)
            if batch is None:
                return
            if batch:
                await self._handle(handler, batch)
                busy_at = time.monotonic()

    async def _next(self, busy_at: float) -> list[Any] | None:
        """Return the next batch; empty when none came, None when it is time to end."""
        size, wait_s = self._queue._batch, self._queue._wait_s
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
        if self._queue._idle_s is not None:
            idle_left_s = busy_at + self._queue._idle_s - time.monotonic()
            if idle_left_s <= 0:
                return None
            wait_s = min(wait_s, idle_left_s)
        batch = await self._unless_stopped(self._pop(wait_s, size)) or []
        if self._left is not None:
            self._left += size - len(batch)
        self.received += len(batch)
        return batch

    async def _pop(self, wait_s: float, size: int) -> list[Any]:
        try:
            popped = await self._queue._pop(wait_s, size, False)
        except QueenError as error:
            if not error.retryable:
                raise
            _log.warning("pop: %s", error)
            await asyncio.sleep(_PAUSE_S)
            return []
        self._lease_s = popped.lease_s
        if not popped.messages and wait_s == 0:
            await asyncio.sleep(0.1)
        return popped.messages

    async def _unless_stopped(self, work: Any) -> Any:
        """Wait for work, unless told to stop: then it is abandoned, and its lease given back."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await working
                return None
            return working.result()
        finally:
            stopping.cancel()
            working.cancel()

    async def _handle(self, handler: Handler, batch: list[Any]) -> None:
        async with self._renewed(batch):
            if self._queue._each:
                await self._handle_each(handler, batch)
            else:
                one = batch[0] if self._queue._batch == 1 else batch
                error = await self._outcome(handler, one, batch)
                await self._settle([_verdict(message, error) for message in batch])

    async def _handle_each(self, handler: Handler, batch: list[Any]) -> None:
        acks: list[AckItem] = []
        sent_at = time.monotonic()
        for message in batch:
            if self.is_stopping:
                acks.append(ack_of(message, "retry"))
                continue
            error = await self._outcome(handler, message, [message])
            acks.append(_verdict(message, error))
            if len(acks) >= _ACK_EVERY or time.monotonic() - sent_at > _ACK_EVERY_S:
                await self._settle(acks)
                acks, sent_at = [], time.monotonic()
        await self._settle(acks)

    async def _outcome(self, handler: Handler, given: Any, messages: list[Any]) -> Exception | None:
        """Run the handler; return what it raised."""
        try:
            await called(handler, given)
        except Exception as error:
            self.failed += len(messages)
            _log.warning("a handler failed: %s", type(error).__name__)
            if self._queue._on_error is not None:
                await called(self._queue._on_error, messages, error)
            return error
        self.handled += len(messages)
        if self._queue._on_success is not None:
            await called(self._queue._on_success, messages)
        return None

    async def _settle(self, acks: list[AckItem]) -> None:
        if not acks or not self._queue._auto_ack:
            return
        results = await self._queue._queen.settle(acks, self._queue._group)
        lost = sum(not one.success for one in results)
        if lost:
            _log.warning("%d messages were no longer leased to us; they come again", lost)

    @contextlib.asynccontextmanager
    async def _renewed(self, batch: list[Any]) -> AsyncIterator[None]:
        """Keep the lease of a batch alive while it is worked on."""
        if not self._queue._renews or not self._lease_s or not batch[0].lease_id:
            yield
            return
        renewing = asyncio.create_task(self._renew(batch[0], self._lease_s))
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew(self, message: Delivered, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / 2)
            try:
                await self._queue._queen.renew(message, max(1, round(lease_s)))
            except LeaseLost:
                return
            except QueenError as error:
                _log.warning("renewing a lease: %s", error)

    # ---- as an iterator ----

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield messages one at a time; asking for the next acks the last, an error nacks it."""
        with stopped_by_signals(self.stop) if self._signals else contextlib.nullcontext():
            busy_at = time.monotonic()
            while not self.is_stopping and self._left != 0:
                batch = await self._next(busy_at)
                if batch is None:
                    return
                async with self._renewed(batch) if batch else contextlib.nullcontext():
                    async for message in self._yielded(batch):
                        yield message
                busy_at = time.monotonic() if batch else busy_at

    async def _yielded(self, batch: list[Any]) -> AsyncIterator[Any]:
        done: list[AckItem] = []
        at = 0
        try:
            while at < len(batch) and not self.is_stopping:
                message = batch[at]
                yield message
                at += 1
                done.append(ack_of(message))
                self.handled += 1
        except GeneratorExit:
            # The loop was left by a break: the message it was at is done, the others are not.
            if at < len(batch):
                done.append(ack_of(batch[at]))
                at += 1
            raise
        finally:
            done += [ack_of(message, "retry") for message in batch[at:]]
            await self._settle(done)


def _verdict(message: Delivered, error: Exception | None) -> AckItem:
    return ack_of(message) if error is None else ack_of(message, "failed", error)


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function: async in the loop, sync in a thread so that the loop goes on."""
    if inspect.iscoroutinefunction(function):
        return await cast("Awaitable[Any]", function(*arguments))
    result = await asyncio.to_thread(function, *arguments)
    return await result if inspect.isawaitable(result) else result


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop something for a while. Only the main thread gets signals."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            loop.add_signal_handler(number, stop)
    except (NotImplementedError, RuntimeError):
        yield
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
