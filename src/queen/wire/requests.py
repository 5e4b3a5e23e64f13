"""Requests, as they are decoded."""

from __future__ import annotations

from typing import Any

import msgspec

_NULL = msgspec.Raw(b"null")


# gc=False: these structs live for one request and hold no cycles; the collector need not
# walk a hundred of them for each push.
class PushItem(msgspec.Struct, gc=False):
    queue: str
    payload: msgspec.Raw = _NULL
    partition: str | None = None
    transactionId: str | None = None
    traceId: str | None = None
    # When it is due: an ISO-8601 time, or so many seconds from now by the database's clock.
    deliverAt: str | None = None
    delay: float | None = None
    delayMs: float | None = None

    @property
    def is_timed(self) -> bool:
        return not (self.deliverAt is None and self.delay is None and self.delayMs is None)


class PushRequest(msgspec.Struct):
    items: list[PushItem]


class LoosePushRequest(msgspec.Struct):
    """The same request before its items are looked at, to find out which of them is wrong."""

    items: list[msgspec.Raw]


class ConfigureRequest(msgspec.Struct):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: dict[str, Any] | None = None


class AckRequest(msgspec.Struct, gc=False):
    transactionId: str
    partitionId: str
    status: str | None = None
    error: str | None = None
    consumerGroup: str | None = None
    leaseId: str | None = None


class AckBatchRequest(msgspec.Struct):
    acknowledgments: list[AckRequest]
    consumerGroup: str | None = None


class ExtendRequest(msgspec.Struct):
    seconds: int | None = None


class PushOperation(msgspec.Struct, tag="push", tag_field="type"):
    items: list[PushItem]


class AckOperation(msgspec.Struct, tag="ack", tag_field="type"):
    transactionId: str
    partitionId: str
    status: str | None = None
    error: str | None = None
    consumerGroup: str | None = None
    leaseId: str | None = None


class TransactionRequest(msgspec.Struct):
    operations: list[PushOperation | AckOperation]
    requiredLeases: list[str] | None = None
    # What newer brokers take beside the operations. It is read to be refused: a transaction
    # whose condition is not looked at must not commit.
    kv: list[msgspec.Raw] | None = None
    timers: list[msgspec.Raw] | None = None
