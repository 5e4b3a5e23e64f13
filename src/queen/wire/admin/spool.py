"""The spool of a server on the wire."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from queen.wire.parts import Instant, Name

RecordId = Annotated[
    str,
    Meta(
        description="A record of a spool: the spool and the number in it.",
        extra_json_schema={"examples": ["0f5c7f6e-8a52-4c11-9df0-0a6f1f2b7c3d:1099511627776"]},
    ),
]


class SpoolState(msgspec.Struct, rename="camel", kw_only=True):
    """What waits in the spool of the process that answered."""

    enabled: Annotated[bool, Meta(description="False when the server has no place for one.")]
    worker: int
    database: Annotated[str, Meta(description="`connected` or `away`.")]
    outages: Annotated[int, Meta(description="How often it went away since the start.")]
    records: Annotated[int, Meta(description="Pushes that wait, counted by partition.")]
    counted: Annotated[bool, Meta(description="False: there may be more, the files are looked at.")]
    bytes: int
    files: int
    oldest_at: Annotated[Instant | None, Meta(description="When the oldest was written.")]
    waiting: Annotated[int, Meta(description="Of them, those that their queues do not take yet.")]
    quarantined: Annotated[int, Meta(description="Records that can never be stored.")]
    damaged: Annotated[int, Meta(description="Ranges of bytes that the disk did not keep.")]
    buffered_messages: Annotated[int, Meta(description="Messages that asked for it, since start.")]
    failover_messages: Annotated[int, Meta(description="Messages that had to, since the start.")]
    drained_messages: Annotated[int, Meta(description="Messages stored from it, since the start.")]
    batches: int
    last_batch_records: int
    problem: Annotated[str | None, Meta(description="Why nothing is drained.")]


class QuarantinedRecord(msgspec.Struct, rename="camel", kw_only=True):
    """A record that was refused for what it is."""

    id: RecordId
    reason: str
    spooled_at: Instant
    refused_at: Instant
    bytes: int
    queue: Name | None = None
    partition: Name | None = None
    messages: int | None = None
    transaction_ids: Annotated[list[str], Meta(description="The first hundred.")] = []
    payloads: Annotated[list[Any] | None, Meta(description="Only when they were asked for.")] = None


class QuarantinePage(msgspec.Struct, rename="camel"):
    records: list[QuarantinedRecord]
    worker: int


class ChooseRecords(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Which records of the quarantine; all of them when none are named."""

    ids: list[RecordId] | None = None


class SettledRecords(msgspec.Struct, rename="camel"):
    records: Annotated[int, Meta(description="How many there were.")]
