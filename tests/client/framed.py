"""Answers of a pop in frames, as a server draws them, and a broker that gives them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from queen.core.frame import (
    CONTENT_TYPE,
    Frame,
    compress,
    encode_body,
    pack_frame,
    segment_of,
)
from queen.core.ids import partition_uuid
from tests.client.fake import CLOSE, answer

CREATED_AT_US = 1_772_366_400_123_456
LEASE = "2d7f5a4e-5a9b-4c39-8a58-0c5cf9c9e0f1"
NO_CONTENT = answer("204 No Content", b"")
EXTENDED = answer("200 OK", b'{"seconds":60,"lease_expires_at":"2026-03-01T12:00:00Z"}')


def frame(
    partition: int, base: int, payloads: Sequence[Any], extras: dict[str, list[Any]] | None = None
) -> bytes:
    """Return a stored segment; message n of a partition has the transaction id `t-n`."""
    ids = [f"t-{base + at}".encode() for at in range(len(payloads))]
    body = encode_body(segment_of(ids, [msgspec.json.encode(one) for one in payloads], extras))
    codec, stored = compress(body)
    name = f"p{partition}"
    return pack_frame(
        Frame("q", name, len(payloads), codec, len(body), stored, base, CREATED_AT_US, partition)
    )


def claim(partition: int, first: int, end: int, **more: Any) -> dict[str, Any]:
    """Return what the head says of one partition."""
    return {
        "queue": "q",
        "partition": f"p{partition}",
        "partitionId": partition_uuid(partition),
        "epoch": 5,
        "attempt": 1,
        "firstOffset": first,
        "endOffset": end,
        "leaseMs": 60_000,
        "priority": 2,
        "frames": 1,
        **more,
    }


def body(
    claims: Sequence[dict[str, Any]],
    frames: Sequence[bytes],
    *,
    lease: str = LEASE,
    group: str = "g",
    takes_acks: bool = False,
) -> bytes:
    said = {"leaseId": lease, "consumerGroup": group, "claims": claims, "takesAcks": takes_acks}
    head = msgspec.json.encode(said)
    return b"".join((b"QLSE\x01\0\0\0", struct.pack("<I", len(head)), head, *frames))


def framed(claims: Sequence[dict[str, Any]], frames: Sequence[bytes], **about: Any) -> bytes:
    """Return the answer of a pop."""
    return answer("200 OK", body(claims, frames, **about), f"content-type: {CONTENT_TYPE}")


def run_of(partition: int, first: int, count: int, **about: Any) -> bytes:
    """Return an answer with messages of one partition whose payloads are their offsets."""
    payloads = list(range(first, first + count))
    claims = [claim(partition, first, first + count)]
    return framed(claims, [frame(partition, first, payloads)], **about)


class FrameBroker:
    """Answers pops one after the other, then with nothing; takes acks by spans."""

    def __init__(
        self,
        *pops: bytes,
        result: dict[str, Any] | None = None,
        knows_spans: bool = True,
        renewal: Callable[[], bytes] = lambda: EXTENDED,
    ) -> None:
        self._pops = list(pops)
        self._result = result or {"success": True, "error": None, "lost": 0}
        self._knows_spans = knows_spans
        self._renewal = renewal
        self.asked: list[bytes] = []
        # What was said, request by request.
        self.spans: list[list[dict[str, Any]]] = []
        self.items: list[list[dict[str, Any]]] = []

    def __call__(self, request: bytes) -> bytes:
        head, _, text = request.partition(b"\r\n\r\n")
        path = head.split(b" ", 2)[1]
        if path.startswith(b"/api/v1/pop"):
            self.asked.append(head)
            if text:
                self.spans.append(msgspec.json.decode(text)["spans"])
            return self._pops.pop(0) if self._pops else NO_CONTENT
        if path == b"/api/v1/ack/spans" and self._knows_spans:
            self.spans.append(msgspec.json.decode(text)["spans"])
            results = [self._result] * len(self.spans[-1])
            return answer("200 OK", msgspec.json.encode({"spans": results}))
        if path == b"/api/v1/ack/batch":
            self.items.append(msgspec.json.decode(text)["acknowledgments"])
            return answer("200 OK", b'{"results":[]}')
        if path.endswith(b"/extend"):
            return self._renewal()
        if path == b"/api/v1/ack/spans":
            return answer("404 Not Found", b'{"error":"no such route","code":"not_found"}')
        return CLOSE
