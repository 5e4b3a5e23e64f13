"""Dead letters on the wire."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from queen.wire.paging import Pagination


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


class DeadLetterPage(msgspec.Struct):
    messages: list[DeadLetter]
    total: int
    limit: int
    offset: int
    pagination: Pagination


class DeadLetterError(msgspec.Struct):
    """How many messages of a queue and group died of one error."""

    queue: str
    consumerGroup: str | None
    error: str
    count: int
    firstFailedAt: str
    lastFailedAt: str


class DeadLetterErrors(msgspec.Struct):
    errors: list[DeadLetterError]


class RetryRequest(msgspec.Struct):
    """Which dead letters to deliver again: by their ids, or all that match."""

    ids: list[str] | None = None
    queue: str | None = None
    partition: str | None = None
    consumerGroup: str | None = None
    error: str | None = None
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
