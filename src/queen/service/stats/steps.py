"""Steps: when a lone message was where, for whoever wants to know what it waits for.

    taken      the push came out of its request
    flushed    it is its turn to be flushed
    sent       its ids are compared, its segment is built, the append goes to PostgreSQL
    written    the append gives it its time, by the clock of the database
    stored     PostgreSQL has committed and answered
    handed     the pop has its answer: the append has leased it to a consumer that waits
    told       the push has its answer, and who else waits for it is told
    claimed    where it was not leased: it is the claim's turn to be flushed
    asked      the claim goes to PostgreSQL
    leased     PostgreSQL has answered; then it is handed
    acked      the ack came out of its request
    settling   it is its turn to be flushed, and it goes to PostgreSQL
    settled    PostgreSQL has committed and answered

Only flushes with one message in them are noted, of one queue, for as long as somebody asks for
it again and again. Otherwise all that this costs is to see that nobody does.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from typing import NamedTuple

_FOLLOWED_S = 30.0
_MOST = 50_000


class Step(NamedTuple):
    """A step, when it was taken, and how long the server had been at work by then."""

    name: str
    at_ns: int
    cpu_ns: int


class Steps:
    def __init__(self) -> None:
        # The queue that is followed.
        self.queue: str | None = None
        self._until = 0.0
        self._steps: deque[Step] = deque(maxlen=_MOST)

    def follow(self, queue: str) -> None:
        """Follow a queue, for half a minute from now."""
        if queue != self.queue:
            self._steps.clear()
        self.queue = queue
        self._until = time.monotonic() + _FOLLOWED_S

    def take(self) -> list[Step]:
        """Take what was noted."""
        steps = list(self._steps)
        self._steps.clear()
        return steps

    def note(self, queue: str, name: str) -> None:
        """Note a step of a message, if its queue is followed."""
        if queue != self.queue:
            return
        if time.monotonic() > self._until:
            self.queue = None
            self._steps.clear()
            return
        self._steps.append(Step(name, time.time_ns(), time.thread_time_ns()))

    def note_written(self, queue: str, at: datetime) -> None:
        """Note the time that the database gave to a message."""
        if queue == self.queue:
            at_ns = int(at.timestamp() * 1e6) * 1000
            self._steps.append(Step("written", at_ns, time.thread_time_ns()))
