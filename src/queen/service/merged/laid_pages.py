"""Pages with merged segments for who takes partitions one after the other: as they lie.

Nothing is decoded here. What is small and not merged, or merged of a few messages, is joined as
ever: a frame for each of those would cost more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from queen.core.frame import CODEC_ENCRYPTED, Stretch
from queen.service.catalog import Partition
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.joined_pages import FrameMaker, frame_makers
from queen.service.merged.pages import Part
from queen.service.merged.stretches import is_merged
from queen.wire.frames.joined_frame import StoredBody, StretchColumns, is_small, pack_laid

# A frame costs as much as to put so many messages into order.
_WORTH_STRETCHES = 50


def laid_frames(
    parts: Sequence[Part], partitions: Mapping[int, Partition], encryption: SegmentEncryption
) -> list[bytes] | None:
    """Return what parts of a page hold as frames, each partition in its order.

    A frame goes on when one that follows stands before it in the order of time. None when one of
    the parts is damaged, or what is to be joined cannot be.
    """
    frames: list[bytes] = []
    try:
        for between in _between_clean_places(parts):
            makers = _makers(between, partitions, encryption)
            if makers is None:
                return None
            frames += [make(number < len(makers)) for number, make in enumerate(makers, 1)]
    except Exception:  # Whatever zstd and struct say of one.
        return None
    return frames


def _between_clean_places(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield parts up to places at which none of them goes on; what is not laid comes with others.

    They stand in the order in which they begin.
    """
    taken: list[Part] = []
    has_laid = False
    reached = parts[0].place(parts[0].first)
    for part in parts:
        if has_laid and reached < part.place(part.first):
            yield taken
            taken, has_laid = [], False
        taken.append(part)
        has_laid = has_laid or _is_laid(part)
        reached = max(reached, part.place(part.last - 1))
    yield taken


def _makers(
    parts: Sequence[Part], partitions: Mapping[int, Partition], encryption: SegmentEncryption
) -> list[FrameMaker] | None:
    makers: list[FrameMaker] = []
    for is_laid, run in groupby(sorted(parts, key=_partition_and_offset), _is_laid):
        alike = list(run)
        joined = None if is_laid else frame_makers(alike, partitions, encryption)
        if joined is not None:
            makers += joined
        elif all(map(_is_whole, alike)):
            makers += [partial(_laid, part, partitions, encryption) for part in alike]
        else:
            return None
    return makers


def _partition_and_offset(part: Part) -> tuple[int, int]:
    return part.row["partition_id"], part.row["base_offset"]


def _is_whole(part: Part) -> bool:
    return (part.first, part.last) == (0, len(part.table.ends))


def _is_laid(part: Part) -> bool:
    """Return whether all of a row is wanted, and that is much."""
    row = part.row
    if is_merged(row):
        return _is_whole(part) and part.last >= _WORTH_STRETCHES
    return row["codec"] != CODEC_ENCRYPTED and not is_small(row["codec"], row["body"])


def _laid(
    part: Part, partitions: Mapping[int, Partition], encryption: SegmentEncryption, goes_on: bool
) -> bytes:
    row, (starts, ends, times) = part.row, part.table
    partition = partitions[row["partition_id"]]
    counts, bases = (ends - starts).astype(np.uint32), starts + row["base_offset"]
    columns = StretchColumns(
        {partition.id: partition.name},
        counts.tobytes(),
        bytes(counts.nbytes),
        bases.tobytes(),
        times.tobytes(),
    )
    first = Stretch(partition.name, partition.id, int(bases[0]), int(times[0]), int(counts[0]))
    stored = StoredBody(*encryption.decrypt_row(row), int(ends[-1]))
    return pack_laid(partition.queue.name, first, columns, stored, goes_on=goes_on)
