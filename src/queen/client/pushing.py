"""How messages are written into requests."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.client.messages import Message
from queen.client.payloads import encoded


def item_of(queue: str, partition: str, message: Message) -> dict[str, Any]:
    """Return a message as an item of a push request."""
    item: dict[str, Any] = {
        "queue": queue,
        "partition": partition,
        "payload": msgspec.Raw(encoded(message.data)),
        "transactionId": message.transaction_id,
    }
    if message.trace_id is not None:
        item["traceId"] = message.trace_id
    if message.delay is not None:
        item["delay"] = message.delay
    if message.deliver_at is not None:
        item["deliverAt"] = message.deliver_at.isoformat()
    return item
