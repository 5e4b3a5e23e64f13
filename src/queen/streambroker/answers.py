"""Replies to commands, read as what the verbs return.

A map of RESP3 and the flat list that RESP2 has for it are read alike, so that it does not matter
which of them a server speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar, cast

from queen.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    Overloaded,
    QueenError,
    Unauthenticated,
    Unavailable,
)
from queen.streambroker.checks import NOBODY
from queen.streambroker.entry_data import entry_data, split_origin
from queen.streambroker.records import StreamMessage
from queen.streambroker.replies import ByStream, Failure, NoArray, Pairs, Reply

T = TypeVar("T")

_BY_CODE: dict[str, type[QueenError]] = {
    "WRONGTYPE": Conflict,
    "BUSYGROUP": Conflict,
    "NOGROUP": NotFound,
    "NOPERM": Forbidden,
    "OOM": Overloaded,
    "LOADING": Unavailable,
    "BUSY": Unavailable,
    "READONLY": Unavailable,
    "MASTERDOWN": Unavailable,
    "CLUSTERDOWN": Unavailable,
    "TRYAGAIN": Unavailable,
    "NOREPLICAS": Unavailable,
    "MISCONF": Unavailable,
}


def code_of(failure: Failure) -> str:
    return failure.text.partition(" ")[0]


def error_of(failure: Failure) -> QueenError:
    """Return what a command answered as an error of ours, in the words of the server."""
    code = code_of(failure)
    if code in ("NOAUTH", "WRONGPASS"):
        return Unauthenticated()
    return _BY_CODE.get(code, BadRequest)(failure.text)


def is_missing(reply: Reply) -> bool:
    """Whether a command failed because there is no such stream or group."""
    return isinstance(reply, Failure) and code_of(reply) == "NOGROUP"


def good(reply: Reply) -> Reply:
    """Return a reply that is no failure; raise one that is."""
    if isinstance(reply, Failure):
        raise error_of(reply)
    return reply


def as_list(reply: Reply) -> list[Reply]:
    """Return an array; no array is an empty one."""
    if reply is None or isinstance(reply, NoArray):
        return []
    return cast("list[Reply]", good(reply))


def as_int(reply: Reply) -> int:
    return int(cast("int", good(reply)))


def as_text(reply: Reply) -> str:
    """Return a name or an id; what is no UTF-8 is shown with backslashes."""
    return cast("bytes", good(reply)).decode(errors="backslashreplace")


def as_mapping(reply: Reply) -> dict[str, Reply]:
    """Return names and values in turn as a mapping."""
    items = reply.items if isinstance(reply, Pairs) else as_list(reply)
    return {as_text(name): value for name, value in zip(items[::2], items[1::2], strict=True)}


class PendingRow(NamedTuple):
    """What a group knows of an entry that it has pending."""

    entry_id: bytes
    consumer: str | None
    idle_ms: int | None
    deliveries: int


def pending_rows(reply: Reply) -> list[PendingRow]:
    """Return what XPENDING lists; an entry that was given back is nobody's."""
    return [_pending_row(as_list(row)) for row in as_list(reply)]


def _pending_row(row: Sequence[Reply]) -> PendingRow:
    entry_id, consumer, idle_ms, deliveries = row
    name: str | None = as_text(consumer)
    if name in ("", NOBODY):
        return PendingRow(cast("bytes", entry_id), None, None, as_int(deliveries))
    return PendingRow(cast("bytes", entry_id), name, as_int(idle_ms), as_int(deliveries))


def entries_read(reply: Reply) -> list[Reply]:
    """Return the entries that a read of one stream answered with."""
    if isinstance(reply, ByStream):
        streams: list[Reply] = [entries for _, entries in reply.streams]
    elif isinstance(reply, Pairs):
        streams = reply.items[1::2]
    else:
        streams = [as_list(pair)[1] for pair in as_list(reply)]
    return [entry for entries in streams for entry in as_list(entries)]


def entry_parts(entry: Reply) -> tuple[bytes, list[bytes] | None]:
    """Return the id and the fields of an entry; no fields when it is deleted."""
    parts = as_list(entry)
    fields = parts[1]
    is_gone = fields is None or isinstance(fields, NoArray)
    return cast("bytes", parts[0]), None if is_gone else cast("list[bytes]", fields)


def message_of(
    entry_id: bytes,
    fields: list[bytes] | None,
    delivery_count: int | None = None,
    row: PendingRow | None = None,
) -> StreamMessage:
    """Return an entry as a message."""
    own_fields, origin = ((), None) if fields is None else split_origin(fields)
    return StreamMessage(
        id=entry_id.decode(),
        data=None if fields is None else entry_data(own_fields),
        timestamp=int(entry_id.partition(b"-")[0]) / 1000,
        delivery_count=row.deliveries if row is not None else delivery_count,
        consumer=None if row is None else row.consumer,
        idle_ms=None if row is None else row.idle_ms,
        is_deleted=fields is None,
        dead_letter=origin,
    )


def messages_of(entries: Sequence[Reply], delivery_count: int | None = None) -> list[StreamMessage]:
    """Return entries as messages; those of a claiming read say how often they were delivered
    before."""
    messages = []
    for entry in entries:
        count = delivery_count
        parts = as_list(entry)
        if len(parts) == 4:
            count = as_int(parts[3]) + 1
        messages.append(message_of(*entry_parts(entry), count))
    return messages
