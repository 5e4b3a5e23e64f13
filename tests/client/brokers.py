"""Brokers for `Fake`: they answer pushes as a server does, and note what they got."""

from __future__ import annotations

import json
from collections.abc import Callable

from queen.core.frame import CONTENT_TYPE, unpack_frames
from queen.core.ids import partition_uuid
from tests.client.fake import answer

TAKES_FRAMES = f"accept-post: application/json, {CONTENT_TYPE}"

Respond = Callable[[bytes], bytes | None]


def body_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


def has_frames(request: bytes) -> bool:
    return f"content-type: {CONTENT_TYPE}".encode() in request


def ids_in(request: bytes) -> list[str]:
    """Return the transaction ids of a push, in the order of its request."""
    if has_frames(request):
        frames = unpack_frames(body_of(request))
        return [name for frame in frames for name in frame.segment().transaction_ids()]
    return [item["transactionId"] for item in json.loads(body_of(request))["items"]]


def stored(request: bytes, *headers: str) -> bytes:
    """Return the answer of a server that has stored all of a push."""
    results: list[dict[str, object]]
    if has_frames(request):
        results = [
            {
                "queue": frame.queue,
                "partition": frame.partition,
                "status": "queued",
                "count": frame.count,
                "partitionId": partition_uuid(7),
                "baseOffset": 0,
            }
            for frame in unpack_frames(body_of(request))
        ]
    else:
        results = [
            {"index": at, "status": "queued", "transaction_id": name}
            for at, name in enumerate(ids_in(request))
        ]
    return answer("201 Created", json.dumps(results).encode(), *headers)


def stored_with_frames(request: bytes) -> bytes:
    """The same, of a server that takes frames."""
    return stored(request, TAKES_FRAMES)
