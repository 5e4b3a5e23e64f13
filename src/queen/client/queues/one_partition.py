"""Notices that one ordered partition keeps all workers of a consumer but one from working.

A partition is read in order by one worker at a time. Who asks for several and has all messages in
one partition gets one after the other, and nothing says why: this does, once.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("queen.client")

# So many batches in a row, over so long, of which so much was spent in the handler: there was
# always something to do, and always for one worker.
_BATCHES = 4
_LONG_S = 1.0
_BUSY_PART = 0.8


class OnePartition:
    """What the workers of one consumer are at."""

    def __init__(self, concurrency: int, described: str) -> None:
        self._concurrency = concurrency
        self._described = described
        self._is_told = concurrency < 2
        self._at_work = 0
        self._are_several = False
        self._partition: object = None
        self._began = 0.0
        self._busy_s = 0.0
        self._batches = 0

    def begin(self, partition: object, now: float) -> float:
        """A worker has got a batch; `partition` is where its first message is from."""
        self._are_several = self._are_several or self._at_work > 0
        if partition != self._partition:
            self._partition, self._began = partition, now
            self._busy_s, self._batches = 0.0, 0
        self._at_work += 1
        return now

    def end(self, began: float, now: float) -> None:
        """The worker is done with it."""
        self._at_work -= 1
        if self._are_several:
            # What follows is looked at anew.
            self._partition, self._are_several = None, self._at_work > 0
            return
        self._busy_s += now - began
        self._batches += 1
        took_s = now - self._began
        if self._is_told or self._batches < _BATCHES or took_s < _LONG_S:
            return
        if self._busy_s > _BUSY_PART * took_s:
            self._is_told = True
            _log.warning(
                "%s: concurrency(%d), but one worker does everything: all messages come from "
                "partition %r, which is read in order, by one at a time. If order does not matter, "
                "say .shared(); otherwise push to several partitions, by what must stay in order",
                self._described,
                self._concurrency,
                self._partition,
            )
