"""What everything that consumes has in common: it calls a user's functions, and can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

from queen.client.queues.messages import error_text
from queen.client.transport.http import Poll
from queen.client.transport.signals import stop_on_signals
from queen.errors import HandlerTimeout

if TYPE_CHECKING:
    from queen.client.queen import Queen

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

_log = logging.getLogger("queen.client")

# The least time between two requests that bring nothing.
_AT_MOST_EVERY_S = 0.1
# How long the answer to a request that was given up is waited for.
_LAST_ANSWER_S = 2.0


class Runnable(Coroutine[Any, Any, R_co]):
    """Something that `await` and `asyncio.create_task` take alike.

    A task wants a coroutine; this one begins when it is first asked to go on, so that one which
    nobody has started complains about nothing.
    """

    _begun: Coroutine[Any, Any, R_co] | None = None

    @abstractmethod
    async def run(self) -> R_co:
        """Do all of it."""

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.run().__await__()

    def _coroutine(self) -> Coroutine[Any, Any, R_co]:
        if self._begun is None:
            self._begun = self.run()
        return self._begun

    def send(self, value: Any) -> Any:
        """For the event loop."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """For the event loop."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """For the event loop; `stop` is for you."""
        if self._begun is not None:
            self._begun.close()


class Runner:
    """Something that takes work and runs handlers on it until it is told to stop."""

    def __init__(self, queen: Queen, *, concurrency: int, signals: bool) -> None:
        self._queen = queen
        self._concurrency = concurrency
        self._signals = signals
        self._stopping = asyncio.Event()
        # What is asked for now, and until when an answer is waited for.
        self._polls: dict[Poll, tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.received = 0
        self.handled = 0
        self.failed = 0

    def __repr__(self) -> str:
        state = "stopping" if self.is_stopping else "open"
        counts = f"received={self.received} handled={self.handled} failed={self.failed}"
        return f"<{type(self).__name__} {self._describe()} {state} {counts}>"

    def _describe(self) -> str:
        """What it reads, for those who print it."""
        return ""

    def stop(self) -> None:
        """Finish what is under way, give the rest back, take no more."""
        self._stopping.set()
        for poll, (loop, limit) in list(self._polls.items()):
            # A handler may say so from a thread of its own.
            loop.call_soon_threadsafe(_give_up, poll, limit)

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
        if self.is_stopping:
            asking.close()
            return None
        try:
            async with asyncio.timeout(None) as limit:
                self._polls[poll] = (asyncio.get_running_loop(), limit)
                return await asking
        except TimeoutError:
            if not poll.is_given_up:
                raise
            return None
        finally:
            self._polls.pop(poll, None)

    async def _tell(self, callback: Callable[..., Any] | None, *arguments: Any) -> None:
        """Call a callback of the user. An error in it changes nothing about the work."""
        if callback is None:
            return
        try:
            await self._call(callback, *arguments)
        except (Exception, asyncio.CancelledError) as error:
            if is_ours(error):
                raise
            _log.warning("a callback failed: %s", type(error).__name__, exc_info=error)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a user's function: async in the loop, sync in a thread so that the loop goes on."""
        if inspect.iscoroutinefunction(function):
            return await cast("Awaitable[Any]", function(*arguments))
        result = await self._in_thread(contextvars.copy_context().run, function, *arguments)
        return await result if inspect.isawaitable(result) else result

    async def _call_in_time(
        self, timeout_s: float | None, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Call a user's function; raises `HandlerTimeout` when it takes longer than it may."""
        if timeout_s is None:
            return await self._call(function, *arguments)
        too_late = HandlerTimeout(f"the handler took longer than {timeout_s:g} s")
        if inspect.iscoroutinefunction(function):
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    return await function(*arguments)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise too_late from None
        running = asyncio.ensure_future(self._call(function, *arguments))
        try:
            await asyncio.wait((running,), timeout=timeout_s)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait((running,))
            raise
        if running.done():
            return running.result()
        # A coroutine that the function has made is cancelled; a thread ends when it ends.
        running.cancel()
        too_late.running = running
        raise too_late

    async def _in_thread(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        cancel: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call a function in a thread of its own; `cancel` tells it that nobody waits any more."""
        if self._threads is None:
            # The loop's own threads are few, whatever concurrency was asked for. Beside a handler
            # whose time is over there is one for what the user is told of it.
            self._threads = ThreadPoolExecutor(2 * self._concurrency, "queen-handler")
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, _call_outside_of_loops, function, *arguments)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be cancelled; whoever goes on without it would have two at work.
            cancel()
            await asyncio.wait((running,))
            # Nobody wants to know any more how it ended.
            running.exception()
            raise


def is_ours(error: BaseException) -> bool:
    """Whether an error that came out of a user's function ends the task that called it: somebody
    has cancelled that. A function that awaits what was cancelled elsewhere has merely failed."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def failure_of(error: BaseException) -> Exception:
    """Return what failed a user's function as an error like any other. What Python ends tasks and
    programs with becomes the cause of one: it must end neither when it is raised again."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"a handler raised {error_text(error)}")
    failure.__cause__ = error
    return failure


def _call_outside_of_loops(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function. `StopIteration` from it, as of `next` on something empty, is an error like
    any other, and no future can hold it: whoever waited would wait for ever. And who interrupts the
    program, or ends it, does so in its main thread: here that is an error of the handler, too."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("a handler raised StopIteration") from error
    except (KeyboardInterrupt, SystemExit) as error:
        raise failure_of(error) from error


def _give_up(poll: Poll, limit: asyncio.Timeout) -> None:
    """Wait no longer for an answer than what was sent already needs to arrive."""
    is_asked = poll.connection is not None
    poll.give_up()
    now = asyncio.get_running_loop().time()
    with contextlib.suppress(RuntimeError):
        # It may have been answered a moment ago.
        limit.reschedule(now + (_LAST_ANSWER_S if is_asked else 0.0))


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
