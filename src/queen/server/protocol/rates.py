"""Rates: no caller takes the server away from the others.

Each caller (a token's subject, or an address when nobody has to show one) has a bucket that
fills at the allowed rate and holds two seconds of it; a request takes one out, and an empty
bucket is a 429. Buckets that are full again are forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from queen.errors import Overloaded
from queen.server.protocol.http import Request

_BURST_S = 2.0
_MAX_BUCKETS = 10_000


class Rates:
    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        # What was left, and when.
        self._buckets: dict[str, tuple[float, float]] = {}

    def admit(self, request: Request) -> None:
        """Raise `Overloaded` when the caller sends more than it may."""
        self.take(request.caller.subject or request.connection.address, 1)

    def take(self, name: str, count: int) -> None:
        """The same for several requests at once: who may send one may send them, and waits longer
        for the next."""
        now = self._clock()
        full = self._per_second * _BURST_S
        left, at = self._buckets.get(name, (full, now))
        left = min(full, left + (now - at) * self._per_second)
        if left < 1:
            raise Overloaded(
                f"more than {self._per_second:g} requests a second; send fewer, or larger batches"
            )
        self._buckets[name] = (left - count, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._forget_full(now)

    def _forget_full(self, now: float) -> None:
        full = self._per_second * _BURST_S
        self._buckets = {
            name: (left, at)
            for name, (left, at) in self._buckets.items()
            if left + (now - at) * self._per_second < full
        }
