"""One task: fetch a slice of the log, and turn it into record batches.

A thread fetches and takes frames apart while the task parses what came before, so neither the
network nor the parser waits for the other. A connection that breaks in the middle costs
little: the slice goes on behind the last page of frames that arrived whole. Partitions of a page
come one after the other, so its frames wait here until all of them have come.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from queen.core.frame import HEADER_BYTES, Frame, Stretch, Stretches, frame_size
from queen.core.ids import parse_partition, partition_uuid
from queen.errors import HistoryGone, InvalidFrame, NotFound, Unavailable
from queen.spark.broker import Broker, BrokerAddress
from queen.spark.dead_letters import DeadLetter, set_aside
from queen.wire.cuts import Point, Range, SliceRequest
from queen.wire.frames.joined_frame import ACCEPT_ANY_ORDER, received_frames

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from queen.spark.arrow.assembly import Assembler, SegmentPart

_PATH = "/api/v1/fetch/slice"
_CHUNKS_AHEAD = 8
# How often a slice is taken up again without anything new having come.
_TRIES = 5
_NO_END = 2**62
# A window over many partitions has a range of each; a request may have 10,000.
_REQUEST_RANGES = 5000

_ranges = msgspec.json.Decoder(list[Range])


class WindowLabel(NamedTuple):
    """The window that a range is a part of; its columns are made of this."""

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
        # How many there were when it was planned.
        self.messages = messages
        # If given, a row is added that says how far everything is sealed.
        self.sealed_us = sealed_us
        # Whether to fail when fewer are there.
        self.must_be_whole = True
        # Whether a queue that is deleted is no loss: nobody has asked for it by its name.
        self.may_lose_queues = False
        # Of each range, when windows are read.
        self.windows: list[WindowLabel] | None = None
        # Who reads: dead letters that were sent back to it are shown to it alone.
        self.group: str | None = None
        # Whose dead letters become payloads that are not what the schema says.
        self.dead_letters_of: str | None = None

    def __repr__(self) -> str:
        # The address holds a token.
        return f"SliceTask(messages={self.messages})"


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Return the messages of a task of a batch; Spark makes one of its own when there is none."""
    return read_slice(partition, schema) if isinstance(partition, SliceTask) else iter(())


def read_slice(task: SliceTask, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice."""
    from queen.spark.arrow.assembly import Assembler

    assembler = Assembler(schema, notes_unfit=task.dead_letters_of is not None)
    seen = 0
    ranges = _ranges.decode(task.ranges_json)
    for chunk in _read_ahead(_fetch(task, ranges)):
        for count, part in chunk:
            seen += count
            for batch in assembler.add(part):
                _set_unfit_aside(task, assembler)
                yield batch
    yield from assembler.rest()
    _set_unfit_aside(task, assembler)
    if seen < task.messages and task.must_be_whole and not _has_lost_a_queue(task, ranges):
        raise HistoryGone(
            f"{task.messages - seen} messages were removed while they were about to be read: "
            "let retention keep them for longer, or set option failOnDataLoss to false"
        )
    if task.sealed_us is not None:
        yield assembler.marker(task.sealed_us)


def _set_unfit_aside(task: SliceTask, assembler: Assembler) -> None:
    """Make dead letters of the messages that did not fit since the last time."""
    if task.dead_letters_of is None or not assembler.unfit:
        return
    letters = [DeadLetter(name, assembler.unfit_reason) for name in assembler.unfit]
    set_aside(Broker(task.address), task.dead_letters_of, letters)
    assembler.unfit.clear()


def _has_lost_a_queue(task: SliceTask, ranges: list[Range]) -> bool:
    """Whether one of the queues was deleted, with everything that it held."""
    if not task.may_lose_queues:
        return False
    broker = Broker(task.address)
    try:
        for name in {asked.queue for asked in ranges}:
            broker.ask("POST", "/api/v1/fetch/plan", {"sources": [{"queue": name}], "until": 0})
    except NotFound:
        return True
    return False


# Of each frame that arrived: how many messages of the slice it holds, and those that are shown.
_Chunk = list[tuple[int, "SegmentPart"]]


def _fetch(task: SliceTask, ranges: list[Range]) -> Iterator[_Chunk]:
    """Yield what arrives, by as many requests as it takes."""
    broker = Broker(task.address)
    for first in range(0, len(ranges), _REQUEST_RANGES):
        asked = slice(first, first + _REQUEST_RANGES)
        labels = None if task.windows is None else task.windows[asked]
        yield from _fetch_ranges(broker, task, ranges[asked], labels)


def _fetch_ranges(
    broker: Broker, task: SliceTask, ranges: list[Range], windows: list[WindowLabel] | None
) -> Iterator[_Chunk]:
    """Yield what arrives for one request; a connection that was lost is made again."""
    follower = _RangeFollower(ranges, windows, task.group)
    failures = 0
    while ranges:
        try:
            for page in _request_pages(broker, SliceRequest(ranges, task.may_lose_queues)):
                failures = 0
                yield follower.take(page)
            return
        except Unavailable:
            failures += 1
            if failures == _TRIES:
                raise
            ranges = follower.remaining()


def _request_pages(broker: Broker, asked: SliceRequest) -> Iterator[list[Frame]]:
    """Yield frames, each list such that all has come that stands before the last place in it."""
    page: list[Frame] = []
    for frames in _request_frames(broker, asked):
        whole = max((at for at, frame in enumerate(frames, 1) if not frame.goes_on), default=0)
        page += frames[:whole]
        if whole:
            yield page
            page = []
        page += frames[whole:]
    if page:
        raise InvalidFrame("the answer ends in the middle of a page")


def _request_frames(broker: Broker, asked: SliceRequest) -> Iterator[list[Frame]]:
    rest = b""
    for received in broker.stream("POST", _PATH, msgspec.json.encode(asked), ACCEPT_ANY_ORDER):
        data = rest + received if rest else received
        end = _end_of_frames(data)
        rest = data[end:]
        if end:
            yield list(received_frames(data[:end]))
    if rest:
        raise InvalidFrame("the answer ends in the middle of a frame")


def _end_of_frames(data: bytes) -> int:
    """Return where the last frame that has arrived whole ends."""
    at, view = 0, memoryview(data)
    while (size := frame_size(view[at : at + HEADER_BYTES])) is not None:
        if at + size > len(data):
            break
        at += size
    return at


def _place(stretch: Stretch) -> tuple[int, int, int]:
    return stretch.created_at_us, stretch.partition_id, stretch.base_offset


class _RangeFollower:
    """Follows the frames that arrive through the ranges that were asked for."""

    def __init__(
        self, ranges: list[Range], windows: list[WindowLabel] | None, group: str | None
    ) -> None:
        self._ranges = ranges
        self._windows = windows
        self._group = group
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        """Note, once for a range, what is compared with every frame."""
        # A segment that two ranges share is sent for each of them.
        self._after = -1
        # The last place that has come of this range.
        self._last: Stretch | None = None
        if self._at >= len(self._ranges):
            return
        current = self._ranges[self._at]
        if current.partitionId is not None:
            self._partition = parse_partition(current.partitionId)
            self._low, self._high = current.fromOffset, current.toOffset
        elif current.end is not None:
            self._partition = None
            self._queue = current.queue
            end = current.end
            self._end = (end.at, parse_partition(end.partitionId) or 0, end.offset)
            self._low, self._high = 0, _NO_END

    def _belongs(self, frame: Frame) -> bool:
        if self._partition is not None:
            in_range = self._after < frame.base_offset < self._high
            return in_range and frame.partition_id == self._partition
        position = (frame.created_at_us, frame.partition_id, frame.base_offset)
        return frame.queue == self._queue and position < self._end

    def take(self, page: list[Frame]) -> _Chunk:
        """Return, of each frame, how many messages of its range it holds, and those that are
        shown."""
        return [self._take(frame) for frame in page]

    def _take(self, frame: Frame) -> tuple[int, SegmentPart]:
        from queen.spark.arrow.assembly import segment_part

        while not self._belongs(frame):
            self._at += 1
            if self._at == len(self._ranges):
                raise InvalidFrame("the server sent a frame that was not asked for")
            self._begin()
        segment, stretches = frame.parts()
        last = stretches.last()
        self._after = last.base_offset
        self._last = max(self._last or last, last, key=_place)
        window = self._windows[self._at] if self._windows is not None else None
        return self._held(frame, stretches), segment_part(
            frame.queue, segment, stretches, (self._low, self._high), window, self._group
        )

    def _held(self, frame: Frame, stretches: Stretches) -> int:
        """Return how many messages of a frame are in the range."""
        if self._partition is None:
            return frame.count
        return sum(
            min(stretch.base_offset + stretch.messages, self._high)
            - max(stretch.base_offset, self._low)
            for stretch in stretches.rows()
        )

    def remaining(self) -> list[Range]:
        """Return what lies behind the last frame that arrived."""
        last = self._last
        current, rest = self._ranges[self._at], self._ranges[self._at + 1 :]
        if last is None:
            return [current, *rest]
        if current.partitionId is not None:
            low = max(current.fromOffset, last.base_offset + last.messages)
            if low >= current.toOffset:
                return rest
            return [msgspec.structs.replace(current, fromOffset=low), *rest]
        point = Point(last.created_at_us, partition_uuid(last.partition_id), last.base_offset + 1)
        return [msgspec.structs.replace(current, start=point), *rest]


class _End(NamedTuple):
    error: BaseException | None = None


def _read_ahead(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """Yield what another thread fetches; it is a few chunks ahead, and ends with us."""
    waiting: queue.Queue[_Chunk | _End] = queue.Queue(_CHUNKS_AHEAD)
    is_over = threading.Event()

    def run() -> None:
        end = _End()
        try:
            for chunk in chunks:
                if not _put(waiting, chunk, is_over):
                    return
        except BaseException as error:  # Nobody else would hear of it.
            end = _End(error)
        _put(waiting, end, is_over)

    threading.Thread(target=run, daemon=True, name="queen-fetch").start()
    try:
        while not isinstance(chunk := waiting.get(), _End):
            yield chunk
        if chunk.error is not None:
            raise chunk.error
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
