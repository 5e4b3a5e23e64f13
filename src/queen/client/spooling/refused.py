"""Records that a broker has refused for what they are, as people and programs look at them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from queen.spool import Spool


class RefusedMessage(msgspec.Struct, kw_only=True, rename="camel"):
    """A message in quarantine. `seq` is its number, to retry or to drop it."""

    seq: int
    queue: str
    partition: str
    transaction_id: str
    reason: str
    spooled_at: datetime
    refused_at: datetime
    size_bytes: int
    data: Any


class _Item(msgspec.Struct, rename="camel"):
    queue: str = ""
    partition: str = ""
    transaction_id: str = ""
    data: Any = msgspec.field(name="payload", default=None)


_item = msgspec.json.Decoder(_Item)


def refused_messages(spool: Spool, start: int = 0, count: int = 100) -> Iterator[RefusedMessage]:
    """Yield what is in the quarantine of a spool, oldest first."""
    for refused in spool.quarantined(start, count):
        yield RefusedMessage(
            seq=refused.seq,
            reason=refused.reason,
            spooled_at=_time(refused.at_ms),
            refused_at=_time(refused.refused_at_ms),
            size_bytes=refused.size_bytes,
            **msgspec.structs.asdict(_decode(spool.quarantined_record(refused.seq).body)),
        )


def _decode(body: bytes) -> _Item:
    try:
        return _item.decode(body)
    except msgspec.DecodeError:
        # What is no message was refused for that.
        return _Item()


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
