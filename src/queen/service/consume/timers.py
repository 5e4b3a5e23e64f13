"""Timers: when to look at a partition of a feed again.

There is at most one for each feed and partition: what is set later stands for what was set
before, and a lease that ends takes its timer along. So there are as many as leases are live and
partitions held back, however many pops there have been.

The heap knows only when to look whether a timer is still meant. An entry whose timer was set
anew or taken away stays in it, until such entries outnumber the others: then it is made anew.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from queen.service.catalog import Partition
from queen.service.consume.feeds import Feed

# So few are not worth a thought.
_FEW = 1000


class Timer(NamedTuple):
    """`lease_id` is the lease of this server that ends then, None when it is another's."""

    at: float
    number: int
    feed: Feed
    partition: Partition
    lease_id: uuid.UUID | None


class Timers:
    def __init__(self) -> None:
        self._timers: dict[Feed, dict[int, Timer]] = {}
        self._count = 0
        self._number = 0
        self._heap: list[Timer] = []
        # Set when a timer is earlier than all the others.
        self._is_earlier = asyncio.Event()

    def __len__(self) -> int:
        """How much is kept, timers and what is left of old ones."""
        return max(self._count, len(self._heap))

    def arm(self, feed: Feed, partition: Partition, lease_id: uuid.UUID | None, at: float) -> None:
        """Set the timer of a partition, in the stead of the one that it has."""
        self._number += 1
        timer = Timer(at, self._number, feed, partition, lease_id)
        of_feed = self._timers.setdefault(feed, {})
        self._count += partition.id not in of_feed
        of_feed[partition.id] = timer
        if not self._heap or at < self._heap[0].at:
            self._is_earlier.set()
        heapq.heappush(self._heap, timer)
        if len(self._heap) > 2 * self._count + _FEW:
            self._heap = [timer for timers in self._timers.values() for timer in timers.values()]
            heapq.heapify(self._heap)

    def arm_earlier(self, feed: Feed, partition: Partition, at: float) -> None:
        """Set the timer of a partition, unless it rings before that anyway."""
        current = self._timers.get(feed, {}).get(partition.id)
        if current is None or at < current.at:
            self.arm(feed, partition, None, at)

    def disarm(self, feed: Feed, partition_id: int) -> None:
        of_feed = self._timers.get(feed)
        if of_feed is not None and of_feed.pop(partition_id, None) is not None:
            self._count -= 1
            if not of_feed:
                del self._timers[feed]

    def forget(self, feed: Feed) -> None:
        """Take away all timers of a feed."""
        self._count -= len(self._timers.pop(feed, ()))

    async def wait_until_due(self) -> None:
        """Return when a timer may be due."""
        self._is_earlier.clear()
        left_s = self._heap[0].at - time.monotonic() if self._heap else None
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._is_earlier.wait()

    def take_due(self, now: float) -> Iterator[Timer]:
        """Take those whose time has come, the earliest first."""
        while self._heap and self._heap[0].at <= now:
            timer = heapq.heappop(self._heap)
            current = self._timers.get(timer.feed, {}).get(timer.partition.id)
            if current is timer:
                self.disarm(timer.feed, timer.partition.id)
                yield timer
