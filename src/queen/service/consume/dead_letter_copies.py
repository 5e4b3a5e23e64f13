"""Burial: copying a message to the dead letters.

The copy is made in the transaction that moves a cursor past the message, so a message is
delivered or it is dead, and a crash leaves nothing between. Letters of an encrypted queue
are encrypted as its messages are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from queen.core.frame import CODEC_RAW
from queen.core.visibility import DELETED
from queen.errors import QueenError
from queen.service.catalog import Partition
from queen.service.log.message import Message, message_at
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Record, Transaction

_PAGE_BYTES = 8 * 1024 * 1024

# Partition and offset.
Place = tuple[int, int]


class DeadLetter(NamedTuple):
    """A dead letter, field by field as it is stored."""

    partition_id: int
    group_id: int
    offset: int
    transaction_id: str
    trace_id: str | None
    payload: bytes
    error: str
    attempts: int
    created_at: datetime
    codec: int
    producer_sub: str | None


class Burial:
    def __init__(self, encryption: SegmentEncryption) -> None:
        self._encryption = encryption

    async def messages(
        self, transaction: Transaction, places: Iterable[Place]
    ) -> dict[Place, Message | QueenError]:
        """Read messages, or why one cannot be read; those that retention has removed, or somebody
        deleted, are left out."""
        wanted = sorted(set(places))
        found: dict[Place, Message | QueenError] = {}
        while wanted:
            rows = await transaction.fetch(
                "read_some",
                [partition for partition, _ in wanted],
                [offset for _, offset in wanted],
                [offset + 1 for _, offset in wanted],
                _PAGE_BYTES,
                _PAGE_BYTES,
            )
            for row in rows:
                place = wanted[row["span"] - 1]
                message = self._message(row, place[1])
                if message is not None:
                    found[place] = message
            wanted = wanted[max((row["span"] for row in rows), default=len(wanted)) :]
        return found

    def _message(self, row: Record, offset: int) -> Message | QueenError | None:
        try:
            segment, at = self._encryption.decode_segment(row), offset - row["base_offset"]
        except QueenError as error:
            return error
        deleted = segment.column(DELETED)
        if deleted is not None and deleted[at]:
            return None
        return message_at(segment, at, offset, row["created_at"])

    def letter(
        self, partition: Partition, group_id: int, message: Message, error: str, attempts: int
    ) -> DeadLetter:
        payload, codec = message.payload, CODEC_RAW
        if partition.queue.options.encryption_enabled:
            codec, payload = self._encryption.encrypt_dead_letter(partition.id, payload)
        return DeadLetter(
            partition.id,
            group_id,
            message.offset,
            message.transaction_id,
            message.trace_id,
            payload,
            error,
            attempts,
            message.created_at,
            codec,
            message.producer_sub,
        )

    async def bury(self, transaction: Transaction, letters: list[DeadLetter]) -> None:
        """Store letters; one that is there already, because an ack was repeated, stays as it is."""
        if letters:
            await transaction.execute("bury", *map(list, zip(*letters, strict=True)))
