"""Traces on the wire."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.wire.paging import Pagination


class TraceRequest(msgspec.Struct):
    """An event of a message; a single name may stand without its brackets."""

    transactionId: str | None = None
    partitionId: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    traceNames: str | list[str | None] | None = None
    eventType: str | None = None
    consumerGroup: str | None = None


class TraceRecorded(msgspec.Struct):
    success: bool
    traceId: str


class Trace(msgspec.Struct):
    id: str
    event_type: str
    data: Any
    consumer_group: str
    worker_id: str | None
    created_at: str
    trace_names: list[str]


class NamedTrace(Trace):
    transaction_id: str
    partition_id: str
    # Null when the message is no longer there.
    message_payload: Any
    queue_name: str
    partition_name: str


class Traces(msgspec.Struct):
    traces: list[Trace]
    count: int
    total: int
    limit: int
    offset: int
    pagination: Pagination


class NamedTraces(msgspec.Struct):
    traces: list[NamedTrace]
    count: int
    total: int
    limit: int
    offset: int
    pagination: Pagination


class TraceName(msgspec.Struct):
    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNames(msgspec.Struct):
    trace_names: list[TraceName]
    count: int
    total: int
    limit: int
    offset: int
    pagination: Pagination
