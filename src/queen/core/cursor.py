"""Cursors: what a group has done in a partition, and how an ack moves that on.

Everything before `committed` is done. A lease covers [committed, batch_end). Inside it,
messages may be finished in any order: a bit in `acked` remembers each that is done before
its turn, a bit in `failed` each that was given back. When every message of the lease is one
or the other, the lease is over; what failed is delivered again, what is done never is.

A message that fails more often than the queue allows is dead: it counts as done, and the
caller keeps a copy in the dead letters.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

RECEIPT_BYTES = 8
MAX_RECEIPTS = 16


class Verdict(Enum):
    """What became of one acknowledgment."""

    DONE = "completed"
    RETRY = "failed_retry"
    DEAD = "failed_dlq"
    ALREADY = "already"
    LOST = "lease_lost"


class Wish(Enum):
    """What a consumer asks for one message."""

    DONE = "completed"
    FAILED = "failed"
    RETRY = "retry"
    DEAD = "dlq"


WISHES = {
    "completed": Wish.DONE,
    "success": Wish.DONE,
    "acked": Wish.DONE,
    "failed": Wish.FAILED,
    "nack": Wish.FAILED,
    "retry": Wish.RETRY,
    "dlq": Wish.DEAD,
}


@dataclass(slots=True)
class Cursor:
    committed: int
    batch_end: int | None = None
    lease_id: uuid.UUID | None = None
    live: bool = False
    attempts: int = 0
    acked: int = 0
    failed: int = 0
    receipts: bytes = b""


@dataclass(slots=True)
class Settled:
    """The cursor after an ack, and what became of each offset."""

    cursor: Cursor
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    @property
    def dead(self) -> list[int]:
        return [offset for offset, verdict in self.verdicts.items() if verdict is Verdict.DEAD]


def receipt_of(lease_id: uuid.UUID) -> bytes:
    return lease_id.bytes[:RECEIPT_BYTES]


def has_receipt(cursor: Cursor, lease_id: uuid.UUID) -> bool:
    tag = receipt_of(lease_id)
    receipts = cursor.receipts
    return any(
        receipts[at : at + RECEIPT_BYTES] == tag for at in range(0, len(receipts), RECEIPT_BYTES)
    )


def settle(
    cursor: Cursor, lease_id: uuid.UUID | None, wishes: Mapping[int, Wish], retry_limit: int
) -> Settled:
    """Apply acknowledgments of one lease to a locked cursor.

    `lease_id` None means the caller did not name one: it is then the current lease, if that
    still lives. The cursor passed in is not changed.
    """
    owned = cursor.live and lease_id in (None, cursor.lease_id)
    if not owned:
        return _refused(cursor, lease_id, wishes)
    after = Settled(replace(cursor))
    for offset, wish in wishes.items():
        after.verdicts[offset] = _mark(after.cursor, offset, wish, retry_limit)
    _advance(after.cursor)
    return after


def _refused(cursor: Cursor, lease_id: uuid.UUID | None, wishes: Mapping[int, Wish]) -> Settled:
    """A retry of an ack whose answer was lost is told so; any other stranger is refused."""
    known = lease_id is not None and has_receipt(cursor, lease_id)
    verdicts = {
        offset: Verdict.ALREADY if known and _is_done(cursor, offset) else Verdict.LOST
        for offset in wishes
    }
    return Settled(cursor, verdicts)


def _is_done(cursor: Cursor, offset: int) -> bool:
    return offset < cursor.committed or bool(cursor.acked >> (offset - cursor.committed) & 1)


def _mark(cursor: Cursor, offset: int, wish: Wish, retry_limit: int) -> Verdict:
    if _is_done(cursor, offset):
        return Verdict.ALREADY
    if cursor.batch_end is None or offset >= cursor.batch_end:
        return Verdict.LOST
    bit = 1 << (offset - cursor.committed)
    exhausted = wish is Wish.FAILED and cursor.attempts > retry_limit
    if wish is Wish.DONE or wish is Wish.DEAD or exhausted:
        cursor.acked |= bit
        cursor.failed &= ~bit
        return Verdict.DONE if wish is Wish.DONE else Verdict.DEAD
    cursor.failed |= bit
    return Verdict.RETRY


def _advance(cursor: Cursor) -> None:
    """Move over the contiguous prefix of done messages; end the lease when all is decided."""
    assert cursor.batch_end is not None
    steps = (~cursor.acked & (cursor.acked + 1)).bit_length() - 1
    decided = cursor.acked | cursor.failed
    span = (1 << (cursor.batch_end - cursor.committed)) - 1
    ended = decided & span == span
    cursor.committed += steps
    cursor.acked >>= steps
    cursor.failed >>= steps
    if cursor.committed >= cursor.batch_end:
        cursor.attempts = 0
    elif steps:
        # What is left was delivered in this lease, so it has used one attempt.
        cursor.attempts = 1
    if ended:
        _end_lease(cursor)


def _end_lease(cursor: Cursor) -> None:
    assert cursor.lease_id is not None
    cursor.receipts = (receipt_of(cursor.lease_id) + cursor.receipts)[
        : RECEIPT_BYTES * MAX_RECEIPTS
    ]
    cursor.lease_id = None
    cursor.batch_end = None
    cursor.failed = 0
    cursor.live = False


def bits_from_bytes(stored: bytes | None) -> int:
    return int.from_bytes(stored, "little") if stored else 0


def bits_to_bytes(bits: int) -> bytes | None:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little") if bits else None
