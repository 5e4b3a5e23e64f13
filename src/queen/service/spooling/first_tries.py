"""First tries whose outcome nobody knows: was the push stored before the connection broke?

Transaction ids answer that where a queue compares them, and far enough back. A spooled push may
be drained much later, or go to a queue that compares nothing. So whatever the queue does, the
partition is read from where it ended at the first try, and what stands there is left out.
"""

from __future__ import annotations

from queen.service.catalog import Partition
from queen.service.log.append import Append
from queen.service.log.flush_share import Share
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database, Record

_PAGE_BYTES = 8 * 1024 * 1024
_END = 2**62


class FirstTries:
    def __init__(self, database: Database, encryption: SegmentEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def leave_out_stored(self, share: Share) -> None:
        """Mark the messages of a share that a first try has stored."""
        sought = _Sought([each for each in share.appends if each.first_try_head is not None])
        if not sought:
            return
        start = sought.first_head
        while sought:
            rows = await self._read(share.partition, start)
            if not rows:
                return
            for row in rows:
                segment = self._encryption.decode_segment(row)
                stored = zip(segment.id_bytes(), segment.payloads(), strict=True)
                for at, message in enumerate(stored, row["base_offset"]):
                    sought.note(message, at)
                start = row["end_offset"]

    async def _read(self, partition: Partition, start: int) -> list[Record]:
        return await self._database.fetch(
            "read_some", [partition.id], [start], [_END], _PAGE_BYTES, _PAGE_BYTES
        )


class _Sought:
    """Messages of which nobody knows whether they are stored. Each stored one is one of them."""

    def __init__(self, appends: list[Append]) -> None:
        self.first_head = min((each.first_try_head or 0 for each in appends), default=0)
        self._places: dict[tuple[bytes, bytes], list[tuple[Append, int]]] = {}
        for append in appends:
            for index in append.fresh():
                message = bytes(append.ids[index]), append.body_of(index)
                self._places.setdefault(message, []).append((append, index))

    def __bool__(self) -> bool:
        return bool(self._places)

    def note(self, message: tuple[bytes, bytes], offset: int) -> None:
        """A message is stored at an offset: whose it is, if it may be the one of a first try."""
        places = self._places.get(message, [])
        for place in places:
            append, index = place
            if offset >= (append.first_try_head or 0):
                append.repeats = {**(append.repeats or {}), index: offset}
                places.remove(place)
                break
        if not places:
            self._places.pop(message, None)
