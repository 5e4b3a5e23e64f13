"""The segment: how messages lie in the database and travel in bulk.

A **body** holds the messages of one segment, column by column, laid out as Arrow lays out
strings: int32 offsets and bytes. All numbers are little-endian.

    body   0        4          8           12           16
           | count  | ids size | data size | extras size |
           | id offsets      int32[count + 1]            |  id i is ids[o[i] : o[i+1]]
           | payload offsets int32[count + 1]            |  payload i is data[o[i] : o[i+1]]
           | ids: UTF-8, one after the other             |
           | data: JSON, each payload ends with one "\\n" |
           | extras: nothing, or one JSON object         |  {"traceId": [null, "…", …], …}
                                                            {"headers": [null, "{\\"k\\":…}", …]}

The payload column is newline-delimited JSON, so all payloads of a segment are validated, or
parsed, by one call, and still each can be sliced out. Rare columns live in `extras`.

A **frame** is a body with a header that says where it belongs. Frames stand one after the
other in a request or an answer, `Content-Type: application/vnd.queen.segment`.

    frame  | "QSEG" | version u8 | codec u8 | zero u16 |
           | count u32 | raw size u32 | body size u32 | crc32 u32 |
           | queue size u16 | partition size u16 |
           | base offset i64 | created at i64, µs since 1970 | partition i64 |
           | queue name | partition name | body, encoded by the codec |

In a push, what stands as base offset, time and partition is not looked at: the broker assigns
them. Codec 0 is the body as it is, codec 1 is one zstd frame whose header carries the raw
size. The checksum covers the whole frame, with zero in its own place.

Versions 2 and 3 are joined frames, several small segments in one, sent to readers who ask for
them; see `queen.wire.frames.joined_frame`.
"""

from __future__ import annotations

import struct
import threading
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
import zstandard

from queen.core.columns.headers import HEADERS, headers_bytes
from queen.core.payload import as_line
from queen.errors import InvalidFrame, PayloadTooLarge

CONTENT_TYPE = "application/vnd.queen.segment"
VERSION = 1
# Several segments in one; only in answers, and only to those who say that they know it.
JOINED_VERSION = 2
LAID_VERSION = 3
CODEC_RAW = 0
CODEC_ZSTD = 1
# Encrypted by the broker. Only in the database, never on the wire; see `queen.core.cipher`.
CODEC_ENCRYPTED = 2
# Added to the codec of a body in the database that was merged of several: see
# `queen.service.merged.stretches`. A broker that does not know it refuses to read such a body.
CODEC_MERGED = 16

MAX_MESSAGES = 10_000
MAX_RAW_BYTES = 32 * 1024 * 1024
# What a broker puts into one segment of its own accord: whoever reads a message decodes all of
# its segment.
MAX_BUILT_BYTES = 8 * 1024 * 1024
# What readers take from a broker. Brokers have stored pushes of any size as one segment.
MAX_STORED_BYTES = 256 * 1024 * 1024
# Many tiny messages are a lot of work too.
_RUN_MESSAGES = 1000
# Ids of so many messages, equally long, are cut out by a format that is kept.
_EVEN_MESSAGES = 1000
# Below this zstd costs more time than the bytes it saves are worth.
_WORTH_COMPRESSING_BYTES = 512

_MAGIC = b"QSEG"
_HEADER = struct.Struct("<4sBBHIIIIHHqqq")
HEADER_BYTES = _HEADER.size
_CRC = struct.Struct("<I")
_CRC_AT = struct.calcsize("<4sBBHIII")
_CRC_END = _CRC_AT + _CRC.size
_BODY_HEADER = struct.Struct("<IIII")

Extras = Mapping[str, Sequence[Any]]

_plus_newline = (1).__add__


class _Zstd(threading.local):
    """What packs and unpacks in one thread: it must not be used in two at once."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()
_extras_decoder = msgspec.json.Decoder(dict[str, list[Any]])


@lru_cache(maxsize=64)
def _even_offsets(width: int, count: int) -> array[int]:
    return array("i", range(0, width * count + 1, width) if width else [0] * (count + 1))


@lru_cache(maxsize=64)
def _even_ids(width: int, count: int) -> struct.Struct:
    return struct.Struct(f"{width}s" * count)


class Segment:
    """The decoded columns of one body. Slices are made when asked for, not before."""

    __slots__ = ("count", "data", "extras", "id_offsets", "ids", "payload_offsets", "size_bytes")

    def __init__(
        self,
        count: int,
        id_offsets: array[int],
        payload_offsets: array[int],
        ids: bytes,
        data: bytes,
        extras: Extras,
    ) -> None:
        self.count = count
        self.id_offsets = id_offsets
        self.payload_offsets = payload_offsets
        self.ids = ids
        self.data = data
        self.extras = extras
        self.size_bytes = 600 + 8 * count + len(ids) + len(data)
        if HEADERS in extras:
            self.size_bytes += headers_bytes(extras[HEADERS]) + 60 * count

    @property
    def body_bytes(self) -> int:
        """How long its body is, without rare columns."""
        return _BODY_HEADER.size + 8 * (self.count + 1) + len(self.ids) + len(self.data)

    def transaction_ids(self, start: int = 0, stop: int | None = None) -> list[str]:
        stop = self.count if stop is None else stop
        offsets = self.id_offsets[start : stop + 1]
        if self.ids.isascii():
            text = self.ids.decode("ascii")
            return [text[a:b] for a, b in pairwise(offsets)]
        return [self.ids[a:b].decode() for a, b in pairwise(offsets)]

    def id_bytes(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        stop = self.count if stop is None else stop
        ids, count = self.ids, self.count
        if start == 0 and stop == count and 1 < count <= _EVEN_MESSAGES:
            width = len(ids) // count
            if self.id_offsets == _even_offsets(width, count):
                # As ids mostly are: all are cut out at once.
                return list(_even_ids(width, count).unpack(ids))
        return [ids[a:b] for a, b in pairwise(self.id_offsets[start : stop + 1])]

    def payloads(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        stop = self.count if stop is None else stop
        data, offsets = self.data, self.payload_offsets
        if start >= stop:
            return []
        payloads = data[offsets[start] : offsets[stop] - 1].split(b"\n")
        if len(payloads) != stop - start:
            # A payload has line breaks, which none of ours has.
            return [data[a : b - 1] for a, b in pairwise(offsets[start : stop + 1])]
        return payloads

    def runs(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield [start, stop) in parts whose payloads are no more than so many bytes, or that are
        one message, however large."""
        offsets = self.payload_offsets
        while start < stop:
            within = bisect_right(offsets, offsets[start] + max_bytes, start + 1, stop + 1) - 1
            end = min(max(within, start + 1), start + _RUN_MESSAGES)
            yield start, end
            start = end

    def cut(self, start: int, stop: int) -> Segment:
        """Return the messages of [start, stop) as a segment of their own."""
        ids, data = self.id_offsets[start : stop + 1], self.payload_offsets[start : stop + 1]
        if stop - start == 1 and not self.extras:
            return Segment(
                1,
                array("i", (0, ids[1] - ids[0])),
                array("i", (0, data[1] - data[0])),
                self.ids[ids[0] : ids[1]],
                self.data[data[0] : data[1]],
                {},
            )
        return Segment(
            stop - start,
            array("i", (offset - ids[0] for offset in ids)),
            array("i", (offset - data[0] for offset in data)),
            self.ids[ids[0] : ids[-1]],
            self.data[data[0] : data[-1]],
            {name: column[start:stop] for name, column in self.extras.items()},
        )

    def column(self, name: str) -> Sequence[Any] | None:
        """Return a rare column, or None when no message of the segment has a value."""
        return self.extras.get(name)


def segment_of(
    transaction_ids: Sequence[bytes], payloads: Sequence[bytes], extras: Extras | None = None
) -> Segment:
    """Return the columns of some messages. Payloads are trusted to be JSON on one line."""
    if len(payloads) == 1:
        # Lone messages are common and need no running sums.
        ids, data = transaction_ids[0], bytes(payloads[0]) + b"\n"
        id_offsets, payload_offsets = array("i", (0, len(ids))), array("i", (0, len(data)))
    else:
        # An array of a list is made faster than one of an iterator.
        id_offsets = array("i", list(accumulate(map(len, transaction_ids), initial=0)))
        ends, end = [0], 0
        for payload in payloads:
            end += len(payload) + 1
            ends.append(end)
        payload_offsets = array("i", ends)
        ids = b"".join(transaction_ids)
        data = b"\n".join(payloads) + b"\n" if payloads else b""
    return Segment(len(payloads), id_offsets, payload_offsets, ids, data, extras or {})


def encode_body(segment: Segment) -> bytes:
    extras = msgspec.json.encode(segment.extras) if segment.extras else b""
    header = _BODY_HEADER.pack(segment.count, len(segment.ids), len(segment.data), len(extras))
    return b"".join(
        (header, segment.id_offsets, segment.payload_offsets, segment.ids, segment.data, extras)
    )


def compress(body: bytes) -> tuple[int, bytes]:
    """Return codec and bytes to store: compressed only when that makes them smaller."""
    if len(body) >= _WORTH_COMPRESSING_BYTES:
        packed = _zstd.compressor.compress(body)
        if len(packed) < len(body):
            return CODEC_ZSTD, packed
    return CODEC_RAW, body


def decompress(codec: int, stored: bytes) -> bytes:
    """Return the body of bytes that this broker stored itself."""
    if codec == CODEC_RAW:
        return stored
    if codec == CODEC_ZSTD:
        return _zstd.decompressor.decompress(stored)
    raise InvalidFrame(f"codec {codec} is not known")


def stored_segment(codec: int, stored: bytes) -> Segment:
    """Return the columns of a body as it lies in the database."""
    return decode_body(decompress(codec, stored))


def decode_body(body: bytes) -> Segment:
    """Return the columns of a body; raises `InvalidFrame` when its sizes contradict each other."""
    if len(body) < _BODY_HEADER.size:
        raise InvalidFrame("body is shorter than its header")
    count, ids_size, data_size, extras_size = _BODY_HEADER.unpack_from(body)
    table = 4 * (count + 1)
    ids_at = _BODY_HEADER.size + 2 * table
    data_at = ids_at + ids_size
    extras_at = data_at + data_size
    if len(body) != extras_at + extras_size:
        raise InvalidFrame(f"body has {len(body)} bytes, its header says {extras_at + extras_size}")
    id_offsets = array("i", body[_BODY_HEADER.size : _BODY_HEADER.size + table])
    payload_offsets = array("i", body[ids_at - table : ids_at])
    extras = _decode_extras(body[extras_at:], count) if extras_size else {}
    return Segment(
        count, id_offsets, payload_offsets, body[ids_at:data_at], body[data_at:extras_at], extras
    )


def _decode_extras(raw: bytes, count: int) -> Extras:
    try:
        extras = _extras_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidFrame(f"extras: {error}") from None
    for name, column in extras.items():
        if len(column) != count:
            raise InvalidFrame(f"extras: column {name!r} has {len(column)} values, not {count}")
    return extras


class Stretch(NamedTuple):
    """The messages of one segment, as they stand in a frame."""

    partition: str
    partition_id: int
    base_offset: int
    created_at_us: int
    messages: int


class Stretches(NamedTuple):
    """Which messages of a frame were stored together: their segments in order, by columns."""

    partitions: Sequence[str]
    partition_ids: Sequence[int]
    base_offsets: Sequence[int]
    times_us: Sequence[int]
    counts: Sequence[int]

    def rows(self) -> Iterator[Stretch]:
        return map(Stretch._make, zip(*self, strict=True))

    def last(self) -> Stretch:
        return Stretch._make(column[-1] for column in self)


class Frame:
    """One frame as it arrived or is to be sent; the body is still encoded."""

    __slots__ = (
        "base_offset",
        "body",
        "codec",
        "count",
        "created_at_us",
        "partition",
        "partition_id",
        "queue",
        "raw_bytes",
    )

    def __init__(
        self,
        queue: str,
        partition: str,
        count: int,
        codec: int,
        raw_bytes: int,
        body: bytes,
        base_offset: int = 0,
        created_at_us: int = 0,
        partition_id: int = 0,
    ) -> None:
        self.queue = queue
        self.partition = partition
        self.count = count
        self.codec = codec
        self.raw_bytes = raw_bytes
        self.body = body
        self.base_offset = base_offset
        self.created_at_us = created_at_us
        self.partition_id = partition_id

    @property
    def goes_on(self) -> bool:
        """Whether what follows may stand before it in the order of time."""
        return False

    def segment(self) -> Segment:
        """Return the decoded columns; the body must be what the header says it is."""
        segment = decode_body(self.raw_body())
        if segment.count != self.count:
            raise InvalidFrame(f"body holds {segment.count} messages, the header says {self.count}")
        return segment

    def parts(self) -> tuple[Segment, Stretches]:
        """Return the decoded columns, and which of the messages were stored together."""
        place = ((self.partition,), (self.partition_id,), (self.base_offset,))
        return self.segment(), Stretches(*place, (self.created_at_us,), (self.count,))

    def raw_body(self) -> bytes:
        """Return the body without its codec."""
        return self.body if self.codec == CODEC_RAW else inflate(self.body, self.raw_bytes)


def inflate(stored: bytes, raw_bytes: int) -> bytes:
    """Return what zstd has made smaller; it must be of the size that it should be."""
    try:
        # The size is read from the zstd header first: what would not fit is never inflated.
        size = zstandard.frame_content_size(stored)
        if size != raw_bytes:
            raise InvalidFrame(f"body inflates to {size} bytes, not {raw_bytes}")
        return _zstd.decompressor.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidFrame(f"body does not decompress: {error}") from None


_KINDS = {VERSION: Frame}


def encode_frame(
    queue: str,
    partition: str,
    transaction_ids: Sequence[str],
    payloads: Sequence[bytes],
    extras: Extras | None = None,
) -> bytes:
    """Return messages as one frame ready to be pushed."""
    body = encode_body(_segment_of_texts(transaction_ids, payloads, extras))
    codec, stored = compress(body)
    return pack_frame(Frame(queue, partition, len(payloads), codec, len(body), stored))


def _segment_of_texts(
    transaction_ids: Sequence[str], payloads: Sequence[bytes], extras: Extras | None
) -> Segment:
    text, data = "".join(transaction_ids), b"\n".join(payloads) + b"\n"
    if not text.isascii() or data.count(b"\n") != len(payloads) or b"\r" in data:
        ids = [transaction_id.encode() for transaction_id in transaction_ids]
        return segment_of(ids, [as_line(payload) for payload in payloads], extras)
    # As nearly always: no message has to be looked at by itself.
    id_offsets = array("i", accumulate(map(len, transaction_ids), initial=0))
    payload_offsets = array("i", accumulate(map(_plus_newline, map(len, payloads)), initial=0))
    return Segment(
        len(payloads), id_offsets, payload_offsets, text.encode("ascii"), data, extras or {}
    )


def pack_frame(frame: Frame, version: int = VERSION) -> bytes:
    queue, partition = frame.queue.encode(), frame.partition.encode()
    header = _HEADER.pack(
        _MAGIC,
        version,
        frame.codec,
        0,
        frame.count,
        frame.raw_bytes,
        len(frame.body),
        0,
        len(queue),
        len(partition),
        frame.base_offset,
        frame.created_at_us,
        frame.partition_id,
    )
    crc = _CRC.pack(_checksum(header, queue + partition, frame.body))
    return b"".join((header[:_CRC_AT], crc, header[_CRC_END:], queue, partition, frame.body))


def _checksum(header: bytes, names: bytes, body: bytes) -> int:
    """Return the checksum of a frame whose header has zero in place of it."""
    return zlib.crc32(body, zlib.crc32(names, zlib.crc32(header)))


def raw_size(codec: int, stored: bytes) -> int:
    """Return the size of a stored body before compression; raises when it does not say it."""
    size = len(stored) if codec == CODEC_RAW else int(zstandard.frame_content_size(stored))
    if size < 0:
        raise InvalidFrame("its body does not say its size")
    return size


def frame_size(start: bytes | bytearray | memoryview) -> int | None:
    """Return the size of the frame that begins here; None while its header is incomplete."""
    if len(start) < HEADER_BYTES:
        return None
    fields = _HEADER.unpack_from(start)
    body_size, queue_size, partition_size = fields[6], fields[8], fields[9]
    return int(HEADER_BYTES + queue_size + partition_size + body_size)


def stored_frames(data: bytes) -> Iterator[Frame]:
    """Yield the frames that a broker sent, in order."""
    return unpack_frames(data, MAX_STORED_BYTES)


def unpack_frames(
    data: bytes, max_raw_bytes: int = MAX_RAW_BYTES, kinds: Mapping[int, type[Frame]] | None = None
) -> Iterator[Frame]:
    """Yield the frames of a request in order; raises `InvalidFrame` at the first bad one.

    `kinds` are the versions that are taken, if not the first alone.
    """
    position, index = 0, 0
    while position < len(data):
        try:
            frame, position = _unpack_frame(data, position, max_raw_bytes, kinds or _KINDS)
        except InvalidFrame as error:
            raise InvalidFrame(f"frame {index}: {error.message}") from None
        yield frame
        index += 1


def _unpack_frame(
    data: bytes, start: int, max_raw_bytes: int, kinds: Mapping[int, type[Frame]]
) -> tuple[Frame, int]:
    if len(data) - start < HEADER_BYTES:
        raise InvalidFrame("truncated inside its header")
    (
        magic,
        version,
        codec,
        zero,
        count,
        raw_bytes,
        body_size,
        crc,
        queue_size,
        partition_size,
        base_offset,
        created_at_us,
        partition_id,
    ) = _HEADER.unpack_from(data, start)
    if magic != _MAGIC:
        raise InvalidFrame("does not start with QSEG")
    kind = kinds.get(version)
    if kind is None or zero != 0:
        raise InvalidFrame(f"version {version} is not known, this server speaks {VERSION}")
    _check_header(codec, count, raw_bytes, body_size)
    if raw_bytes > max_raw_bytes:
        raise PayloadTooLarge(f"a frame inflates to {raw_bytes} bytes, over {max_raw_bytes}")
    names_at = start + HEADER_BYTES
    body_at = names_at + queue_size + partition_size
    end = body_at + body_size
    if end > len(data):
        raise InvalidFrame(f"truncated: {end - len(data)} bytes are missing")
    body = data[body_at:end]
    header = data[start : start + _CRC_AT] + bytes(4) + data[start + _CRC_END : names_at]
    if _checksum(header, data[names_at:body_at], body) != crc:
        raise InvalidFrame("damaged: the checksum does not match")
    try:
        queue = data[names_at : names_at + queue_size].decode()
        partition = data[names_at + queue_size : body_at].decode()
    except UnicodeDecodeError:
        raise InvalidFrame("a name is not valid UTF-8") from None
    frame = kind(
        queue, partition, count, codec, raw_bytes, body, base_offset, created_at_us, partition_id
    )
    return frame, end


def _check_header(codec: int, count: int, raw_bytes: int, body_size: int) -> None:
    if codec not in (CODEC_RAW, CODEC_ZSTD):
        raise InvalidFrame(f"codec {codec} is not known")
    if not 0 < count <= MAX_MESSAGES:
        raise InvalidFrame(f"count {count} is not between 1 and {MAX_MESSAGES}")
    if codec == CODEC_RAW and raw_bytes != body_size:
        raise InvalidFrame(f"raw size {raw_bytes} and body size {body_size} differ")
