"""The dead letters of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from queen.client.refusals import understood

if TYPE_CHECKING:
    from queen.client.queen import Queen


class DeadLetter(msgspec.Struct, rename="camel"):
    """A message that a group has given up on, and why."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    data: Any
    consumer_group: str | None = None
    error_message: str | None = None
    retry_count: int = 0
    created_at: str = ""
    failed_at: str = ""


class DeadLetterPage(msgspec.Struct):
    messages: list[DeadLetter]
    total: int = 0


_page = msgspec.json.Decoder(DeadLetterPage)


class DeadLetterQuery:
    """Which dead letters; `get`, `retry` and `purge` act on all that match."""

    def __init__(self, queen: Queen, queue: str, partition: str | None, group: str | None) -> None:
        self._queen = queen
        self._fields: dict[str, Any] = {"queue": queue}
        if partition is not None:
            self._fields["partition"] = partition
        if group is not None:
            self._fields["consumerGroup"] = group
        self._limit, self._offset = 100, 0

    def limit(self, limit: int) -> DeadLetterQuery:
        self._limit = limit
        return self

    def offset(self, offset: int) -> DeadLetterQuery:
        self._offset = offset
        return self

    def since(self, at: datetime | str) -> DeadLetterQuery:
        self._fields["from"] = at.isoformat() if isinstance(at, datetime) else at
        return self

    def until(self, at: datetime | str) -> DeadLetterQuery:
        self._fields["to"] = at.isoformat() if isinstance(at, datetime) else at
        return self

    def error(self, error: str) -> DeadLetterQuery:
        """Only those that died of exactly this."""
        self._fields["error"] = error
        return self

    async def get(self) -> DeadLetterPage:
        """Return the latest, and how many there are."""
        query = {**self._fields, "limit": self._limit, "offset": self._offset}
        answer = await self._queen.cluster.call("GET", f"/api/v1/dlq?{urlencode(query)}")
        return understood(_page, answer)

    async def errors(self) -> list[dict[str, Any]]:
        """Return how many died of what."""
        path = f"/api/v1/dlq/errors?{urlencode(self._fields)}"
        answer = await self._queen.request("GET", path)
        found: list[dict[str, Any]] = answer["errors"]
        return found

    async def retry(self, letters: Sequence[DeadLetter] | None = None) -> int:
        """Deliver letters again, these or all that match; return how many."""
        if letters is not None and not letters:
            return 0
        body: dict[str, Any] = {"ids": [one.id for one in letters]} if letters else self._fields
        answer = await self._queen.post("/api/v1/dlq/retry", body)
        return int(answer["retried"])

    async def purge(self) -> int:
        """Forget all that match for good; return how many."""
        answer = await self._queen.request("DELETE", f"/api/v1/dlq?{urlencode(self._fields)}")
        return int(answer["purged"])
