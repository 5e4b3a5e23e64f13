"""The answer of a pop, in frames or in JSON, as grants.

A server that knows frames sends the segments it has leased as they are stored; see
`queen.wire.frames.leased`. The first and the last of a claim may reach beyond what is leased, and
some in between may be hidden from the group: the head says which offsets are ours. Every other
server answers in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from queen.client.leases.grants import (
    FrameGrant,
    Grant,
    JsonGrant,
    JsonMessage,
    PartitionLease,
    Reader,
)
from queen.client.transport.errors_from_answer import decode_answer
from queen.client.transport.http import Answer
from queen.core.names import QUEUE_MODE_GROUP
from queen.errors import InvalidFrame, PayloadTooLarge, Unreachable

if TYPE_CHECKING:
    from queen.core.frame import Frame
    from queen.wire.frames.leased import LeasedClaim, LeasedHead

FRAMES = b"application/vnd.queen.segment"


class _Claim(msgspec.Struct, rename="camel", gc=False):
    """What was leased of one partition. `epoch` grows with every lease of it."""

    partition_id: str = ""
    lease_ms: int = 0
    epoch: int = 0


class _JsonAnswer(msgspec.Struct):
    messages: list[JsonMessage] = []
    claims: list[_Claim] = []


_json_answers = msgspec.json.Decoder(_JsonAnswer)


def read_grants(answer: Answer, reader: Reader, queue: str) -> tuple[Sequence[Grant], float]:
    """Return what a pop got, and for how many seconds; the original broker does not say."""
    if not answer.body:
        return (), 0.0
    if answer.headers.get(b"content-type") == FRAMES:
        return _read_frames(answer.body, reader)
    decoded = decode_answer(_json_answers, answer)
    epochs = {claim.partition_id: claim.epoch for claim in decoded.claims}
    grant = JsonGrant(reader, decoded.messages, epochs, queue)
    return (grant,), _lease_s([claim.lease_ms for claim in decoded.claims])


def _lease_s(leases_ms: Sequence[int]) -> float:
    return min((lease_ms for lease_ms in leases_ms if lease_ms), default=0) / 1000


def _read_frames(body: bytes, reader: Reader) -> tuple[Sequence[Grant], float]:
    # Loaded by those who get frames: decompressing is a library of its own.
    from queen.core.frame import stored_frames
    from queen.wire.frames.leased import unpack_head

    try:
        head, frames_at = unpack_head(body)
        frames = stored_frames(body[frames_at:])
        grants = [grant for claim in head.claims for grant in _grants(claim, head, frames, reader)]
        reader.takes_acks = head.takesAcks
    except (InvalidFrame, PayloadTooLarge) as error:
        raise Unreachable(f"the answer is not one of Queen's: {error}") from None
    return grants, _lease_s([claim.leaseMs for claim in head.claims])


def _grants(
    claim: LeasedClaim, head: LeasedHead, frames: Iterator[Frame], reader: Reader
) -> list[FrameGrant]:
    """Return what was leased of one partition, a grant for each of its frames."""
    group = None if head.consumerGroup == QUEUE_MODE_GROUP else head.consumerGroup
    lease = PartitionLease(
        id=head.leaseId,
        consumer_group=group,
        queue=claim.queue,
        partition=claim.partition,
        partition_id=claim.partitionId,
        epoch=claim.epoch,
        attempt=claim.attempt,
        priority=claim.priority,
        failures=claim.failures,
        span=(claim.firstOffset, claim.endOffset),
        hidden=len(claim.hidden),
    )
    grants: list[FrameGrant] = []
    for _ in range(claim.frames):
        frame = next(frames, None)
        if frame is None:
            raise InvalidFrame("it has fewer frames than its head says")
        grants.append(FrameGrant(reader, lease, frame, _numbers(claim, frame)))
        lease.shown += len(grants[-1].numbers)
    return grants


def _numbers(claim: LeasedClaim, frame: Frame) -> Sequence[int]:
    """Return the places of those messages in a frame that are ours."""
    first = max(0, claim.firstOffset - frame.base_offset)
    numbers = range(first, max(first, min(frame.count, claim.endOffset - frame.base_offset)))
    if not claim.hidden:
        return numbers
    hidden = {offset - frame.base_offset for offset in claim.hidden}
    return numbers if hidden.isdisjoint(numbers) else [n for n in numbers if n not in hidden]
