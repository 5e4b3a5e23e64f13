"""Pages of stored segments with merged ones among them.

A page is what stands behind one place and up to another, in the order of time or of offsets. A
merged segment holds a run of such places, so a page takes a part of it: `Part`. Where a page of a
queue ends is chosen here, at best where no merged segment goes on: those of one range of
time begin and end together, and what a page leaves of them is read again for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np

from queen.core.frame import CODEC_RAW, Segment, encode_body
from queen.service.instants import microseconds
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.stretches import Row, StretchTable, is_merged, stretches_between, table_of
from queen.storage.database import Record


class Place(NamedTuple):
    """Where a stretch stands in the order of time."""

    at_us: int
    partition_id: int
    offset: int


class Part(NamedTuple):
    """The stretches [first, last) of a stored row."""

    row: Record
    table: StretchTable
    first: int
    last: int

    def place(self, number: int) -> Place:
        offset = self.row["base_offset"] + int(self.table.starts[number])
        return Place(int(self.table.times_us[number]), self.row["partition_id"], offset)


def _whole(row: Record) -> Part:
    if is_merged(row):
        table = table_of(row)
        return Part(row, table, 0, len(table.ends))
    count = row["end_offset"] - row["base_offset"]
    columns = ([0], [count], [microseconds(row["created_at"])])
    return Part(row, StretchTable(*(np.array(column, np.int64) for column in columns)), 0, 1)


def _count_to(part: Part, place: Place) -> int:
    """Return how many stretches of a whole row stand at a place or before it."""
    partition_id, base = part.row["partition_id"], part.row["base_offset"]
    if partition_id == place.partition_id:
        return int(np.searchsorted(part.table.starts, place.offset - base, "right"))
    side = "right" if partition_id < place.partition_id else "left"
    return int(np.searchsorted(part.table.times_us, place.at_us, side))  # type: ignore[call-overload]


def _between(rows: Iterable[Part], after: Place, until: Place) -> list[Part]:
    """Return what stands behind one place, and at another or before it."""
    parts = (
        part._replace(first=_count_to(part, after), last=_count_to(part, until)) for part in rows
    )
    return [part for part in parts if part.first < part.last]


class TimePage(NamedTuple):
    parts: list[Part]
    # Where the next page begins, behind this place; None when there is none.
    end: Place | None


def page_by_time(rows: Sequence[Record], after: Place, until: Place, *, is_last: bool) -> TimePage:
    """Return what rows hold behind a place and before another.

    They stand in the order in which they begin; what begins behind the last of them is not known,
    unless it is the last there is.
    """
    whole = [_whole(row) for row in rows]
    if is_last:
        return TimePage(_between(whole, after, until._replace(offset=until.offset - 1)), None)
    end = _choose_end(whole, after)
    return TimePage(_between(whole, after, end), end)


def _choose_end(rows: Sequence[Part], after: Place) -> Place:
    """Return the last place of a page, at best one at which none of its rows goes on."""
    clean: Place | None = None
    reached = after
    for row in rows:
        if after < reached < row.place(0):
            clean = reached
        reached = max(reached, row.place(row.last - 1))
    last = rows[-1].place(0)
    return last if reached == last or clean is None else clean


def page_by_offset(rows: Iterable[Record], low: int, stop: int, before: datetime) -> list[Part]:
    """Return what rows of a partition hold of [low, stop) that was written before an instant."""
    parts = []
    for part in map(_whole, rows):
        base = part.row["base_offset"]
        written = int(np.searchsorted(part.table.times_us, microseconds(before), "left"))
        first, last = part.table.within(low - base, stop - base)
        if first < min(last, written):
            parts.append(part._replace(first=first, last=min(last, written)))
    return parts


def unfolded(parts: Iterable[Part], encryption: SegmentEncryption) -> list[Row]:
    """Return a row for each stretch, as it was before it was merged, in the order of time.

    A segment that does not open stays as it is.
    """
    rows: list[Row] = []
    for part in parts:
        if not is_merged(part.row):
            rows.append(part.row)
            continue
        try:
            segment = encryption.decode_segment(part.row)
        except Exception:  # Whatever it is: who reads the frame is told.
            rows.append(part.row)
            continue
        rows += _rows_of(part, segment)
    return sorted(
        rows, key=lambda row: (row["created_at"], row["partition_id"], row["base_offset"])
    )


def _rows_of(part: Part, segment: Segment) -> Iterator[Row]:
    bounds = part.first, part.last
    for base, at, stretch in stretches_between(part.row, segment, part.table, *bounds):
        yield {
            "partition_id": part.row["partition_id"],
            "base_offset": base,
            "end_offset": base + stretch.count,
            "created_at": at,
            "codec": CODEC_RAW,
            "body": encode_body(stretch),
        }
