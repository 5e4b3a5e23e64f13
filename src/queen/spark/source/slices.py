"""One task: fetch a slice of the log, and turn it into record batches.

A thread fetches and takes frames apart while the task parses what came before, so neither the
network nor the parser waits for the other. A connection that breaks in the middle costs
nothing: the slice goes on behind the last frame that arrived.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from queen.core.frame import HEADER_BYTES, Frame, frame_size, stored_frames
from queen.core.ids import parse_partition, partition_uuid
from queen.errors import HistoryGone, InvalidFrame, QueenError, Unavailable
from queen.spark.broker import Broker, BrokerAddress
from queen.wire.cuts import Point, Range, SliceRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from queen.spark.arrow.assembly import Piece

_PATH = "/api/v1/fetch/slice"
_PARTS_AHEAD = 8
# How often a slice is taken up again without anything new having come.
_TRIES = 5
_NO_END = 2**62
# A window over many partitions has a range of each; a request may have 10,000.
_REQUEST_RANGES = 5000

_ranges = msgspec.json.Decoder(list[Range])


class WindowOf(NamedTuple):
    """The window that a range is a part of."""

    key: str
    start_us: int
    end_us: int


class SliceTask(InputPartition):
    """What a task has to read; it travels, so it is plain."""

    def __init__(
        self,
        address: BrokerAddress,
        ranges: list[Range],
        messages: int,
        sealed_us: int | None = None,
    ) -> None:
        self.address = address
        self.ranges_json = msgspec.json.encode(ranges)
        # So many there were when it was planned.
        self.messages = messages
        # Add the row that says how far everything is sealed.
        self.sealed_us = sealed_us
        # When fewer are there: fail.
        self.must_be_whole = True
        # Of each range, when windows are read.
        self.windows: list[WindowOf] | None = None

    def __repr__(self) -> str:
        # The address holds a token.
        return f"SliceTask(messages={self.messages})"


def read_slice(task: SliceTask, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice."""
    from queen.spark.arrow.assembly import Assembler

    assembler = Assembler(schema)
    seen = 0
    ranges = _ranges.decode(task.ranges_json)
    for part in _ahead(_fetched(Broker(task.address), ranges, task.windows)):
        for count, piece in part:
            seen += count
            yield from assembler.add(piece)
    yield from assembler.rest()
    if seen < task.messages and task.must_be_whole:
        raise HistoryGone(
            f"{task.messages - seen} messages were removed while they were about to be read: "
            "let retention keep them for longer, or set option failOnDataLoss to false"
        )
    if task.sealed_us is not None:
        yield assembler.marker(task.sealed_us)


# How many messages of a slice a frame holds, and those of them that are shown.
_Part = list[tuple[int, "Piece"]]


def _fetched(
    broker: Broker, ranges: list[Range], windows: list[WindowOf] | None
) -> Iterator[_Part]:
    """Yield what arrives, by as many requests as it takes."""
    for first in range(0, len(ranges), _REQUEST_RANGES):
        some = slice(first, first + _REQUEST_RANGES)
        yield from _answered(broker, ranges[some], None if windows is None else windows[some])


def _answered(
    broker: Broker, ranges: list[Range], windows: list[WindowOf] | None
) -> Iterator[_Part]:
    """Yield what arrives for one request; a connection that was lost is made again."""
    course = _Course(ranges, windows)
    failures = 0
    while ranges:
        try:
            for frames in _frames(broker, ranges):
                failures = 0
                yield [course.shown(frame) for frame in frames]
            return
        except Unavailable:
            failures += 1
            if failures == _TRIES:
                raise
            ranges = course.left()


def _frames(broker: Broker, ranges: list[Range]) -> Iterator[list[Frame]]:
    body = msgspec.json.encode(SliceRequest(ranges))
    rest = b""
    for part in broker.stream("POST", _PATH, body):
        data = rest + part if rest else part
        end = _whole(data)
        rest = data[end:]
        if end:
            yield list(stored_frames(data[:end]))
    if rest:
        raise InvalidFrame("the answer ends in the middle of a frame")


def _whole(data: bytes) -> int:
    """Return where the last frame ends that is all there."""
    at, view = 0, memoryview(data)
    while (size := frame_size(view[at : at + HEADER_BYTES])) is not None:
        if at + size > len(data):
            break
        at += size
    return at


class _Course:
    """Follows the frames through the ranges that they were asked for by."""

    def __init__(self, ranges: list[Range], windows: list[WindowOf] | None) -> None:
        self._ranges = ranges
        self._windows = windows
        self._at = 0
        self._last: Frame | None = None
        self._begin()

    def _begin(self) -> None:
        """Note, once for a range, what is compared with every frame."""
        # A segment that two ranges share is sent for each of them.
        self._after = -1
        one = self._ranges[self._at] if self._at < len(self._ranges) else None
        if one is not None and one.partitionId is not None:
            self._partition = parse_partition(one.partitionId)
            self._low, self._high = one.fromOffset, one.toOffset
        elif one is not None and one.end is not None:
            self._partition = None
            self._queue = one.queue
            self._end = (one.end.at, parse_partition(one.end.partitionId) or 0, one.end.offset)
            self._low, self._high = 0, _NO_END

    def _belongs(self, frame: Frame) -> bool:
        if self._partition is not None:
            in_range = self._after < frame.base_offset < self._high
            return in_range and frame.partition_id == self._partition
        place = (frame.created_at_us, frame.partition_id, frame.base_offset)
        return frame.queue == self._queue and place < self._end

    def shown(self, frame: Frame) -> tuple[int, Piece]:
        """Return how many messages of its range a frame holds, and those that are shown."""
        from queen.spark.arrow.assembly import piece_of

        while not self._belongs(frame):
            self._at += 1
            if self._at == len(self._ranges):
                raise InvalidFrame("the server sent a frame that was not asked for")
            self._begin()
        self._last = frame
        self._after = frame.base_offset
        window = self._windows[self._at] if self._windows is not None else None
        low, high = max(frame.base_offset, self._low), frame.base_offset + frame.count
        return min(high, self._high) - low, piece_of(frame, self._low, self._high, window)

    def left(self) -> list[Range]:
        """Return what lies behind the last frame."""
        last = self._last
        one, rest = self._ranges[self._at], self._ranges[self._at + 1 :]
        if last is None:
            return [one, *rest]
        if one.partitionId is not None:
            low = max(one.fromOffset, last.base_offset + last.count)
            left = [msgspec.structs.replace(one, fromOffset=low)] if low < one.toOffset else []
            return left + rest
        point = Point(last.created_at_us, partition_uuid(last.partition_id), last.base_offset + 1)
        return [msgspec.structs.replace(one, start=point), *rest]


class _End(NamedTuple):
    error: BaseException | None = None


def _ahead(parts: Iterator[_Part]) -> Iterator[_Part]:
    """Yield what another thread fetches; it is a few parts ahead, and ends with us."""
    waiting: queue.Queue[_Part | _End] = queue.Queue(_PARTS_AHEAD)
    is_over = threading.Event()

    def run() -> None:
        end = _End()
        try:
            for part in parts:
                if not _put(waiting, part, is_over):
                    return
        except QueenError as error:
            end = _End(error)
        except BaseException as error:  # Nobody else would hear of it.
            end = _End(error)
        _put(waiting, end, is_over)

    threading.Thread(target=run, daemon=True, name="queen-fetch").start()
    try:
        while not isinstance(part := waiting.get(), _End):
            yield part
        if part.error is not None:
            raise part.error
    finally:
        is_over.set()


def _put(waiting: queue.Queue[Any], item: Any, is_over: threading.Event) -> bool:
    """Hand something over; false when nobody wants it any more."""
    while not is_over.is_set():
        try:
            waiting.put(item, timeout=0.5)
        except queue.Full:
            continue
        return True
    return False
