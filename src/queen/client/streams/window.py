"""A window in the hands of its consumer: what is in it, and what becomes of it.

`all_messages` is what the window holds and never changes. `messages` is a working copy that
`filter` narrows and `reset` restores; groups, aggregates and joins are over the working copy.

What `push` collects is sent with the ack and stored together with it, or not at all: whoever
reads the results sees those of every window once, however often the window was tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from queen.client import tracing
from queen.client.camel_case import EitherSpelling
from queen.client.payloads import encode_payload
from queen.client.pushing.items import item_of
from queen.client.queues.messages import Message, Pushed, error_text, messages_of
from queen.client.streams.aggregates import compute_aggregates
from queen.client.streams.fields import Field
from queen.client.streams.grouping import NULL_KEY, How, Joined, group_messages, join_messages
from queen.client.streams.messages import Leased, Range, WindowMessage
from queen.client.streams.pages import read_messages
from queen.client.streams.renewal import keep_alive
from queen.errors import LeaseLost, NotFound, QueenError

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from queen.client.queen import Queen

Self = TypeVar("Self", bound="LeasedWindow")

_DEFAULT_PARTITION = "Default"
# What a server keeps of an error's text.
_MOST_ERROR = 10_000


def _pushed_from(result: dict[str, Any]) -> Pushed:
    return Pushed(
        status=result["status"],
        transaction_id=result["transactionId"],
        message_id=result.get("messageId"),
        partition_id=result.get("partitionId"),
    )


class LeasedWindow(EitherSpelling):
    """What a window is, however its consumer speaks to the broker."""

    def __init__(
        self, leased: Leased, queen: Queen, *, owner: Any = None, into: Any = None
    ) -> None:
        self._queen = queen
        # Whom it speaks to: the client its consumer has in hand.
        self._owner = owner or queen
        self._into = into
        # Who granted its lease; empty where there is only one server.
        self._server = ""
        self.stream_name: str = leased.stream
        self.consumer_group: str = leased.consumer_group
        self.id: str = leased.id
        self.lease_id: str = leased.lease_id
        self.key: str = leased.key
        self.start: datetime = leased.start
        self.end: datetime = leased.end
        self.attempt: int = leased.attempt
        self.count: int = leased.count
        self.bytes: int = leased.bytes
        self.lost: int = leased.lost
        self.ranges: tuple[Range, ...] = tuple(leased.ranges)
        self.lease_s: float = leased.lease_timeout_ms / 1000
        # By our own monotonic clock, which no one sets: the lease is good until then.
        self._good_until = time.monotonic() + self.lease_s
        self._all: tuple[WindowMessage, ...] | None = None
        self._working: list[WindowMessage] = []
        self._pushes: list[dict[str, Any]] = []
        self._is_settled = self._is_lost = False
        # Of the handler that works on it, where that is traced.
        self.spans: tuple[SpanContext, ...] = ()
        if not isinstance(leased.messages, str):
            self._hold(leased.messages)

    def __repr__(self) -> str:
        span = f"{self.start:%Y-%m-%dT%H:%M:%S} to {self.end:%Y-%m-%dT%H:%M:%S}"
        return f"{type(self).__name__}({self.stream_name} {self.key!r} {span}, {self.count})"

    def _hold(self, messages: list[WindowMessage]) -> None:
        if self._into is not None:
            for message in messages:
                msgspec.structs.force_setattr(message, "_into", self._into)
        self._all = tuple(messages)
        self._working = list(messages)

    # ---- what is in it ----

    @property
    def is_loaded(self) -> bool:
        """Whether the messages are here; those of a large window are fetched when asked for."""
        return self._all is not None

    @property
    def all_messages(self) -> tuple[WindowMessage, ...]:
        """All messages of the window, oldest first."""
        if self._all is None:
            raise RuntimeError(
                "the messages of this large window are not here yet: load() fetches them all, "
                "stream() yields them one by one"
            )
        return self._all

    @property
    def messages(self) -> list[WindowMessage]:
        """The working copy: what is left after `filter`."""
        return self._working if self.is_loaded else list(self.all_messages)

    @messages.setter
    def messages(self, messages: list[WindowMessage]) -> None:
        self._working = messages

    @property
    def size(self) -> int:
        """How many messages are left in the working copy."""
        return len(self.messages)

    @property
    def original_size(self) -> int:
        """How many messages the window has."""
        return len(self.all_messages)

    def filter(self: Self, keep: Callable[[WindowMessage], Any]) -> Self:
        """Narrow the working copy to the messages that a function says yes to."""
        self._working = [message for message in self.messages if keep(message)]
        return self

    def reset(self: Self) -> Self:
        """Make the working copy whole again."""
        self._working = list(self.all_messages)
        return self

    def group_by(self, field: Field, *, null_key: Any = NULL_KEY) -> dict[Any, list[WindowMessage]]:
        """Return messages by the value of a field: a path as `data.user`, or a function.

        Keys are the values themselves, so 7 and "7" are two groups; objects and arrays are
        their JSON. Messages without the field, or with null in it, are under `null_key`; 0,
        false and "" are values like any other. Give another `null_key` where "null_key" may be
        a value, as `null_key=None`. As in any dict of Python, true and 1 are one key.
        """
        return group_messages(self.messages, field, null_key)

    def aggregate(self, spec: dict[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
        """Return sums and the like: `aggregate(count=True, sum=["data.amount"], p95=["data.ms"])`.

        There are `count`, `sum`, `avg`, `min`, `max`, `distinct` (how many different values) and
        `p0` to `p100`, exact and by nearest rank; `{"p99.9": [...]}` as a dict. All but `count`
        take paths and return a dict by path. What is absent or no number is passed over; of no
        numbers the sum is 0 and the others are None.
        """
        return compute_aggregates(self.messages, {**(spec or {}), **more})

    def join(
        self,
        left_queue: str,
        right_queue: str,
        on: Field | tuple[Field, Field],
        how: How = "inner",
    ) -> list[Joined]:
        """Return the pairs of messages of two queues with the same value in a field.

        `on` is one field, or one for each side. With `how="left"` a message of the left queue
        without a match comes with None. A message without a value matches nothing.
        """
        lefts = [message for message in self.messages if message.queue == left_queue]
        rights = [message for message in self.messages if message.queue == right_queue]
        return list(join_messages(lefts, rights, on, how))

    async def first_headers(self, most: int) -> list[Mapping[str, str]]:
        """Return the headers of its first messages, wherever these are."""
        if self._all is not None:
            return [message.headers for message in self._all[:most]]
        headers: list[Mapping[str, str]] = []
        reading = contextlib.aclosing(read_messages(self._queen, self))
        # Whoever wants the messages themselves finds out why they cannot be had.
        with contextlib.suppress(QueenError):
            async with reading as messages:
                async for message in messages:
                    headers.append(message.headers)
                    if len(headers) >= most:
                        break
        return headers

    # ---- what becomes of it ----

    @property
    def is_settled(self) -> bool:
        """Whether this program has said what became of it; a consumer then leaves it alone."""
        return self._is_settled

    @property
    def is_lost(self) -> bool:
        """Whether its lease is over: somebody else may be at work on it, so drop it."""
        is_over = self.lease_s > 0 and time.monotonic() > self._good_until
        return not self._is_settled and (self._is_lost or is_over)

    def push(
        self: Self,
        queue: str,
        items: Any,
        *,
        partition: str | None = None,
        transaction_id: str | None = None,
        trace_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Push payloads with the ack: stored together with it, or not at all.

        One payload, or a list of them; `Message` gives a payload an id or a time.
        """
        if transaction_id is not None or trace_id is not None:
            items = Message(items, transaction_id=transaction_id, trace_id=trace_id)
        for message in messages_of(items, tracing.carried(headers)):
            name = message.partition or partition or _DEFAULT_PARTITION
            self._pushes.append(item_of(queue, name, message, encode_payload(message.data)))
        return self

    async def _ack(
        self, success: bool, error: str | BaseException | None, *, gives_up: bool = False
    ) -> list[Pushed]:
        text = error_text(error)
        reason: dict[str, Any] = {"error": text[:_MOST_ERROR]} if text is not None else {}
        if gives_up:
            reason["giveUp"] = True
        results = await self._results() if success else {}
        return await self._settle({"success": success, **reason, **results})

    async def _results(self) -> dict[str, Any]:
        """Return what goes with an ack."""
        return {"push": self._pushes} if self._pushes else {}

    async def _give_back(self) -> None:
        # Sent twice it is refused the second time, and it is free or another's all the same.
        with contextlib.suppress(LeaseLost):
            await self._settle({"success": False, "release": True})

    async def _settle(self, outcome: dict[str, Any]) -> list[Pushed]:
        body = {"windowId": self.id, "leaseId": self.lease_id, **outcome}
        try:
            answer = await self._queen.post("/api/v1/stream/ack", body, server=self._server)
        except LeaseLost:
            self._is_lost = True
            raise
        self._is_settled = True
        return [_pushed_from(result) for result in answer.get("pushed") or []]

    async def _renew(self, ms: int | None, within_s: float | None = None) -> datetime:
        extend_ms = round(self.lease_s * 1000) if ms is None else ms
        sent_at = time.monotonic()
        body = {"leaseId": self.lease_id, "extend_ms": extend_ms}
        path = "/api/v1/stream/renew-lease"
        try:
            answer = await self._queen.post(path, body, server=self._server, within_s=within_s)
        except (LeaseLost, NotFound) as error:
            self._is_lost = True
            raise LeaseLost(error.message) from None
        self._good_until = sent_at + extend_ms / 1000
        return datetime.fromisoformat(answer["lease_expires_at"])

    async def _load(self: Self) -> Self:
        if self._all is None:
            messages = [message async for message in read_messages(self._queen, self)]
            # As in a window that comes with its messages; an id is a partition and an offset.
            messages.sort(key=lambda message: (message.created_at, message.id))
            self._hold(messages)
        return self

    async def _read(self) -> AsyncGenerator[WindowMessage, None]:
        """Yield the messages, without keeping those that are not here."""
        if self._all is not None:
            for message in self._all:
                yield message
            return
        async for message in read_messages(self._queen, self):
            if self._into is not None:
                msgspec.structs.force_setattr(message, "_into", self._into)
            yield message

    @contextlib.asynccontextmanager
    async def _keep_alive(self) -> AsyncIterator[asyncio.Task[None]]:
        renewing = asyncio.create_task(keep_alive(self))
        try:
            yield renewing
        finally:
            renewing.cancel()


class Window(LeasedWindow):
    """A window, leased to this consumer for a while.

    `id`, `key` (a partition's name, or `__GLOBAL__`), `start` and `end` (half-open), `count` and
    `bytes` of its messages, `lost` (messages that retention removed before they were read),
    `attempt` (counted from 1), `lease_id`, `lease_s`, `stream_name`, `consumer_group`, and
    `ranges`: what it holds of each partition.
    """

    async def ack(
        self, success: bool = True, error: str | BaseException | None = None
    ) -> list[Pushed]:
        """Say that it is done, and store what `push` collected; or that it failed, and is to be
        tried again. Raises `LeaseLost` when it is no longer ours to say."""
        return await self._ack(success, error)

    async def nack(self, error: str | BaseException | None = None) -> None:
        """Give it back as failed: it is retried, and in the end a dead window."""
        await self._ack(False, error)

    async def give_back(self) -> None:
        """Give it back without fault: it comes again at once and nothing is counted."""
        await self._give_back()

    async def renew(self, ms: int | None = None) -> datetime:
        """Prolong the lease by so many milliseconds from now; return until when it lasts."""
        return await self._renew(ms)

    def kept_alive(self) -> contextlib.AbstractAsyncContextManager[asyncio.Task[None]]:
        """Prolong the lease at half its time: `async with window.kept_alive(): ...`. A consumer
        does so by itself; this is for windows of `poll_window`."""
        return self._keep_alive()

    async def load(self) -> Window:
        """Fetch the messages of a large window; does nothing when they are here."""
        return await self._load()

    def stream(self) -> AsyncIterator[WindowMessage]:
        """Yield the messages one by one, a large window's without having all at once.

        Those of one partition come in order; those of several partitions come as they are
        stored, which may not be the order of their times.
        """
        return self._read()
