"""What a drain has read and not sent: in order, and with the partitions that have to wait.

A partition whose queue is full waits by itself, with all that comes for it, and the others go
past. Each record of it is tried again in its order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from itertools import accumulate, islice
from typing import NamedTuple

from queen.client.pushing.items import MOST_BYTES
from queen.client.queues.buffers import Pause
from queen.client.spooling.records import PartitionKey
from queen.client.spooling.source import Source
from queen.errors import QueenError, QueueFull
from queen.spool import Record

MOST_RECORDS = 1000
# So many records of partitions that wait are kept in memory; then everybody waits with them.
_MOST_HELD = 20_000
_MOST_HELD_BYTES = 64 * 1024 * 1024


class Waiting(NamedTuple):
    """A record that is to be sent."""

    source: Source
    record: Record
    key: PartitionKey


class Hold:
    """The records of a partition that has to wait."""

    def __init__(self) -> None:
        self.records: deque[Waiting] = deque()
        self._pause = Pause()
        # By the monotonic clock.
        self.until = 0.0
        # What its queue last had room for.
        self.most = MOST_RECORDS

    def prolong(self, error: QueenError, tried: int) -> None:
        """Try fewer, if there is room for fewer; else wait a while."""
        room = getattr(error, "left", 0) if isinstance(error, QueueFull) else 0
        if 0 < room < tried:
            self.most = room
        else:
            self.until = time.monotonic() + self._pause.next_s()

    def relax(self) -> None:
        """Something of it was taken."""
        self._pause.reset()
        self.most = MOST_RECORDS


class ReadAhead:
    """Records that were read, oldest first."""

    def __init__(self) -> None:
        self._free: deque[Waiting] = deque()
        self.holds: dict[PartitionKey, Hold] = {}
        self._held = 0
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._free) + self._held

    @property
    def is_free_empty(self) -> bool:
        return not self._free

    @property
    def has_room(self) -> bool:
        """Whether more may be read."""
        return self._held < _MOST_HELD and self._held_bytes < _MOST_HELD_BYTES

    def add(self, waiting: Waiting) -> None:
        hold = self.holds.get(waiting.key)
        if hold is None:
            self._free.append(waiting)
        else:
            hold.records.append(waiting)
            self._count_held([waiting], 1)

    def _count_held(self, records: Collection[Waiting], sign: int) -> None:
        self._held += sign * len(records)
        self._held_bytes += sign * sum(len(waiting.record.body) for waiting in records)

    def first_free(self, source: Source) -> int | None:
        """Return the seq of the oldest record of a source that nobody holds back."""
        seqs = (waiting.record.seq for waiting in self._free if waiting.source is source)
        return next(seqs, None)

    def batch(self, most: int) -> list[Waiting]:
        """Return what is sent next, and leave it here until `remove`."""
        now = time.monotonic()
        batch: list[Waiting] = []
        for hold in self.holds.values():
            if hold.until <= now:
                batch += islice(hold.records, min(hold.most, most - len(batch)))
        batch += islice(self._free, most - len(batch))
        return _within_bytes(batch)

    def remove(self, settled: Collection[Waiting]) -> None:
        """Forget records of a batch that are done."""
        gone = {id(waiting) for waiting in settled}
        self._free = deque(waiting for waiting in self._free if id(waiting) not in gone)
        for key, hold in list(self.holds.items()):
            taken = [waiting for waiting in hold.records if id(waiting) in gone]
            if not taken:
                continue
            hold.records = deque(waiting for waiting in hold.records if id(waiting) not in gone)
            hold.relax()
            self._count_held(taken, -1)
            if not hold.records:
                del self.holds[key]

    def hold(self, key: PartitionKey, error: QueenError, tried: int) -> None:
        """Let a partition wait."""
        hold = self.holds.setdefault(key, Hold())
        joining = [waiting for waiting in self._free if waiting.key == key]
        hold.records.extend(joining)
        self._count_held(joining, 1)
        self._free = deque(waiting for waiting in self._free if waiting.key != key)
        hold.prolong(error, tried)

    def next_due(self) -> float | None:
        """Return when the next partition has waited long enough, by the monotonic clock."""
        return min((hold.until for hold in self.holds.values()), default=None)

    def forget(self, source: Source) -> None:
        """Leave everything of a source where it is."""
        held = [waiting for hold in self.holds.values() for waiting in hold.records]
        self.remove([waiting for waiting in (*self._free, *held) if waiting.source is source])


def _within_bytes(batch: list[Waiting]) -> list[Waiting]:
    """Return the first of a batch, as many as a server takes."""
    sizes = accumulate(len(waiting.record.body) for waiting in batch)
    count = sum(size_bytes <= MOST_BYTES for size_bytes in sizes)
    return batch[: max(count, 1)]
