"""Admission: what a queue takes and what it must refuse now.

Two rules need more than the request itself: a queue may hold only so many messages that
somebody still has to read, and an encrypted queue needs a key. Each append is judged by
itself, so a full queue does not fail the neighbours that share its flush.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from queen.errors import EncryptionUnavailable, QueenError, QueueFull
from queen.service.log.append import Append
from queen.service.log.flush_share import Share
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database

# Counting is exact each time while it is quick. Where it is not, a count serves for a while,
# with what this server has added since; what others add is then seen that much later.
_QUICK_S = 0.005
_COUNT_SERVES_S = 1.0


@dataclass(slots=True)
class _Depth:
    """How many messages of a queue are still to be read by its slowest group."""

    messages: int
    counted_at: float
    took_s: float

    @property
    def serves(self) -> bool:
        age_s = time.monotonic() - self.counted_at
        return self.took_s > _QUICK_S and age_s < _COUNT_SERVES_S


class Admission:
    def __init__(self, database: Database, encryption: SegmentEncryption) -> None:
        self._database = database
        self._encryption = encryption
        self._depths: dict[int, _Depth] = {}

    async def refusals(self, shares: list[Share]) -> dict[Append, QueenError]:
        """Return the appends that their queue does not take, and why."""
        refused: dict[Append, QueenError] = {}
        limited: dict[int, list[Share]] = defaultdict(list)
        # To count takes time, and the limit may be lifted meanwhile: 0 would then leave no room.
        limits: dict[int, int] = {}
        for share in shares:
            options = share.partition.queue.options
            if options.encryption_enabled and not self._encryption.keys:
                refused |= {append: EncryptionUnavailable() for append in share.appends}
            elif options.max_size:
                limited[share.partition.queue.id].append(share)
                limits[share.partition.queue.id] = options.max_size
        for queue_id, group in limited.items():
            refused |= await self._size_refusals(group, limits[queue_id])
        return refused

    async def _size_refusals(self, shares: list[Share], limit: int) -> dict[Append, QueenError]:
        queue = shares[0].partition.queue
        depth = await self._depth(queue.id)
        refused: dict[Append, QueenError] = {}
        for append in (append for share in shares for append in share.appends):
            fresh = len(append) - len(append.repeats or ())
            left = max(0, limit - depth.messages)
            if fresh > left or append.counts_on(refused):
                refused[append] = QueueFull(queue.name, limit, left)
            else:
                depth.messages += fresh
        return refused

    async def _depth(self, queue_id: int) -> _Depth:
        depth = self._depths.get(queue_id)
        if depth is not None and depth.serves:
            return depth
        started = time.monotonic()
        messages: int = await self._database.fetchval("queue_depth", queue_id) or 0
        now = time.monotonic()
        self._depths[queue_id] = _Depth(messages, now, now - started)
        return self._depths[queue_id]
