"""Columns of several segments, one behind the other."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from queen.core.frame import Segment
from queen.errors import InvalidFrame

# The body of a lone message up to its id: the header, and two offsets of each column.
_LONE = struct.Struct("<IIIIiiii")


class ColumnJoiner:
    """Takes segments, and gives all their messages as one."""

    def __init__(self) -> None:
        self.messages = 0
        self._id_sizes: list[int] = []
        self._payload_sizes: list[int] = []
        self._ids: list[bytes] = []
        self._data: list[bytes] = []
        self._extras: dict[str, list[Any]] = {}

    def add(self, segment: Segment) -> None:
        """Take a segment; raises when its columns do not fit, and takes nothing."""
        id_offsets, payload_offsets = segment.id_offsets, segment.payload_offsets
        # What is wrong in a segment must not shift its neighbours.
        ends = (id_offsets[0], id_offsets[-1], payload_offsets[0], payload_offsets[-1])
        if ends != (0, len(segment.ids), 0, len(segment.data)):
            raise InvalidFrame("its offsets do not fit its columns")
        self._ids.append(segment.ids)
        self._data.append(segment.data)
        self._id_sizes += [b - a for a, b in pairwise(id_offsets)]
        self._payload_sizes += [b - a for a, b in pairwise(payload_offsets)]
        for name, column in segment.extras.items():
            joined = self._extras.setdefault(name, [])
            joined += [None] * (self.messages - len(joined))
            joined += column
        self.messages += segment.count

    def add_lone(self, bodies: Sequence[bytes]) -> int | None:
        """Take raw bodies of one message each, column by column, and return their bytes.

        None, and nothing is taken, when one of them is not an id and a payload and no more.
        """
        starts = list(map(_LONE.unpack_from, bodies))
        counts, ids, data, extras, *offsets = zip(*starts, strict=True)
        sizes = [_LONE.size + a + b for a, b in zip(ids, data, strict=True)]
        is_plain = (
            counts.count(1) == len(bodies)
            and not any(extras)
            and offsets == [(0,) * len(bodies), ids, (0,) * len(bodies), data]
            and sizes == list(map(len, bodies))
        )
        if not is_plain:
            return None
        ends = [_LONE.size + size for size in ids]
        self._ids += [body[_LONE.size : end] for body, end in zip(bodies, ends, strict=True)]
        self._data += [body[end:] for body, end in zip(bodies, ends, strict=True)]
        self._id_sizes += ids
        self._payload_sizes += data
        self.messages += len(bodies)
        total: int = sum(sizes)
        return total

    def segment(self) -> Segment:
        """Return what was taken."""
        for column in self._extras.values():
            column.extend([None] * (self.messages - len(column)))
        return Segment(
            self.messages,
            array("i", accumulate(self._id_sizes, initial=0)),
            array("i", accumulate(self._payload_sizes, initial=0)),
            b"".join(self._ids),
            b"".join(self._data),
            self._extras,
        )
