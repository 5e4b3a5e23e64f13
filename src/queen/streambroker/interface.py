"""The verbs of a stream broker, whatever it keeps its streams in.

A stream is a list of entries that only grows at its end. A group reads it once: each entry goes
to one of its consumers, and is pending there until it is acked. What is pending for too long may
be claimed by another consumer. Several groups do not know of each other.

Where nothing is there to read, list or ack, the answer is empty: a missing stream or group is no
error, except where a setting of it shall be changed. Everywhere a count of 0 means no limit.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from queen.client.camel_case import EitherSpelling
from queen.streambroker.records import ConsumerGroupInfo, StreamMessage

# Whoever adds idempotently and does not say who it is.
DEFAULT_PRODUCER = "default"
# What a delivery limit sets aside is in a stream of this name.
DEAD_LETTERS = ".dlq"


class Capability(enum.Enum):
    """What not every backend can do."""

    # `xadd(idempotency_key=...)` is taken. Without: it is refused.
    IDEMPOTENT_ADD = "idempotent-add"
    # `xadd(key=...)` is taken. Without: it is refused.
    KEY_ORDER = "key-order"
    # `nack(delay_ms=...)` hides an entry from every claim for exactly that time. Without: it waits
    # at most as long as claims ask for.
    DELAYED_NACK = "delayed-nack"
    # A delivery limit is kept with the group and holds for whoever reads. Without: it is known to
    # the broker object that it was told to, and holds for what that claims.
    SHARED_DELIVERY_LIMIT = "shared-delivery-limit"
    # `xreadgroup(claim_idle_ms=...)` claims and reads in one step, and wakes when something has
    # become idle. Without: it claims, and then reads.
    CLAIMING_READ = "claiming-read"
    # A consumer has a limit of pending entries, and a stream one of its length, that nobody passes.
    BOUNDED = "bounded"
    # A stream may have any name. Without: it is the name of a queue, printable and of at most 255
    # bytes, and others are refused.
    ANY_NAME = "any-name"
    # Streams are still there when the process of the broker has ended.
    LASTING = "lasting"


class StreamBroker(EitherSpelling, ABC):
    """Streams with groups of consumers. The verbs are also known as `createGroup` and so on."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """What it can do. That of a server is known when the broker was opened."""

    async def open(self) -> None:
        """Find out whom we talk to. Verbs do that by themselves when they need to know."""

    async def close(self) -> None:
        """Hang up; what waits for entries ends with an error."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Entries

    @abstractmethod
    async def xadd(
        self,
        stream: str,
        data: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        producer: str = DEFAULT_PRODUCER,
        max_length: int | None = None,
    ) -> str:
        """Add an entry, any JSON value, and return its id; a missing stream is created.

        Of the entries with a `key`, a group has at most one in flight: the next is delivered when
        that is acked. An `idempotency_key` that the `producer` has used before adds nothing and
        returns the first id. A stream longer than `max_length` loses its oldest entries."""

    @abstractmethod
    async def xlen(self, stream: str) -> int:
        """Return how many entries a stream has."""

    @abstractmethod
    async def xrange(
        self, stream: str, min_id: str = "-", max_id: str = "+", count: int = 0
    ) -> list[StreamMessage]:
        """Return entries by id, both ends included; `(` before an id excludes it."""

    @abstractmethod
    async def xdel(self, stream: str, ids: Sequence[str]) -> int:
        """Delete entries; return how many there were. Groups that have them pending keep that."""

    @abstractmethod
    async def xtrim(self, stream: str, max_length: int) -> int:
        """Keep the newest entries; return how many were removed."""

    @abstractmethod
    async def scan_streams(self, pattern: str = "*") -> list[str]:
        """Return the sorted names of the streams that match: `*`, `?`, `[a-z]`, `\\` anywhere."""

    # Groups

    @abstractmethod
    async def create_group(
        self, stream: str, group: str, start_id: str = "$", *, strict: bool = False
    ) -> None:
        """Create a group that reads what comes after an id: `0` all, `$` only what is added from
        now on. A missing stream is created. A group that exists keeps its position; with `strict`
        that raises `Conflict`."""

    @abstractmethod
    async def set_group_id(self, stream: str, group: str, start_id: str) -> None:
        """Let a group read on after another id. Raises `NotFound`. Pending entries stay pending."""

    @abstractmethod
    async def delete_group(self, stream: str, group: str) -> None:
        """Delete a group with everything it has pending. Those who wait in it are told: nothing."""

    @abstractmethod
    async def get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        """Return the groups of a stream, by name."""

    @abstractmethod
    async def get_stream_group_info(self, stream: str, group: str) -> ConsumerGroupInfo | None:
        """Return one group; None when there is no such group."""

    @abstractmethod
    async def delete_consumer(
        self, stream: str, group: str, consumer: str, *, keep_pending: bool = True
    ) -> int:
        """Delete a consumer; return how many entries it had pending. They are given back, to be
        claimed by others at once; without `keep_pending` the group never sees them again."""

    # Reading

    @abstractmethod
    async def xreadgroup(
        self,
        group: str,
        consumer: str,
        stream: str,
        count: int = 1,
        block_ms: int | None = 0,
        *,
        claim_idle_ms: int | None = None,
        no_ack: bool = False,
        history_after: str | None = None,
    ) -> list[StreamMessage]:
        """Take entries that nobody of the group has had yet. They are pending until acked.

        When there are none, wait for them: 0 not at all, None for ever. Those who wait are served
        in order of arrival. With `claim_idle_ms`, entries that are pending for that long come
        first. With `no_ack` nothing becomes pending. With `history_after` it returns what is
        pending for this consumer already, after an id, and counts that as a delivery."""

    @abstractmethod
    async def xack(self, stream: str, group: str, ids: Sequence[str]) -> int:
        """Say that entries are done; return how many of them were pending."""

    @abstractmethod
    async def nack(self, stream: str, group: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        """Give pending entries back: any claim takes them at once, or after a delay, however short
        they were pending. Return how many were pending."""

    @abstractmethod
    async def xpending(
        self, stream: str, group: str, consumer: str | None = None, count: int = 0
    ) -> list[StreamMessage]:
        """Return what is pending, of the group or of one consumer, by id; 0 is no limit.

        Nothing is delivered.
        """

    @abstractmethod
    async def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: Sequence[str]
    ) -> list[StreamMessage]:
        """Take over the entries named, as far as they are pending for so long already."""

    @abstractmethod
    async def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[StreamMessage]:
        """Take over what is pending for too long, by id, whoever had it, this consumer included.
        Entries that were deleted meanwhile are no longer pending after that."""

    # Dead letters

    @abstractmethod
    async def set_delivery_limit(self, stream: str, group: str, limit: int | None) -> None:
        """Let an entry that was delivered so often and not acked go to `<stream>.dlq`, instead of
        being delivered again; None takes the limit away. Raises `NotFound`."""

    @abstractmethod
    async def redrive(self, stream: str, count: int = 0) -> int:
        """Add the oldest dead letters of a stream to it again; return how many."""
