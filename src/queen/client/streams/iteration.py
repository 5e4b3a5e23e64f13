"""Windows one at a time, for a loop.

Asking for the next window acks the last. A loop that is left early, by `break`, `return` or an
exception, gives the window at hand back as failed: Python tells an iterator nothing when a loop
is left, so it cannot know whether that window is done. Whoever leaves with it done acks it
first, or sets a `limit`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Generic, TypeVar

from queen.client.streams.taking import Taker
from queen.client.streams.window import LeasedWindow

W = TypeVar("W", bound=LeasedWindow)


class Windows(Generic[W]):
    """Yields windows; the lease of the one at hand is kept alive."""

    def __init__(self, taker: Taker[W]) -> None:
        self._taker = taker
        self._loop = asyncio.get_running_loop()
        self._current: W | None = None
        self._listening = contextlib.ExitStack()
        self._listening.enter_context(taker.stop_on_signals())
        self._renewal = contextlib.AsyncExitStack()
        self._is_over = False

    def __aiter__(self) -> Windows[W]:
        return self

    async def __anext__(self) -> W:
        await self._leave(None)
        window = None if self._is_over else await self._taker.next_window()
        if window is None:
            await self.aclose()
            raise StopAsyncIteration
        self._current = window
        await self._renewal.enter_async_context(self._taker.keep_lease(window))
        await self._taker.load(window)
        return window

    async def _leave(self, error: str | None) -> None:
        """Say what became of the window at hand."""
        window, self._current = self._current, None
        if window is not None:
            if error is None:
                self._taker.handled += 1
            else:
                self._taker.failed += not window.is_settled
            await self._taker.settle(window, error)
        await self._renewal.aclose()

    async def aclose(self) -> None:
        """Give back what is not done."""
        if self._is_over:
            return
        self._is_over = True
        self._listening.close()
        await self._leave("the loop was left before it was done")

    def __del__(self) -> None:
        if not self._is_over and not self._loop.is_closed():
            self._taker.finish(self._loop, self.aclose)
