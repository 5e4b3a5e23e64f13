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

from queen.core.frame import HEADER_BYTES, Frame, frame_size, unpack_frames
from queen.core.ids import parse_partition, partition_uuid
from queen.errors import HistoryGone, InvalidFrame, QueenError, Unavailable
from queen.spark.broker import Broker, Place
from queen.wire.cuts import Point, Range, SliceRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from queen.spark.assembly import Piece

_PATH = "/api/v1/fetch/slice"
_PARTS_AHEAD = 8
# How often a slice is taken up again without anything new having come.
_TRIES = 5

_ranges = msgspec.json.Decoder(list[Range])


class SliceTask(InputPartition):
    """What a task has to read; it travels, so it is plain."""

    def __init__(
        self, place: Place, ranges: list[Range], messages: int, sealed_us: int | None = None
    ) -> None:
        self.place = place
        self.ranges_json = msgspec.json.encode(ranges)
        # So many there were when it was planned.
        self.messages = messages
        # Add the row that says how far everything is sealed.
        self.sealed_us = sealed_us
        # When fewer are there: fail.
        self.must_be_whole = True

    def __repr__(self) -> str:
        # The place holds a token.
        return f"SliceTask(messages={self.messages})"


def read_slice(task: SliceTask, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a slice."""
    from queen.spark.assembly import Assembler

    assembler = Assembler(schema)
    seen = 0
    ranges = _ranges.decode(task.ranges_json)
    for part in _ahead(_fetched(Broker(task.place), ranges)):
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


def _fetched(broker: Broker, ranges: list[Range]) -> Iterator[_Part]:
    """Yield what arrives; a connection that was lost is made again."""
    failures = 0
    while ranges:
        try:
            for frames in _frames(broker, ranges):
                part = []
                for frame in frames:
                    ranges = _from(ranges, frame)
                    part.append(_piece(ranges[0], frame))
                    ranges = _behind(ranges, frame)
                failures = 0
                yield part
            return
        except Unavailable:
            failures += 1
            if failures == _TRIES:
                raise


def _frames(broker: Broker, ranges: list[Range]) -> Iterator[list[Frame]]:
    body = msgspec.json.encode(SliceRequest(ranges))
    rest = b""
    for part in broker.stream("POST", _PATH, body):
        data = rest + part if rest else part
        end = _whole(data)
        rest = data[end:]
        if end:
            yield list(unpack_frames(data[:end]))
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


def _from(ranges: list[Range], frame: Frame) -> list[Range]:
    """Return the ranges from the one that a frame belongs to."""
    for number, one in enumerate(ranges):
        if _belongs(one, frame):
            return ranges[number:] if number else ranges
    raise InvalidFrame("the server sent a frame that was not asked for")


def _belongs(one: Range, frame: Frame) -> bool:
    if one.partitionId is not None:
        is_same = parse_partition(one.partitionId) == frame.partition_id
        return is_same and frame.base_offset < one.toOffset
    assert one.end is not None
    end = (one.end.at, parse_partition(one.end.partitionId) or 0, one.end.offset)
    place = (frame.created_at_us, frame.partition_id, frame.base_offset)
    return frame.queue == one.queue and place < end


def _piece(one: Range, frame: Frame) -> tuple[int, Piece]:
    from queen.spark.assembly import piece_of

    low, high = (one.fromOffset, one.toOffset) if one.partitionId is not None else (0, 2**62)
    end = frame.base_offset + frame.count
    return min(end, high) - max(frame.base_offset, low), piece_of(frame, low, high)


def _behind(ranges: list[Range], frame: Frame) -> list[Range]:
    """Return what is left of ranges behind a frame of the first of them."""
    one = ranges[0]
    if one.partitionId is not None:
        left = msgspec.structs.replace(one, fromOffset=frame.base_offset + frame.count)
    else:
        point = Point(
            frame.created_at_us, partition_uuid(frame.partition_id), frame.base_offset + 1
        )
        left = msgspec.structs.replace(one, start=point)
    return [left, *ranges[1:]]


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
