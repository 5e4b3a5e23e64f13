"""Messages as records of a spool: one item of a push request each, as JSON.

They are what is sent later, byte for byte. A delay is turned into a time before: a message shall
not be later because it has waited here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from queen.client.transport.wire_format import instant
from queen.core.columns.headers import reason_against_headers, reason_against_text
from queen.core.names import reason_against_name, reason_against_transaction_id
from queen.core.schedule import BadTime, due_at
from queen.errors import InvalidItem

PartitionKey = tuple[str, str]


class Address(msgspec.Struct, rename="camel"):
    """What a drain must know of a record."""

    queue: str
    partition: str
    transaction_id: str

    @property
    def key(self) -> PartitionKey:
        return self.queue, self.partition


_address = msgspec.json.Decoder(Address)


def address_of(body: bytes) -> Address:
    """Return where a record goes; raises `msgspec.DecodeError` when it is not one of ours."""
    return _address.decode(body)


def request_of(bodies: Iterable[bytes]) -> bytes:
    """Return the body of the request that sends records."""
    return b'{"items":[' + b",".join(bodies) + b"]}"


def bodies_of(items: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return items as records. What a broker would certainly refuse is refused here: nobody
    could be told later."""
    now = datetime.now(UTC)
    return [_body_of(index, item, now) for index, item in enumerate(items)]


def _reason_against_headers(headers: Mapping[str, str] | msgspec.Raw | None) -> str | None:
    if isinstance(headers, msgspec.Raw):
        return reason_against_text(bytes(headers).decode())
    return reason_against_headers(headers) if headers else None


def _body_of(index: int, item: Mapping[str, Any], now: datetime) -> bytes:
    reason = (
        reason_against_name("queue", item["queue"])
        or reason_against_name("partition", item["partition"])
        or reason_against_transaction_id(item["transactionId"])
        or _reason_against_headers(item.get("headers"))
    )
    if reason is not None:
        raise InvalidItem(index, reason)
    try:
        due = due_at(item.get("deliverAt"), item.get("delay"), None, now)
    except (BadTime, TypeError) as error:
        raise InvalidItem(index, str(error)) from None
    timeless = {name: value for name, value in item.items() if name not in ("delay", "deliverAt")}
    if due is not None:
        timeless["deliverAt"] = instant(due)
    return msgspec.json.encode(timeless)
