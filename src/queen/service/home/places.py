"""Partitions as a home names them to its fronts: what answers are made of, and no more.

A front that is told where its messages are need not ask the database for it. Nothing is believed
of these: what the front's own services use is in its catalog.
"""

from __future__ import annotations

from queen.core.options import QueueOptions
from queen.service.catalog import Partition, Queue

_MAX_KEPT = 100_000


class Places:
    def __init__(self) -> None:
        self._kept: dict[int, Partition] = {}

    def of_push(self, partition_id: int, queue: str, name: str) -> Partition:
        kept = self._kept.get(partition_id)
        return kept or self._keep(partition_id, name, Queue(0, queue, "", "", QueueOptions()))

    def of_pop(
        self, partition_id: int, name: str, queue_id: int, queue: str, priority: int
    ) -> Partition:
        kept = self._kept.get(partition_id)
        if kept is None or kept.queue.id != queue_id or kept.queue.options.priority != priority:
            options = QueueOptions(priority=priority)
            kept = self._keep(partition_id, name, Queue(queue_id, queue, "", "", options))
        return kept

    def _keep(self, partition_id: int, name: str, queue: Queue) -> Partition:
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        kept = self._kept[partition_id] = Partition(partition_id, queue, name, 0)
        return kept
