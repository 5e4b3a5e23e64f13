"""What changes a stream, as bytes for a journal.

A journal record is a list of events, each a code and its arguments. Whoever replays the
records of a stream in their order has the same stream, except for the bodies of its entries.
Codes and arguments are stored: they may be added to, and never change.

    i   an id                     16 bytes, big-endian
    I   ids                       the same, joined
    n   a number of 64 bits       N   a list of them
    b   bytes or None
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from queen.streambroker.engine.state.packed_ids import join_ids, split_ids

if TYPE_CHECKING:
    from queen.streambroker.engine.state.stream import Stream

Event: TypeAlias = tuple[Any, ...]

ADD = 1
REMOVE = 2
TRIM = 3
TRIM_THESE = 4
SET_LAST_ID = 5
CREATE_GROUP = 6
MOVE_GROUP = 7
DROP_GROUP = 8
LIMIT_GROUP = 9
CREATE_CONSUMER = 10
DROP_CONSUMER = 11
DELIVER = 12
DELIVER_THESE = 13
ASSIGN = 14
ACKNOWLEDGE = 15
REMEMBER = 16
SET_MEMORY = 17
EXPIRE = 18
HOLD = 19
BEGIN = 20
RESET = 21
SKIP = 22
ADD_RUN = 23

_ARGUMENTS = {
    ADD: "innb",
    REMOVE: "I",
    TRIM: "nn",
    TRIM_THESE: "I",
    SET_LAST_ID: "ini",
    CREATE_GROUP: "bin",
    MOVE_GROUP: "bin",
    DROP_GROUP: "b",
    LIMIT_GROUP: "bn",
    CREATE_CONSUMER: "bbn",
    DROP_CONSUMER: "bbn",
    DELIVER: "bbnnn",
    DELIVER_THESE: "bbnI",
    ASSIGN: "bbINNn",
    ACKNOWLEDGE: "bI",
    REMEMBER: "bbin",
    SET_MEMORY: "nn",
    EXPIRE: "n",
    HOLD: "biI",
    BEGIN: "",
    RESET: "",
    SKIP: "n",
    ADD_RUN: "innnn",
}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[list[Any]])


_PACK: dict[str, Callable[[Any], Any]] = {
    "i": lambda entry_id: entry_id.to_bytes(16, "big"),
    "I": join_ids,
}
_UNPACK: dict[str, Callable[[Any], Any]] = {
    "i": lambda packed: int.from_bytes(packed, "big"),
    "I": split_ids,
}
# Where in the arguments of a code something is to be packed, and how.
_PACKED = {
    code: [(place, kind) for place, kind in enumerate(kinds, start=1) if kind in _PACK]
    for code, kinds in _ARGUMENTS.items()
}


def encode(events: Iterable[Event]) -> bytes:
    rows = []
    for event in events:
        if event[0] == ADD:
            rows.append([ADD, event[1].to_bytes(16, "big"), *event[2:]])
            continue
        row = list(event)
        for place, kind in _PACKED[row[0]]:
            row[place] = _PACK[kind](row[place])
        rows.append(row)
    return _encoder.encode(rows)


def decode(record: bytes) -> list[list[Any]]:
    rows = _decoder.decode(record)
    for row in rows:
        for place, kind in _PACKED[row[0]]:
            row[place] = _UNPACK[kind](row[place])
    return rows


def replay(stream: Stream, record: bytes) -> None:
    """Change a stream as the events of a record say."""
    for code, *arguments in decode(record):
        stream.apply(code, arguments)
