"""Answers, as the API document describes them.

The hot ones are never built: `answers` formats their bytes. The tests hold every answer of
the real server against these structs, so the two cannot come apart.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from queen.core.options import OptionState, QueueOptions
from queen.wire.parts import (
    Headers,
    Instant,
    Label,
    LeaseId,
    MessageId,
    Name,
    PartitionId,
    TransactionId,
)

# A pop that acknowledges by itself has no lease.
MaybeLeaseId = Annotated[
    str,
    Meta(
        description="The lease to acknowledge with; empty when `autoAck` left nothing to do.",
        extra_json_schema={"examples": ["6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11"]},
    ),
]
Index = Annotated[int, Meta(description="The place in the request, counted from 0.", ge=0)]
Pushed = Annotated[
    Literal["queued", "duplicate", "scheduled", "buffered"],
    Meta(
        description="`duplicate` was known already, `scheduled` is stored when it is due, "
        "`buffered` waits in the spool of the server and is stored from there."
    ),
]
Due = Annotated[Instant, Meta(description="When a scheduled message is due.")]
Offset = Annotated[int, Meta(description="A position in a partition.", ge=0)]


# ---- push ----


class PushResult(Struct):
    """What became of one message."""

    index: Index
    transaction_id: TransactionId
    status: Pushed
    message_id: Annotated[MessageId | None, Meta(description="Null until it is stored.")]
    partition_id: Annotated[PartitionId | None, Meta(description="Null until it is stored.")]
    trace_id: str | None
    queueName: Name
    deliverAt: Due | UnsetType = UNSET


class SegmentResult(Struct):
    """What became of one frame."""

    queue: Name
    partition: Name
    status: Annotated[
        Literal["queued", "duplicate", "buffered", "refused"],
        Meta(
            description="`duplicate` when all of its messages are, `buffered` when it waits in the "
            "spool, `refused` with an `error`."
        ),
    ]
    count: Annotated[int, Meta(description="Messages stored, without duplicates.", ge=0)]
    partitionId: PartitionId | UnsetType = UNSET
    baseOffset: Annotated[int, Meta(description="The offset of its first message.")] | UnsetType = (
        UNSET
    )
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    left: Annotated[int, Meta(description="How many messages still fit.")] | UnsetType = UNSET
    duplicates: (
        Annotated[list[int], Meta(description="Places within the frame of what was known.")]
        | UnsetType
    ) = UNSET
    offsets: (
        Annotated[
            list[int],
            Meta(
                description="Where each message is, when some were there before. Without this they "
                "follow each other from `baseOffset` on."
            ),
        ]
        | UnsetType
    ) = UNSET


# ---- errors ----


# A union of structs without tags is nothing msgspec can decode, so it has no type of its own.
_PUSH_RESULTS = [
    {"$ref": "#/components/schemas/PushResult"},
    {"$ref": "#/components/schemas/SegmentResult"},
]


class RefusedItem(Struct):
    index: Index
    reason: str
    code: Annotated[str, Meta(description="The code of its own error.")]


class SpanAckResult(Struct):
    """What became of the acknowledgment of one span."""

    success: Annotated[bool, Meta(description="Whether all of it was taken.")]
    error: Annotated[str | None, Meta(description="Why something of it was not; else null.")]
    lost: Annotated[
        int, Meta(description="Offsets that the lease does not hold, or no longer.", ge=0)
    ]
    dead: Annotated[int, Meta(description="Messages that are now dead letters.", ge=0)]
    ended: Annotated[bool, Meta(description="Whether the lease is over.")]


class Error(Struct):
    """What every answer with a status of 400 or more looks like."""

    error: Annotated[str, Meta(description="A sentence for a person.")]
    code: Annotated[str, Meta(description="Stable, and safe to compare.")]
    retryable: Annotated[bool, Meta(description="Whether the same request may succeed later.")]
    outcome: (
        Annotated[
            Literal["unknown"],
            Meta(description="It may have been done: repeat it with the same transaction ids."),
        ]
        | UnsetType
    ) = UNSET
    items: (
        Annotated[list[RefusedItem], Meta(description="The items of a push that it refuses.")]
        | UnsetType
    ) = UNSET
    spans: (
        Annotated[
            list[SpanAckResult],
            Meta(description="What became of each acknowledgment that came with a pop."),
        ]
        | UnsetType
    ) = UNSET
    results: (
        Annotated[
            list[Any],
            Meta(
                description="What became of its other items, or of each of its frames.",
                extra_json_schema={"items": {"anyOf": _PUSH_RESULTS}},
            ),
        ]
        | UnsetType
    ) = UNSET
    index: Annotated[int, Meta(description="The item that is wrong.")] | UnsetType = UNSET
    reason: Annotated[str, Meta(description="What is wrong with it.")] | UnsetType = UNSET
    partitionId: Annotated[str, Meta(description="Where a message cannot be read.")] | UnsetType = (
        UNSET
    )
    offset: Annotated[int, Meta(description="Which one.")] | UnsetType = UNSET
    queue: Annotated[str, Meta(description="The queue that is full.")] | UnsetType = UNSET
    maxSize: Annotated[int, Meta(description="How much it may hold.")] | UnsetType = UNSET
    left: Annotated[int, Meta(description="How many messages still fit.")] | UnsetType = UNSET
    differs: (
        Annotated[list[str], Meta(description="What a change of a definition would change.")]
        | UnsetType
    ) = UNSET


# ---- pop ----


class Message(Struct):
    id: MessageId
    transactionId: TransactionId
    data: Annotated[Any, Meta(description="The payload as it was pushed.")]
    offset: Offset
    traceId: str | None
    queue: Name
    partition: Name
    partitionId: PartitionId
    leaseId: MaybeLeaseId
    consumerGroup: Annotated[str | None, Meta(description="Null in queue mode.")]
    createdAt: Instant
    retryCount: Annotated[int, Meta(description="Deliveries before this one.", ge=0)]
    priority: int
    producerSub: Annotated[
        str | None, Meta(description="Who pushed it, as far as a token told; else null.")
    ]
    headers: (
        Annotated[Headers, Meta(description="Of messages that were pushed with some.")] | UnsetType
    ) = UNSET


class Claim(Struct):
    """What was leased of one partition, for those who fence their own side effects."""

    queue: Name
    partition: Name
    partitionId: PartitionId
    epoch: Annotated[int, Meta(description="Grows with every lease of the partition.")]
    attempt: Annotated[int, Meta(description="The how-manyth delivery, counted from 1.", ge=0)]
    firstOffset: Offset
    endOffset: Annotated[int, Meta(description="The offset after the last one.", ge=0)]
    leaseMs: Annotated[int, Meta(description="How long the lease lasts; 0 for none.", ge=0)]


class PopAnswer(Struct):
    """The messages, and the first partition they came from."""

    messages: list[Message]
    success: bool
    queue: Name
    partition: Name
    partitionId: PartitionId
    leaseId: MaybeLeaseId
    consumerGroup: Name
    partitionsClaimed: Annotated[int, Meta(ge=1)]
    claims: list[Claim]


# ---- ack ----

Settled = Annotated[
    Literal["completed", "failed_retry", "failed_dlq"],
    Meta(description="`failed_retry` comes again, `failed_dlq` is now a dead letter."),
]
Dead = Annotated[bool, Meta(description="Whether the message is now a dead letter.")]


class AckAnswer(Struct):
    transactionId: TransactionId
    status: Settled
    consumerGroup: str | None
    acknowledgedAt: Instant
    success: bool
    dlq: Dead


class AckResult(Struct):
    index: Index
    transactionId: str
    status: Literal["completed", "failed_retry", "failed_dlq", "error"]
    success: bool
    error: Annotated[str | None, Meta(description="Why it was not taken; else null.")]
    dlq: Dead


class AckBatchAnswer(Struct):
    processed: Annotated[int, Meta(ge=0)]
    results: Annotated[list[AckResult], Meta(description="In the order of the request.")]
    error: Annotated[
        str | UnsetType,
        Meta(description="There when some were not taken: how many, and why the first was not."),
    ] = UNSET


class AckSpansAnswer(Struct):
    spans: Annotated[list[SpanAckResult], Meta(description="In the order of the request.")]


class ExtendAnswer(Struct):
    """The end of the lease stands under three names, because clients look for different ones."""

    leaseId: LeaseId
    extended: bool
    success: bool
    seconds: int
    newExpiresAt: Instant
    lease_expires_at: Instant
    expiresAt: Instant


# ---- transaction ----


class TransactionPush(Struct):
    transactionId: TransactionId
    messageId: Annotated[
        MessageId | None,
        Meta(description="Null until it is due, or when a repeat does not find the message."),
    ]
    partitionId: Annotated[PartitionId | None, Meta(description="Null until it is due.")]
    queueName: Name
    status: Pushed
    deliverAt: Due | UnsetType = UNSET


class PushOutcome(Struct, tag="push", tag_field="type"):
    """A push of one item repeats the item's own fields beside `items`."""

    index: Index
    success: bool
    count: Annotated[int, Meta(ge=0)]
    items: list[TransactionPush]
    transactionId: TransactionId | UnsetType = UNSET
    messageId: MessageId | UnsetType | None = UNSET
    partitionId: PartitionId | UnsetType | None = UNSET
    queueName: Name | UnsetType = UNSET
    status: Pushed | UnsetType = UNSET
    deliverAt: Due | UnsetType = UNSET


class AckOutcome(Struct, tag="ack", tag_field="type"):
    index: Index
    success: bool
    transactionId: str
    error: None
    dlq: Dead


class TransactionAnswer(Struct):
    transactionId: Annotated[str, Meta(description="Names this transaction in the answer only.")]
    success: bool
    results: Annotated[
        list[PushOutcome | AckOutcome], Meta(description="In the order of the operations.")
    ]


# ---- queues ----


class ConfigureAnswer(Struct):
    configured: bool
    queue: Name
    namespace: Label
    task: Label
    options: Annotated[QueueOptions, Meta(description="All of them, as they now are.")]
    queueId: int
    partitionId: Annotated[PartitionId, Meta(description="The partition `Default`.")]
    dedupReady: Annotated[
        bool,
        Meta(
            description="False while the index of a queue that has turned to `forever` is built; "
            "until then ids are compared with the window. What was stored while dedup was `off` "
            "is never compared."
        ),
    ]


class OptionChange(Struct):
    """What one option, or label, was and is."""

    name: str
    before: int | bool | str
    now: int | bool | str


class AlterQueueAnswer(ConfigureAnswer):
    created: Annotated[bool, Meta(description="Whether there was none before.")]
    revision: Annotated[int, Meta(description="Which configuration this is.")]
    changed: Annotated[list[OptionChange], Meta(description="What is different from before.")]


class QueueOptionsAnswer(Struct):
    """How a queue is configured, in full."""

    queue: Name
    namespace: Label
    task: Label
    revision: Annotated[int, Meta(description="Which configuration this is; a change adds one.")]
    options: Annotated[list[OptionState], Meta(description="All options there are.")]


class OlderMessages(Struct):
    """How many messages of a queue were written longer ago than some seconds."""

    queue: Name
    seconds: int
    messages: int
    isCut: Annotated[bool, Meta(description="There are more: counting ended at its bound.")]


class DeleteQueueAnswer(Struct):
    deleted: bool
    queue: Name
    existed: Annotated[bool, Meta(description="False when there was nothing to delete.")]


# ---- health ----


class LiveAnswer(Struct):
    status: Literal["healthy"]


class ReadyAnswer(Struct):
    status: Annotated[
        Literal["healthy", "degraded", "unhealthy"],
        Meta(description="`degraded` serves, but something beside the requests fails."),
    ]
    database: Literal["connected", "disconnected"]
    server: Literal["Queen"]
    problems: (
        Annotated[list[str], Meta(description="What is wrong; only when something is.")] | UnsetType
    ) = UNSET
    worker_id: (
        Annotated[int, Meta(description="The process that answered; not for strangers.")]
        | UnsetType
    ) = UNSET
    worker_role: (
        Annotated[
            Literal["alone", "home", "front", "apart"],
            Meta(
                description="With several workers one is the home, which writes and leases for the "
                "others, its fronts. One that is apart has no home for a moment and does all of it "
                "by itself. Not for strangers."
            ),
        ]
        | UnsetType
    ) = UNSET
    version: Annotated[str, Meta(description="Not for strangers.")] | UnsetType = UNSET
