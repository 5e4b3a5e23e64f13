"""Scheduled messages, as they are listed and cancelled."""

from __future__ import annotations

import msgspec


class ScheduledMessage(msgspec.Struct, rename="camel"):
    """A message that is not due yet. Its payload is not shown."""

    queue: str
    partition: str
    transaction_id: str
    trace_id: str | None
    deliver_at: str
    scheduled_at: str
    payload_bytes: int


class ScheduledPage(msgspec.Struct, rename="camel"):
    """Some scheduled messages, soonest first."""

    scheduled: list[ScheduledMessage]
    limit: int
    offset: int
    # Whether another page follows.
    more: bool


class Cancelled(msgspec.Struct, rename="camel"):
    """What a cancellation removed; nothing of it is delivered."""

    cancelled: int
    queue: str
    transaction_id: str
