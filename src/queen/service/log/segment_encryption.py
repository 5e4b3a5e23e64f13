"""What is stored, as columns: decompressed, and decrypted where the queue asks for it.

Everybody who reads a segment from the database comes through here, so that nobody has to
know whether its queue is encrypted. What cannot be read is told with partition and offset,
whatever the reason: a key that is missing, a body that is damaged.
"""

from __future__ import annotations

from queen.core.cipher import KeyRing
from queen.core.frame import (
    CODEC_ENCRYPTED,
    CODEC_MERGED,
    CODEC_RAW,
    Segment,
    raw_size,
    stored_segment,
)
from queen.core.ids import partition_uuid
from queen.errors import QueenError, Unreadable
from queen.service.merged.stretches import Row

_NO_LIMIT = -1
# Whose a body is. It is encrypted for its owner, so these never change.
_SEGMENT = b"segment"
_DEAD_LETTER = b"dead letter"
_OUTBOX = b"staged"
_STATE = b"state"


class SegmentEncryption:
    def __init__(self, keys: KeyRing) -> None:
        self.keys = keys

    def encrypt_segment(self, partition_id: int, codec: int, body: bytes) -> tuple[int, bytes]:
        """Return codec and bytes of an encoded segment as an encrypted queue stores it."""
        return CODEC_ENCRYPTED, self.keys.encrypt(_owner(_SEGMENT, partition_id), codec, body)

    def decrypt_segment(self, partition_id: int, codec: int, body: bytes) -> tuple[int, bytes]:
        """Return codec and bytes of a stored segment without its encryption."""
        if codec == CODEC_ENCRYPTED:
            return self.keys.decrypt(_owner(_SEGMENT, partition_id), body)
        return codec, body

    def decrypt_row(self, row: Row) -> tuple[int, bytes]:
        """Return codec and bytes of a row without its encryption; raises `Unreadable`."""
        try:
            codec = row["codec"] & ~CODEC_MERGED
            return self.decrypt_segment(row["partition_id"], codec, row["body"])
        except Exception as error:
            raise _unreadable(row, error) from error

    def decrypt_sized(self, row: Row) -> tuple[int, bytes, int]:
        """The same, with the size of the body before compression."""
        codec, body = self.decrypt_row(row)
        try:
            return codec, body, raw_size(codec, body)
        except Exception as error:
            raise _unreadable(row, error) from error

    def decode_segment(self, row: Row) -> Segment:
        """Return the columns of a row that holds a segment; raises `Unreadable`."""
        segment = self.decode_segment_within(row, _NO_LIMIT)
        assert segment is not None
        return segment

    def decode_segment_within(self, row: Row, max_bytes: int) -> Segment | None:
        """As `decode_segment`; None, and nothing is inflated, when it would be larger than that."""
        stored = self.read_stored_within(row, max_bytes)
        return stored[2] if stored is not None else None

    def read_stored_within(self, row: Row, max_bytes: int) -> tuple[int, bytes, Segment] | None:
        """Return codec and body as they travel, and the columns that were found in them."""
        codec, body = self.decrypt_row(row)
        try:
            fits = max_bytes == _NO_LIMIT or raw_size(codec, body) <= max_bytes
            return (codec, body, stored_segment(codec, body)) if fits else None
        except Exception as error:
            raise _unreadable(row, error) from error

    def encrypt_dead_letter(self, partition_id: int, payload: bytes) -> tuple[int, bytes]:
        """Return codec and bytes of a dead letter of an encrypted queue."""
        return CODEC_ENCRYPTED, self.keys.encrypt(
            _owner(_DEAD_LETTER, partition_id), CODEC_RAW, payload
        )

    def decrypt_dead_letter(self, partition_id: int, codec: int, payload: bytes) -> bytes:
        if codec == CODEC_ENCRYPTED:
            return self.keys.decrypt(_owner(_DEAD_LETTER, partition_id), payload)[1]
        return payload

    def decrypt_dead_letter_headers(self, partition_id: int, codec: int, headers: bytes) -> bytes:
        """The same for its headers. An older server that encrypts a dead letter leaves them as they
        were, and what is encrypted never begins as a JSON object does."""
        if headers.startswith(b"{"):
            return headers
        return self.decrypt_dead_letter(partition_id, codec, headers)

    def encrypt_state(self, partition_id: int, value: bytes) -> tuple[int, bytes]:
        """Return codec and bytes of what an sdk query keeps of an encrypted queue."""
        return CODEC_ENCRYPTED, self.keys.encrypt(_owner(_STATE, partition_id), CODEC_RAW, value)

    def decrypt_state(self, partition_id: int, codec: int, value: bytes) -> bytes:
        if codec == CODEC_ENCRYPTED:
            return self.keys.decrypt(_owner(_STATE, partition_id), value)[1]
        return value

    def encrypt_outbox_message(
        self, queue: str, partition: str, payload: bytes
    ) -> tuple[int, bytes]:
        """Return codec and bytes of a message that waits for an encrypted queue."""
        owner = _outbox_owner(queue, partition)
        return CODEC_ENCRYPTED, self.keys.encrypt(owner, CODEC_RAW, payload)

    def decrypt_outbox_message(
        self, queue: str, partition: str, codec: int, payload: bytes
    ) -> bytes:
        if codec == CODEC_ENCRYPTED:
            return self.keys.decrypt(_outbox_owner(queue, partition), payload)[1]
        return payload


def _unreadable(row: Row, error: Exception) -> Unreadable:
    """Say which segment it was; zstd, struct, array and the cipher do not."""
    reason = error.message if isinstance(error, QueenError) else "its body is damaged"
    return Unreadable(partition_uuid(row["partition_id"]), row.get("base_offset", 0), reason)


def _outbox_owner(queue: str, partition: str) -> bytes:
    """A message that waits has no partition yet, only the names of one, which hold no NUL."""
    return b"\0".join((_OUTBOX, queue.encode(), partition.encode()))


def _owner(kind: bytes, partition_id: int) -> bytes:
    return kind + partition_id.to_bytes(8)
