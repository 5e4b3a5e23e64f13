"""Merged segments: many that were stored one by one, in one row.

What was stored together stays a **stretch**: a run of messages with a time of its own. A row that
was never merged is one stretch. Whoever reads a time, or where something begins, asks here; whoever
reads messages by their offsets need not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from queen.core.frame import CODEC_MERGED, Segment
from queen.service.instants import instant_at
from queen.storage.database import Record

# Of PostgreSQL, or made of one.
Row: TypeAlias = "Record | dict[str, Any]"

# As PostgreSQL sends arrays: a header, and each value behind its size.
_ARRAY_HEADER_BYTES = 20
_ENDS = np.dtype([("size", ">i4"), ("value", ">i4")])
_TIMES = np.dtype([("size", ">i4"), ("value", ">i8")])
# PostgreSQL counts from 2000.
_EPOCH_US = 946_684_800_000_000


class StretchTable(NamedTuple):
    """What a merged segment is made of: where each stretch begins and ends, counted from its base
    offset, and when it was written."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    times_us: NDArray[np.int64]

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return which stretches [first, last) hold something of [low, high)."""
        first = np.searchsorted(self.ends, low, "right")
        return int(first), max(int(first), int(np.searchsorted(self.starts, high, "left")))

    def times_at(self, low: int, high: int) -> list[datetime]:
        """Return when the messages [low, high) were written."""
        places = np.searchsorted(self.ends, np.arange(low, high), "right")
        return [instant_at(at) for at in self.times_us[places].tolist()]


def is_merged(row: Row) -> bool:
    return bool(row["codec"] & CODEC_MERGED)


def table_of(row: Row) -> StretchTable:
    """Return the stretches of a merged row."""
    sent: bytes = row["stretches"]
    count = int.from_bytes(sent[12:16], "big")
    ends_at = _ARRAY_HEADER_BYTES
    times_at = ends_at + count * _ENDS.itemsize + _ARRAY_HEADER_BYTES
    ends = np.frombuffer(sent, _ENDS, count, ends_at)["value"].astype(np.int64)
    times = np.frombuffer(sent, _TIMES, count, times_at)["value"].astype(np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    return StretchTable(starts, ends, times + _EPOCH_US)


def written_at(row: Row, offset: int) -> datetime:
    """Return when the message at an offset of a row was written."""
    if not is_merged(row):
        created_at: datetime = row["created_at"]
        return created_at
    at = offset - row["base_offset"]
    return table_of(row).times_at(at, at + 1)[0]


class StoredStretch(NamedTuple):
    base_offset: int
    created_at: datetime
    segment: Segment


def stretches_of(row: Row, segment: Segment, low: int, high: int) -> Iterator[StoredStretch]:
    """Yield what a row holds of offsets [low, high): the stretches that touch them, whole."""
    base = row["base_offset"]
    if not is_merged(row):
        yield StoredStretch(base, row["created_at"], segment)
        return
    table = table_of(row)
    yield from stretches_between(row, segment, table, *table.within(low - base, high - base))


def stretches_between(
    row: Row, segment: Segment, table: StretchTable, first: int, last: int
) -> Iterator[StoredStretch]:
    """Yield the stretches [first, last) of a merged row."""
    base = row["base_offset"]
    starts, ends = table.starts[first:last].tolist(), table.ends[first:last].tolist()
    times = map(instant_at, table.times_us[first:last].tolist())
    for start, end, at in zip(starts, ends, times, strict=True):
        yield StoredStretch(base + start, at, _cut(segment, start, end))


def _cut(segment: Segment, start: int, end: int) -> Segment:
    """Return some messages as they were stored: without the rare columns that others brought."""
    part = segment.cut(start, end)
    if part.extras:
        part.extras = {
            name: column
            for name, column in part.extras.items()
            if any(value is not None for value in column)
        }
    return part
