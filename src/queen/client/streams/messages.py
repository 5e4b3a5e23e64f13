"""A window and its messages, as they are on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from queen.client.payloads import decode_payload, unmark

T = TypeVar("T")

_UNSET = msgspec.UNSET

# What a message answers to as `message["..."]`: Python's names, and those of the wire.
_NAMES = {
    name: name
    for name in (
        "id",
        "transaction_id",
        "trace_id",
        "data",
        "created_at",
        "queue",
        "partition",
        "headers",
    )
} | {
    "offset": "offset",
    "payload": "data",
    "transactionId": "transaction_id",
    "traceId": "trace_id",
    "createdAt": "created_at",
}


class WindowMessage(msgspec.Struct, frozen=True, eq=False, gc=False, kw_only=True):
    """A message of a window: `message.data["user"]`, or `message["data"]["user"]`."""

    id: str
    transaction_id: str = msgspec.field(name="transactionId", default="")
    trace_id: str | None = msgspec.field(name="traceId", default=None)
    created_at: datetime
    queue: str = ""
    partition: str = ""
    offset: int = 0
    raw: msgspec.Raw = msgspec.field(name="data")
    headers: dict[str, str] = {}
    # Not on the wire: what `data` is decoded to, and what it was.
    _into: Any = None
    _plain: Any = _UNSET
    _value: Any = _UNSET

    def __repr__(self) -> str:
        return f"WindowMessage({self.queue}/{self.partition}:{self.offset} {self.data!r})"

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, _NAMES[name])
        except KeyError:
            raise KeyError(
                f"a message has no {name!r}; it has {', '.join(sorted(_NAMES))}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    @property
    def plain(self) -> Any:
        """The payload as it was pushed, whatever `data` is decoded to."""
        if self._plain is _UNSET:
            value: Any = decode_payload(bytes(self.raw), None)
            msgspec.structs.force_setattr(self, "_plain", unmark(value, self.headers))
        return self._plain

    @property
    def data(self) -> Any:
        """The payload; decoded once, when it is first asked for."""
        if self._into is None:
            return self.plain
        if self._value is _UNSET:
            msgspec.structs.force_setattr(self, "_value", self.into(self._into))
        return self._value

    @property
    def payload(self) -> Any:
        """The payload, under its other name."""
        return self.data

    def into(self, kind: type[T]) -> T:
        """Return the payload as a type: a dataclass, a struct, a pydantic model."""
        return decode_payload(bytes(self.raw), kind)


class Range(msgspec.Struct, frozen=True, rename={"from_offset": "from", "to_offset": "to"}):
    """What a window holds of one partition: offsets from the first up to, not with, the last."""

    queue: str
    partition: str
    from_offset: int
    to_offset: int
    partition_id: str = msgspec.field(name="partitionId", default="")


class Leased(msgspec.Struct, rename="camel", kw_only=True):
    """A window as it is handed out; `messages` is "ref" when there are too many to send along."""

    id: str
    lease_id: str
    key: str
    start: datetime
    end: datetime
    stream: str = ""
    consumer_group: str = ""
    attempt: int = 1
    lease_timeout_ms: int = 0
    lease_expires_at: datetime | None = None
    count: int = 0
    bytes: int = 0
    lost: int = 0
    messages: list[WindowMessage] | Literal["ref"]
    ranges: list[Range] = []
