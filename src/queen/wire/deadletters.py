"""Dead letters on the wire."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from queen.wire.paging import Pagination
from queen.wire.parts import Headers


class DeadLetter(msgspec.Struct):
    """One dead letter; the keys of both generations of the original's clients."""

    id: str
    messageId: str
    partitionId: str
    transactionId: str
    consumerGroup: str | None
    errorMessage: str | None
    retryCount: int
    data: msgspec.Raw
    traceId: str | None
    producerSub: str | None
    queue: str
    queueName: str
    namespace: str
    task: str
    partition: str
    partitionName: str
    offset: int
    createdAt: str
    messageCreatedAt: str
    originalCreatedAt: str
    failedAt: str
    movedToDlqAt: str
    unreadable: Annotated[
        str | None, Meta(description="Why `data` is null although the letter has a payload.")
    ]
    headers: Headers | UnsetType = UNSET


class DeadLetterPage(msgspec.Struct):
    messages: list[DeadLetter]
    total: int
    limit: int
    offset: int
    pagination: Pagination
    # Many are not counted one by one: `total` is as good as it was counted last, or too small.
    totalIsEstimate: bool = False


class DeadLetterError(msgspec.Struct):
    """How many messages of a queue and group died of one error."""

    queue: str
    consumerGroup: str | None
    error: str
    # What stands for the error where its text would be too long, as in an address.
    key: str
    count: int
    firstFailedAt: str
    lastFailedAt: str


class DeadLetterErrors(msgspec.Struct):
    errors: list[DeadLetterError]
    # Of so many, the latest, this is told; whether there are older ones that were not looked at.
    lookedAt: int
    more: bool


class RetryRequest(msgspec.Struct):
    """Which dead letters to deliver again: by their ids, or all that match."""

    ids: list[str] | None = None
    queue: str | None = None
    partition: str | None = None
    consumerGroup: str | None = None
    error: str | None = None
    errorKey: str | None = None
    # ISO-8601; when they died.
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    limit: int | None = None


class Retried(msgspec.Struct):
    success: bool
    retried: int


class Purged(msgspec.Struct):
    success: bool
    purged: int
