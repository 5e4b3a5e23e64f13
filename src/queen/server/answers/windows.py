"""How windows look on the wire."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain

import msgspec

from queen.core.columns.headers import HEADERS
from queen.core.ids import message_prefix, partition_uuid
from queen.service.catalog import Partition
from queen.service.streams.content import SegmentPart, WindowSpan
from queen.service.streams.definitions import Stream
from queen.service.streams.work import LeasedWindow
from queen.wire.answers import headers_field, iso, message_list
from queen.wire.streams import Range

_encode = msgspec.json.encode
# Rendered at a time.
_RUN_BYTES = 128 * 1024


def window_id(stream: Stream, key: str, start: datetime, end: datetime, number: int) -> str:
    """Return the name of a window: the same for every group and every delivery.

    Several windows of a count may lie in one instant, so theirs ends with a number.
    """
    name = f"{stream.uuid}:{key}:{iso(start)}:{iso(end)}"
    return name if stream.definition.window_type != "count" else f"{name}:{number}"


def id_of(granted: LeasedWindow) -> str:
    times = granted.starts_at, granted.ends_at
    return window_id(granted.stream, granted.key, *times, granted.lease.window_id)


def ranges_of(spans: list[WindowSpan], partitions: dict[int, Partition]) -> list[Range]:
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


def messages_of(piece: SegmentPart, places: Sequence[int]) -> Iterator[list[bytes]]:
    """Yield messages of a segment as JSON, some at a time. Payloads go out as they came."""
    if not places:
        return
    for low, high in piece.stored.segment.runs(places[0], places[-1] + 1, _RUN_BYTES):
        run = places[bisect_left(places, low) : bisect_left(places, high)]
        if run:
            yield _run_of(piece, run, low, high)


def _run_of(piece: SegmentPart, places: Sequence[int], low: int, high: int) -> list[bytes]:
    segment, base = piece.stored.segment, piece.stored.base_offset
    ids, payloads = segment.id_bytes(low, high), segment.payloads(low, high)
    traces, headers = segment.column("traceId"), segment.column(HEADERS)
    head = b'{"id":"' + message_prefix(piece.partition.id).encode()
    middle = b',"created_at":' + _encode(iso(piece.stored.created_at))
    middle += b',"queue":' + _encode(piece.partition.queue.name)
    middle += b',"partition":' + _encode(piece.partition.name) + b',"offset":'
    messages: list[bytes] = []
    for at in places:
        offset, name = base + at, _encode(ids[at - low].decode())
        trace = _encode(traces[at]) if traces else b"null"
        field = headers_field(headers[at]) if headers else b""
        messages.append(
            b'%b%012x","transactionId":%b,"traceId":%b%b,"data":%b%b%d}'
            % (head, offset, name, trace, field, payloads[at - low], middle, offset)
        )
    return messages


def window_bits(
    granted: LeasedWindow, ranges: list[Range], pieces: list[SegmentPart] | None, lost: int
) -> Iterator[bytes]:
    """Yield the answer of a poll bit by bit; without messages they are to be fetched."""
    shown = None if pieces is None else [(piece, piece.visible()) for piece in pieces]
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
        "count": granted.messages - lost if shown is None else sum(len(at) for _, at in shown),
        "bytes": granted.bytes,
        "lost": lost,
        "ranges": ranges,
    }
    head = b'{"window":' + _encode(about)[:-1] + b',"messages":'
    if shown is None:
        yield head + b'"ref"}}'
        return
    messages = chain.from_iterable(messages_of(piece, places) for piece, places in shown)
    yield from message_list(head + b"[", messages)
    yield b"]}}"


def page_bits(pieces: list[tuple[SegmentPart, list[int]]], following: bytes) -> Iterator[bytes]:
    """Yield a page of the messages of a window bit by bit."""
    messages = chain.from_iterable(messages_of(piece, places) for piece, places in pieces)
    yield from message_list(b'{"messages":[', messages)
    yield b'],"next":' + following + b"}"
