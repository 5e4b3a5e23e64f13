"""Grants: messages as the answer of a pop has them, and where each of them is found in it.

A message is a view: a grant, and a number in it. What is asked of it is looked up in the answer
when it is asked, so a message that nobody looks at costs next to nothing. Of frames not even the
body is decompressed before somebody wants to know what is in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from queen.client.payloads import decode_plain, unmark
from queen.client.queues.messages import GIVEN_BACK, M
from queen.core.columns.headers import HEADERS, headers_of

if TYPE_CHECKING:
    from queen.core.frame import Frame, Segment

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reader:
    """Who reads what a pop got: what all of its messages have in common."""

    __slots__ = ("decode", "has_settled", "owner", "server", "takes_acks")

    def __init__(
        self,
        owner: Any = None,
        decode: Callable[[bytes], Any] = decode_plain,
        server: str = "",
    ) -> None:
        # Whom messages speak to: the client their consumer has in hand.
        self.owner = owner
        # What makes values of payloads.
        self.decode = decode
        # Who granted the lease; empty where there is only one server.
        self.server = server
        # Whether this program has said of any message what became of it.
        self.has_settled = False
        # Whether the server takes with the next pop what is said of these.
        self.takes_acks = False


class Grant(ABC):
    """Some of the messages that a pop got."""

    __slots__ = ("numbers", "outcomes", "reader")

    def __init__(self, reader: Reader, numbers: Sequence[int]) -> None:
        self.reader = reader
        # Those of its messages that are ours, in order.
        self.numbers = numbers
        # What this program has said became of them, by number.
        self.outcomes: dict[int, str] = {}

    def views(self, kind: Callable[[Grant, int], M]) -> list[M]:
        """Return its messages."""
        return list(map(kind, repeat(self), self.numbers))

    def unsettled(self, start: int, stop: int) -> Sequence[int]:
        """Return the numbers of those messages, from one place up to another, of which this
        program has not said anything."""
        numbers = self.numbers[start:stop]
        if not self.outcomes:
            return numbers
        return [number for number in numbers if number not in self.outcomes]

    def is_given_back(self, start: int, stop: int) -> bool:
        """Whether this program has given one of some messages back."""
        outcomes = self.outcomes
        return bool(outcomes) and any(
            outcomes.get(number) in GIVEN_BACK for number in self.numbers[start:stop]
        )

    def value(self, number: int) -> Any:
        """Return a payload as its reader wants it."""
        value = self.reader.decode(self.payload(number))
        if self.reader.decode is decode_plain:
            # Whoever reads into a type has said what it is.
            return unmark(value, self.headers(number))
        return value

    @abstractmethod
    def payload(self, number: int) -> bytes: ...
    @abstractmethod
    def id(self, number: int) -> str: ...
    @abstractmethod
    def transaction_id(self, number: int) -> str: ...
    @abstractmethod
    def queue(self, number: int) -> str: ...
    @abstractmethod
    def partition(self, number: int) -> str: ...
    @abstractmethod
    def partition_id(self, number: int) -> str: ...
    @abstractmethod
    def offset(self, number: int) -> int: ...
    @abstractmethod
    def created_at(self, number: int) -> datetime: ...
    @abstractmethod
    def lease_id(self, number: int) -> str: ...
    @abstractmethod
    def consumer_group(self, number: int) -> str | None: ...
    @abstractmethod
    def epoch(self, number: int) -> int: ...
    @abstractmethod
    def retry_count(self, number: int) -> int: ...
    @abstractmethod
    def priority(self, number: int) -> int: ...
    @abstractmethod
    def trace_id(self, number: int) -> str | None: ...
    @abstractmethod
    def headers(self, number: int) -> Mapping[str, str]: ...
    @abstractmethod
    def producer_sub(self, number: int) -> str | None: ...


class JsonMessage(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """A message in the JSON of an answer."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str
    created_at: datetime
    data: msgspec.Raw
    queue: str = ""
    lease_id: str = ""
    consumer_group: str | None = None
    offset: int = 0
    retry_count: int = 0
    priority: int = 0
    trace_id: str | None = None
    producer_sub: str | None = None
    headers: dict[str, str] | None = None


class JsonGrant(Grant):
    """All messages of an answer in JSON, whatever their partitions."""

    __slots__ = ("_epochs", "_messages", "_queue")

    def __init__(
        self, reader: Reader, messages: list[JsonMessage], epochs: dict[str, int], queue: str
    ) -> None:
        super().__init__(reader, range(len(messages)))
        self._messages = messages
        self._epochs = epochs
        # For a broker that does not repeat what it was asked for.
        self._queue = queue

    def value(self, number: int) -> Any:
        message = self._messages[number]
        if message.headers is not None:
            return super().value(number)
        return self.reader.decode(bytes(message.data))

    def payload(self, number: int) -> bytes:
        return bytes(self._messages[number].data)

    def id(self, number: int) -> str:
        return self._messages[number].id

    def transaction_id(self, number: int) -> str:
        return self._messages[number].transaction_id

    def queue(self, number: int) -> str:
        return self._messages[number].queue or self._queue

    def partition(self, number: int) -> str:
        return self._messages[number].partition

    def partition_id(self, number: int) -> str:
        return self._messages[number].partition_id

    def offset(self, number: int) -> int:
        return self._messages[number].offset

    def created_at(self, number: int) -> datetime:
        return self._messages[number].created_at

    def lease_id(self, number: int) -> str:
        return self._messages[number].lease_id

    def consumer_group(self, number: int) -> str | None:
        return self._messages[number].consumer_group

    def epoch(self, number: int) -> int:
        return self._epochs.get(self._messages[number].partition_id, 0)

    def retry_count(self, number: int) -> int:
        return self._messages[number].retry_count

    def priority(self, number: int) -> int:
        return self._messages[number].priority

    def trace_id(self, number: int) -> str | None:
        return self._messages[number].trace_id

    def headers(self, number: int) -> Mapping[str, str]:
        return self._messages[number].headers or {}

    def producer_sub(self, number: int) -> str | None:
        return self._messages[number].producer_sub


class PartitionLease(msgspec.Struct, kw_only=True, eq=False, gc=False):
    """What was leased of one partition."""

    id: str
    consumer_group: str | None
    queue: str
    partition: str
    partition_id: str
    epoch: int
    attempt: int
    priority: int
    # Messages that have failed another number of times than the others.
    failures: dict[int, int]
    # From the first offset up to, not with, the end.
    span: tuple[int, int]
    # How many messages of the span are ours, and how many are done already.
    shown: int = 0
    hidden: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every message of the span is one or the other."""
        return self.shown + self.hidden == self.span[1] - self.span[0]


class FrameGrant(Grant):
    """The leased messages of one frame. Numbers are places in its segment."""

    __slots__ = ("_created_at", "_segment", "base_offset", "frame", "lease")

    def __init__(
        self, reader: Reader, lease: PartitionLease, frame: Frame, numbers: Sequence[int]
    ) -> None:
        super().__init__(reader, numbers)
        self.lease = lease
        self.base_offset = frame.base_offset
        self.frame = frame
        self._segment: Segment | None = None
        self._created_at: datetime | None = None

    def runs(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield messages as runs of offsets, each up to, not with, its end."""
        base = self.base_offset
        if isinstance(numbers, range):
            yield base + numbers.start, base + numbers.stop
            return
        for _, run in groupby(enumerate(numbers), lambda numbered: numbered[1] - numbered[0]):
            first, *rest = (number for _, number in run)
            yield base + first, base + first + len(rest) + 1

    @property
    def segment(self) -> Segment:
        """What is in the frame; decoded once."""
        if self._segment is None:
            self._segment = self.frame.segment()
        return self._segment

    def value(self, number: int) -> Any:
        segment = self._segment or self.segment
        if segment.extras and HEADERS in segment.extras:
            return super().value(number)
        offsets = segment.payload_offsets
        return self.reader.decode(segment.data[offsets[number] : offsets[number + 1] - 1])

    def payload(self, number: int) -> bytes:
        segment = self._segment or self.segment
        offsets = segment.payload_offsets
        return segment.data[offsets[number] : offsets[number + 1] - 1]

    def id(self, number: int) -> str:
        from queen.core.ids import message_id

        return message_id(self.frame.partition_id, self.base_offset + number)

    def transaction_id(self, number: int) -> str:
        segment = self.segment
        offsets = segment.id_offsets
        return segment.ids[offsets[number] : offsets[number + 1]].decode()

    def queue(self, number: int) -> str:
        return self.lease.queue

    def partition(self, number: int) -> str:
        return self.lease.partition

    def partition_id(self, number: int) -> str:
        return self.lease.partition_id

    def offset(self, number: int) -> int:
        return self.base_offset + number

    def created_at(self, number: int) -> datetime:
        if self._created_at is None:
            self._created_at = _EPOCH + timedelta(microseconds=self.frame.created_at_us)
        return self._created_at

    def lease_id(self, number: int) -> str:
        return self.lease.id

    def consumer_group(self, number: int) -> str | None:
        return self.lease.consumer_group

    def epoch(self, number: int) -> int:
        return self.lease.epoch

    def retry_count(self, number: int) -> int:
        lease = self.lease
        return lease.failures.get(self.base_offset + number, lease.attempt - 1)

    def priority(self, number: int) -> int:
        return self.lease.priority

    def trace_id(self, number: int) -> str | None:
        return self._extra("traceId", number)

    def headers(self, number: int) -> Mapping[str, str]:
        return headers_of(self._extra(HEADERS, number))

    def producer_sub(self, number: int) -> str | None:
        return self._extra("producerSub", number)

    def _extra(self, column: str, number: int) -> str | None:
        values = self.segment.column(column)
        value: str | None = values[number] if values else None
        return value


class Popped(Generic[M]):
    """What a pop has got: messages, and the grants in which they are."""

    __slots__ = ("_ends", "_grants", "_reader", "lease_id", "lease_s", "messages", "server")

    def __init__(
        self,
        kind: Callable[[Grant, int], M] | None = None,
        grants: Sequence[Grant] = (),
        lease_s: float = 0.0,
    ) -> None:
        # A list like any other, for whoever wants one.
        self.messages: list[M] = []
        # How many messages there are up to the end of each grant.
        self._ends: list[int] = []
        self._grants = grants
        if kind is not None:
            for grant in grants:
                self.messages += grant.views(kind)
                self._ends.append(len(self.messages))
        self._reader = grants[0].reader if grants else _NOBODY
        # How long the lease lasts; 0 when the server does not say.
        self.lease_s = lease_s
        self.lease_id = self.messages[0].lease_id if self.messages else ""
        self.server = self._reader.server

    @property
    def takes_acks(self) -> bool:
        """Whether what became of these can be said in the request for the next."""
        return self._reader.takes_acks

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def parts(self, start: int, stop: int) -> Iterator[tuple[Grant, int, int]]:
        """Yield the grants of its messages from one place up to another, with the places that
        these have in each of them."""
        at = bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[at - 1] if at else 0
            end = min(stop, self._ends[at])
            yield self._grants[at], start - begin, end - begin
            start, at = self._ends[at], at + 1

    def is_given_back(self, start: int, stop: int) -> bool:
        """Whether this program has given one of some messages back."""
        return self._reader.has_settled and any(
            grant.is_given_back(low, high) for grant, low, high in self.parts(start, stop)
        )


_NOBODY = Reader()
