"""The bytes of the hot answers.

A push of a hundred messages answers with a hundred objects, a pop with a hundred more.
They are formatted, not built: everything that is the same for all messages of a segment is
encoded once, and each message costs one formatting operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

encode = msgspec.json.encode

MAX_ITEMS = 10_000


def json_text(text: str) -> str:
    """Return text as a JSON string."""
    return encode(text).decode()


_TO_ESCAPE = bytes([*range(32), *b'"\\', 127])


def needs_no_escape(text: str) -> bool:
    """Return whether text can stand between quotes as it is."""
    return text.isascii() and len(text.encode().translate(None, _TO_ESCAPE)) == len(text)


def iso(at: datetime) -> str:
    """Return a UTC instant as the clients expect it.

    >>> from datetime import timezone
    >>> iso(datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    '2026-01-02T03:04:05.000000Z'
    """
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


# ---- push ----


_QUEUED_HEADS = [f',{{"index":{index},"transaction_id":"' for index in range(MAX_ITEMS)]
_LOW_DIGITS = [f"{low:03x}" for low in range(4096)]
_PARTS = 5


class Stored(NamedTuple):
    """Where messages of one request were stored: one after the other from `first_offset`."""

    transaction_ids: Sequence[str]
    first_offset: int
    prefix: str
    partition_uuid: str
    queue: str


def queued_body(stored: Stored) -> bytes:
    """Return the whole answer for a request whose items were all stored together."""
    heads = _QUEUED_HEADS[: len(stored.transaction_ids)]
    return f"[{''.join(_queued_parts(heads, stored))[1:]}]".encode()


def queued_items(indexes: Sequence[int], stored: Stored) -> list[str]:
    """Return the answers for items at these places of a request, one text each."""
    parts = _queued_parts([_QUEUED_HEADS[index] for index in indexes], stored)
    starts = range(0, len(parts), _PARTS)
    return ["".join(parts[start : start + _PARTS])[1:] for start in starts]


def _queued_parts(heads: list[str], stored: Stored) -> list[str]:
    ids, queue = stored.transaction_ids, json_text(stored.queue)
    if not needs_no_escape("".join(ids)):
        ids = [json_text(transaction_id)[1:-1] for transaction_id in ids]
    # Consecutive offsets differ in their last three digits until a multiple of 4096 comes.
    high, low = divmod(stored.first_offset, 4096)
    count = min(len(ids), 4096 - low)
    parts = [f'","partition_id":"{stored.partition_uuid}","trace_id":null,"queueName":{queue}}}']
    parts *= _PARTS * count
    parts[0::_PARTS] = heads[:count]
    parts[1::_PARTS] = ids[:count]
    parts[2::_PARTS] = [f'","status":"queued","message_id":"{stored.prefix}{high:09x}'] * count
    parts[3::_PARTS] = _LOW_DIGITS[low : low + count]
    if count < len(ids):
        rest = stored._replace(
            transaction_ids=stored.transaction_ids[count:],
            first_offset=stored.first_offset + count,
        )
        parts += _queued_parts(heads[count:], rest)
    return parts


def push_item(
    index: int,
    transaction_id: str,
    status: str,
    message_id: str,
    partition_uuid: str,
    trace_id: str | None,
    queue: str,
) -> str:
    return encode(
        {
            "index": index,
            "transaction_id": transaction_id,
            "status": status,
            "message_id": message_id,
            "partition_id": partition_uuid,
            "trace_id": trace_id,
            "queueName": queue,
        }
    ).decode()


def buffered_item(index: int, transaction_id: str, trace_id: str | None, queue: str) -> str:
    """Return the answer for a message in the spool: it has no place in the log yet."""
    return encode(
        {
            "index": index,
            "transaction_id": transaction_id,
            "status": "buffered",
            "message_id": None,
            "partition_id": None,
            "trace_id": trace_id,
            "queueName": queue,
        }
    ).decode()


def scheduled_item(
    index: int, transaction_id: str, trace_id: str | None, queue: str, deliver_at: datetime
) -> str:
    """Return the answer for a message that is due later: it has no place in the log yet."""
    return encode(
        {
            "index": index,
            "transaction_id": transaction_id,
            "status": "scheduled",
            "message_id": None,
            "partition_id": None,
            "trace_id": trace_id,
            "queueName": queue,
            "deliverAt": iso(deliver_at),
        }
    ).decode()


# ---- ack ----

MAX_ACKS = 20_000
_ACK_HEADS = [f',{{"index":{index},"transactionId":"' for index in range(MAX_ACKS)]
_COMPLETED = '","status":"completed","success":true,"error":null,"dlq":false}'


def all_completed(transaction_ids: Sequence[str]) -> bytes:
    """Return the answer of a batch ack of which every item is completed."""
    count = len(transaction_ids)
    ids = transaction_ids
    if not needs_no_escape("".join(ids)):
        ids = [json_text(transaction_id)[1:-1] for transaction_id in ids]
    parts = [_COMPLETED] * (3 * count)
    parts[0::3] = _ACK_HEADS[:count]
    parts[1::3] = ids
    return f'{{"processed":{count},"results":[{"".join(parts)[1:]}]}}'.encode()


# ---- pop ----


def messages(
    first_offset: int,
    ids: Sequence[bytes],
    payloads: Sequence[bytes],
    traces: Sequence[str | None] | None,
    skip: int,
    prefix: str,
    common: dict[str, Any],
) -> list[bytes]:
    """Return messages of one segment; bit i of `skip` leaves message i out.

    `common` holds what they share. Ids must be ready to stand between quotes.
    """
    # It becomes part of a format: a percent sign in a name must stay one.
    tail = b"," + encode(common)[1:].replace(b"%", b"%%")
    head = f'{{"id":"{prefix}'.encode()
    if traces is None and not skip:
        form = head + b'%012x","transactionId":"%b","data":%b,"offset":%d,"traceId":null' + tail
        offsets = range(first_offset, first_offset + len(ids))
        return [
            form % (offset, transaction_id, payload, offset)
            for offset, transaction_id, payload in zip(offsets, ids, payloads, strict=True)
        ]
    form = head + b'%012x","transactionId":"%b","data":%b,"offset":%d,"traceId":%b' + tail
    rows = enumerate(zip(ids, payloads, traces or [None] * len(ids), strict=True))
    return [
        form % (first_offset + at, transaction_id, payload, first_offset + at, encode(trace))
        for at, (transaction_id, payload, trace) in rows
        if not skip >> at & 1
    ]


def pop_answer(lists: Iterable[list[bytes]], about: dict[str, Any]) -> Iterator[bytes]:
    """Yield the answer of a pop; `about` are the fields beside the messages."""
    yield from message_list(b'{"messages":[', lists)
    yield b"],"
    yield encode(about)[1:]


def message_list(before: bytes, lists: Iterable[list[bytes]]) -> Iterator[bytes]:
    """Yield messages with commas between them, behind what stands before the first."""
    for messages in lists:
        if messages:
            yield before
            yield b",".join(messages)
            before = b","
    if before != b",":
        yield before
