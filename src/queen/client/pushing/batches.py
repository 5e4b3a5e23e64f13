"""Batches: the messages of one call of `push`, column by column.

A batch becomes the items of a JSON request, or frames. Most batches are nothing but payloads for
one partition, and no object is made for each of their messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from queen.client.payloads import MARKED_TYPES, encode_payload, encode_payloads
from queen.client.pushing.items import MOST_BYTES, MOST_MESSAGES, item_of
from queen.client.queues.messages import Message, messages_of, new_id, new_ids

PartitionKey = tuple[str, str]

# More than this pays for a request of its own.
_MOST_TO_SHARE = 500
_MOST_BYTES_TO_SHARE = 256 * 1024


def _headers_bytes(message: Message) -> int:
    """Return about how many bytes the headers of a message are."""
    return sum(len(name) + len(value) for name, value in message.headers.items())


class PushBatch:
    """Messages for one queue: their ids, their payloads, and what is beside them."""

    __slots__ = ("ids", "is_raw", "messages", "partition", "payloads", "queue", "size_bytes")

    def __init__(
        self,
        queue: str,
        partition: str,
        ids: Sequence[str],
        payloads: Sequence[bytes],
        messages: Sequence[Message] | None,
        *,
        is_raw: bool = False,
    ) -> None:
        self.queue = queue
        # Where those go that name no other.
        self.partition = partition
        self.ids = ids
        self.payloads = payloads
        # None when all of them are ids and payloads, and go to `partition`.
        self.messages = messages
        # Whether the JSON of a payload is the user's own, and anything.
        self.is_raw = is_raw
        self.size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        if messages is not None:
            self.size_bytes += sum(map(_headers_bytes, messages))

    @classmethod
    def of(
        cls,
        queue: str,
        partition: str,
        items: Any,
        headers: Mapping[str, str] | None = None,
    ) -> PushBatch:
        """Return what a user pushes: a list is many messages, anything else is one."""
        if headers:
            return cls.of_messages(queue, partition, messages_of(items, headers))
        if not isinstance(items, list | tuple | Message):
            if type(items) in MARKED_TYPES:
                return cls.of_messages(queue, partition, messages_of(items))
            is_raw = type(items) is msgspec.Raw
            payload = encode_payload(items)
            return cls(queue, partition, (new_id(),), (payload,), None, is_raw=is_raw)
        many = (items,) if isinstance(items, Message) else items
        kinds = set(map(type, many))
        if MARKED_TYPES.isdisjoint(kinds) and not any(issubclass(kind, Message) for kind in kinds):
            payloads = encode_payloads(many)
            is_raw = msgspec.Raw in kinds
            return cls(queue, partition, new_ids(len(many)), payloads, None, is_raw=is_raw)
        return cls.of_messages(queue, partition, messages_of(items))

    @classmethod
    def of_messages(cls, queue: str, partition: str, messages: Sequence[Message]) -> PushBatch:
        values = [message.data for message in messages]
        return cls(
            queue,
            partition,
            [message.transaction_id for message in messages],
            encode_payloads(values),
            messages,
            is_raw=msgspec.Raw in map(type, values),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_timed(self) -> bool:
        """Whether a message is due later."""
        return self.messages is not None and any(
            message.delay is not None or message.deliver_at is not None for message in self.messages
        )

    @property
    def may_share(self) -> bool:
        """Whether it is small and ordinary, and can travel with others. What is scheduled must
        not be sent again when a neighbour has failed."""
        return (
            0 < len(self.ids) <= _MOST_TO_SHARE
            and self.size_bytes <= _MOST_BYTES_TO_SHARE
            and not self.is_raw
            and not self.is_timed
        )

    def partition_of(self, at: int) -> str:
        if self.messages is None:
            return self.partition
        return self.messages[at].partition or self.partition

    def keys(self) -> set[PartitionKey]:
        """Return where its messages go."""
        if self.messages is None:
            return {(self.queue, self.partition)}
        return {(self.queue, message.partition or self.partition) for message in self.messages}

    def item(self, at: int) -> dict[str, Any]:
        """Return a message as an item of a JSON request."""
        if self.messages is not None:
            return item_of(self.queue, self.partition_of(at), self.messages[at], self.payloads[at])
        return {
            "queue": self.queue,
            "partition": self.partition,
            "payload": msgspec.Raw(self.payloads[at]),
            "transactionId": self.ids[at],
        }

    def parts(self) -> Iterator[PushBatch]:
        """Yield it in parts, each no more than a server takes in one request."""
        if len(self.ids) <= MOST_MESSAGES and self.size_bytes <= MOST_BYTES:
            if self.ids:
                yield self
            return
        start = size_bytes = 0
        for at, payload in enumerate(self.payloads):
            if at > start and (
                at - start >= MOST_MESSAGES or size_bytes + len(payload) > MOST_BYTES
            ):
                yield self._part(start, at)
                start, size_bytes = at, 0
            size_bytes += len(payload)
            if self.messages is not None:
                size_bytes += _headers_bytes(self.messages[at])
        yield self._part(start, len(self.ids))

    def _part(self, start: int, stop: int) -> PushBatch:
        return PushBatch(
            self.queue,
            self.partition,
            self.ids[start:stop],
            self.payloads[start:stop],
            None if self.messages is None else self.messages[start:stop],
            is_raw=self.is_raw,
        )
