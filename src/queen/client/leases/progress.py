"""How far a batch is handled, and what is still to be said of it.

Acks of what was taken together are sent together: with what comes after the batch, or between two
of its messages when the last were sent a while ago. A handler that takes long puts both off, so a
timer looks meanwhile, and says in a task what was done before. Whoever then says more of the batch
waits for that task first: what is said of a batch is said in order, and once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from queen.client.leases.acks import Acks, Said
from queen.client.leases.grants import Popped

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

# No ack is kept for longer.
_ACK_EVERY_S = 0.1


class Progress:
    """Messages are handled in their order; of those that are simply done, only how many."""

    def __init__(
        self, batch: Popped[Any], settle: Callable[[Said], Coroutine[Any, Any, None]]
    ) -> None:
        self.batch = batch
        self.count = len(batch)
        self._settle = settle
        # What became of everything before this place is known. A handler's thread may write it.
        self.done_to = 0
        # Whether a thread does one message after the other, without a word to the event loop.
        self._is_in_thread = False
        self._acks = Acks()
        # Everything before this place is in the acks, or was sent.
        self._said_to = 0
        self._sent_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        # What the timer has begun to say, or has failed to.
        self._saying: asyncio.Task[None] | None = None

    def fail(
        self, start: int, stop: int, error: str | BaseException, *, for_good: bool = False
    ) -> None:
        """Messages from one place up to another have failed, and all before them are done."""
        self._say(start, "completed")
        self._say(stop, "dlq" if for_good else "failed", error)

    def give_back(self, start: int) -> None:
        """Nobody came to the messages from this place on, and all before them are done."""
        self._say(start, "completed")
        self._say(self.count, "retry")

    def note_span(self, span: SpanContext) -> None:
        """A handler was traced: what is said next is below its span."""
        self._acks.spans.append(span)

    def said(self) -> Said:
        """Return what is to be said: whoever asks says it."""
        self._say(self.done_to, "completed")
        acks, self._acks = self._acks, Acks()
        self._sent_at = time.monotonic()
        return Said(acks, self.batch)

    def _say(self, stop: int, status: str, error: str | BaseException | None = None) -> None:
        if self._said_to < stop:
            self._acks.add_part(self.batch, self._said_to, stop, status, error)
            self._said_to = stop

    # ---- in time ----

    def is_due_at(self, now: float) -> bool:
        """Whether something is to be said before the next message is begun. If not, what is done
        is said in time, however long that message takes."""
        if now - self._sent_at > _ACK_EVERY_S:
            return True
        if self._timer is None:
            self._look_in(self._sent_at + _ACK_EVERY_S - now)
        # Then it raises why.
        return self._saying is not None and self._saying.done()

    async def say(self) -> None:
        """Say now what there is to say."""
        said = self.said()
        await self.finish()
        await self._settle(said)

    async def finish(self) -> None:
        """Look no more; return when nothing is being said, and raise what went wrong with it."""
        self._look_no_more()
        saying, self._saying = self._saying, None
        if saying is not None:
            await saying

    async def cancel(self) -> None:
        """Nothing more is to be said."""
        self._look_no_more()
        saying, self._saying = self._saying, None
        if saying is not None:
            saying.cancel()
            # Nobody wants to know any more how it ended.
            await asyncio.gather(saying, return_exceptions=True)

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[None]:
        """Meanwhile a thread notes what it has done, and nobody else looks."""
        self._is_in_thread = True
        if self._timer is None:
            self._look_in(_ACK_EVERY_S)
        try:
            yield
        finally:
            self._is_in_thread = False

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._saying is None and (self._said_to < self.done_to or self._acks.count):
            self._saying = asyncio.create_task(self._say_by_itself(self.said()))
        if self._saying is not None or self._is_in_thread:
            # There may be more by then.
            self._look_in(_ACK_EVERY_S)

    async def _say_by_itself(self, said: Said) -> None:
        await self._settle(said)
        self._saying = None
