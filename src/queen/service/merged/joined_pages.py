"""Pages with merged segments, as joined frames: many messages at once, column by column.

Messages of several merged segments are put into the order of time here. None of them is looked
at by itself: what a stretch holds is cut out of its segment, and the stretches are sorted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from queen.core.frame import Segment, Stretch, stored_segment
from queen.errors import InvalidFrame
from queen.service.catalog import Partition
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.pages import Part
from queen.service.merged.stretches import is_merged
from queen.wire.frames.joined_frame import (
    ENOUGH_MESSAGES,
    StretchColumns,
    is_small,
    pack_joined,
)

Ints = NDArray[np.int64]


class _PartColumns(NamedTuple):
    """What a part holds: of each stretch where it stands, of each message its sizes."""

    partition_ids: Ints
    bases: Ints
    times_us: Ints
    counts: Ints
    id_sizes: Ints
    payload_sizes: Ints
    ids: bytes
    data: bytes


class _Bulk:
    """What many parts hold, one behind the other, and the order in which it goes out."""

    def __init__(self, parts: Sequence[_PartColumns]) -> None:
        columns = [
            np.concatenate([part[number] for part in parts])
            for number in range(len(_PartColumns._fields) - 2)
        ]
        self.partition_ids, self.bases, self.times_us, self.counts, *sizes = columns
        self.id_sizes, self.payload_sizes = sizes
        self.ids = b"".join([part.ids for part in parts])
        self.data = b"".join([part.data for part in parts])
        self.order = np.lexsort((self.bases, self.partition_ids, self.times_us))
        # Where the messages of each stretch begin, and where their bytes do.
        self.begins = np.cumsum(self.counts) - self.counts
        self._id_ends = np.concatenate(([0], np.cumsum(self.id_sizes)))
        self._payload_ends = np.concatenate(([0], np.cumsum(self.payload_sizes)))
        width = int(self.id_sizes[0]) if len(self.id_sizes) else 0
        self._id_width = width if width and bool((self.id_sizes == width).all()) else 0

    def blocks(self, messages: int) -> Iterator[Ints]:
        """Yield stretches in their order, about so many messages at a time."""
        ends = np.cumsum(self.counts[self.order])
        first = done = 0
        while first < len(ends):
            last = min(int(np.searchsorted(ends, done + messages, "left")) + 1, len(ends))
            yield self.order[first:last]
            first, done = last, int(ends[last - 1])

    def segment(self, stretches: Ints) -> Segment:
        """Return the messages of some stretches."""
        begins, counts = self.begins[stretches], self.counts[stretches]
        shifts = begins - (np.cumsum(counts) - counts)
        messages = np.repeat(shifts, counts) + np.arange(int(counts.sum()))
        if self._id_width:
            # As ids mostly are: all are moved at once.
            ids = np.frombuffer(self.ids, f"V{self._id_width}")[messages].tobytes()
        else:
            ids = _gathered(self.ids, self._id_ends, begins, counts)
        data = _gathered(self.data, self._payload_ends, begins, counts)
        id_offsets, payload_offsets = (
            array("i", np.concatenate(([0], np.cumsum(sizes[messages]))).astype(np.int32).tobytes())
            for sizes in (self.id_sizes, self.payload_sizes)
        )
        return Segment(len(messages), id_offsets, payload_offsets, ids, data, {})


def _gathered(column: bytes, ends: Ints, begins: Ints, counts: Ints) -> bytes:
    lows, highs = ends[begins].tolist(), ends[begins + counts].tolist()
    return b"".join([column[low:high] for low, high in zip(lows, highs, strict=True)])


# Makes a frame; it is told whether it goes on.
FrameMaker = Callable[[bool], bytes]


def joined_frames(
    parts: Sequence[Part], partitions: Mapping[int, Partition], encryption: SegmentEncryption
) -> list[bytes] | None:
    """Return what parts hold as joined frames, in the order of time.

    None when one of them is large, does not open, or has rare columns: then each goes by itself.
    """
    makers = frame_makers(parts, partitions, encryption)
    return None if makers is None else [make(False) for make in makers]


def frame_makers(
    parts: Sequence[Part], partitions: Mapping[int, Partition], encryption: SegmentEncryption
) -> list[FrameMaker] | None:
    """Return what makes these frames."""
    taken = []
    for part in parts:
        try:
            each = _take(part, encryption)
        except Exception:  # Whatever zstd and struct say of it.
            return None
        if each is None:
            return None
        taken.append(each)
    bulk = _Bulk(taken)
    return [partial(_joined, bulk, block, partitions) for block in bulk.blocks(ENOUGH_MESSAGES)]


def _take(part: Part, encryption: SegmentEncryption) -> _PartColumns | None:
    codec, body = encryption.decrypt_row(part.row)
    if not is_merged(part.row) and not is_small(codec, body):
        return None
    segment = stored_segment(codec, body)
    if segment.extras:
        return None
    starts, ends, times = (column[part.first : part.last] for column in part.table)
    ids, payloads = _offsets(segment.id_offsets), _offsets(segment.payload_offsets)
    id_sizes, payload_sizes = np.diff(ids), np.diff(payloads)
    bounds = (ids[0], ids[-1], payloads[0], payloads[-1])
    is_damaged = bounds != (0, len(segment.ids), 0, len(segment.data))
    # What is cut out by one that is wrong would not be as long as is said of it.
    if is_damaged or bool((id_sizes < 0).any() or (payload_sizes < 0).any()):
        raise InvalidFrame("its offsets do not fit its columns")
    low, high = int(starts[0]), int(ends[-1])
    return _PartColumns(
        np.full(len(starts), part.row["partition_id"], np.int64),
        starts + part.row["base_offset"],
        times,
        ends - starts,
        id_sizes[low:high],
        payload_sizes[low:high],
        segment.ids[ids[low] : ids[high]],
        segment.data[payloads[low] : payloads[high]],
    )


def _offsets(column: array[int]) -> Ints:
    return np.frombuffer(column, np.int32).astype(np.int64)


def _joined(
    bulk: _Bulk, stretches: Ints, partitions: Mapping[int, Partition], goes_on: bool
) -> bytes:
    bases, times = bulk.bases[stretches], bulk.times_us[stretches]
    counts = bulk.counts[stretches].astype(np.uint32)
    of_stretches = bulk.partition_ids[stretches]
    ids, places = np.unique(of_stretches, return_inverse=True)
    names = {number: partitions[number].name for number in ids.tolist()}
    table = StretchColumns(
        names,
        counts.tobytes(),
        places.astype(np.uint32).tobytes(),
        bases.tobytes(),
        times.tobytes(),
    )
    number = int(of_stretches[0])
    first = Stretch(names[number], number, int(bases[0]), int(times[0]), int(counts[0]))
    queue, segment = partitions[number].queue.name, bulk.segment(stretches)
    return pack_joined(queue, first, table, segment, goes_on=goes_on)
