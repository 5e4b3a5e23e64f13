"""Streams with the verbs of Redis, on the wire.

Answers are written from the records of `queen.streambroker`; these structs say what they look like,
and the tests hold every answer of the real server against them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

AnyName = Annotated[
    str, Meta(description="A name: any text that is not empty.", extra_json_schema={"minLength": 1})
]
EntryId = Annotated[
    str,
    Meta(
        description="The id of a message of a stream: milliseconds since 1970, and a number.",
        extra_json_schema={"examples": ["1767225600000-0"]},
    ),
]
StartId = Annotated[
    str,
    Meta(
        description="After which message a group reads: `0` all of them, `$` only those that are "
        "added from now on, or an id.",
        extra_json_schema={"examples": ["0"]},
    ),
]
Milliseconds = Annotated[int, Meta(ge=0, le=366 * 24 * 3600 * 1000)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Limit = Annotated[int, Meta(description="0 is no limit.", ge=0, le=2**63 - 1)]

# ---- requests ----


class GroupStart(Struct):
    startId: StartId = "$"
    strict: Annotated[bool, Meta(description="Refuse when there is such a group already.")] = False


class GroupMove(Struct):
    startId: StartId


class NamedEntries(Struct):
    messageIds: list[EntryId]


class ReleasedEntries(Struct):
    messageIds: list[EntryId]
    delayMs: Annotated[Milliseconds, Meta(description="Nobody gets them for so long.")] = 0


class EntryClaim(Struct):
    consumer: Annotated[AnyName, Meta(description="Who takes them over.")]
    minIdleMs: Annotated[Milliseconds, Meta(description="Only what is pending for so long.")]
    messageIds: (
        Annotated[list[EntryId], Meta(description="Only these; left out, the oldest.")] | None
    ) = None
    count: Annotated[
        Limit, Meta(description="At most so many, unless they are named; 0 is no limit.")
    ] = 1


class Trimming(Struct):
    maxLength: Annotated[Number, Meta(description="How many of the newest are kept.")]


class Redrive(Struct):
    count: Annotated[Limit, Meta(description="At most so many; 0 is no limit.")] = 0


class DeliveryLimit(Struct):
    limit: Annotated[int, Meta(description="Null takes the limit away.", ge=1, le=2**63 - 1)] | None


# ---- answers ----


class EntryOrigin(Struct):
    """Where a dead letter comes from."""

    stream: str
    group: str
    id: EntryId
    deliveries: int


class Entry(Struct):
    """A message of a stream."""

    id: EntryId
    data: Annotated[Any, Meta(description="What was added.")]
    timestamp: Annotated[float, Meta(description="Seconds since 1970.")]
    deliveryCount: (
        Annotated[int, Meta(description="The how-manyth delivery to the group this is.")]
        | UnsetType
    ) = UNSET
    consumer: Annotated[str, Meta(description="Who has it pending.")] | UnsetType = UNSET
    idleMs: Annotated[int, Meta(description="For how long.")] | UnsetType = UNSET
    isDeleted: (
        Annotated[bool, Meta(description="It is pending, but its data is no longer there.")]
        | UnsetType
    ) = UNSET
    deadLetter: EntryOrigin | UnsetType = UNSET


class EntryConsumer(Struct):
    name: str
    pending: int
    lastActivity: Annotated[float, Meta(description="Seconds since 1970.")]


class EntryGroup(Struct):
    name: str
    consumers: list[EntryConsumer]
    lastDeliveredId: EntryId
    totalPending: int
    lag: Annotated[int, Meta(description="How many messages it has not been given yet.")]


class EntryAdded(Struct):
    status: Literal["added"]
    messageId: EntryId
    stream: AnyName


class EntryGroupSet(Struct):
    status: Annotated[
        Literal["created", "moved"],
        Meta(description="`created` also when it was there: it stays where it is then."),
    ]
    stream: AnyName
    group: AnyName
    startId: StartId


class EntryGroupDeleted(Struct):
    status: Literal["deleted"]
    stream: AnyName
    group: AnyName


class EntryConsumerDeleted(Struct):
    status: Literal["deleted"]
    stream: AnyName
    group: AnyName
    consumer: AnyName
    pending: Annotated[int, Meta(description="How many messages it had.")]


class EntriesRead(Struct):
    stream: AnyName
    group: AnyName
    consumer: AnyName
    count: int
    messages: list[Entry]


class EntriesPending(Struct):
    stream: AnyName
    group: AnyName
    count: int
    messages: list[Entry]


class EntryRange(Struct):
    stream: AnyName
    count: int
    messages: list[Entry]


class EntriesChanged(Struct):
    status: Literal["acknowledged", "released", "deleted", "trimmed", "redriven"]
    count: Annotated[int, Meta(description="How many messages it was done to.")]


class DeliveryLimitSet(Struct):
    status: Literal["limited"]
    stream: AnyName
    group: AnyName
    limit: int | None


class EntryStreamInfo(Struct):
    stream: AnyName
    length: int
    groups: list[EntryGroup]


class EntryStreamLength(Struct):
    stream: AnyName
    length: int


class EntryStreams(Struct):
    count: int
    streams: Annotated[list[str], Meta(description="Their names, sorted.")]


class EntryCapabilities(Struct):
    """What the backend can do that not all of them can."""

    capabilities: list[str]
