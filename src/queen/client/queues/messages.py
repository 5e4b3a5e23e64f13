"""Messages, as they are pushed and as they are received."""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from queen.client.durations import Seconds
from queen.client.payloads import decode_payload, mark_of
from queen.core.columns.headers import TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from queen.client.leases.grants import Grant
    from queen.client.queen import Queen

T = TypeVar("T")

_UNSET = msgspec.UNSET


class Message:
    """A payload with something beside it: an id of its own, headers, a trace, a time.

    Without a transaction id one is made up when the message is created, so that pushing it
    again, whatever became of the first time, stores it once.
    """

    __slots__ = (
        "data",
        "delay",
        "deliver_at",
        "headers",
        "partition",
        "trace_id",
        "transaction_id",
    )

    def __init__(
        self,
        data: Any,
        *,
        transaction_id: str | None = None,
        trace_id: str | None = None,
        partition: str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.transaction_id = transaction_id or new_id()
        self.trace_id = trace_id
        self.partition = partition
        self.delay = None if delay is None else _seconds_of(delay)
        self.deliver_at = deliver_at
        self.headers = {**(mark_of(data) or {}), **(headers or {})}

    def __repr__(self) -> str:
        return f"Message({self.transaction_id!r})"

    def with_headers(self, headers: Mapping[str, str]) -> Message:
        """Return the same message, same id, with more headers; those that it has stay."""
        more = copy.copy(self)
        if TRACEPARENT in self.headers:
            headers = {name: text for name, text in headers.items() if name != TRACESTATE}
        more.headers = {**headers, **self.headers}
        return more


def _seconds_of(delay: float | timedelta) -> float:
    """Return a delay in seconds. JSON has no infinity: it would be sent as none at all."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"delay must be a finite number of seconds, 0 or more, not {seconds}")
    return seconds


# Unique without asking the system for randomness each time.
_prefix = os.urandom(16).hex()
_numbers = itertools.count(1)


def _be_another() -> None:
    """Start anew in a forked process: it must not make up the ids that its parent makes up."""
    global _prefix  # noqa: PLW0603
    _prefix = os.urandom(16).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_another)


def new_id() -> str:
    """Return a transaction id that nobody else makes up."""
    return f"{_prefix}-{next(_numbers):x}"


def new_ids(count: int) -> list[str]:
    """Return as many ids that nobody else makes up."""
    prefix = _prefix
    return [f"{prefix}-{number:x}" for number in itertools.islice(_numbers, count)]


def messages_of(items: Any, headers: Mapping[str, str] | None = None) -> list[Message]:
    """Return what a user pushes as messages: a list is many, anything else is one. All of them get
    the headers, except for those that a message has itself."""
    many = items if isinstance(items, list | tuple) else (items,)
    messages = [item if isinstance(item, Message) else Message(item) for item in many]
    return [message.with_headers(headers) for message in messages] if headers else messages


# What gives a message back.
GIVEN_BACK = ("failed", "retry")


class Delivered(msgspec.Struct, eq=False, gc=False):
    """What a message is, however its consumer speaks to the broker.

    It is a view over the answer that brought it: what is asked of it is looked up there.
    """

    _grant: Grant
    # Which message of the grant.
    _number: int
    _value: Any = _UNSET

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue}/{self.partition} {self.transaction_id!r})"

    @property
    def id(self) -> str:
        """Made from its partition and its offset."""
        return self._grant.id(self._number)

    @property
    def transaction_id(self) -> str:
        """The id that its producer gave it, or that was made up for it."""
        return self._grant.transaction_id(self._number)

    @property
    def queue(self) -> str:
        """The queue it is in."""
        return self._grant.queue(self._number)

    @property
    def partition(self) -> str:
        """The name of its partition."""
        return self._grant.partition(self._number)

    @property
    def partition_id(self) -> str:
        """The id of its partition."""
        return self._grant.partition_id(self._number)

    @property
    def offset(self) -> int:
        """Its number in its partition."""
        return self._grant.offset(self._number)

    @property
    def created_at(self) -> datetime:
        """When it was stored, by the database's clock."""
        return self._grant.created_at(self._number)

    @property
    def raw(self) -> msgspec.Raw:
        """The payload as it came: JSON."""
        return msgspec.Raw(self._grant.payload(self._number))

    @property
    def data(self) -> Any:
        """The payload; decoded once, when it is first asked for."""
        value = self._value
        if value is _UNSET:
            value = self._value = self._grant.value(self._number)
        return value

    def into(self, kind: type[T]) -> T:
        """Return the payload as a type: a dataclass, a struct, a pydantic model."""
        return decode_payload(self._grant.payload(self._number), kind)

    @property
    def lease_id(self) -> str:
        """The lease under which it was taken; empty when the server acked it as it delivered."""
        return self._grant.lease_id(self._number)

    @property
    def epoch(self) -> int:
        """The number of that lease; a later lease of the same partition has a larger one."""
        return self._grant.epoch(self._number)

    @property
    def consumer_group(self) -> str | None:
        """The group that took it; None without one."""
        return self._grant.consumer_group(self._number)

    @property
    def retry_count(self) -> int:
        """How often it has failed before."""
        return self._grant.retry_count(self._number)

    @property
    def attempt(self) -> int:
        """Which delivery this is, counted from 1."""
        return self._grant.retry_count(self._number) + 1

    @property
    def priority(self) -> int:
        """The priority of its queue."""
        return self._grant.priority(self._number)

    @property
    def trace_id(self) -> str | None:
        """What its producer gave it to be followed by."""
        return self._grant.trace_id(self._number)

    @property
    def headers(self) -> Mapping[str, str]:
        """What its producer put beside the payload; empty when that was nothing."""
        return self._grant.headers(self._number)

    @property
    def producer_sub(self) -> str | None:
        """Who pushed it, where the server knows its callers."""
        return self._grant.producer_sub(self._number)

    @property
    def is_settled(self) -> bool:
        """Whether this program has said what became of it; a consumer then leaves it alone."""
        return self._number in self._grant.outcomes

    @property
    def is_given_back(self) -> bool:
        """Whether this program has given it back."""
        return self._grant.outcomes.get(self._number) in GIVEN_BACK

    def _note_outcome(self, status: str) -> None:
        """Remember what this program has said became of it."""
        self._grant.outcomes[self._number] = status
        self._grant.reader.has_settled = True

    @property
    def _server(self) -> str:
        """Who granted its lease; empty where there is only one server."""
        return self._grant.reader.server


class Received(Delivered, eq=False, gc=False):
    """A message that was leased to this consumer."""

    @property
    def _client(self) -> Queen:
        queen: Queen = self._grant.reader.owner
        return queen

    async def ack(self) -> None:
        """Say that it is done. Raises `LeaseLost` when it is no longer ours to say."""
        await self._client.ack(self)

    async def nack(
        self, error: str | BaseException | None = None, *, delay: Seconds | None = None
    ) -> None:
        """Give it back as failed: it is retried, after a delay of its own or that of the queue,
        and in the end a dead letter."""
        await self._client.nack(self, error, delay=delay)

    async def give_back(self, *, delay: Seconds | None = None) -> None:
        """Give it back without fault: it comes again at once, or after a delay, and nothing is
        counted."""
        await self._client.ack(self, "retry", delay=delay)

    async def dead_letter(self, error: str | BaseException | None = None) -> None:
        """Set it aside now."""
        await self._client.ack(self, "dlq", error=error)

    async def renew(self, seconds: int | None = None) -> datetime:
        """Prolong the lease; return until when it now lasts."""
        return await self._client.renew(self, seconds)

    async def trace(
        self, data: Any, *, names: str | Iterable[str] = (), event: str = "info"
    ) -> None:
        """Record what happened to it, under names that lead through several queues."""
        await self._client.trace(self, data, names=names, event=event)


M = TypeVar("M", bound=Delivered)


# Kept by this client, and not stored yet.
BUFFERED = "buffered"


class Pushed(msgspec.Struct, kw_only=True, gc=False):
    """What became of one pushed message: `queued`, `duplicate`, `scheduled` or `buffered`."""

    status: str
    transaction_id: str
    message_id: str | None = None
    partition_id: str | None = None

    @property
    def is_duplicate(self) -> bool:
        """Whether a message with this id was stored before."""
        return self.status == "duplicate"


def by_server(messages: Sequence[Delivered]) -> dict[str, list[Delivered]]:
    """Return messages by who granted their lease."""
    granted: dict[str, list[Delivered]] = {}
    for message in messages:
        granted.setdefault(message._server, []).append(message)
    return granted


def error_text(error: str | BaseException | None) -> str | None:
    """Return what is said about a failure. The type of an exception is part of it."""
    if isinstance(error, BaseException):
        said, name = _said_by(error), type(error).__name__
        error = f"{name}: {said}" if said else name
    # Names of files may hold what no text on the wire can.
    return None if error is None else error.encode(errors="backslashreplace").decode()


def _said_by(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # An error that fails to say what it is must not end a consumer.
        return "<its text cannot be had>"


Config = Mapping[str, Any]
