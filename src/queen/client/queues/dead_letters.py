"""The dead letters of a queue."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import msgspec

from queen.client.payloads import unmark
from queen.client.transport.errors_from_answer import decode_answer
from queen.client.transport.wire_format import instant

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
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        self.data = unmark(self.data, self.headers)


class DeadLetterPage(msgspec.Struct):
    """The latest dead letters that match, and how many there are in all."""

    messages: list[DeadLetter]
    total: int = 0


_page = msgspec.json.Decoder(DeadLetterPage)


Self = TypeVar("Self", bound="DeadLetterFilter")


class DeadLetterFilter:
    """Which dead letters; every setter returns a new filter."""

    def __init__(
        self,
        queen: Queen,
        queue: str | None,
        partition: str | None,
        group: str | None,
        owner: Any = None,
    ) -> None:
        self._queen = queen
        # The client its user has in hand.
        self._owner = owner or queen
        # Without a queue, those of all.
        self._fields: dict[str, Any] = {} if queue is None else {"queue": queue}
        if partition is not None:
            self._fields["partition"] = partition
        if group is not None:
            self._fields["consumerGroup"] = group
        self._limit, self._offset = 100, 0

    def _with(self: Self, **fields: Any) -> Self:
        changed = copy.copy(self)
        changed._fields = {**self._fields, **fields}
        return changed

    def limit(self: Self, limit: int) -> Self:
        """Get at most so many; 100 unless told."""
        changed = self._with()
        changed._limit = limit
        return changed

    def offset(self: Self, offset: int) -> Self:
        """Skip so many."""
        changed = self._with()
        changed._offset = offset
        return changed

    def since(self: Self, at: datetime | str) -> Self:
        """Only those that died at this time or later."""
        return self._with(**{"from": instant(at)})

    def until(self: Self, at: datetime | str) -> Self:
        """Only those that died before this time."""
        return self._with(to=instant(at))

    def error(self: Self, error: str) -> Self:
        """Only those that died of exactly this."""
        return self._with(error=error)


class DeadLetterQuery(DeadLetterFilter):
    """Dead letters of a queue; `get`, `retry` and `purge` act on all that match."""

    async def get(self) -> DeadLetterPage:
        """Return the latest, and how many there are."""
        query = {**self._fields, "limit": self._limit, "offset": self._offset}
        answer = await self._queen.cluster.call("GET", f"/api/v1/dlq?{urlencode(query)}")
        return decode_answer(_page, answer)

    async def errors(self) -> list[dict[str, Any]]:
        """Return how many died of what."""
        path = f"/api/v1/dlq/errors?{urlencode(self._fields)}"
        answer = await self._queen.request("GET", path)
        errors: list[dict[str, Any]] = answer["errors"]
        return errors

    async def retry(self, letters: Sequence[DeadLetter] | None = None) -> int:
        """Deliver letters again, these or all that match; return how many."""
        if letters is not None and not letters:
            return 0
        if letters:
            return await self.retry_ids([letter.id for letter in letters])
        answer = await self._queen.post("/api/v1/dlq/retry", self._fields)
        return int(answer["retried"])

    async def retry_ids(self, ids: Sequence[str]) -> int:
        """Deliver the letters of these ids again; return how many there were."""
        answer = await self._queen.post("/api/v1/dlq/retry", {"ids": list(ids)})
        return int(answer["retried"])

    async def purge(self) -> int:
        """Forget all that match for good; return how many."""
        answer = await self._queen.request("DELETE", f"/api/v1/dlq?{urlencode(self._fields)}")
        return int(answer["purged"])
