"""Replay: what is stored, read in bulk.

Whole segments come over the wire as they lie in the database, and are taken apart here. No
group is involved and nothing changes: this is for looking back, exporting, filling a table.

Of what is deleted while it is read, a server sends what it still finds, and then the answer ends as
any other. So the end is the end only if the queue, or the partition, is still there then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from queen.client.payloads import decode_payload, unmark
from queen.client.queues.messages import Message
from queen.client.transport.wire_format import instant
from queen.errors import InvalidFrame, NotFound, Unavailable, Unreachable

if TYPE_CHECKING:
    from queen.client.queen import Queen
    from queen.core.frame import Frame

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stored(Message):
    """A message as it is stored."""

    __slots__ = ("created_at", "offset", "queue")

    created_at: datetime
    offset: int
    queue: str


async def read_stored(
    queen: Queen,
    queue: str,
    partition: str | None,
    since: datetime | None,
    until: datetime | None,
) -> AsyncGenerator[Stored, None]:
    path = _path(queue, partition)
    query = {
        name: instant(at) for name, at in (("fromTime", since), ("toTime", until)) if at is not None
    }
    try:
        async with queen.cluster.stream(
            f"{path}?{urlencode(query)}", key=queue, accept=accepted_frames()
        ) as parts:
            async for frame in split_frames(parts):
                for message in _messages(frame):
                    yield message
    except Unreachable as broken:
        try:
            await _check_is_there(queen, queue, partition, retry_s=0)
        except Unavailable:
            raise broken from None
        raise
    await _check_is_there(queen, queue, partition)


def _path(queue: str, partition: str | None) -> str:
    path = f"/api/v1/fetch/queue/{quote(queue, safe='')}"
    return path if partition is None else f"{path}/partition/{quote(partition, safe='')}"


async def _check_is_there(
    queen: Queen, queue: str, partition: str | None, retry_s: float | None = None
) -> None:
    """Raise when what was read is gone by now: then what came is not all, or may not be."""
    # Asked for what cannot be, a server sends nothing, unless there is no such queue.
    nothing = {"toTime": instant(_EPOCH)} if partition is None else {"toOffset": 0}
    path = f"{_path(queue, partition)}?{urlencode(nothing)}"
    try:
        await queen.cluster.call("GET", path, key=queue, retry_s=retry_s)
    except NotFound:
        of = "" if partition is None else f"partition {partition!r} of "
        raise NotFound(
            f"{of}queue {queue!r} was deleted while it was read: what came is not all of it"
        ) from None


def accepted_frames() -> bytes:
    """Return what to ask a server for, in the header `accept`."""
    from queen.wire.frames.joined_frame import ACCEPT_JOINED

    return ACCEPT_JOINED.encode()


async def split_frames(parts: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    from queen.core.frame import frame_size
    from queen.wire.frames.joined_frame import received_frames

    buffer = bytearray()
    async for part in parts:
        buffer += part
        while (size := frame_size(buffer)) is not None and len(buffer) >= size:
            for frame in received_frames(bytes(buffer[:size])):
                yield frame
            del buffer[:size]
    if buffer:
        raise InvalidFrame("the answer ends in the middle of a frame")


def _messages(frame: Frame) -> list[Stored]:
    from datetime import timedelta

    from queen.core.columns.headers import HEADERS, headers_of

    segment, stretches = frame.parts()
    deleted, traces = segment.column("deleted"), segment.column("traceId")
    copies, headers = segment.column("onlyGroup"), segment.column(HEADERS)
    messages: list[Stored] = []
    named = enumerate(zip(segment.transaction_ids(), segment.payloads(), strict=True))
    for partition, _, base_offset, created_at_us, count in stretches.rows():
        created = _EPOCH + timedelta(microseconds=created_at_us)
        offsets = range(base_offset, base_offset + count)
        for offset, (at, (name, payload)) in zip(offsets, named, strict=False):
            # What was erased is gone, and a dead letter's copy has its original in the log.
            if (deleted and deleted[at]) or (copies and copies[at]):
                continue
            named_headers = headers_of(headers[at]) if headers else {}
            value: Any = decode_payload(payload, None)
            message = Stored(
                unmark(value, named_headers) if named_headers else value,
                transaction_id=name,
                trace_id=traces[at] if traces else None,
                partition=partition,
                headers=named_headers,
            )
            message.created_at, message.offset, message.queue = created, offset, frame.queue
            messages.append(message)
    return messages
