"""Queries of the published streaming SDK: what it sends between a pop and the next."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from queen.wire.answers import MAX_ITEMS
from queen.wire.parts import Instant, LeaseId, Name, PartitionId, TransactionId
from queen.wire.requests import PushItem
from queen.wire.results import PushResult

MAX_STATE_OPS = 100_000

_NULL = msgspec.Raw(b"null")

QueryId = Annotated[
    str,
    Meta(
        description="The id of a query, as its registration answers it.",
        extra_json_schema={"format": "uuid"},
    ),
]
StateKey = Annotated[
    str,
    Meta(
        description="Names a piece of state of one query in one partition: at most 2000 bytes.",
        extra_json_schema={"minLength": 1, "maxLength": 2000},
    ),
]


class RegisterRequest(Struct):
    """A query, by the name that its runners share."""

    name: Annotated[Name, Meta(description="Required.")] | None = None
    source_queue: Annotated[Name, Meta(description="Required. It need not exist yet.")] | None = (
        None
    )
    config_hash: (
        Annotated[str, Meta(description="Required. Changes when the definition does.")] | None
    ) = None
    sink_queue: Name | None = None
    reset: (
        Annotated[
            bool, Meta(description="Take a changed definition, and drop what the old one kept.")
        ]
        | None
    ) = None


class RegisterAnswer(Struct):
    success: bool
    query_id: QueryId
    name: Name
    config_hash: str
    fresh: Annotated[bool, Meta(description="It was not known before.")]
    reset: Annotated[bool, Meta(description="What an older definition kept was dropped.")]


class RegisterRefused(Struct):
    """The definition is not the one that the query is registered with."""

    success: bool
    query_id: QueryId
    name: Name
    error: str
    code: str
    retryable: bool


class StateOp(Struct):
    """One change of state. Of several for one key the last one counts."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["upsert", "delete"]})] | None = None
    key: StateKey | None = None
    value: Annotated[msgspec.Raw, Meta(description="Any JSON; for an upsert.")] = msgspec.field(
        default_factory=lambda: _NULL
    )


class CycleAck(Struct):
    """The last message of a lease that the cycle is about: all before it are done too."""

    transactionId: TransactionId | None = None
    leaseId: LeaseId | None = None
    status: (
        Annotated[
            str,
            Meta(
                description="`completed`; with `failed` or `dlq` the message dies.",
                extra_json_schema={"enum": ["completed", "failed", "dlq"]},
            ),
        ]
        | None
    ) = None
    count: Annotated[int, Meta(description="How many messages that are.", ge=0)] | None = None
    error: Annotated[str, Meta(description="Why it failed; kept with the letter.")] | None = None


class CycleRequest(Struct):
    """State, results and the acknowledgment of what they were made from."""

    query_id: QueryId | None = None
    partition_id: PartitionId | None = None
    consumer_group: (
        Annotated[Name, Meta(description="Left out, it is `streams.` and the query's name.")] | None
    ) = None
    release_lease: (
        Annotated[
            bool,
            Meta(description="False keeps the lease on the messages behind the acknowledged one."),
        ]
        | None
    ) = True
    state_ops: (
        Annotated[list[StateOp], Meta(extra_json_schema={"maxItems": MAX_STATE_OPS})] | None
    ) = None
    push_items: (
        Annotated[list[PushItem], Meta(extra_json_schema={"maxItems": MAX_ITEMS})] | None
    ) = None
    ack: CycleAck | None = None


class CycleAckResult(Struct):
    success: bool
    count: Annotated[int, Meta(description="As it was sent.")]
    lease_released: bool
    dlq: bool


class CycleAnswer(Struct):
    """All of a cycle was done, or nothing."""

    success: bool
    query_id: str | None
    partition_id: str | None
    queueName: Annotated[str | None, Meta(description="The queue that the query reads.")] = None
    state_ops_applied: int = 0
    push_results: list[PushResult] = []
    ack_result: CycleAckResult | None = None
    skipped: (
        Annotated[
            str,
            Meta(
                description="Why a cycle without an ack was left undone: somebody else does, or "
                "has done, what it was about."
            ),
        ]
        | UnsetType
    ) = UNSET
    repeated: (
        Annotated[bool, Meta(description="The same cycle was done before, and is not done again.")]
        | UnsetType
    ) = UNSET
    error: Annotated[str, Meta(description="Why nothing was done.")] | UnsetType = UNSET


class StateRequest(Struct):
    """Which state of a query in a partition is wanted."""

    query_id: QueryId | None = None
    partition_id: PartitionId | None = None
    keys: Annotated[list[str], Meta(description="Empty or left out: all keys.")] | None = None
    key_prefix: str | None = None
    ripe_at_or_before: (
        Annotated[
            float,
            Meta(
                description="Milliseconds since 1970: only windows that ended by then, and to "
                "which no message can be added any more."
            ),
        ]
        | None
    ) = None


class StateRow(Struct):
    key: str
    value: Annotated[Any, Meta(description="As it was sent.")]
    updated_at: Instant


class StateAnswer(Struct):
    success: bool
    rows: Annotated[list[StateRow], Meta(description="By key.")] = []
    error: Annotated[str, Meta(description="Why there is no answer.")] | UnsetType = UNSET
