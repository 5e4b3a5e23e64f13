"""Questions about a queue that wait for their answer.

    await expect(queen, "orders").to_have(pending=3, group="billing")
    await expect(queen, "orders").to_be_empty(group="billing")

What a consumer does shows a moment after it has done it. So an expectation asks again until it
holds, for five seconds unless told otherwise, and says what is there when it does not. It reads
as an operator would: no cursor moves and nothing is leased.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload
from urllib.parse import quote, urlencode

from queen.client import Queen, SyncQueen
from queen.client.queues.dead_letters import DeadLetter
from queen.client.queues.replay import Stored
from queen.errors import NotFound

T = TypeVar("T")

_TIMEOUT_S = 5.0
_PAUSE_S = 0.02
_PAGE = 1000
_SHOWN = 10
_SHOWN_CHARACTERS = 120
# The group of consumers that name none.
_NO_GROUP = "__QUEUE_MODE__"


class Expectation:
    """What is expected of one queue."""

    def __init__(self, queen: Queen, queue: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._queen = queen
        self._queue = queue
        self._timeout_s = timeout_s

    async def to_have(
        self,
        *,
        pending: int | None = None,
        group: str | None = None,
        total: int | None = None,
        scheduled: int | None = None,
    ) -> None:
        """Expect so many messages: `pending` that the group has not done, leased ones among
        them; `total` that are stored, done or not; `scheduled` that wait for their time."""
        expected = {
            kind: number
            for kind, number in (("pending", pending), ("total", total), ("scheduled", scheduled))
            if number is not None
        }
        if not expected:
            raise TypeError("to_have() needs pending, total or scheduled")
        counts: dict[str, Callable[[], Awaitable[int]]] = {
            "pending": lambda: self._count_pending(group),
            "total": self._count_total,
            "scheduled": self._count_scheduled,
        }

        async def look() -> tuple[bool, dict[str, int]]:
            counted = {kind: await counts[kind]() for kind in expected}
            return counted == expected, counted

        counted = await self._until(look)
        if counted != expected:
            await self._fail(f"{_counts_text(expected)}{_of(group)}", _counts_text(counted), group)

    async def to_be_empty(self, *, group: str | None = None) -> None:
        """Expect that the group has done everything."""
        await self.to_have(pending=0, group=group)

    async def to_have_dead_letters(
        self, count: int, *, error: str | None = None, group: str | None = None
    ) -> list[DeadLetter]:
        """Expect so many dead letters whose error has this text in it; return them."""

        async def look() -> tuple[bool, list[DeadLetter]]:
            letters = await self._read_letters(group)
            chosen = [
                letter
                for letter in letters
                if error is None or error in (letter.error_message or "")
            ]
            return len(chosen) == count, chosen

        letters = await self._until(look)
        if len(letters) != count:
            about = f" with the error {error!r}" if error is not None else ""
            await self._fail(f"{count} dead letters{about}{_of(group)}", f"{len(letters)}", group)
        return letters

    async def messages(
        self, count: int | None = None, *, partition: str | None = None
    ) -> list[Any]:
        """Return the payloads of all stored messages, done or not, in the order they were
        written; with a count, wait until there are so many and fail when there are not."""

        async def look() -> tuple[bool, list[Stored]]:
            stored = await self._read_stored(partition)
            return count is None or len(stored) == count, stored

        stored = await self._until(look)
        if count is not None and len(stored) != count:
            await self._fail(f"{count} messages", f"{len(stored)}", None)
        return [message.data for message in stored]

    # ---- looking ----

    async def _until(self, look: Callable[[], Awaitable[tuple[bool, T]]]) -> T:
        """Look until it is as expected or time is up; return what was seen last."""
        ends_at = time.monotonic() + self._timeout_s
        while True:
            is_there, seen = await look()
            if is_there or time.monotonic() >= ends_at:
                return seen
            await asyncio.sleep(_PAUSE_S)

    async def _count_pending(self, group: str | None) -> int:
        partitions = await self._partitions(group)
        # A group that never came has everything still to do.
        return (
            await self._count_total()
            if partitions is None
            else sum(partition["offsetLag"] for partition in partitions)
        )

    async def _partitions(self, group: str | None) -> list[dict[str, Any]] | None:
        """Return where a group stands in each partition; None when there is no such group."""
        partitions: list[dict[str, Any]] = []
        while True:
            query = {"queue": self._queue, "limit": _PAGE, "offset": len(partitions)}
            path = f"/api/v1/consumer-groups/{quote(group or _NO_GROUP, safe='')}"
            try:
                answer = await self._queen.request("GET", f"{path}?{urlencode(query)}")
            except NotFound:
                return None
            page = answer[self._queue]
            partitions += page["partitions"]
            if not page["hasMore"]:
                return partitions

    async def _count_total(self) -> int:
        return len(await self._read_stored(None))

    async def _read_stored(self, partition: str | None) -> list[Stored]:
        queue = self._queen.queue(self._queue)
        if partition is not None:
            queue = queue.partition(partition)
        try:
            messages = [message async for message in queue.replay() if isinstance(message, Stored)]
        except NotFound:
            return []
        return sorted(
            messages, key=lambda message: (message.created_at, message.partition, message.offset)
        )

    async def _count_scheduled(self) -> int:
        count = 0
        while True:
            page = await self._queen.admin.scheduled(self._queue, limit=_PAGE, offset=count)
            count += len(page["scheduled"])
            if not page["more"]:
                return count

    async def _read_letters(self, group: str | None) -> list[DeadLetter]:
        queue = self._queen.queue(self._queue)
        letters = (queue if group is None else queue.group(group)).dlq().limit(_PAGE)
        all_letters: list[DeadLetter] = []
        while True:
            page = (await letters.offset(len(all_letters)).get()).messages
            all_letters += page
            if len(page) < _PAGE:
                return all_letters

    # ---- failing ----

    async def _fail(self, expected: str, actual: str, group: str | None) -> None:
        lines = [
            f"queue {self._queue!r}: expected {expected}, "
            f"found {actual} after {self._timeout_s:g} s",
            *await self._what_is_there(group),
        ]
        raise AssertionError("\n".join(lines))

    async def _what_is_there(self, group: str | None) -> list[str]:
        stored, partitions = await self._read_stored(None), await self._partitions(group)
        letters = await self._read_letters(None)
        lines = [f"  stored: {len(stored)} messages, scheduled: {await self._count_scheduled()}"]
        lines += _some(
            [
                f"    {message.partition}[{message.offset}] {_short(message.data)}"
                for message in stored
            ]
        )
        name = repr(group) if group is not None else "consumers without a group"
        if partitions is None:
            lines.append(f"  {name}: has never asked for messages")
        else:
            lines.append(f"  {name}:")
            lines += _some([_partition_text(partition) for partition in partitions])
        lines.append(f"  dead letters: {len(letters)}")
        lines += _some(
            [
                f"    {letter.consumer_group}: {letter.error_message!r} {_short(letter.data)}"
                for letter in letters
            ]
        )
        return lines


class SyncExpectation:
    """The same for tests without asyncio."""

    def __init__(self, queen: SyncQueen, queue: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._queen = queen
        self._there = Expectation(queen.asynchronous, queue, timeout_s)

    def to_have(
        self,
        *,
        pending: int | None = None,
        group: str | None = None,
        total: int | None = None,
        scheduled: int | None = None,
    ) -> None:
        work = self._there.to_have(pending=pending, group=group, total=total, scheduled=scheduled)
        self._queen.wait_for(work)

    def to_be_empty(self, *, group: str | None = None) -> None:
        self._queen.wait_for(self._there.to_be_empty(group=group))

    def to_have_dead_letters(
        self, count: int, *, error: str | None = None, group: str | None = None
    ) -> list[DeadLetter]:
        work = self._there.to_have_dead_letters(count, error=error, group=group)
        return self._queen.wait_for(work)

    def messages(self, count: int | None = None, *, partition: str | None = None) -> list[Any]:
        return self._queen.wait_for(self._there.messages(count, partition=partition))


@overload
def expect(queen: Queen, queue: str, *, timeout_s: float = _TIMEOUT_S) -> Expectation: ...
@overload
def expect(queen: SyncQueen, queue: str, *, timeout_s: float = _TIMEOUT_S) -> SyncExpectation: ...
def expect(
    queen: Queen | SyncQueen, queue: str, *, timeout_s: float = _TIMEOUT_S
) -> Expectation | SyncExpectation:
    """Say what is expected of a queue; what is asked of a `SyncQueen` is not awaited."""
    if isinstance(queen, SyncQueen):
        return SyncExpectation(queen, queue, timeout_s)
    return Expectation(queen, queue, timeout_s)


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind}={number}" for kind, number in counts.items())


def _of(group: str | None) -> str:
    return f" of group {group!r}" if group is not None else ""


def _partition_text(partition: dict[str, Any]) -> str:
    leased = ", leased" if partition["leaseActive"] else ""
    return (
        f"    {partition['partition']}: done {partition['position']} of {partition['head']}{leased}"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"    … and {more} more"]
