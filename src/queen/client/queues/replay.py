"""Replay: what is stored, read in bulk.

Whole segments come over the wire as they lie in the database, and are taken apart here. No
group is involved and nothing changes: this is for looking back, exporting, filling a table.

Of what is deleted while it is read, a server sends what it still finds, and then the answer ends as
any other. So the end is the end only if the queue, or the partition, is still there then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from queen.client.payloads import decode_payload
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
        async with queen.cluster.stream(f"{path}?{urlencode(query)}", key=queue) as parts:
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


async def split_frames(parts: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    from queen.core.frame import frame_size, stored_frames

    buffer = bytearray()
    async for part in parts:
        buffer += part
        while (size := frame_size(buffer)) is not None and len(buffer) >= size:
            for frame in stored_frames(bytes(buffer[:size])):
                yield frame
            del buffer[:size]
    if buffer:
        raise InvalidFrame("the answer ends in the middle of a frame")


def _messages(frame: Frame) -> list[Stored]:
    from datetime import timedelta

    segment = frame.segment()
    deleted, traces = segment.column("deleted"), segment.column("traceId")
    copies = segment.column("onlyGroup")
    created = _EPOCH + timedelta(microseconds=frame.created_at_us)
    messages: list[Stored] = []
    for at, (name, payload) in enumerate(
        zip(segment.transaction_ids(), segment.payloads(), strict=True)
    ):
        # What was erased is gone, and a dead letter's copy has its original in the log.
        if (deleted and deleted[at]) or (copies and copies[at]):
            continue
        message = Stored(
            decode_payload(payload, None),
            transaction_id=name,
            trace_id=traces[at] if traces else None,
            partition=frame.partition,
        )
        message.created_at, message.offset = created, frame.base_offset + at
        message.queue = frame.queue
        messages.append(message)
    return messages
