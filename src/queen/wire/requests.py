"""Requests, as they are decoded."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from queen.core.cursor import FAILED_STATUSES
from queen.core.names import DEFAULT_PARTITION, MAX_TRANSACTION_ID_BYTES
from queen.core.options import QueueOptions
from queen.wire.answers import MAX_ACKS, MAX_ITEMS
from queen.wire.parts import (
    AckStatus,
    Headers,
    Label,
    LeaseId,
    Name,
    PartitionId,
    RetryAfterMs,
    TransactionId,
)

MAX_OPERATIONS = 10_000
MAX_EXTEND_S = 24 * 3600
# How long, and how many, messages may wait in the spool because their sender asked for it.
MAX_BUFFER_MS = 60_000
MAX_BUFFERED = 1_000_000

# Beyond every offset.
MAX_OFFSET = 2**62

_NULL = msgspec.Raw(b"null")
# Looked at where it is used, so that one that is wrong is refused by itself.
_Offset = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_OFFSET})]


# gc=False: these structs live for one request and hold no cycles; the collector need not
# walk a hundred of them for each push.
class PushItem(msgspec.Struct, gc=False):
    """One message to store."""

    queue: Name
    payload: Annotated[
        msgspec.Raw, Meta(description="Any JSON; left out, it is null. It comes back unchanged.")
    ] = msgspec.field(default_factory=lambda: _NULL)
    partition: (
        Annotated[Name, Meta(description="Left out, it is `Default`. Order is kept within it.")]
        | None
    ) = None
    transactionId: (
        Annotated[
            TransactionId,
            Meta(
                description="Repeated within the queue's dedup window, the message is stored "
                "once. Left out, the broker makes one up."
            ),
        ]
        | None
    ) = None
    traceId: (
        Annotated[
            str,
            Meta(
                description="Comes back with the message.",
                extra_json_schema={"format": "uuid"},
            ),
        ]
        | None
    ) = None
    headers: Headers | None = None
    deliverAt: Annotated[str, Meta(description="When it is due: an ISO-8601 time.")] | None = None
    delay: (
        Annotated[float, Meta(description="Seconds until it is due, by the database's clock.")]
        | None
    ) = None
    delayMs: Annotated[float, Meta(description="The same in milliseconds.")] | None = None

    @property
    def is_timed(self) -> bool:
        return not (self.deliverAt is None and self.delay is None and self.delayMs is None)


class _PushOptions(msgspec.Struct):
    """How long messages may wait in the server's spool before they are stored."""

    qos0: (
        Annotated[
            bool,
            Meta(description="Answer at once, with `buffered`; store in batches, a moment later."),
        ]
        | None
    ) = None
    bufferMs: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=MAX_BUFFER_MS,
                description="The same, and how long they wait at most. Left out, as the server "
                "is set: 100 ms.",
            ),
        ]
        | None
    ) = None
    bufferMax: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MAX_BUFFERED,
                description="The same, and how many may wait. Left out, as the server is set: 100.",
            ),
        ]
        | None
    ) = None


class PushRequest(_PushOptions, kw_only=True):
    items: Annotated[list[PushItem], Meta(extra_json_schema={"maxItems": MAX_ITEMS})]


class LoosePushRequest(_PushOptions, kw_only=True):
    """The same request before its items are looked at, to find out which of them is wrong."""

    items: list[msgspec.Raw]


class PlainPushItem(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """An item as nearly all are. One that has more, or less, is a `PushItem`."""

    queue: str
    payload: msgspec.Raw
    transactionId: (
        Annotated[str, Meta(min_length=1, max_length=MAX_TRANSACTION_ID_BYTES)] | None
    ) = None
    partition: str = DEFAULT_PARTITION


class PlainPushRequest(msgspec.Struct, forbid_unknown_fields=True):
    items: Annotated[list[PlainPushItem], Meta(min_length=1, max_length=MAX_ITEMS)]
    qos0: bool | None = None
    bufferMs: Annotated[float, Meta(ge=0, le=MAX_BUFFER_MS)] | None = None
    bufferMax: Annotated[int, Meta(ge=1, le=MAX_BUFFERED)] | None = None


class ConfigureRequest(msgspec.Struct):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: dict[str, Any] | None = None


# The same request as the document describes it, with the options by name. It is not what is
# decoded: a null option means its default, and an unknown one is told by its name.
class QueueConfiguration(msgspec.Struct):
    """A queue and how it behaves."""

    queue: Name
    namespace: Label | None = None
    task: Label | None = None
    options: QueueOptions | None = None


class AlterQueueRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    namespace: str | None = None
    task: str | None = None
    options: dict[str, Any] | None = None
    create: bool = False
    revision: int | None = None


# The same request as the document describes it.
class QueueChanges(msgspec.Struct):
    """What is to be different about a queue; whatever is not named stays as it is."""

    namespace: (
        Annotated[Label, Meta(description="Empty takes the namespace off; null leaves it.")] | None
    ) = None
    task: Annotated[Label, Meta(description="Empty takes the task off; null leaves it.")] | None = (
        None
    )
    options: (
        Annotated[
            QueueOptions,
            Meta(
                description="Only those named are changed. A null goes back to the default; "
                "`encryptionEnabled` is taken off by false, not by null."
            ),
        ]
        | None
    ) = None
    create: Annotated[bool, Meta(description="Create the queue when there is none.")] = False
    revision: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=2**31 - 1,
                description="Change nothing when the queue has another revision by now: 409.",
            ),
        ]
        | None
    ) = None


class AckRequest(msgspec.Struct, gc=False):
    transactionId: TransactionId
    partitionId: PartitionId
    status: AckStatus = None
    error: Annotated[str, Meta(description="Why it failed; kept with a dead letter.")] | None = None
    consumerGroup: (
        Annotated[Name, Meta(description="Left out, the acknowledgment is of queue mode.")] | None
    ) = None
    leaseId: (
        Annotated[LeaseId, Meta(description="Left out, the lease that holds the partition.")] | None
    ) = None
    retryAfterMs: RetryAfterMs = None


class AckBatchRequest(msgspec.Struct):
    acknowledgments: Annotated[list[AckRequest], Meta(extra_json_schema={"maxItems": MAX_ACKS})]
    consumerGroup: (
        Annotated[Name, Meta(description="The group of those that name none.")] | None
    ) = None


class FailedOffset(msgspec.Struct, gc=False):
    """A message of a lease that is not done."""

    offset: _Offset
    status: Annotated[
        str,
        Meta(
            description=(
                "`failed` counts as a try and comes again or dies, `retry` comes again without "
                "counting, `dlq` dies at once."
            ),
            extra_json_schema={"enum": list(FAILED_STATUSES)},
        ),
    ]
    error: Annotated[str, Meta(description="Why it failed; kept with a dead letter.")] | None = None
    retryAfterMs: RetryAfterMs = None


class SpanAck(msgspec.Struct, gc=False):
    """What became of the messages that a lease holds of one partition."""

    partitionId: PartitionId
    leaseId: LeaseId
    done: Annotated[
        list[tuple[_Offset, _Offset]],
        Meta(description="Runs of offsets that are done: the first, and the one after the last."),
    ] = []
    failed: list[FailedOffset] = []


_Spans = Annotated[
    list[SpanAck],
    Meta(
        description=f"Each by itself; at most {MAX_ACKS} spans, runs and failed offsets.",
        extra_json_schema={"maxItems": MAX_ACKS},
    ),
]


class AckSpansRequest(msgspec.Struct):
    spans: _Spans
    consumerGroup: (
        Annotated[Name, Meta(description="Left out, the acknowledgments are of queue mode.")] | None
    ) = None


class PopAfterRequest(msgspec.Struct):
    """What is acknowledged for the group that then pops."""

    spans: _Spans


class ExtendRequest(msgspec.Struct):
    seconds: (
        Annotated[
            int,
            Meta(
                description="From now; left out, or 0, it is 60.",
                extra_json_schema={"minimum": 0, "maximum": MAX_EXTEND_S},
            ),
        ]
        | None
    ) = None


class PushOperation(msgspec.Struct, tag="push", tag_field="type"):
    items: list[PushItem]


class AckOperation(msgspec.Struct, tag="ack", tag_field="type"):
    transactionId: TransactionId
    partitionId: PartitionId
    status: AckStatus = None
    error: str | None = None
    consumerGroup: Name | None = None
    leaseId: LeaseId | None = None
    retryAfterMs: RetryAfterMs = None


class TransactionRequest(msgspec.Struct):
    operations: Annotated[
        list[PushOperation | AckOperation],
        Meta(
            description="All of them are done, or none.",
            extra_json_schema={"minItems": 1, "maxItems": MAX_OPERATIONS},
        ),
    ]
    requiredLeases: (
        Annotated[
            list[LeaseId],
            Meta(description="Leases that must still be held when the transaction commits."),
        ]
        | None
    ) = None
    # What newer brokers take beside the operations. It is read to be refused: a transaction
    # whose condition is not looked at must not commit.
    kv: (
        Annotated[list[msgspec.Raw], Meta(description="Not supported: refused when not empty.")]
        | None
    ) = None
    timers: (
        Annotated[list[msgspec.Raw], Meta(description="Not supported: refused when not empty.")]
        | None
    ) = None
