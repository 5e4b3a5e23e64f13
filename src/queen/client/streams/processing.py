"""Processing: a handler runs on windows, as many at once as were asked for.

A worker polls a window, gives it to the handler and says what became of it, and keeps the lease
alive all the while. When the lease is lost the work is worth nothing: somebody else has the
window, and an ack would be refused. So an async handler is cancelled. A thread cannot be, so a
sync handler is waited for, and nothing is said of its window.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from queen.client import tracing
from queen.client.queues.consumer import Handler
from queen.client.queues.running import Runnable, failure_of, is_ours
from queen.client.streams.taking import Taker
from queen.client.streams.window import LeasedWindow
from queen.errors import HandlerTimeout

if TYPE_CHECKING:
    from queen.client.streams.consumer import ConsumerBuilder

W = TypeVar("W", bound=LeasedWindow)

_log = logging.getLogger("queen.client")


class Processing(Taker[W], Runnable["Processing[W]"]):
    """A handler at work on windows; awaited, it ends when it was stopped, at its limit, or idle
    for too long. `received`, `handled`, `failed` and `lost` count windows."""

    def __init__(self, consumer: ConsumerBuilder[Any], handler: Handler, *, signals: bool) -> None:
        super().__init__(consumer, signals=signals)
        self._handler = handler

    async def run(self) -> Processing[W]:
        """Process windows until stopped, until the limit, or until idle for too long."""
        await self._run_all(self._work() for _ in range(self._concurrency))
        return self

    async def _work(self) -> None:
        while (window := await self.next_window()) is not None:
            error: Exception | None = None
            async with self.keep_lease(window) as keeping:
                try:
                    error = await self._run_unless_lost(window, keeping)
                except asyncio.CancelledError:
                    self.finish(asyncio.get_running_loop(), lambda: self.give_back(window))
                    raise
                if keeping.done():
                    self.lost += 1
                    _log.warning("a lease was lost while its window was worked on; it comes again")
                else:
                    with tracing.settling(window.stream_name, 1, window.spans):
                        await self.settle(window, error)
            if isinstance(error, HandlerTimeout) and error.running is not None:
                await self._wait_for_end(window, error.running)

    async def _run_unless_lost(self, window: W, keeping: asyncio.Future[None]) -> Exception | None:
        """Run the handler until it ends or the lease is lost; return what it raised."""
        handling = asyncio.ensure_future(self._run_handler(window))
        try:
            await asyncio.wait((handling, keeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not handling.done():
                handling.cancel()
                await self._wait_for_end(window, handling)
        if handling.cancelled():
            return RuntimeError("the handler was cancelled")
        return handling.result()

    async def _wait_for_end(self, _window: W, handling: asyncio.Future[Exception | None]) -> None:
        """Wait for the end of a handler that was cancelled."""
        await asyncio.wait((handling,))

    async def _handle(self, window: W) -> None:
        """Run the handler."""
        await self.load(window)
        await self._call_in_time(self._consumer._rules.timeout_s, self._handler, window)

    async def _handle_traced(self, window: W) -> None:
        if not tracing.is_on():
            await self._handle(window)
            return
        with tracing.working_on_window(window, await window.first_headers(tracing.MAX_LOOKED_AT)):
            await self._handle(window)

    async def _run_handler(self, window: W) -> Exception | None:
        try:
            await self._handle_traced(window)
        except (Exception, asyncio.CancelledError) as raised:
            if is_ours(raised):
                raise
            error = failure_of(raised)
            self.failed += 1
            _log.warning(
                "a handler failed: %s, on stream %r key %r window %s to %s attempt %d",
                type(error).__name__,
                window.stream_name,
                window.key,
                window.start,
                window.end,
                window.attempt,
                exc_info=error,
            )
            await self._tell(self._consumer._on_error, window, error)
            return error
        self.handled += 1
        await self._tell(self._consumer._on_success, window)
        return None
