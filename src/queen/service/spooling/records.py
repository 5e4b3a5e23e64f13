"""Records of the spool: one append each, as it would have gone to the log.

    kind 1   tried head i64 | frame      what came as a frame
    kind 5   msgpack                     what came as items

A record that was moved, because its queue does not take it yet, has `MOVED` added to its kind.

The tried head says where the partition ended when the append was first tried, if nobody knows
what became of that try; it is -1 otherwise. Whoever drains the record looks from there on
whether it is stored.
"""

from __future__ import annotations

import struct

import msgspec

from queen.core.frame import Frame, pack_frame, raw_size, unpack_frames
from queen.errors import InvalidFrame, QueenError
from queen.service.log.append import Append
from queen.service.spooling.keys import Key
from queen.spool.disk.format import KIND_FRAME, Record

KIND_ITEMS = 5
MOVED = 0x20

_NEVER_TRIED = -1
_TRIED = struct.Struct("<q")


class _Items(msgspec.Struct, array_like=True):
    queue: str
    partition: str
    ids: list[bytes]
    payloads: list[bytes]
    tried_head: int = _NEVER_TRIED
    extras: dict[str, list[str | None]] | None = None


class _Address(msgspec.Struct, array_like=True):
    """The beginning of the same."""

    queue: str
    partition: str


_decoder = msgspec.msgpack.Decoder(_Items)
_address_decoder = msgspec.msgpack.Decoder(_Address)
_encode = msgspec.msgpack.Encoder().encode


class Spooled:
    """A record and the append that it holds."""

    __slots__ = ("append", "record")

    def __init__(self, record: Record, append: Append) -> None:
        self.record = record
        self.append = append

    @property
    def key(self) -> Key:
        return self.append.queue, self.append.partition


def kind_of(append: Append) -> int:
    return KIND_FRAME if append.payloads is None else KIND_ITEMS


def encode_append(append: Append) -> bytes:
    """Return the body of a record; its kind is `kind_of` the append."""
    tried = _NEVER_TRIED if append.first_try_head is None else append.first_try_head
    if append.payloads is None:
        return _TRIED.pack(tried) + _frame_of(append)
    extras = None if not append.extras else {k: list(v) for k, v in append.extras.items()}
    ids, payloads = list(append.ids), list(map(bytes, append.payloads))
    return _encode(_Items(append.queue, append.partition, ids, payloads, tried, extras))


def decode_append(kind: int, body: bytes) -> Append:
    """Return the append of a record; raises `InvalidFrame` when it is none."""
    if kind & ~MOVED == KIND_FRAME:
        return _append_of_frame(body)
    if kind & ~MOVED != KIND_ITEMS:
        raise InvalidFrame(f"records of kind {kind} are not known")
    try:
        items = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidFrame(f"the record does not decode: {error}") from None
    weight = sum(map(len, items.payloads)) + 64 * len(items.ids)
    append = Append(items.queue, items.partition, items.ids, items.payloads, weight, items.extras)
    return _tried(append, items.tried_head)


def decode_record(record: Record) -> Spooled:
    return Spooled(record, decode_append(record.kind, record.body))


def key_of_record(record: Record) -> Key:
    """Return where a record belongs, and look at nothing else if possible."""
    if record.kind & ~MOVED != KIND_ITEMS:
        return decode_record(record).key
    try:
        address = _address_decoder.decode(record.body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidFrame(f"the record does not decode: {error}") from None
    return address.queue, address.partition


def was_moved(record: Record) -> bool:
    return bool(record.kind & MOVED)


def _frame_of(append: Append) -> bytes:
    assert append.encoded is not None
    codec, body = append.encoded
    return pack_frame(
        Frame(append.queue, append.partition, len(append), codec, raw_size(codec, body), body)
    )


def _append_of_frame(body: bytes) -> Append:
    if len(body) < _TRIED.size:
        raise InvalidFrame("the record is too short")
    (tried,) = _TRIED.unpack_from(body)
    try:
        (frame,) = unpack_frames(body[_TRIED.size :])
        segment = frame.segment()
    except ValueError:
        raise InvalidFrame("the record does not hold one frame") from None
    except QueenError as error:
        raise InvalidFrame(error.message) from None
    ids = segment.id_bytes()
    append = Append(
        frame.queue, frame.partition, ids, None, frame.raw_bytes, segment.extras, segment
    )
    append.encoded = (frame.codec, frame.body)
    return _tried(append, tried)


def _tried(append: Append, head: int) -> Append:
    append.first_try_head = None if head == _NEVER_TRIED else head
    return append
