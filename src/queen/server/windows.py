"""How windows look on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from queen.core.ids import message_prefix, partition_uuid
from queen.service.catalog import Partition
from queen.service.streams.content import Piece, Span
from queen.service.streams.definitions import Stream
from queen.service.streams.work import Granted
from queen.wire.answers import iso
from queen.wire.streams import Range

_encode = msgspec.json.encode


def window_id(stream: Stream, key: str, start: datetime, end: datetime, number: int) -> str:
    """Return the name of a window: the same for every group and every delivery.

    Several windows of a count may lie in one instant, so theirs ends with a number.
    """
    name = f"{stream.uuid}:{key}:{iso(start)}:{iso(end)}"
    return name if stream.definition.window_type != "count" else f"{name}:{number}"


def id_of(granted: Granted) -> str:
    times = granted.starts_at, granted.ends_at
    return window_id(granted.stream, granted.key, *times, granted.lease.window_id)


def ranges_of(spans: list[Span], partitions: dict[int, Partition]) -> list[Range]:
    """Return where the messages of a window lie; partitions that are gone have no name."""
    return [
        Range(
            partitions[span.partition_id].queue.name if span.partition_id in partitions else "",
            partitions[span.partition_id].name if span.partition_id in partitions else "",
            partition_uuid(span.partition_id),
            span.low,
            span.high,
        )
        for span in spans
    ]


def messages_of(piece: Piece, places: Iterable[int]) -> list[bytes]:
    """Return messages of a segment as JSON. Payloads are the producer's own bytes."""
    segment, base = piece.stored.segment, piece.stored.base_offset
    ids, payloads = segment.id_bytes(), segment.payloads()
    traces = segment.column("traceId")
    head = b'{"id":"' + message_prefix(piece.partition.id).encode()
    middle = b',"created_at":' + _encode(iso(piece.stored.created_at))
    middle += b',"queue":' + _encode(piece.partition.queue.name)
    middle += b',"partition":' + _encode(piece.partition.name) + b',"offset":'
    found: list[bytes] = []
    for at in places:
        offset = base + at
        trace = _encode(traces[at]) if traces else b"null"
        found.append(
            b'%b%012x","transactionId":%b,"traceId":%b,"data":%b%b%d}'
            % (head, offset, _encode(ids[at].decode()), trace, payloads[at], middle, offset)
        )
    return found


def window_body(
    granted: Granted, ranges: list[Range], messages: list[bytes] | None, lost: int
) -> bytes:
    """Return the answer of a poll; without messages they are to be fetched."""
    about = {
        "id": id_of(granted),
        "leaseId": str(granted.lease.id),
        "stream": granted.stream.name,
        "consumerGroup": granted.group,
        "key": granted.key,
        "start": iso(granted.starts_at),
        "end": iso(granted.ends_at),
        "attempt": granted.attempt,
        "leaseTimeoutMs": granted.stream.definition.window_lease_timeout_ms,
        "leaseExpiresAt": iso(granted.lease_until),
        "count": granted.messages - lost if messages is None else len(messages),
        "bytes": granted.bytes,
        "lost": lost,
        "ranges": ranges,
    }
    listed = b'"ref"' if messages is None else b"[" + b",".join(messages) + b"]"
    return b'{"window":' + _encode(about)[:-1] + b',"messages":' + listed + b"}}"
