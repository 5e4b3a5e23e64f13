"""The bytes of the hot answers.

A push of a hundred messages answers with a hundred objects, a pop with a hundred more.
They are formatted, not built: everything that is the same for all messages of a segment is
encoded once, and each message costs one formatting operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
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


# The same few names come with every answer.
@lru_cache(maxsize=4096)
def _name_text(name: str) -> str:
    return json_text(name)


def queued_body(stored: Stored) -> bytes:
    """Return the whole answer for a request whose items were all stored together."""
    if len(stored.transaction_ids) == 1:
        return _queued_alone(*stored)
    heads = _QUEUED_HEADS[: len(stored.transaction_ids)]
    return f"[{''.join(_queued_parts(heads, stored))[1:]}]".encode()


def _queued_alone(
    ids: Sequence[str], offset: int, prefix: str, partition_uuid: str, queue: str
) -> bytes:
    quoted = f'"{ids[0]}"' if needs_no_escape(ids[0]) else json_text(ids[0])
    return (
        f'[{{"index":0,"transaction_id":{quoted},"status":"queued",'
        f'"message_id":"{prefix}{offset:012x}","partition_id":"{partition_uuid}",'
        f'"trace_id":null,"queueName":{_name_text(queue)}}}]'
    ).encode()


def queued_items(indexes: Sequence[int], stored: Stored) -> list[str]:
    """Return the answers for items at these places of a request, one text each."""
    parts = _queued_parts([_QUEUED_HEADS[index] for index in indexes], stored)
    starts = range(0, len(parts), _PARTS)
    return ["".join(parts[start : start + _PARTS])[1:] for start in starts]


def _queued_parts(heads: list[str], stored: Stored) -> list[str]:
    ids, queue = stored.transaction_ids, _name_text(stored.queue)
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


_LOW_HEX = [text.encode() for text in _LOW_DIGITS]
_LOW_DECIMAL = [b"%03d" % low for low in range(1000)]
_DECIMAL = [b"%d" % number for number in range(1000)]
_MESSAGE_PARTS = 8
# So many are formatted one by one in less time.
_FEW = 3


def messages(
    first_offset: int,
    ids: Sequence[bytes],
    payloads: Sequence[bytes],
    traces: Sequence[str | None] | None,
    skip: int,
    prefix: str,
    common: dict[str, Any],
    headers: Sequence[str | None] | None = None,
) -> list[bytes]:
    """Return messages of one segment, several with commas between them where that is faster; bit i
    of `skip` leaves message i out.

    `common` holds what they share. Ids must be ready to stand between quotes.
    """
    tail = b"," + encode(common)[1:]
    head = f'{{"id":"{prefix}'.encode()
    if traces is None and headers is None and not skip and len(ids) > _FEW:
        return _runs(first_offset, ids, payloads, head, b',"traceId":null' + tail)
    # It becomes part of a format: a percent sign in a name must stay one.
    tail = tail.replace(b"%", b"%%")
    form = head + b'%012x","transactionId":"%b","data":%b,"offset":%d,"traceId":%b%b' + tail
    none = [None] * len(ids)
    rows = enumerate(zip(ids, payloads, traces or none, headers or none, strict=True))
    return [
        form
        % (
            first_offset + at,
            transaction_id,
            payload,
            first_offset + at,
            encode(trace),
            headers_field(text),
        )
        for at, (transaction_id, payload, trace, text) in rows
        if not skip >> at & 1
    ]


def headers_field(text: str | None) -> bytes:
    """Return the headers of a message as a field of it: nothing when it has none."""
    return b',"headers":' + text.encode() if text else b""


def _runs(
    first: int, ids: Sequence[bytes], payloads: Sequence[bytes], head: bytes, tail: bytes
) -> list[bytes]:
    """Return messages in runs whose offsets differ in their last three digits only, in both
    notations: these stand in tables, and nothing is formatted for a message by itself."""
    runs = []
    at = 0
    while at < len(ids):
        offset = first + at
        thousands, low = divmod(offset, 1000)
        count = min(len(ids) - at, 1000 - low, 4096 - (offset & 4095))
        start = head + b"%09x" % (offset >> 12)
        # Behind each message stands the beginning of the next one.
        parts = [tail + b"," + start] * (_MESSAGE_PARTS * count)
        parts[0::_MESSAGE_PARTS] = _LOW_HEX[offset & 4095 : (offset & 4095) + count]
        parts[1::_MESSAGE_PARTS] = [b'","transactionId":"'] * count
        parts[2::_MESSAGE_PARTS] = ids[at : at + count]
        parts[3::_MESSAGE_PARTS] = [b'","data":'] * count
        parts[4::_MESSAGE_PARTS] = payloads[at : at + count]
        number, digits = (b"%d" % thousands, _LOW_DECIMAL) if thousands else (b"", _DECIMAL)
        parts[5::_MESSAGE_PARTS] = [b',"offset":' + number] * count
        parts[6::_MESSAGE_PARTS] = digits[low : low + count]
        parts[-1] = tail
        runs.append(start + b"".join(parts))
        at += count
    return runs


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
