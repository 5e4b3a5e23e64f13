"""How messages are written into requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from queen.client.queues.messages import Message
from queen.client.transport.wire_format import instant

MOST_MESSAGES = 5000
# A server takes four times as much; the rest is for ids, names and quotes.
MOST_BYTES = 16 * 1024 * 1024


class FramedMessage(NamedTuple):
    """What there is room for in a frame: whatever has a time is not sent in one."""

    transaction_id: str
    payload: bytes
    # The text of a JSON object.
    headers: str | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + len(self.headers or "")

    def item(self, queue: str, partition: str) -> dict[str, Any]:
        """Return it as an item of a push request."""
        item: dict[str, Any] = {
            "queue": queue,
            "partition": partition,
            "transactionId": self.transaction_id,
            "payload": msgspec.Raw(self.payload),
        }
        if self.headers is not None:
            item["headers"] = msgspec.Raw(self.headers.encode())
        return item


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
    if message.headers:
        item["headers"] = message.headers
    if message.delay is not None:
        item["delay"] = message.delay
    if message.deliver_at is not None:
        item["deliverAt"] = instant(message.deliver_at)
    return item


def is_plain(message: Message) -> bool:
    """Whether a message is nothing but an id, a payload and headers, and fits a frame."""
    return message.delay is None and message.deliver_at is None and message.trace_id is None
