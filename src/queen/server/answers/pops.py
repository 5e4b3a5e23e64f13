"""How popped messages are answered: as JSON, or as the frames in which they are stored.

Both are rendered bit by bit, and segments are let go on the way: an answer may be large.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby

import msgspec

from queen.core.columns.headers import HEADERS
from queen.core.frame import CODEC_RAW, Frame, encode_body, pack_frame, raw_size
from queen.core.ids import message_prefix
from queen.core.names import QUEUE_MODE_GROUP
from queen.service.consume.feeds import Grant
from queen.service.instants import microseconds
from queen.service.log.segment_cache import StoredSegment
from queen.wire import answers
from queen.wire.frames.leased import LeasedClaim, LeasedHead, pack_head

# Rendered at a time.
_RUN_BYTES = 128 * 1024
# Smaller segments are sent whole, however little of them is leased.
_WORTH_CUTTING_BYTES = 16 * 1024


def pop_bits(grants: list[Grant], group: str) -> Iterator[bytes]:
    """Yield the answer of a pop bit by bit. Segments are let go as they are rendered."""
    first = grants[0]
    about = {
        "success": True,
        "queue": first.partition.queue.name,
        "partition": first.partition.name,
        "partitionId": first.partition.uuid,
        "leaseId": str(first.lease_id) if first.lease_id else "",
        "consumerGroup": group,
        "partitionsClaimed": len(grants),
        "claims": [_claim(grant) for grant in grants],
    }
    return answers.pop_answer(chain.from_iterable(map(_messages_of, grants)), about)


def _claim(grant: Grant) -> dict[str, object]:
    """What was leased of one partition, for those who fence their own side effects."""
    return {
        "queue": grant.partition.queue.name,
        "partition": grant.partition.name,
        "partitionId": grant.partition.uuid,
        "epoch": grant.epoch,
        "attempt": grant.attempt,
        "firstOffset": grant.start,
        "endOffset": grant.stop,
        "leaseMs": 0 if grant.lease_id is None else grant.lease_ms,
    }


def _messages_of(grant: Grant) -> Iterator[list[bytes]]:
    """Yield messages, some at a time."""
    for stored, low, high, failures in _runs(grant):
        subjects = stored.segment.column("producerSub")
        for start, stop in stored.segment.runs(low, high, _RUN_BYTES):
            if subjects is None:
                yield _run_of(grant, stored, start, stop, failures, None)
                continue
            # Messages of one producer mostly stand together.
            for subject, run in groupby(range(start, stop), subjects.__getitem__):
                first, *rest = run
                yield _run_of(grant, stored, first, first + 1 + len(rest), failures, subject)


def _run_of(
    grant: Grant, stored: StoredSegment, low: int, high: int, failures: int, subject: str | None
) -> list[bytes]:
    """Return messages [low, high) of a segment, equally often failed and of one producer."""
    partition, segment = grant.partition, stored.segment
    traces, headers = segment.column("traceId"), segment.column(HEADERS)
    first = stored.base_offset + low
    common = {
        "queue": partition.queue.name,
        "partition": partition.name,
        "partitionId": partition.uuid,
        "leaseId": str(grant.lease_id) if grant.lease_id else "",
        "consumerGroup": None if grant.group == QUEUE_MODE_GROUP else grant.group,
        "createdAt": answers.iso(stored.created_at),
        "retryCount": failures,
        "priority": partition.queue.options.priority,
        "producerSub": subject,
    }
    return answers.messages(
        first,
        _quotable_ids(segment.id_bytes(low, high)),
        segment.payloads(low, high),
        traces[low:high] if traces else None,
        grant.skip >> (first - grant.start) if grant.skip else 0,
        message_prefix(partition.id),
        common,
        headers[low:high] if headers else None,
    )


def _runs(grant: Grant) -> Iterator[tuple[StoredSegment, int, int, int]]:
    """Yield the parts of segments whose messages have failed equally often, nearly always one."""
    grant.stored.reverse()
    while grant.stored:
        stored = grant.stored.pop()
        low, high = stored.part(grant.start, grant.stop)
        if grant.attempt == 1 and not grant.failures:
            yield stored, low, high, 0
            continue
        offsets = range(stored.base_offset + low, stored.base_offset + high)
        for failures, run in groupby(offsets, lambda offset: grant.attempt_of(offset) - 1):
            first, *rest = run
            at = first - stored.base_offset
            yield stored, at, at + 1 + len(rest), failures


def _quotable_ids(ids: list[bytes]) -> list[bytes]:
    if answers.needs_no_escape(b"".join(ids).decode()):
        return ids
    return [msgspec.json.encode(name.decode())[1:-1] for name in ids]


# ---- frames ----


def leased_bits(grants: list[Grant], group: str) -> Iterator[bytes]:
    """Yield the answer of a pop that wants frames, bit by bit; segments are let go on the way.

    Messages are not looked at one by one: what differs from one to the next is said in the head,
    and nearly always there is nothing to say.
    """
    lease_id = grants[0].lease_id
    claims = [_leased_claim(grant) for grant in grants]
    yield pack_head(LeasedHead(str(lease_id or ""), group, claims, takesAcks=True))
    for grant in grants:
        grant.stored.reverse()
        while grant.stored:
            yield _frame(grant, grant.stored.pop())


def _leased_claim(grant: Grant) -> LeasedClaim:
    partition = grant.partition
    return LeasedClaim(
        queue=partition.queue.name,
        partition=partition.name,
        partitionId=partition.uuid,
        epoch=grant.epoch,
        attempt=grant.attempt,
        firstOffset=grant.start,
        endOffset=grant.stop,
        leaseMs=0 if grant.lease_id is None else grant.lease_ms,
        priority=partition.queue.options.priority,
        frames=len(grant.stored),
        hidden=_hidden(grant) if grant.skip else [],
        failures=_failures(grant) if grant.failures or grant.attempt > 1 else {},
    )


def _hidden(grant: Grant) -> list[int]:
    offsets = range(grant.start, grant.stop)
    return [offset for at, offset in enumerate(offsets) if grant.skip >> at & 1]


def _failures(grant: Grant) -> dict[int, int]:
    """Return how often messages were delivered before, where that is not as often as the first."""
    counts = ((offset, grant.attempt_of(offset)) for offset in range(grant.start, grant.stop))
    return {offset: attempt - 1 for offset, attempt in counts if attempt != grant.attempt}


def _frame(grant: Grant, stored: StoredSegment) -> bytes:
    """Return a segment as it is stored, or what is leased of it if that is much less."""
    partition, (codec, body) = grant.partition, stored.encoded()
    first, count = stored.base_offset, stored.segment.count
    low, high = stored.part(grant.start, grant.stop)
    if len(body) > _WORTH_CUTTING_BYTES:
        part_bytes = stored.segment.size_bytes * (high - low) // count
        if part_bytes < len(body) // 2:
            first, count = first + low, high - low
            codec, body = CODEC_RAW, encode_body(stored.segment.cut(low, high))
    return pack_frame(
        Frame(
            partition.queue.name,
            partition.name,
            count,
            codec,
            raw_size(codec, body),
            body,
            first,
            microseconds(stored.created_at),
            partition.id,
        )
    )
