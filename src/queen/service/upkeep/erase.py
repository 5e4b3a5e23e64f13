"""Erasing: taking single messages, or all of them, out of the log.

A message that is deleted is marked where it stands and its payload is replaced by null:
offsets stay dense, and groups pass over it as if it were done. Segments never change but for
this, so a claim says how often it has happened, and a server drops what it had cached before.
"""

from __future__ import annotations

from queen.core.columns.headers import HEADERS
from queen.core.frame import Segment, compress, encode_body, segment_of
from queen.core.visibility import DELETED
from queen.service.catalog import Partition, Queue
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database, Record, Transaction


class Eraser:
    def __init__(self, database: Database, encryption: SegmentEncryption) -> None:
        self._database = database
        self._encryption = encryption

    async def delete(self, partition: Partition, offset: int) -> bool:
        """Delete one message; false when it is not, or no longer, there."""
        async with self._database.transaction() as transaction:
            await transaction.execute("lock_partition", partition.id)
            row = await self._lock_segment(transaction, partition, offset)
            if row is None:
                return False
            erased = _erase(self._encryption.decode_segment(row), offset - row["base_offset"])
            if erased is None:
                return False
            codec, body = compress(encode_body(erased))
            if partition.queue.options.encryption_enabled:
                codec, body = self._encryption.encrypt_segment(partition.id, codec, body)
            await transaction.execute(
                "rewrite_segment", partition.id, row["base_offset"], codec, body
            )
            await transaction.execute("count_erasure", partition.id)
            # What groups have set aside of it is a copy, and goes too.
            await transaction.execute("erase_letters", partition.id, offset)
        return True

    async def _lock_segment(
        self, transaction: Transaction, partition: Partition, offset: int
    ) -> Record | None:
        """Return the segment that holds an offset. A statement that waits for one which is merged
        meanwhile finds nothing in its place; the next statement does."""
        row = await transaction.findrow("lock_segment", partition.id, offset)
        return row or await transaction.findrow("lock_segment", partition.id, offset)

    async def clear(self, queue: Queue, partition: Partition | None) -> int:
        """Delete all messages of a queue or of one partition; return how many there were."""
        removed: int = await self._database.fetchval(
            "clear_queue", queue.id, partition.id if partition is not None else None
        )
        # Nothing else to tell: a claim never reaches behind the tail.
        return removed


def _erase(segment: Segment, at: int) -> Segment | None:
    """Return a segment in which one message is deleted; None when it already is."""
    marks = list(segment.column(DELETED) or [None] * segment.count)
    if marks[at]:
        return None
    marks[at] = True
    payloads = segment.payloads()
    payloads[at] = b"null"
    extras = {**segment.extras, DELETED: marks}
    if HEADERS in extras:
        extras[HEADERS] = [None if n == at else text for n, text in enumerate(extras[HEADERS])]
    return segment_of(segment.id_bytes(), payloads, extras)
