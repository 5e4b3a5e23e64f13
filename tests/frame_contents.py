"""What frames tell, message by message, however many segments are in one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from queen.core.frame import Frame


class Told(NamedTuple):
    """What a frame tells of a message."""

    partition: str
    partition_id: int
    offset: int
    created_at_us: int
    transaction_id: str
    payload: bytes
    extras: dict[str, Any]


def told(frames: Iterable[Frame]) -> list[Told]:
    messages = []
    for frame in frames:
        segment, stretches = frame.parts()
        assert sum(stretches.counts) == segment.count == frame.count
        columns = zip(segment.transaction_ids(), segment.payloads(), strict=True)
        places = [
            (part, part.base_offset + n) for part in stretches.rows() for n in range(part.messages)
        ]
        for at, ((name, payload), (part, offset)) in enumerate(zip(columns, places, strict=True)):
            extras = {key: column[at] for key, column in segment.extras.items() if column[at]}
            names = (part.partition, part.partition_id, offset, part.created_at_us)
            messages.append(Told(*names, name, payload, extras))
    return messages
