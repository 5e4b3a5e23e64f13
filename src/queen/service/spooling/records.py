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

from queen.core.columns.headers import HEADERS, headers_bytes
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
    """Records of one partition and the append that they make: one, or several that nothing tells
    apart."""

    __slots__ = ("append", "records")

    def __init__(self, records: list[Record], append: Append) -> None:
        self.records = records
        self.append = append

    @property
    def key(self) -> Key:
        return self.append.queue, self.append.partition

    @property
    def was_moved(self) -> bool:
        """Whether it was written again because it had to wait."""
        return was_moved(self.records[0])


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
    return _append_of_items(_items_of(body))


def _items_of(body: bytes) -> _Items:
    try:
        items = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidFrame(f"the record does not decode: {error}") from None
    if len(items.ids) != len(items.payloads):
        # Gathered with others, each of them would have another's payload.
        raise InvalidFrame("the record has not one payload for each id")
    return items


def _append_of_items(items: _Items) -> Append:
    weight = sum(map(len, items.payloads)) + 64 * len(items.ids)
    if items.extras and HEADERS in items.extras:
        weight += headers_bytes(items.extras[HEADERS])
    append = Append(items.queue, items.partition, items.ids, items.payloads, weight, items.extras)
    return _tried(append, items.tried_head)


def decode_record(record: Record) -> Spooled:
    return Spooled([record], decode_append(record.kind, record.body))


class Gathering:
    """Makes appends of records, in order; those of one partition become one where that changes
    nothing, since the work is for each append.

    What was moved, what was tried before and what has more than a payload stays alone.
    """

    def __init__(self, *, apart: bool = False) -> None:
        self._apart = apart
        self.spooled: list[Spooled] = []
        # To which the next record of a partition may be added.
        self._open: dict[Key, _Items] = {}
        self._records: dict[Key, list[Record]] = {}

    def add(self, record: Record) -> None:
        """Add a record; raises `InvalidFrame` when it is none that can be read."""
        if self._apart or record.kind != KIND_ITEMS:
            self._add_alone(decode_record(record))
            return
        items = _items_of(record.body)
        if items.tried_head != _NEVER_TRIED or items.extras:
            self._add_alone(Spooled([record], _append_of_items(items)))
            return
        key = items.queue, items.partition
        gathered = self._open.get(key)
        if gathered is None:
            self._open[key], self._records[key] = items, [record]
            return
        gathered.ids += items.ids
        gathered.payloads += items.payloads
        self._records[key].append(record)

    def end(self) -> list[Spooled]:
        """Return all of it, each partition in its order."""
        for key in list(self._open):
            self._close(key)
        return self.spooled

    def _add_alone(self, spooled: Spooled) -> None:
        self._close(spooled.key)
        self.spooled.append(spooled)

    def _close(self, key: Key) -> None:
        items = self._open.pop(key, None)
        if items is not None:
            self.spooled.append(Spooled(self._records.pop(key), _append_of_items(items)))


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
