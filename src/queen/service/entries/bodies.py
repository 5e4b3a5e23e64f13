"""Bodies of entries, from the log."""

from __future__ import annotations

from collections.abc import Iterable

from queen.core.frame import Segment, segment_of
from queen.service.catalog import Partition
from queen.service.entries.payloads import fields_of
from queen.service.entries.replicas import Replica
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database
from queen.streambroker.engine.ids import text_of
from queen.streambroker.engine.state.entries import Fields

_NOTHING = segment_of([], [])


class Bodies:
    def __init__(
        self, database: Database, cache: SegmentCache, encryption: SegmentEncryption
    ) -> None:
        self._database = database
        self._cache = cache
        self._encryption = encryption

    async def fill(self, replica: Replica) -> None:
        """Put content into the lists that commands have handed out empty."""
        entries = replica.stream.entries
        unread, entries.unread = entries.unread, []
        if unread and replica.partition is not None:
            await self._fill(replica.partition, unread)

    async def _fill(self, partition: Partition, unread: list[Fields]) -> None:
        """Read what is wanted, in order, one segment after the other."""
        waiting = sorted(unread, key=lambda fields: fields.ordinal)
        at = 0
        while at < len(waiting):
            segment, base = await self._segment(partition, waiting, at)
            end = at
            while end < len(waiting) and waiting[end].ordinal < base + segment.count:
                end += 1
            _fill_from(segment, base, waiting[at:end])
            # One whose message is gone stays empty.
            at = max(end, at + 1)

    async def _segment(
        self, partition: Partition, waiting: list[Fields], at: int
    ) -> tuple[Segment, int]:
        ordinal = waiting[at].ordinal
        cached = self._cache.span(partition.id, ordinal, ordinal + 1)
        if cached:
            return cached[0].segment, cached[0].base_offset
        rows = await self._database.fetch("segments_at", partition.id, [ordinal])
        if not rows:
            return _NOTHING, ordinal
        return self._encryption.decode_segment(rows[0]), rows[0]["base_offset"]

    async def load(self, replica: Replica, entry_id: int) -> None:
        """Have the body of an entry in memory."""
        stream = replica.stream
        place = stream.entries.place(entry_id)
        assert place is not None
        fields = Fields(place.ordinal, entry_id)
        if replica.partition is not None:
            await self._fill(replica.partition, [fields])
        place.chunk.bodies[place.at] = list(fields)


def _fill_from(segment: Segment, base: int, wanted: Iterable[Fields]) -> None:
    for fields in wanted:
        at = fields.ordinal - base
        (transaction_id,) = segment.id_bytes(at, at + 1)
        (payload,) = segment.payloads(at, at + 1)
        fields.extend(fields_of(text_of(fields.entry_id), transaction_id, payload))
