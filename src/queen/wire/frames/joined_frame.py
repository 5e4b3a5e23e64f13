"""Joined frames: many small segments in one, for readers who ask for them.

A queue that is fed one message per request has a segment for each message, and a frame around each
costs more than what is in it. So whoever knows joined frames says so, and small segments that
follow each other in an answer travel as one: their columns one behind the other, and a table that
says which messages were stored together, where, and when. Nothing is lost: `parts` of a joined
frame tells what the frames of its segments would have told, in the same order.

A joined frame is a frame of version 2; its header holds offset, time and partition of the first
segment. All segments are of one queue. In front of the body stands the table of segments:

    table  0          4            8            12
           | segments | partitions | names size | goes on, 0 or 1 |
           | message counts   u32[segments]            |
           | partition of each u32[segments]           |  counted from 0, in the list below
           | base offsets     i64[segments]            |
           | created at       i64[segments]            |  µs since 1970
           | partition ids    i64[partitions]          |
           | name sizes       u32[partitions]          |
           | names: UTF-8, one after the other         |
           | a body, as in `queen.core.frame`          |

Frames come in the order of time. Segments that were merged lie partition by partition, and to put
them into that order takes longer than all else. Whoever does not need it says so too, and gets
those of a page as they lie: in frames of version 3, whose body alone is encoded by the codec and
not the table before it. Such a page is whole with the first frame that does not `go on`: then
everything has come that stands before the last place in it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from queen.core.columns.joining import ColumnJoiner
from queen.core.frame import (
    CODEC_RAW,
    CONTENT_TYPE,
    JOINED_VERSION,
    LAID_VERSION,
    MAX_STORED_BYTES,
    VERSION,
    Frame,
    Segment,
    Stretch,
    Stretches,
    decode_body,
    decompress,
    encode_body,
    inflate,
    pack_frame,
    raw_size,
    unpack_frames,
)
from queen.errors import InvalidFrame

# What a reader who knows joined frames accepts.
ACCEPT_JOINED = CONTENT_TYPE + ";joined=1"
# What one accepts who takes them in any order.
ACCEPT_ANY_ORDER = ACCEPT_JOINED + ";order=any"
# A segment of more bytes is worth a frame of its own.
_SMALL_BYTES = 4 * 1024
_SMALL_RAW_BYTES = 16 * 1024
# Then a joined frame is large enough; segments that are small do not take it far above. A reader
# whose connection breaks goes on behind the last frame that came whole, so it is not too large.
ENOUGH_MESSAGES = 4_000
_ENOUGH_BYTES = 256 * 1024

_TABLE = struct.Struct("<IIII")


class Accepted(NamedTuple):
    """What frames a reader takes, beside plain ones."""

    joined: bool = False
    any_order: bool = False


PLAIN = Accepted()
JOINED = Accepted(joined=True)
ANY_ORDER = Accepted(joined=True, any_order=True)


def accepted_frames(accept: bytes) -> Accepted:
    """Return what frames whoever sent this header takes."""
    spaceless = accept.replace(b" ", b"")
    return Accepted(
        ACCEPT_JOINED.encode() in spaceless,
        ACCEPT_ANY_ORDER.encode() in spaceless,
    )


class JoinedFrame(Frame):
    """Several segments of one queue in one frame."""

    __slots__ = ()

    @property
    def goes_on(self) -> bool:
        try:
            return bool(_TABLE.unpack_from(self._table_and_more())[3])
        except struct.error:
            raise _unfit_table() from None

    def segment(self) -> Segment:
        return self.parts()[0]

    def parts(self) -> tuple[Segment, Stretches]:
        sent = self._table_and_more()
        try:
            stretches, end = _read_table(sent)
        except (struct.error, ValueError, IndexError):
            raise _unfit_table() from None
        segment = decode_body(self._messages(sent[end:]))
        if not segment.count == self.count == sum(stretches.counts):
            raise InvalidFrame(f"body holds {segment.count} messages, the header says {self.count}")
        return segment, stretches

    def _table_and_more(self) -> bytes:
        return self.raw_body()

    def _messages(self, stored: bytes) -> bytes:
        return stored


class LaidFrame(JoinedFrame):
    """The same, with messages as they are stored, behind a table that is never encoded."""

    __slots__ = ()

    def _table_and_more(self) -> bytes:
        return self.body

    def _messages(self, stored: bytes) -> bytes:
        return inflate(stored, self.raw_bytes)


def _unfit_table() -> InvalidFrame:
    return InvalidFrame("the table of segments does not fit its frame")


def received_frames(data: bytes) -> Iterator[Frame]:
    """Yield the frames that a broker sent to somebody who accepts joined ones, in order."""
    return unpack_frames(data, MAX_STORED_BYTES, _KINDS)


_KINDS = {VERSION: Frame, JOINED_VERSION: JoinedFrame, LAID_VERSION: LaidFrame}


def _read_table(body: bytes) -> tuple[Stretches, int]:
    """Return the segments of a joined body, and where its messages begin."""
    segments, partitions, names_size, _ = _TABLE.unpack_from(body)
    at = _TABLE.size

    def numbers(kind: str, count: int) -> array[int]:
        nonlocal at
        column = array(kind)
        end = at + count * column.itemsize
        column.frombytes(body[at:end])
        if len(column) != count:
            raise ValueError(kind)
        at = end
        return column

    counts, places = numbers("I", segments), numbers("I", segments)
    bases, times = numbers("q", segments), numbers("q", segments)
    ids, sizes = numbers("q", partitions), numbers("I", partitions)
    bounds = list(accumulate(sizes, initial=at))
    names = [body[low:high].decode() for low, high in pairwise(bounds)]
    if bounds[-1] != at + names_size:
        raise ValueError(names_size)
    if len(names) == 1 and not any(places):
        partitions, partition_ids = names * segments, ids * segments
    else:
        partitions = [names[place] for place in places]
        partition_ids = [ids[place] for place in places]
    return Stretches(partitions, partition_ids, bases, times, counts), at + names_size


def is_small(codec: int, stored: bytes) -> bool:
    """Return whether a stored segment is better sent together with others."""
    if len(stored) > _SMALL_BYTES:
        return False
    return codec == CODEC_RAW or raw_size(codec, stored) <= _SMALL_RAW_BYTES


class LoneMessages(NamedTuple):
    """Segments of one message each, column by column; bodies are raw."""

    names: Mapping[int, str]
    partition_ids: Sequence[int]
    base_offsets: Sequence[int]
    times_us: Sequence[int]
    bodies: Sequence[bytes]


class StretchColumns(NamedTuple):
    """The table of a joined frame, as it stands in one: numbers in their bytes."""

    # By their ids; `places` counts them in this order.
    names: Mapping[int, str]
    counts: bytes
    places: bytes
    base_offsets: bytes
    times_us: bytes


def pack_joined(
    queue: str, first: Stretch, columns: StretchColumns, segment: Segment, *, goes_on: bool = False
) -> bytes:
    """Return the messages of segments of one queue as one frame; `first` is the first of them."""
    body = _pack_table(columns, goes_on) + encode_body(segment)
    frame = _frame(queue, first, segment.count, CODEC_RAW, len(body), body)
    return pack_frame(frame, JOINED_VERSION)


class StoredBody(NamedTuple):
    """Messages as they are stored."""

    codec: int
    body: bytes
    messages: int


def pack_laid(
    queue: str, first: Stretch, columns: StretchColumns, stored: StoredBody, *, goes_on: bool
) -> bytes:
    """Return stored messages and what they are made of as one frame; raises when the body does not
    say its size."""
    body = _pack_table(columns, goes_on) + stored.body
    is_raw = stored.codec == CODEC_RAW
    size = len(body) if is_raw else raw_size(stored.codec, stored.body)
    frame = _frame(queue, first, stored.messages, stored.codec, size, body)
    return pack_frame(frame, JOINED_VERSION if is_raw else LAID_VERSION)


def _frame(queue: str, first: Stretch, count: int, codec: int, size: int, body: bytes) -> Frame:
    partition, partition_id, base, at_us, _ = first
    return Frame(queue, partition, count, codec, size, body, base, at_us, partition_id)


def _pack_table(columns: StretchColumns, goes_on: bool) -> bytes:
    names = [name.encode() for name in columns.names.values()]
    text = b"".join(names)
    return b"".join(
        (
            _TABLE.pack(len(columns.counts) // 4, len(names), len(text), goes_on),
            columns.counts,
            columns.places,
            columns.base_offsets,
            columns.times_us,
            array("q", columns.names),
            array("I", map(len, names)),
            text,
        )
    )


class FrameJoiner:
    """Takes small segments of one queue, and makes frames of them."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._begin()

    def _begin(self) -> None:
        self._joiner = ColumnJoiner()
        self._bytes = 0
        # Of each segment, and the names of partitions by their ids.
        self._places: list[int] = []
        self._bases: list[int] = []
        self._times: list[int] = []
        self._counts: list[int] = []
        self._names: dict[int, str] = {}

    @property
    def is_full(self) -> bool:
        return self._joiner.messages >= ENOUGH_MESSAGES or self._bytes >= _ENOUGH_BYTES

    def add(self, stretch: Stretch, codec: int, stored: bytes) -> None:
        """Take a segment; raises when its body is not what it should be, and takes nothing."""
        body = decompress(codec, stored)
        segment = decode_body(body)
        if segment.count != stretch.messages:
            raise InvalidFrame(f"body holds {segment.count} messages, not {stretch.messages}")
        self._joiner.add(segment)
        self._names[stretch.partition_id] = stretch.partition
        self._places.append(stretch.partition_id)
        self._bases.append(stretch.base_offset)
        self._times.append(stretch.created_at_us)
        self._counts.append(segment.count)
        self._bytes += len(body)

    def add_lone(self, lone: LoneMessages) -> bool:
        """Take segments of one message each, column by column.

        False, and nothing is taken, when one of them is not an id and a payload and no more.
        """
        size = self._joiner.add_lone(lone.bodies)
        if size is None:
            return False
        self._names.update(lone.names)
        self._places += lone.partition_ids
        self._bases += lone.base_offsets
        self._times += lone.times_us
        self._counts += [1] * len(lone.bodies)
        self._bytes += size
        return True

    def frames(self) -> list[bytes]:
        """Return what was taken as one frame, if it was anything, and begin again."""
        if not self._counts:
            return []
        number = self._places[0]
        first = Stretch(
            self._names[number], number, self._bases[0], self._times[0], self._counts[0]
        )
        places = {number: place for place, number in enumerate(self._names)}
        columns = StretchColumns(
            self._names,
            array("I", self._counts).tobytes(),
            array("I", map(places.__getitem__, self._places)).tobytes(),
            array("q", self._bases).tobytes(),
            array("q", self._times).tobytes(),
        )
        frame = pack_joined(self._queue, first, columns, self._joiner.segment())
        self._begin()
        return [frame]
