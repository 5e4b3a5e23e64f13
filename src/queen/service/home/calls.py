"""What fronts and their home say to each other, and how it is written.

    frame   | body size u32 | kind u8 | call u32 | body: msgpack, or nothing |

Messages travel as columns, not one by one: a large append as the segment that is stored, what was
popped as the bodies of its segments. Both ends are processes of one server and of one version, so
nothing here has to be understood by another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum
from typing import Any

import msgspec

from queen.core.cursor import AckResult, AckStatus
from queen.errors import QueenError

HEADER = struct.Struct("<IBI")


class Kind(IntEnum):
    # What a front sends.
    PUSH = 1
    POP = 2
    ACK = 3
    # The client of a pop has gone: whatever it brings goes back.
    LEFT = 4
    # The answer of a pop was written, and needs no memory any more.
    SENT = 5
    # Nobody reads the answer of a pop: its leases go back.
    BACK = 6
    # Something was changed at a front, in the words of `queen.service.signals`.
    WORD = 7
    PING = 8
    # What the home sends.
    HELLO = 20
    ANSWER = 21
    ERROR = 22
    PONG = 23
    # It ends: from now on a front serves by itself.
    LEAVING = 24


class PushedAppend(msgspec.Struct, array_like=True):
    """An append: either its ids and payloads, or the segment that it is stored as."""

    queue: str
    partition: str
    weight: int
    ids: list[bytes]
    payloads: list[bytes]
    extras: dict[str, list[str | None]] | None = None
    codec: int = 0
    stored: bytes = b""
    # The same before it was compressed.
    body: bytes = b""
    hashes: bytes = b""


class PushCall(msgspec.Struct, array_like=True):
    appends: list[PushedAppend]
    is_buffered: bool = False
    within_ms: float | None = None
    most: int | None = None


class Failure(msgspec.Struct, array_like=True):
    """An error: its class by its code, its message, and what else it says."""

    code: str
    message: str
    fields: dict[str, Any]


class AppendAnswer(msgspec.Struct, array_like=True):
    partition_id: int
    base_offset: int
    is_buffered: bool = False
    first_try_head: int | None = None
    # By index: where a message is that was stored before, and whether this flush stored it.
    repeats: dict[int, tuple[int, bool]] | None = None
    error: Failure | None = None


class PopCall(msgspec.Struct, array_like=True):
    queue: str
    group: str
    batch: int
    partitions: int
    auto_ack: bool
    waits: bool
    named: str | None
    mode: str
    starts_at: datetime | None
    timeout_s: float
    is_framed: bool
    consumer: str | None
    shared: bool | None = None


class GrantedSegment(msgspec.Struct, array_like=True):
    base_offset: int
    created_at: datetime
    body: bytes


class PopGrant(msgspec.Struct, array_like=True):
    partition_id: int
    partition: str
    queue_id: int
    queue: str
    priority: int
    group: str
    lease_id: bytes | None
    start: int
    stop: int
    epoch: int
    attempt: int
    seen: int
    skip: bytes
    failures: dict[int, int]
    lease_ms: int
    segments: list[GrantedSegment]


class CalledAck(msgspec.Struct, array_like=True):
    partition_id: int
    group: str
    group_id: int
    lease_id: bytes | None
    ids: list[str]
    # One for all, or one for each.
    statuses: list[AckStatus]
    errors: dict[str, str]
    delays_ms: dict[str, int]
    # Instead of ids: see `OffsetBatch`.
    spans: CalledSpans | None = None


class CalledSpans(msgspec.Struct, array_like=True):
    runs: list[tuple[int, int]]
    failed: dict[int, AckStatus]
    reasons: dict[int, str]
    asked_ms: dict[int, int]
    count: int


class AckAnswer(msgspec.Struct, array_like=True):
    # One for all, or one for each; none when there is an error.
    results: list[AckResult]
    all_done: bool
    error: Failure | None = None
    spans: SpansAnswer | None = None


class SpansAnswer(msgspec.Struct, array_like=True):
    results: dict[int, AckResult]
    outside: int
    is_over: bool


encode = msgspec.msgpack.Encoder().encode
push_decoder = msgspec.msgpack.Decoder(PushCall)
push_answer_decoder = msgspec.msgpack.Decoder(list[AppendAnswer])
pop_decoder = msgspec.msgpack.Decoder(PopCall)
pop_answer_decoder = msgspec.msgpack.Decoder(list[PopGrant])
ack_decoder = msgspec.msgpack.Decoder(list[CalledAck])
ack_answer_decoder = msgspec.msgpack.Decoder(list[AckAnswer])
failure_decoder = msgspec.msgpack.Decoder(Failure)


def failure_of(error: QueenError) -> Failure:
    return Failure(error.code, error.message, vars(error))


def error_of(failure: Failure) -> QueenError:
    """Return an error as the home raised it."""
    kind = _kinds().get(failure.code, QueenError)
    error = kind.__new__(kind)
    # Their own constructors make the message anew, from parts of it.
    Exception.__init__(error, failure.message)
    vars(error).update(failure.fields)
    return error


_known: dict[str, type[QueenError]] = {}


def _kinds() -> dict[str, type[QueenError]]:
    if not _known:
        _known.update((kind.code, kind) for kind in _tree(QueenError))
    return _known


def _tree(kind: type[QueenError]) -> Iterator[type[QueenError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)
