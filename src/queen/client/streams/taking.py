"""Taking windows: until the limit, until idle for too long, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from queen.client.queues.running import Runner, pause_after_nothing
from queen.client.streams.window import LeasedWindow
from queen.client.transport.http import Poll
from queen.errors import LeaseLost, QueenError

if TYPE_CHECKING:
    from queen.client.streams.consumer import ConsumerBuilder

W = TypeVar("W", bound=LeasedWindow)

_log = logging.getLogger("queen.client")

# What a poll that failed in a way that may pass waits before the next.
_PAUSE_S = 1.0


class Taker(Runner, Generic[W]):
    """Takes windows of a stream and says what became of them."""

    def __init__(self, consumer: ConsumerBuilder[Any], *, signals: bool) -> None:
        super().__init__(consumer._queen, concurrency=consumer._concurrency, signals=signals)
        self._consumer = consumer
        self._left = consumer._limit
        # When a window was last in hand.
        self._busy_at = time.monotonic()
        # Windows whose lease was over before their handler.
        self.lost = 0

    def _describe(self) -> str:
        return f"{self._consumer.stream} group={self._consumer.group!r}"

    async def next_window(self) -> W | None:
        """Return the next window; None when it is time to end."""
        while not self.is_stopping and self._left != 0:
            left_s = self._idle_left_s()
            if left_s <= 0:
                return None
            if self._left is not None:
                self._left -= 1
            poll = Poll()
            asking = self._poll_patiently(min(self._consumer._wait_s, left_s), poll)
            window = await self._ask_unless_stopped(poll, asking)
            if window is not None and self._stopping.is_set():
                await self.give_back(window)
            elif window is not None:
                self.received += 1
                self._busy_at = time.monotonic()
                return window
            if self._left is not None:
                self._left += 1
        return None

    def _idle_left_s(self) -> float:
        """Return how long to go on without a window."""
        idle_s = self._consumer._idle_s
        return math.inf if idle_s is None else self._busy_at + idle_s - time.monotonic()

    async def _poll_patiently(self, wait_s: float, poll: Poll) -> W | None:
        asked_at = time.monotonic()
        try:
            window: W | None = await self._consumer._poll(wait_s, poll)
        except QueenError as error:
            if poll.is_given_up:
                return None
            if not error.retryable:
                raise
            _log.warning("poll: %s", error)
            await asyncio.sleep(_PAUSE_S)
            return None
        if window is None:
            await pause_after_nothing(asked_at)
        return window

    @contextlib.asynccontextmanager
    async def keep_lease(self, window: W) -> AsyncIterator[asyncio.Future[None]]:
        """Keep a lease alive, if it is to be; what is yielded ends when the lease is lost."""
        if self._consumer._renews:
            async with window._keep_alive() as keeping:
                yield keeping
        else:
            yield asyncio.get_running_loop().create_future()

    async def load(self, window: W) -> None:
        """Fetch the messages of a large window, if the consumer asks for them."""
        if self._consumer._loads:
            await window._load()

    async def give_back(self, window: W) -> None:
        """Give a window back that nobody has begun with, or will finish."""
        if window.is_settled or not self._consumer._auto_ack:
            return
        with contextlib.suppress(QueenError):
            await window._give_back()

    async def settle(self, window: LeasedWindow, error: Exception | str | None) -> None:
        """Ack or nack a window, unless its handler has said so itself."""
        self._busy_at = time.monotonic()
        if window.is_settled or not self._consumer._auto_ack:
            return
        try:
            gives_up = self._consumer._rules.gives_up(error)
            await window._ack(error is None, error, gives_up=gives_up)
        except LeaseLost:
            self.lost += 1
            _log.warning("a window was no longer leased to us; it comes again")
        except QueenError as failure:
            if not failure.retryable:
                raise
            _log.warning("a window could not be settled; it comes again: %s", failure)
