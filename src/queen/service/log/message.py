"""One message, taken out of its segment."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from queen.core.columns.headers import HEADERS
from queen.core.frame import Segment


class Message(NamedTuple):
    offset: int
    transaction_id: str
    trace_id: str | None
    producer_sub: str | None
    payload: bytes
    created_at: datetime
    # As they are stored: the text of a JSON object.
    headers: str | None = None


def message_at(segment: Segment, at: int, offset: int, created_at: datetime) -> Message:
    """Return the message at an index of a segment."""
    traces, producers = segment.column("traceId"), segment.column("producerSub")
    headers = segment.column(HEADERS)
    return Message(
        offset,
        segment.transaction_ids(at, at + 1)[0],
        traces[at] if traces else None,
        producers[at] if producers else None,
        segment.payloads(at, at + 1)[0],
        created_at,
        headers[at] if headers else None,
    )
