"""What the verbs return. Fields are read in either spelling: `delivery_count`, `deliveryCount`."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.client.camel_case import EitherSpelling


class DeadLetterOrigin(EitherSpelling, msgspec.Struct, frozen=True, rename="camel"):
    """Where an entry of `<stream>.dlq` comes from."""

    stream: str
    group: str
    id: str
    # How often it was delivered.
    deliveries: int


class StreamMessage(
    EitherSpelling, msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """An entry of a stream."""

    # `<ms>-<seq>`
    id: str
    # What was added: any JSON value. An entry that others wrote is shown as `entry_data` says.
    data: Any
    # Seconds since 1970, of the time that is in the id.
    timestamp: float
    # The how-manyth delivery to the group this is, from 1; None where nothing is delivered.
    delivery_count: int | None = None
    # Who has it pending, and for how long; only what `xpending` returns has these. An entry that
    # was given back is nobody's.
    consumer: str | None = None
    idle_ms: int | None = None
    # The group still has it pending, but the stream no longer has its data.
    is_deleted: bool = False
    # Of an entry of `<stream>.dlq`.
    dead_letter: DeadLetterOrigin | None = None


class ConsumerInfo(EitherSpelling, msgspec.Struct, frozen=True, rename="camel"):
    """A consumer of a group."""

    name: str
    pending: int
    # Seconds since 1970, of its last attempt to read or claim.
    last_activity: float


class ConsumerGroupInfo(EitherSpelling, msgspec.Struct, frozen=True, rename="camel"):
    """A group of a stream."""

    name: str
    consumers: list[ConsumerInfo]
    last_delivered_id: str
    # Delivered and not acked, with those that were given back.
    total_pending: int
    # Entries that were not delivered to the group yet: always a number, never a guess.
    lag: int
