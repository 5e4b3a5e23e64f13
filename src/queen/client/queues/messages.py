"""Messages, as they are pushed and as they are received."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from queen.client.payloads import decode_payload

if TYPE_CHECKING:
    from queen.client.queen import Queen

T = TypeVar("T")

_UNSET = msgspec.UNSET


class Message:
    """A payload with something beside it: an id of its own, a trace, a time.

    Without a transaction id one is made up when the message is created, so that pushing it
    again, whatever became of the first time, stores it once.
    """

    __slots__ = ("data", "delay", "deliver_at", "partition", "trace_id", "transaction_id")

    def __init__(
        self,
        data: Any,
        *,
        transaction_id: str | None = None,
        trace_id: str | None = None,
        partition: str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        self.data = data
        self.transaction_id = transaction_id or new_id()
        self.trace_id = trace_id
        self.partition = partition
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else delay
        self.deliver_at = deliver_at

    def __repr__(self) -> str:
        return f"Message({self.transaction_id!r})"


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


def messages_of(items: Any) -> list[Message]:
    """Return what a user pushes as messages: a list is many, anything else is one."""
    many = items if isinstance(items, list | tuple) else (items,)
    return [item if isinstance(item, Message) else Message(item) for item in many]


class Delivered(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """What a message is, however its consumer speaks to the broker."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str
    created_at: datetime
    raw: msgspec.Raw = msgspec.field(name="data")
    queue: str = ""
    lease_id: str = ""
    consumer_group: str | None = None
    offset: int = 0
    retry_count: int = 0
    priority: int = 0
    trace_id: str | None = None
    producer_sub: str | None = None
    # Not on the wire: set when it is received.
    epoch: int = 0
    _queen: Any = None
    _into: Any = None
    _value: Any = _UNSET
    _settled: bool = False
    # Who granted its lease; empty where there is only one server.
    _server: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue}/{self.partition} {self.transaction_id!r})"

    @property
    def data(self) -> Any:
        """The payload; decoded once, when it is first asked for."""
        if self._value is _UNSET:
            self._value = decode_payload(bytes(self.raw), self._into)
        return self._value

    def into(self, kind: type[T]) -> T:
        """Return the payload as a type: a dataclass, a struct, a pydantic model."""
        return decode_payload(bytes(self.raw), kind)

    @property
    def attempt(self) -> int:
        """Which delivery this is, counted from 1."""
        return self.retry_count + 1

    @property
    def is_settled(self) -> bool:
        """Whether this program has said what became of it; a consumer then leaves it alone."""
        return self._settled


class Received(Delivered, rename="camel", kw_only=True, gc=False):
    """A message that was leased to this consumer."""

    @property
    def _client(self) -> Queen:
        queen: Queen = self._queen
        return queen

    async def ack(self) -> None:
        """Say that it is done. Raises `LeaseLost` when it is no longer ours to say."""
        await self._client.ack(self)

    async def nack(self, error: str | BaseException | None = None) -> None:
        """Give it back as failed: it is retried, and in the end a dead letter."""
        await self._client.nack(self, error)

    async def give_back(self) -> None:
        """Give it back without fault: it comes again at once and nothing is counted."""
        await self._client.ack(self, "retry")

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


class Claim(msgspec.Struct, rename="camel"):
    """What was leased of one partition. `epoch` grows with every lease of it."""

    partition_id: str = ""
    lease_ms: int = 0
    epoch: int = 0


class Popped(msgspec.Struct, Generic[M], rename="camel"):
    """The answer of a pop."""

    messages: list[M] = []
    claims: list[Claim] = []

    @property
    def lease_s(self) -> float:
        """How long the lease lasts; the original broker does not say."""
        return min((claim.lease_ms for claim in self.claims if claim.lease_ms), default=0) / 1000


# Kept by this client, and not stored yet.
BUFFERED = "buffered"


class Pushed(msgspec.Struct, kw_only=True):
    """What became of one pushed message: `queued`, `duplicate`, `scheduled` or `buffered`."""

    status: str
    transaction_id: str
    message_id: str | None = None
    partition_id: str | None = None

    @property
    def is_duplicate(self) -> bool:
        """Whether a message with this id was stored before."""
        return self.status == "duplicate"


class AckItem(msgspec.Struct, rename="camel", omit_defaults=True):
    transaction_id: str
    partition_id: str
    lease_id: str | None = None
    status: str = "completed"
    error: str | None = None
    consumer_group: str | None = None


def ack_of(
    message: Delivered, status: str = "completed", error: str | BaseException | None = None
) -> AckItem:
    """Return the acknowledgment of a message."""
    return AckItem(
        message.transaction_id,
        message.partition_id,
        message.lease_id or None,
        status,
        error_text(error),
        message.consumer_group,
    )


def by_server(messages: Sequence[Delivered]) -> dict[str, list[Delivered]]:
    """Return messages by who granted their lease."""
    granted: dict[str, list[Delivered]] = {}
    for message in messages:
        granted.setdefault(message._server, []).append(message)
    return granted


def error_text(error: str | BaseException | None) -> str | None:
    """Return what is said about a failure. The type of an exception is part of it."""
    if isinstance(error, BaseException):
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return error


Config = Mapping[str, Any]
