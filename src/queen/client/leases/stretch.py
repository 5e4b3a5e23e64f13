"""Messages that a handler without asyncio gets one after the other, in one visit to its thread.

To go to a thread and back costs many times what a quick handler does. So the thread goes on to the
next message by itself, for a moment, unless something has happened that the event loop must know.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from queen.client.leases.progress import Progress

# Then acks are due.
_LONGEST_S = 0.1


class Stretch:
    """What a thread does of a batch, from a place on."""

    def __init__(
        self,
        progress: Progress,
        start: int,
        may_go_on: Callable[[float], bool],
        note_handled: Callable[[], None],
        is_in_turn: bool,
    ) -> None:
        self._progress = progress
        self._batch = progress.batch
        self._may_go_on = may_go_on
        self._note_handled = note_handled
        # Whether the next message waits for one that was given back.
        self._is_in_turn = is_in_turn
        self._is_cancelled = False
        # The place after the last message that was handed over, and how that one ended.
        self.end = start
        self.error: BaseException | None = None
        self.awaitable: Awaitable[Any] | None = None

    def cancel(self) -> None:
        """Nobody waits for it any more: end with the message that is at hand."""
        self._is_cancelled = True

    def run(self, handler: Callable[[Any], Any], context: Context) -> None:
        """Hand messages over, one at least. Each handler starts from the same context, as if it
        were called alone."""
        until = time.monotonic() + _LONGEST_S
        while True:
            message = self._batch.messages[self.end]
            self.end += 1
            try:
                result = context.copy().run(handler, message)
            except (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
                self.error = error
                return
            if result is not None and inspect.isawaitable(result):
                self.awaitable = result
                return
            self._note_handled()
            self._progress.done_to = self.end
            if not self._goes_on(until):
                return

    def _goes_on(self, until: float) -> bool:
        now = time.monotonic()
        if self._is_cancelled or self.end == len(self._batch) or now > until:
            return False
        if self._is_in_turn and self._batch.is_given_back(self.end - 1, self.end):
            return False
        return self._may_go_on(now)
