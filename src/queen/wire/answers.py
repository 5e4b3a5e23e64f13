"""The bytes of the hot answers.

A push of a hundred messages answers with a hundred objects, a pop with a hundred more.
They are formatted, not built: everything that is the same for all messages of a segment is
encoded once, and each message costs one formatting operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

encode = msgspec.json.encode


def json_text(text: str) -> str:
    """Return text as a JSON string."""
    return encode(text).decode()


def needs_no_escape(text: str) -> bool:
    """Return whether text can stand between quotes as it is."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def iso(at: datetime) -> str:
    """Return a UTC instant as the clients expect it.

    >>> from datetime import timezone
    >>> iso(datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    '2026-01-02T03:04:05.000000Z'
    """
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


# ---- push ----


def queued_items(
    indexes: Sequence[int],
    transaction_ids: Sequence[str],
    first_offset: int,
    prefix: str,
    partition_uuid: str,
    queue: str,
) -> list[str]:
    """Return the answers for messages that were all stored, one after the other."""
    tail = f'","partition_id":"{partition_uuid}","trace_id":null,"queueName":{json_text(queue)}}}'
    ids: Sequence[str] = transaction_ids
    if not needs_no_escape("".join(transaction_ids)):
        ids = [json_text(one)[1:-1] for one in transaction_ids]
    return [
        f'{{"index":{index},"transaction_id":"{one}","status":"queued",'
        f'"message_id":"{prefix}{offset:012x}{tail}'
        for index, one, offset in zip(
            indexes, ids, range(first_offset, first_offset + len(ids)), strict=True
        )
    ]


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
    tail = b"," + encode(common)[1:]
    head = f'{{"id":"{prefix}'.encode()
    if traces is None and not skip:
        form = head + b'%012x","transactionId":"%b","data":%b,"offset":%d,"traceId":null' + tail
        offsets = range(first_offset, first_offset + len(ids))
        return [
            form % (offset, one, payload, offset)
            for offset, one, payload in zip(offsets, ids, payloads, strict=True)
        ]
    form = head + b'%012x","transactionId":"%b","data":%b,"offset":%d,"traceId":%b' + tail
    rows = enumerate(zip(ids, payloads, traces or [None] * len(ids), strict=True))
    return [
        form % (first_offset + at, one, payload, first_offset + at, encode(trace))
        for at, (one, payload, trace) in rows
        if not skip >> at & 1
    ]


def pop_answer(found: list[bytes], about: dict[str, Any]) -> bytes:
    """Return the whole answer of a pop; `about` are the fields beside the messages."""
    return b"".join((b'{"messages":[', b",".join(found), b"],", encode(about)[1:]))
