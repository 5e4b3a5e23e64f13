"""What was popped, on its way from the home to the front that renders it."""

from __future__ import annotations

import uuid
from array import array

from queen.core.frame import Segment, decode_body, encode_body
from queen.service.consume.feeds import Grant
from queen.service.home.calls import GrantedSegment, PopGrant
from queen.service.home.places import Places
from queen.service.log.segment_cache import StoredSegment


def granted(grant: Grant) -> PopGrant:
    partition = grant.partition
    return PopGrant(
        partition.id,
        partition.name,
        partition.queue.id,
        partition.queue.name,
        partition.queue.options.priority,
        grant.group,
        grant.lease_id.bytes if grant.lease_id is not None else None,
        grant.start,
        grant.stop,
        grant.epoch,
        grant.attempt,
        grant.seen,
        grant.skip.to_bytes((grant.skip.bit_length() + 7) // 8, "little"),
        grant.failures,
        grant.lease_ms,
        [_segment_of(stored, grant) for stored in grant.stored],
    )


def _segment_of(stored: StoredSegment, grant: Grant) -> GrantedSegment:
    """Return the part of a segment that was granted: a lease of one message of ten thousand does
    not send them all."""
    low, high = stored.part(grant.start, grant.stop)
    segment = stored.segment
    if high - low < segment.count:
        segment = _part_of(segment, low, high)
    return GrantedSegment(stored.base_offset + low, stored.created_at, encode_body(segment))


def _part_of(segment: Segment, low: int, high: int) -> Segment:
    id_offsets = segment.id_offsets[low : high + 1]
    payload_offsets = segment.payload_offsets[low : high + 1]
    first_id, first_byte = id_offsets[0], payload_offsets[0]
    ids = segment.ids[first_id : id_offsets[-1]]
    data = segment.data[first_byte : payload_offsets[-1]]
    if low:
        id_offsets = array("i", [offset - first_id for offset in id_offsets])
        payload_offsets = array("i", [offset - first_byte for offset in payload_offsets])
    extras = {name: column[low:high] for name, column in segment.extras.items()}
    return Segment(high - low, id_offsets, payload_offsets, ids, data, extras)


def grant_of(popped: PopGrant, places: Places) -> Grant:
    return Grant(
        places.of_pop(
            popped.partition_id, popped.partition, popped.queue_id, popped.queue, popped.priority
        ),
        popped.group,
        uuid.UUID(bytes=popped.lease_id) if popped.lease_id is not None else None,
        popped.start,
        popped.stop,
        popped.epoch,
        popped.attempt,
        popped.seen,
        int.from_bytes(popped.skip, "little"),
        popped.failures,
        popped.lease_ms,
        [
            StoredSegment(segment.base_offset, segment.created_at, decode_body(segment.body))
            for segment in popped.segments
        ],
        is_read=True,
    )
