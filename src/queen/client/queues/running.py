"""What everything that consumes has in common: it calls a user's functions, and can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

from queen.client.transport.http import Poll
from queen.client.transport.signals import stop_on_signals

if TYPE_CHECKING:
    from queen.client.queen import Queen

T = TypeVar("T")

_log = logging.getLogger("queen.client")

# The least time between two requests that bring nothing.
_AT_MOST_EVERY_S = 0.1
# How long the answer to a request that was given up is waited for.
_LAST_ANSWER_S = 2.0


class Runner:
    """Something that takes work and runs handlers on it until it is told to stop."""

    def __init__(self, queen: Queen, *, concurrency: int, signals: bool) -> None:
        self._queen = queen
        self._concurrency = concurrency
        self._signals = signals
        self._stopping = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None
        self.received = 0
        self.handled = 0
        self.failed = 0

    def stop(self) -> None:
        """Finish what is under way, give the rest back, take no more."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping.is_set()

    def stop_on_signals(self) -> contextlib.AbstractContextManager[None]:
        """Let signals stop it, if they were asked to."""
        return stop_on_signals(self.stop) if self._signals else contextlib.nullcontext()

    def finish(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Do the last work of a loop that was left; closing the client waits for it."""

        def start() -> None:
            task = loop.create_task(work())
            self._queen.endings.add(task)
            task.add_done_callback(self._queen.endings.discard)

        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = False
        if is_here:
            start()
        else:
            # Garbage may be collected in any thread.
            loop.call_soon_threadsafe(start)

    async def _run_all(self, workers: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """Run workers until they end; signals stop them, if they were asked to."""
        try:
            with self.stop_on_signals():
                await run_all(workers, self.stop)
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    async def _ask_unless_stopped(self, poll: Poll, asking: Coroutine[Any, Any, T]) -> T | None:
        """Ask. When told to stop meanwhile, take only what the server has sent already."""
        asked = asyncio.ensure_future(asking)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((asked, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                is_asked = poll.connection is not None
                poll.give_up()
                await asyncio.wait((asked,), timeout=_LAST_ANSWER_S if is_asked else 0)
            return asked.result() if asked.done() else None
        finally:
            stopping.cancel()
            asked.cancel()

    async def _tell(self, callback: Callable[..., Any] | None, *arguments: Any) -> None:
        """Call a callback of the user. An error in it changes nothing about the work."""
        if callback is None:
            return
        try:
            await self._call(callback, *arguments)
        except Exception as error:
            _log.warning("a callback failed: %s", type(error).__name__)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a user's function: async in the loop, sync in a thread so that the loop goes on."""
        if inspect.iscoroutinefunction(function):
            return await cast("Awaitable[Any]", function(*arguments))
        if self._threads is None:
            # The loop's own threads are few, whatever concurrency was asked for.
            self._threads = ThreadPoolExecutor(self._concurrency, "queen-handler")
        call = contextvars.copy_context().run
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, call, function, *arguments)
        try:
            result = await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be cancelled; whoever goes on without it would have two at work.
            await asyncio.wait((running,))
            # Nobody wants to know any more how it ended.
            running.exception()
            raise
        return await result if inspect.isawaitable(result) else result


async def pause_after_nothing(asked_at: float) -> None:
    """Wait a little after an empty answer that came at once, so that a client whose requests do
    not wait at the server leaves a pause between them."""
    await asyncio.sleep(max(0.0, asked_at + _AT_MOST_EVERY_S - time.monotonic()))


async def run_all(work: Iterable[Coroutine[Any, Any, Any]], stop: Callable[[], None]) -> None:
    """Wait for all; when one fails, stop the others in good order and raise its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    if not tasks:
        return
    try:
        _, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if others:
            stop()
            await asyncio.wait(others)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    for error in [task.exception() for task in tasks]:
        if error is not None:
            raise error
