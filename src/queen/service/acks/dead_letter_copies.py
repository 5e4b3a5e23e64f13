"""Dead letter copies: copying a message to the dead letters.

The copy is made in the transaction that moves a cursor past the message, so a message is
delivered or it is dead, and a crash leaves nothing between. Dead letters of an encrypted queue
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
from queen.service.merged.stretches import written_at
from queen.storage.database import Record, Transaction

_PAGE_BYTES = 8 * 1024 * 1024

# Partition and offset.
Position = tuple[int, int]


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
    # As the payload is, in plain text or encrypted.
    headers: bytes | None


class DeadLetterCopies:
    def __init__(self, encryption: SegmentEncryption) -> None:
        self._encryption = encryption

    async def read_messages(
        self, transaction: Transaction, positions: Iterable[Position]
    ) -> dict[Position, Message | QueenError]:
        """Read messages, or why one cannot be read; those that retention has removed, or somebody
        deleted, are left out."""
        unread = sorted(set(positions))
        messages: dict[Position, Message | QueenError] = {}
        while unread:
            rows = await transaction.fetch(
                "read_some",
                [partition for partition, _ in unread],
                [offset for _, offset in unread],
                [offset + 1 for _, offset in unread],
                _PAGE_BYTES,
                _PAGE_BYTES,
            )
            for row in rows:
                position = unread[row["span"] - 1]
                message = self._message(row, position[1])
                if message is not None:
                    messages[position] = message
            unread = unread[max((row["span"] for row in rows), default=len(unread)) :]
        return messages

    def _message(self, row: Record, offset: int) -> Message | QueenError | None:
        try:
            segment, at = self._encryption.decode_segment(row), offset - row["base_offset"]
        except QueenError as error:
            return error
        deleted = segment.column(DELETED)
        if deleted is not None and deleted[at]:
            return None
        return message_at(segment, at, offset, written_at(row, offset))

    def dead_letter(
        self, partition: Partition, group_id: int, message: Message, error: str, attempts: int
    ) -> DeadLetter:
        """Return the copy of a message, encrypted if its queue is."""
        payload, codec = message.payload, CODEC_RAW
        headers = message.headers.encode() if message.headers else None
        if partition.queue.options.encryption_enabled:
            codec, payload = self._encryption.encrypt_dead_letter(partition.id, payload)
            if headers is not None:
                _, headers = self._encryption.encrypt_dead_letter(partition.id, headers)
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
            headers,
        )

    async def store(self, transaction: Transaction, dead_letters: list[DeadLetter]) -> None:
        """Store dead letters. One that is there already, because an ack was repeated, stays."""
        if dead_letters:
            await transaction.execute("bury", *map(list, zip(*dead_letters, strict=True)))
