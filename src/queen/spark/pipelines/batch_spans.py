"""Micro-batches as spans of OpenTelemetry, with links to the traces of what they have read.

A span is made after its batch, by the thread that tells the broker how a run is doing: no batch
waits for it. Which traces a batch belongs to is found in the log: of each queue that is named by
the definition, up to `_MAX_QUEUES`, the first messages of the batch's time are looked at.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from queen.client import tracing
from queen.core.columns.headers import HEADERS, headers_of
from queen.core.frame import Frame, frame_size
from queen.errors import QueenError
from queen.wire.answers import iso
from queen.wire.frames.joined_frame import ACCEPT_JOINED, received_frames

if TYPE_CHECKING:
    from queen.spark.broker import Broker
    from queen.spark.pipelines.progress import MicroBatch

# Batches that wait for their spans; of more than that the oldest get none.
_MAX_WAITING = 100
_MAX_QUEUES = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BatchSpans:
    """The spans of one run."""

    def __init__(self, broker: Broker, pipeline: str, queues: Sequence[str]) -> None:
        self._broker = broker
        self._pipeline = pipeline
        self._queues = queues[:_MAX_QUEUES]
        self._waiting: deque[MicroBatch] = deque(maxlen=_MAX_WAITING)

    def add(self, batch: MicroBatch) -> None:
        """Take a batch, if this program traces and there was something in it."""
        if tracing.is_on() and batch.rows_read:
            self._waiting.append(batch)

    def make(self) -> None:
        """Make the spans of all batches that wait."""
        while self._waiting:
            batch = self._waiting.popleft()
            began = datetime.fromisoformat(batch.timestamp)
            took = timedelta(milliseconds=batch.duration_ms.get("triggerExecution", 0))
            tracing.batch(
                self._pipeline,
                batch.batch_id,
                batch.rows_read,
                (began, began + took),
                self._headers(batch),
            )

    def _headers(self, batch: MicroBatch) -> Iterator[Mapping[str, str]]:
        """Yield the headers of messages of a batch; what cannot be read has none."""
        spans = [source.span_us() for source in batch.sources if source.is_ours()]
        if not spans:
            return
        since, until = min(low for low, _ in spans), max(high for _, high in spans)
        for queue in self._queues:
            with contextlib.suppress(QueenError):
                yield from self._headers_of(queue, since, until)

    def _headers_of(self, queue: str, since_us: int, until_us: int) -> Iterator[Mapping[str, str]]:
        times = {"fromTime": _instant(since_us), "toTime": _instant(until_us)}
        path = f"/api/v1/fetch/queue/{quote(queue, safe='')}?{urlencode(times)}"
        with contextlib.closing(self._broker.stream("GET", path, b"", ACCEPT_JOINED)) as parts:
            for frame in _frames(parts):
                segment, _ = frame.parts()
                for text in segment.column(HEADERS) or [None] * segment.count:
                    yield headers_of(text)


def _instant(at_us: int) -> str:
    return iso(_EPOCH + timedelta(microseconds=at_us))


def _frames(parts: Iterator[bytes]) -> Iterator[Frame]:
    """Yield the frames of an answer as they arrive."""
    buffer = bytearray()
    for part in parts:
        buffer += part
        while (size := frame_size(buffer)) is not None and len(buffer) >= size:
            yield from received_frames(bytes(buffer[:size]))
            del buffer[:size]
