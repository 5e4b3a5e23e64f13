"""Cursors: what a group has done in a partition, and how an ack moves that on.

Everything before `committed` is done. A lease covers [committed, batch_end). Inside it,
messages may be finished in any order: a bit in `acked` remembers each that is done before
its turn, a bit in `failed` each that was given back. When every message of the lease is one
or the other, the lease is over; what failed is delivered again, what is done never is.

Each message has its own count of failures. One that fails more often than the queue allows
is dead: it counts as done, and the caller keeps a copy in the dead letters.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

RECEIPT_BYTES = 16
MAX_RECEIPTS = 16
_TAG_BYTES = 8


class AckResult(Enum):
    """What became of one acknowledgment."""

    DONE = "completed"
    RETRY = "failed_retry"
    DEAD = "failed_dlq"
    ALREADY = "already"
    # A failure of a message that is a dead letter already, and of one that is done otherwise.
    ALREADY_DEAD = "already_dead"
    TOO_LATE = "too_late"
    LOST = "lease_lost"


# The same acknowledgment came before, as far as can be known.
REPEATS = frozenset((AckResult.ALREADY, AckResult.ALREADY_DEAD))


class AckStatus(Enum):
    """What a consumer asks for one message."""

    DONE = "completed"
    FAILED = "failed"
    RETRY = "retry"
    DEAD = "dlq"


ACK_STATUSES = {
    "completed": AckStatus.DONE,
    "success": AckStatus.DONE,
    "acked": AckStatus.DONE,
    "failed": AckStatus.FAILED,
    "nack": AckStatus.FAILED,
    "retry": AckStatus.RETRY,
    "dlq": AckStatus.DEAD,
}
# What can become of a message beside that.
FAILED_STATUSES = {
    "failed": AckStatus.FAILED,
    "retry": AckStatus.RETRY,
    "dlq": AckStatus.DEAD,
}


@dataclass(slots=True)
class Cursor:
    committed: int
    batch_start: int | None = None
    batch_end: int | None = None
    lease_id: uuid.UUID | None = None
    live: bool = False
    attempts: int = 0
    acked: int = 0
    failed: int = 0
    # How often each message that is not done yet was given back.
    failures: dict[int, int] = field(default_factory=dict)
    receipts: bytes = b""
    # Up to where messages were handed out; None: the group reads in order.
    handed: int | None = None

    def holds(self, offset: int) -> bool:
        """Whether a message is in the lease, and nothing was said of it yet."""
        is_leased = self.batch_end is not None and offset < self.batch_end
        if not is_leased or is_done(self, offset):
            return False
        return not self.failed >> (offset - self.committed) & 1


@dataclass(slots=True)
class Settled:
    """The cursor after an ack, and what became of each offset."""

    cursor: Cursor
    results: dict[int, AckResult] = field(default_factory=dict)
    # The messages that died, and how often each was tried.
    dead: dict[int, int] = field(default_factory=dict)
    # The lease has ended: the messages that were given back, and how often each has failed.
    given_back: dict[int, int] = field(default_factory=dict)

    def is_held_by(self, lease_id: uuid.UUID | None) -> bool:
        """Whether a lease goes on."""
        return self.cursor.live and self.cursor.lease_id == lease_id


def acked_up_to(receipts: bytes, lease_id: uuid.UUID) -> int | None:
    """Return the offset up to which a lease has decided; None when it is not remembered."""
    tag = lease_id.bytes[:_TAG_BYTES]
    for at in range(0, len(receipts), RECEIPT_BYTES):
        if receipts[at : at + _TAG_BYTES] == tag:
            return int.from_bytes(receipts[at + _TAG_BYTES : at + RECEIPT_BYTES])
    return None


def settle(
    cursor: Cursor,
    lease_id: uuid.UUID | None,
    statuses: Mapping[int, AckStatus],
    retry_limit: int | None,
    hidden: Iterable[int] = (),
) -> Settled:
    """Apply acknowledgments of one lease to a locked cursor.

    `lease_id` None means the caller did not name one: it is then the current lease, if that
    still lives, whoever holds it. `retry_limit` None lets a message fail for ever. `hidden` are
    offsets that the group was not shown: they are done. The cursor passed in is not changed.
    """
    owned = cursor.live and lease_id in (None, cursor.lease_id)
    if not owned:
        return _refuse(cursor, lease_id, statuses)
    after = Settled(replace(cursor, failures=dict(cursor.failures)))
    for offset in hidden:
        _mark(after, offset, AckStatus.DONE, retry_limit)
    for offset, status in statuses.items():
        after.results[offset] = _mark(after, offset, status, retry_limit)
    given_back = _given_back(after.cursor)
    _advance(after.cursor)
    if after.cursor.lease_id is None:
        after.given_back = given_back
    return after


def set_aside(cursor: Cursor, offset: int) -> Cursor:
    """Return the cursor with one message done, whoever holds it and whether or not it is next."""
    after = replace(cursor, failures=dict(cursor.failures))
    if not is_done(after, offset):
        after.acked |= 1 << (offset - after.committed)
        after.failed &= ~(1 << (offset - after.committed))
        if _pass_over_done(after):
            inside = after.batch_end is not None and after.committed < after.batch_end
            after.attempts = _attempts_of_next(after) if inside else 0
            if not inside and not after.live:
                _end_lease(after)
    return after


def _given_back(cursor: Cursor) -> dict[int, int]:
    """Return the messages that were given back in this lease, and how often each has failed."""
    if not cursor.failed:
        return {}
    offsets = range(cursor.committed, cursor.committed + cursor.failed.bit_length())
    return {
        offset: cursor.failures.get(offset, 0)
        for offset in offsets
        if cursor.failed >> (offset - cursor.committed) & 1
    }


def _refuse(
    cursor: Cursor, lease_id: uuid.UUID | None, statuses: Mapping[int, AckStatus]
) -> Settled:
    """Change nothing: tell a retry of an ack whose answer was lost so, refuse any other."""
    upto = acked_up_to(cursor.receipts, lease_id) if lease_id is not None else None
    results = {
        offset: AckResult.ALREADY
        if upto is not None and offset < upto and is_done(cursor, offset)
        else AckResult.LOST
        for offset in statuses
    }
    return Settled(cursor, results)


def is_done(cursor: Cursor, offset: int) -> bool:
    """Return whether a message needs nothing more from the group."""
    return offset < cursor.committed or bool(cursor.acked >> (offset - cursor.committed) & 1)


def _mark(after: Settled, offset: int, status: AckStatus, retry_limit: int | None) -> AckResult:
    cursor = after.cursor
    if is_done(cursor, offset):
        return AckResult.ALREADY
    if cursor.batch_end is None or offset >= cursor.batch_end:
        return AckResult.LOST
    bit = 1 << (offset - cursor.committed)
    if status in (AckStatus.FAILED, AckStatus.RETRY) and not cursor.failed & bit:
        cursor.failed |= bit
        _count_failure(cursor, offset, status)
    tries = _tries(cursor, offset)
    if status is AckStatus.DEAD and not cursor.failed & bit:
        # This delivery is one of them, although nobody has counted it.
        tries = max(tries, cursor.failures.get(offset, 0) + 1)
    exhausted = status is AckStatus.FAILED and retry_limit is not None and tries > retry_limit
    if status is AckStatus.DONE or status is AckStatus.DEAD or exhausted:
        cursor.acked |= bit
        cursor.failed &= ~bit
        if status is not AckStatus.DONE:
            after.dead[offset] = tries
        return AckResult.DONE if status is AckStatus.DONE else AckResult.DEAD
    return AckResult.RETRY


def _count_failure(cursor: Cursor, offset: int, status: AckStatus) -> None:
    if status is AckStatus.FAILED:
        cursor.failures[offset] = cursor.failures.get(offset, 0) + 1
    elif offset == cursor.committed:
        # Given back without fault: this delivery does not count.
        cursor.attempts = max(cursor.attempts - 1, 0)


def _tries(cursor: Cursor, offset: int) -> int:
    """Return how often a message was tried: each has its own count of failures, and the first
    one of a batch also answers for the consumers that died without a word."""
    failures = cursor.failures.get(offset, 0)
    return max(failures, cursor.attempts) if offset == cursor.committed else failures


def _advance(cursor: Cursor) -> None:
    """Move over the contiguous prefix of done messages; end the lease when all is decided."""
    assert cursor.batch_end is not None and cursor.lease_id is not None
    decided = cursor.acked | cursor.failed
    span = (1 << max(cursor.batch_end - cursor.committed, 0)) - 1
    ended = decided & span == span
    steps = _pass_over_done(cursor)
    if cursor.committed >= cursor.batch_end:
        cursor.attempts = 0
    elif steps:
        cursor.attempts = _attempts_of_next(cursor)
    if steps or ended:
        _leave_receipt(cursor, cursor.lease_id, cursor.batch_end if ended else cursor.committed)
    if ended:
        _end_lease(cursor)


def _attempts_of_next(cursor: Cursor) -> int:
    """Return how often a message was tried that is the next one since this moment: as often as
    it has failed, and once more in this lease, unless that has said what became of it."""
    told = bool(cursor.failed & 1)
    return cursor.failures.get(cursor.committed, 0) + (0 if told else 1)


def _pass_over_done(cursor: Cursor) -> int:
    """Move over the contiguous prefix of done messages; return how far."""
    steps = (~cursor.acked & (cursor.acked + 1)).bit_length() - 1
    cursor.committed += steps
    cursor.acked >>= steps
    cursor.failed >>= steps
    if cursor.failures:
        cursor.failures = {o: n for o, n in cursor.failures.items() if not is_done(cursor, o)}
    return steps


def _leave_receipt(cursor: Cursor, lease_id: uuid.UUID, upto: int) -> None:
    """Remember that a lease has decided everything before an offset."""
    tag = lease_id.bytes[:_TAG_BYTES]
    others = cursor.receipts
    if others.startswith(tag):
        others = others[RECEIPT_BYTES:]
    cursor.receipts = (receipt_of(lease_id, upto) + others)[: RECEIPT_BYTES * MAX_RECEIPTS]


def receipt_of(lease_id: uuid.UUID, upto: int) -> bytes:
    """Return what is remembered of a lease that has decided everything before an offset."""
    return lease_id.bytes[:_TAG_BYTES] + upto.to_bytes(RECEIPT_BYTES - _TAG_BYTES)


def _end_lease(cursor: Cursor) -> None:
    cursor.lease_id = cursor.batch_start = cursor.batch_end = None
    cursor.failed = 0
    cursor.live = False


def bits_from_bytes(stored: bytes | None) -> int:
    return int.from_bytes(stored, "little") if stored else 0


def bits_to_bytes(bits: int) -> bytes | None:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little") if bits else None
