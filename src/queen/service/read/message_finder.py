"""Finding one message: by its transaction id, or by its offset.

Hashes stand beside most segments, so PostgreSQL can say which of them may hold an id without
sending their bodies; a hash that hits is a suspicion and the stored ids decide. Segments
written while dedup was `off` have no hashes: their bodies are read and looked through, a
few at a time, newest first, and no further than a bound.
"""

from __future__ import annotations

from collections.abc import Iterable

from queen.core.hashing import hash_ids
from queen.core.visibility import DELETED
from queen.service.catalog import Partition
from queen.service.log.message import Message, message_at
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.stretches import written_at
from queen.storage.database import Database, Record

# Segments whose hashes are looked at together.
_PAGE = 1000
# Bodies read together, and how many are looked through for one id before it counts as unknown.
_BODIES = 8
_MAX_BODIES = 10_000
# Bodies that are looked through for what was stored a moment ago.
_RECENT_BODIES = 64
_ANY_HASH = b""
_END = 2**62


class MessageFinder:
    def __init__(self, database: Database, encryption: SegmentEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def by_transaction_id(self, partition: Partition, transaction_id: str) -> Message | None:
        """Return the newest message of a partition with this id; what retention took is gone."""
        id_bytes = transaction_id.encode()
        digest = hash_ids([id_bytes]).tobytes()
        before, bodies = _END, 0
        while bodies < _MAX_BODIES:
            page = await self._database.fetchrow(
                "suspects_before", partition.id, before, digest, _PAGE
            )
            if page["first"] is None:
                return None
            suspects: list[int] = page["suspects"] or []
            for at in range(0, len(suspects), _BODIES):
                starts = suspects[at : at + _BODIES]
                message = await self._find_newest(partition, starts, id_bytes)
                if message is not None:
                    return message
            before = page["first"]
            bodies += len(suspects)
        return None

    async def recent_offsets(self, partition: Partition, ids: Iterable[bytes]) -> dict[bytes, int]:
        """Return where ids stand that were stored lately, the newest of each, without the rest."""
        sought, offsets = set(ids), dict[bytes, int]()
        page = await self._database.fetchrow(
            "suspects_before", partition.id, _END, _ANY_HASH, _RECENT_BODIES
        )
        starts: list[int] = page["suspects"] or []
        for at in range(0, len(starts), _BODIES):
            rows = await self._database.fetch(
                "segments_at", partition.id, starts[at : at + _BODIES]
            )
            for row in rows:
                stored = enumerate(
                    self._encryption.decode_segment(row).id_bytes(), row["base_offset"]
                )
                here = {id_bytes: offset for offset, id_bytes in stored if id_bytes in sought}
                offsets = {**here, **offsets}
            if len(offsets) == len(sought):
                break
        return offsets

    async def at(self, partition: Partition, offset: int) -> Message | None:
        """Return the message at an offset, unless it is not written yet or no longer there."""
        if not 0 <= offset < _END:
            return None
        for row in await self._database.fetch("segments_at", partition.id, [offset]):
            return self._message(row, offset)
        return None

    async def _find_newest(
        self, partition: Partition, starts: list[int], id_bytes: bytes
    ) -> Message | None:
        """Return the newest message with an id among segments that are given newest first."""
        for row in await self._database.fetch("segments_at", partition.id, starts):
            ids = self._encryption.decode_segment(row).id_bytes()
            for at in range(len(ids) - 1, -1, -1):
                if ids[at] == id_bytes:
                    message = self._message(row, row["base_offset"] + at)
                    if message is not None:
                        return message
        return None

    def _message(self, row: Record, offset: int) -> Message | None:
        segment = self._encryption.decode_segment(row)
        at = offset - row["base_offset"]
        deleted = segment.column(DELETED)
        if offset < row["tail"] or (deleted is not None and deleted[at]):
            return None
        return message_at(segment, at, offset, written_at(row, offset))
