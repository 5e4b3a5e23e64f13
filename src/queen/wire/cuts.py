"""Reading whole queues by sealed time, on the wire.

Times here are numbers: microseconds since 1970, as the frames carry them. An instant that
was rounded on its way would move messages from one range into another.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from queen.wire.groups import MAX_OFFSET
from queen.wire.parts import Name, PartitionId

# The last microsecond of the year 9999.
MAX_TIME_US = 253_402_300_799_999_999
MAX_SLICES = 10_000

Microseconds = Annotated[
    int, Meta(ge=0, le=MAX_TIME_US, description="Microseconds since 1970, UTC.")
]
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
_Limit = Annotated[int, Meta(ge=1, le=MAX_OFFSET)]
Pattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        description="Of names: `*` stands for any characters, `?` for one.",
    ),
]


class CutRequest(msgspec.Struct):
    queues: Annotated[list[Name], Meta(max_length=1000)] = []
    # Instead of `queues`: all that match, and that the caller may see. What is answered as sealed
    # is so for those too that are made later. There may be 1000.
    pattern: Pattern | None = None
    # What was answered before: answered again when nothing was written at or after it.
    since: Microseconds | None = None
    # The group whose place is wanted.
    group: Name | None = None


class GroupPlace(msgspec.Struct):
    """Where a group that reads by time stands."""

    # It has read everything before this; null is nothing.
    doneUntil: int | None
    # How often somebody else has moved it.
    moves: int
    paused: bool


class QueueCut(msgspec.Struct):
    queue: str
    # When the oldest message was written that is still there; null when there is none.
    earliest: int | None
    # When the newest message was written that retention has removed.
    goneUntil: int | None
    # As they were last counted.
    messages: int
    bytes: int
    group: GroupPlace | None


class Cut(msgspec.Struct):
    # Everything before this is there to be read, and nothing before it will come.
    sealed: int
    queues: list[QueueCut]


class PlanSource(msgspec.Struct):
    queue: Name
    since: Microseconds = 0


class PlanRequest(msgspec.Struct):
    sources: Annotated[list[PlanSource], Meta(min_length=1, max_length=1000)]
    until: Microseconds
    # Only these; none means all.
    partitions: Annotated[list[Name], Meta(max_length=1000)] = []
    # Only these offsets; with `partitions`.
    fromOffset: Offset = 0
    toOffset: Offset = MAX_OFFSET
    slices: Annotated[int, Meta(ge=1, le=MAX_SLICES)] = 1
    maxMessages: _Limit | None = None
    maxBytes: _Limit | None = None
    # Where limits end the plan earlier: count what was written from here on and before `until`.
    countSince: Microseconds | None = None
    # Queues that are gone are left out; otherwise they are an error.
    existing: bool = False


class Point(msgspec.Struct):
    """A place in the order of time: (at, partition, offset)."""

    at: Microseconds
    partitionId: PartitionId
    offset: Offset


class Range(msgspec.Struct, omit_defaults=True):
    """A run of segments: of a queue in order of time, or of one partition by offset."""

    queue: Name
    start: Point | None = None
    end: Point | None = None
    partitionId: PartitionId | None = None
    fromOffset: Offset = 0
    toOffset: Offset = MAX_OFFSET


class Slice(msgspec.Struct):
    ranges: list[Range]
    messages: int
    bytes: int


class QueueCount(msgspec.Struct):
    queue: str
    messages: int
    bytes: int


class Plan(msgspec.Struct, omit_defaults=True):
    # Queues of which retention has removed something that was asked for.
    lost: list[str]
    # As asked, or earlier when there is more than the limits allow.
    until: int
    messages: int
    bytes: int
    slices: list[Slice]
    # Partitions that were asked for and that none of the queues has.
    unknown: list[str] = []
    # With `countSince`, where limits have ended it earlier: what it holds of each queue.
    planned: list[QueueCount] = []
    # And what each has from there on and before what was asked as `until`.
    counted: list[QueueCount] = []


class SliceRequest(msgspec.Struct):
    ranges: Annotated[list[Range], Meta(min_length=1, max_length=10_000)]
    # Ranges of queues that are gone are left out; otherwise they are an error.
    existing: bool = False


class ProgressSource(msgspec.Struct):
    queue: Name
    # As it was last answered; a group that was moved since is not moved back.
    moves: Annotated[int, Meta(ge=0, le=2**30)] = 0


class ProgressRequest(msgspec.Struct):
    group: Name
    sources: Annotated[list[ProgressSource], Meta(min_length=1, max_length=1000)]
    # Everything before this is done; 0 is nothing.
    doneUntil: Microseconds
    # Queues that are gone are left out; otherwise they are an error.
    existing: bool = False


class QueuePlace(msgspec.Struct):
    queue: str
    group: GroupPlace


class Progress(msgspec.Struct):
    queues: list[QueuePlace]
