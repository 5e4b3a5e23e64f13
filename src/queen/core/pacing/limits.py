"""Rates and limits: how much a group may be given.

A rate is a token bucket: it holds `burst` tokens at most, gets `limit` of them each interval,
evenly, and each message that is handed out takes one. So in any time t a group is given no more
than `burst + limit * t / interval` messages.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# So little is missing only because fractions are rounded.
_ROUNDING = 1e-6


class Rate(NamedTuple):
    """How many messages are handed out in which time."""

    limit: int
    interval_ms: int
    burst: int

    def tokens(self, stored: float | None, elapsed_ms: float) -> float:
        """Return what is in a bucket that had so much a while ago; None was full."""
        if stored is None:
            return float(self.burst)
        gained = max(elapsed_ms, 0.0) * self.limit / self.interval_ms
        return min(stored + gained, float(self.burst))

    def wait_ms(self, tokens: float) -> int:
        """Return how long it takes until there is a whole token."""
        return max(math.ceil((1 - tokens) * self.interval_ms / self.limit), 0)


def whole(tokens: float) -> int:
    """Return how many messages may be handed out for so many tokens."""
    return max(math.floor(tokens + _ROUNDING), 0)


class GroupLimits(NamedTuple):
    """What each group of a queue may be given, and all of them together; None is no limit."""

    rate: Rate | None
    partition_rate: Rate | None
    in_flight: int | None
    partition_in_flight: int | None
    queue_rate: Rate | None
    queue_in_flight: int | None

    @property
    def has_partition_limits(self) -> bool:
        return self.partition_rate is not None or self.partition_in_flight is not None

    @property
    def has_queue_limits(self) -> bool:
        return self.queue_rate is not None or self.queue_in_flight is not None

    @property
    def counts_held(self) -> bool:
        """Whether it matters how much is on leases."""
        limits = (self.in_flight, self.partition_in_flight, self.queue_in_flight)
        return any(limit is not None for limit in limits)
