"""How far a batch is handled, and what is still to be said of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from queen.client.leases.acks import Acks
from queen.client.leases.grants import Popped

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

# Acks of what was taken together are sent together, but not kept for long.
_ACK_EVERY_S = 0.1


class Progress:
    """Messages are handled in their order; nothing is noted for those that are simply done."""

    def __init__(self, batch: Popped[Any]) -> None:
        self.batch = batch
        self.count = len(batch)
        self._acks = Acks()
        # Everything before this place is in the acks, or was sent.
        self._said_to = 0
        self._sent_at = time.monotonic()

    def is_due_at(self, now: float) -> bool:
        """Whether what is done should be said now."""
        return now - self._sent_at > _ACK_EVERY_S

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

    def acks(self, done_to: int) -> Acks:
        """Return what is to be said when all messages before a place are done."""
        self._say(done_to, "completed")
        acks, self._acks = self._acks, Acks()
        self._sent_at = time.monotonic()
        return acks

    def _say(self, stop: int, status: str, error: str | BaseException | None = None) -> None:
        if self._said_to < stop:
            self._acks.add_part(self.batch, self._said_to, stop, status, error)
            self._said_to = stop
