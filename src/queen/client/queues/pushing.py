"""How messages are written into requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from queen.client.queues.messages import Message
from queen.client.transport.wire_format import instant

T = TypeVar("T")

MOST_MESSAGES = 5000
# A server takes four times as much; the rest is for ids, names and quotes.
MOST_BYTES = 16 * 1024 * 1024


def item_of(queue: str, partition: str, message: Message, payload: bytes) -> dict[str, Any]:
    """Return a message as an item of a push request."""
    item: dict[str, Any] = {
        "queue": queue,
        "partition": partition,
        "payload": msgspec.Raw(payload),
        "transactionId": message.transaction_id,
    }
    if message.trace_id is not None:
        item["traceId"] = message.trace_id
    if message.delay is not None:
        item["delay"] = message.delay
    if message.deliver_at is not None:
        item["deliverAt"] = instant(message.deliver_at)
    return item


def in_parts(messages: Iterable[tuple[T, bytes]]) -> Iterator[list[tuple[T, bytes]]]:
    """Part messages, each with its payload, so that a server takes every part."""
    part: list[tuple[T, bytes]] = []
    size_bytes = 0
    for pair in messages:
        if part and (len(part) >= MOST_MESSAGES or size_bytes + len(pair[1]) > MOST_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(pair)
        size_bytes += len(pair[1])
    if part:
        yield part


def is_plain(message: Message) -> bool:
    """Whether a message is nothing but an id and a payload, and fits a frame."""
    return message.delay is None and message.deliver_at is None and message.trace_id is None
