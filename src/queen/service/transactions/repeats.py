"""Repeats: what a transaction that was committed before must not push once more.

A transaction is known again by its acks: each of them finds that it was taken already. Most of
its pushes are duplicates then, and dedup says so. Dedup cannot say it of a queue that keeps no
ids, nor of a message whose id was made here, because a repeat of the request is given another.
These are left out: they were stored with the acks.
"""

from __future__ import annotations

from collections.abc import Iterable

from queen.core.cursor import REPEATS
from queen.service.acks.ack_batch import AckBatch
from queen.service.catalog import Catalog
from queen.service.log.append import UNKNOWN_OFFSET, Append
from queen.service.outbox.scheduled import Scheduled
from queen.service.read.message_finder import MessageFinder


def is_repeat(ack_batches: list[AckBatch]) -> bool:
    """Whether there are acks, and every one of them was taken before."""
    results = [result for batch in ack_batches for result in batch.results.values()]
    return bool(results) and REPEATS.issuperset(results)


class Repeats:
    def __init__(self, catalog: Catalog, finder: MessageFinder) -> None:
        self._catalog = catalog
        self._finder = finder

    async def leave_out(self, appends: Iterable[Append]) -> None:
        """Mark as stored what dedup cannot know again, each with its offset where that is found."""
        for append in appends:
            partition = append.target
            assert partition is not None
            forgetful = partition.queue.options.dedup == "off"
            unknown = range(len(append)) if forgetful else append.unnamed
            named = [append.ids[at] for at in unknown if at not in append.unnamed]
            offsets = await self._finder.recent_offsets(partition, named) if named else {}
            repeats = {at: offsets.get(append.ids[at], UNKNOWN_OFFSET) for at in unknown}
            append.repeats = {**(append.repeats or {}), **repeats}

    async def recognisable(self, scheduled: list[Scheduled]) -> list[Scheduled]:
        """Return the messages that dedup knows again when they are due."""
        queues = await self._catalog.queues(message.queue for message in scheduled)
        forgetful = {queue.name for queue in queues if queue.options.dedup == "off"}
        return [
            message for message in scheduled if message.is_named and message.queue not in forgetful
        ]
