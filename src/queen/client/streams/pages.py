"""The messages of a large window, read as they lie in the database.

A window too large to be sent along names ranges of offsets. Whole segments come over the wire,
the first and the last of a range perhaps with messages beyond it, which are passed over here. A
connection that breaks is opened again, and what was read is passed over too. A window is the same
at every attempt, so an answer that ends early is an error, not a smaller window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from queen.client.queues.replay import accepted_frames, split_frames
from queen.client.streams.messages import WindowMessage
from queen.errors import HistoryGone, Unreachable

if TYPE_CHECKING:
    from queen.client.queen import Queen
    from queen.client.streams.window import LeasedWindow
    from queen.core.frame import Frame, Segment, Stretches

# How long it is tried without one more message, and the pause between two tries.
_PATIENCE_S = 30.0
_PAUSE_S = 0.5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Where a partition's next message is, and where the window ends in it.
_Spans = dict[tuple[str, str], list[tuple[int, int]]]


async def read_messages(queen: Queen, window: LeasedWindow) -> AsyncGenerator[WindowMessage, None]:
    """Yield the messages of a leased window, those of each partition in order."""
    unread = Unread(window)
    tried_until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            async for message in _read_once(queen, window, unread):
                yield message
                tried_until = time.monotonic() + _PATIENCE_S
        except Unreachable:
            if time.monotonic() > tried_until:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            unread.check_is_whole(window.lost)
            return


async def _read_once(
    queen: Queen, window: LeasedWindow, unread: Unread
) -> AsyncIterator[WindowMessage]:
    path = f"/api/v1/stream/messages?{urlencode({'leaseId': window.lease_id})}"
    async with queen.cluster.stream(
        path, key=window.lease_id, first=window._server, accept=accepted_frames()
    ) as parts:
        async for frame in split_frames(parts):
            for message in unread.take_from(frame):
                yield message


class Unread:
    """Which messages of a window are still to be read."""

    def __init__(self, window: LeasedWindow) -> None:
        self._spans: _Spans = {}
        for offsets in window.ranges:
            span = (offsets.from_offset, offsets.to_offset)
            self._spans.setdefault((offsets.queue, offsets.partition), []).append(span)
        # The offset after the last one that was read, by partition.
        self._read_to: dict[tuple[str, str], int] = {}
        # The offset after the last frame, by partition, and how many offsets were not seen yet.
        self._seen_to: dict[tuple[str, str], int] = {}
        self._unseen = sum(offsets.to_offset - offsets.from_offset for offsets in window.ranges)

    def take_from(self, frame: Frame) -> Iterator[WindowMessage]:
        """Yield the messages of a frame that are still to be read."""
        segment, stretches = frame.parts()
        for stretch in stretches.rows():
            start = stretch.base_offset
            self._see((frame.queue, stretch.partition), start, start + stretch.messages)
        for message in messages_of(frame.queue, segment, stretches):
            partition = (message.queue, message.partition)
            spans = self._spans.get(partition, [])
            is_inside = any(start <= message.offset < end for start, end in spans)
            if is_inside and message.offset >= self._read_to.get(partition, 0):
                self._read_to[partition] = message.offset + 1
                yield message

    def _see(self, partition: tuple[str, str], start: int, end: int) -> None:
        seen_to = self._seen_to.get(partition, 0)
        for low, high in self._spans.get(partition, ()):
            self._unseen -= max(0, min(high, end) - max(low, start, seen_to))
        self._seen_to[partition] = max(seen_to, end)

    def check_is_whole(self, lost: int) -> None:
        """Raise when more is missing than was when the window was handed out."""
        if self._unseen > lost:
            raise HistoryGone(
                f"{self._unseen - lost} messages of the window were removed while they were read"
            )


def messages_of(queue: str, segment: Segment, stretches: Stretches) -> Iterator[WindowMessage]:
    """Yield the messages of a frame that are there."""
    from queen.core.columns.headers import HEADERS, headers_of
    from queen.core.ids import message_id

    deleted, traces = segment.column("deleted"), segment.column("traceId")
    copies, headers = segment.column("onlyGroup"), segment.column(HEADERS)
    named = enumerate(zip(segment.transaction_ids(), segment.payloads(), strict=True))
    for partition, partition_id, base_offset, created_at_us, count in stretches.rows():
        created = _EPOCH + timedelta(microseconds=created_at_us)
        offsets = range(base_offset, base_offset + count)
        for offset, (at, (name, payload)) in zip(offsets, named, strict=False):
            # What was erased is gone, and a dead letter's copy has its original in the log.
            if (deleted and deleted[at]) or (copies and copies[at]):
                continue
            yield WindowMessage(
                id=message_id(partition_id, offset),
                transaction_id=name,
                trace_id=traces[at] if traces else None,
                created_at=created,
                queue=queue,
                partition=partition,
                offset=offset,
                raw=msgspec.Raw(payload),
                headers=headers_of(headers[at]) if headers else {},
            )
