"""Messages as an operator looks at them, on the wire."""

from __future__ import annotations

import msgspec

from queen.wire.parts import Headers


class BusStatus(msgspec.Struct, rename="camel"):
    """How many of the named groups have done a message."""

    consumed_by: int
    total_groups: int


class Mode(msgspec.Struct, rename="camel"):
    """Who reads: consumers without a group (queue), named groups (bus), both (hybrid)."""

    has_queue_mode: bool
    bus_groups_count: int
    type: str


class MessageEntry(msgspec.Struct, rename="camel"):
    id: str
    transaction_id: str
    partition_id: str
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    # dead_letter, completed, processing or pending.
    status: str
    queue_status: str
    bus_status: BusStatus
    trace_id: str | None
    producer_sub: str | None
    queue_priority: int
    created_at: str
    lease_expires_at: str | None
    # Why nothing but place and time is told, when this server cannot read it.
    unreadable: str | None


class ListedMessage(MessageEntry, rename="camel", omit_defaults=True):
    # How the payload begins, when that was asked for.
    preview: str | None = None
    headers: Headers = {}


class MessagePage(msgspec.Struct, omit_defaults=True):
    messages: list[ListedMessage]
    mode: Mode
    # How many messages a search has looked at.
    lookedAt: int | None = None


class GroupStanding(msgspec.Struct, rename="camel"):
    name: str
    status: str
    consumed: bool
    lease_expires_at: str | None
    retry_count: int
    error_message: str | None
    # Of a message on a lease: the name of who holds it, if it has said one, and the how-manyth
    # delivery of its batch that is.
    consumer: str | None
    attempt: int | None


class MessageConfig(msgspec.Struct, rename="camel"):
    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int
    priority: int


class DetailMode(Mode, rename="camel"):
    consumed_by_groups: int


class MessageDetail(MessageEntry, rename="camel"):
    mode: DetailMode
    error_message: str | None
    retry_count: int
    queue_config: MessageConfig
    is_encrypted: bool
    consumer_groups: list[GroupStanding]
    payload: msgspec.Raw
    data: msgspec.Raw
    headers: Headers


class MessageDeleted(msgspec.Struct, rename="camel"):
    success: bool
    message: str
    partition_id: str
    transaction_id: str


class MessageRetried(msgspec.Struct, rename="camel"):
    success: bool
    retried: int
    partition_id: str
    transaction_id: str


class MoveRequest(msgspec.Struct, rename="camel"):
    """For whom a message is set aside; without a group for all that have it still to do."""

    consumer_group: str | None = None
    error: str | None = None


class MessageMoved(msgspec.Struct, rename="camel"):
    success: bool
    moved: int
    consumer_groups: list[str]
    partition_id: str
    transaction_id: str


class QueueCleared(msgspec.Struct, rename="camel"):
    success: bool
    cleared: bool
    queue: str
    partition: str | None
    removed: int
