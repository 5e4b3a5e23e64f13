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
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import zstandard

from queen.core.payload import as_line
from queen.errors import InvalidFrame, PayloadTooLarge

CONTENT_TYPE = "application/vnd.queen.segment"
VERSION = 1
CODEC_RAW = 0
CODEC_ZSTD = 1
# Encrypted by the broker. Only in the database, never on the wire; see `queen.core.cipher`.
CODEC_ENCRYPTED = 2

MAX_MESSAGES = 10_000
MAX_RAW_BYTES = 32 * 1024 * 1024
# What a broker puts into one segment of its own accord: whoever reads a message decodes all of
# its segment.
MAX_BUILT_BYTES = 8 * 1024 * 1024
# What readers take from a broker. Brokers have stored pushes of any size as one segment.
MAX_STORED_BYTES = 256 * 1024 * 1024
# Many tiny messages are a lot of work too.
_RUN_MESSAGES = 1000
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
_compressor = zstandard.ZstdCompressor(level=1, write_checksum=False)
_decompressor = zstandard.ZstdDecompressor()
_extras_decoder = msgspec.json.Decoder(dict[str, list[Any]])


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

    def transaction_ids(self, start: int = 0, stop: int | None = None) -> list[str]:
        stop = self.count if stop is None else stop
        offsets = self.id_offsets[start : stop + 1]
        if self.ids.isascii():
            text = self.ids.decode("ascii")
            return [text[a:b] for a, b in pairwise(offsets)]
        return [self.ids[a:b].decode() for a, b in pairwise(offsets)]

    def id_bytes(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        stop = self.count if stop is None else stop
        ids = self.ids
        return [ids[a:b] for a, b in pairwise(self.id_offsets[start : stop + 1])]

    def payloads(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        stop = self.count if stop is None else stop
        data = self.data
        return [data[a : b - 1] for a, b in pairwise(self.payload_offsets[start : stop + 1])]

    def runs(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield [start, stop) in parts whose payloads are no more than so many bytes, or that are
        one message, however large."""
        offsets = self.payload_offsets
        while start < stop:
            within = bisect_right(offsets, offsets[start] + max_bytes, start + 1, stop + 1) - 1
            end = min(max(within, start + 1), start + _RUN_MESSAGES)
            yield start, end
            start = end

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
        id_offsets = array("i", accumulate(map(len, transaction_ids), initial=0))
        payload_offsets = array("i", accumulate(map(_plus_newline, map(len, payloads)), initial=0))
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
        packed = _compressor.compress(body)
        if len(packed) < len(body):
            return CODEC_ZSTD, packed
    return CODEC_RAW, body


def decompress(codec: int, stored: bytes) -> bytes:
    """Return the body of bytes that this broker stored itself."""
    if codec == CODEC_RAW:
        return stored
    if codec == CODEC_ZSTD:
        return _decompressor.decompress(stored)
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

    def segment(self) -> Segment:
        """Return the decoded columns; the body must be what the header says it is."""
        segment = decode_body(self._raw_body())
        if segment.count != self.count:
            raise InvalidFrame(f"body holds {segment.count} messages, the header says {self.count}")
        return segment

    def _raw_body(self) -> bytes:
        if self.codec == CODEC_RAW:
            return self.body
        try:
            # The size is read from the zstd header first: what would not fit is never inflated.
            size = zstandard.frame_content_size(self.body)
            if size != self.raw_bytes:
                raise InvalidFrame(f"body inflates to {size} bytes, not {self.raw_bytes}")
            return _decompressor.decompress(self.body, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise InvalidFrame(f"body does not decompress: {error}") from None


def encode_frame(
    queue: str,
    partition: str,
    transaction_ids: Sequence[str],
    payloads: Sequence[bytes],
    extras: Extras | None = None,
) -> bytes:
    """Return messages as one frame ready to be pushed."""
    ids = [transaction_id.encode() for transaction_id in transaction_ids]
    body = encode_body(segment_of(ids, [as_line(payload) for payload in payloads], extras))
    codec, stored = compress(body)
    return pack_frame(Frame(queue, partition, len(payloads), codec, len(body), stored))


def pack_frame(frame: Frame) -> bytes:
    queue, partition = frame.queue.encode(), frame.partition.encode()
    header = _HEADER.pack(
        _MAGIC,
        VERSION,
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
    """Return the size of a stored body before compression."""
    return len(stored) if codec == CODEC_RAW else int(zstandard.frame_content_size(stored))


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


def unpack_frames(data: bytes, max_raw_bytes: int = MAX_RAW_BYTES) -> Iterator[Frame]:
    """Yield the frames of a request in order; raises `InvalidFrame` at the first bad one."""
    position, index = 0, 0
    while position < len(data):
        try:
            frame, position = _unpack_frame(data, position, max_raw_bytes)
        except InvalidFrame as error:
            raise InvalidFrame(f"frame {index}: {error.message}") from None
        yield frame
        index += 1


def _unpack_frame(data: bytes, start: int, max_raw_bytes: int) -> tuple[Frame, int]:
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
    _check_header(magic, version, codec, zero, count, raw_bytes, body_size)
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
    frame = Frame(
        queue, partition, count, codec, raw_bytes, body, base_offset, created_at_us, partition_id
    )
    return frame, end


def _check_header(
    magic: bytes, version: int, codec: int, zero: int, count: int, raw_bytes: int, body_size: int
) -> None:
    if magic != _MAGIC:
        raise InvalidFrame("does not start with QSEG")
    if version != VERSION or zero != 0:
        raise InvalidFrame(f"version {version} is not known, this server speaks {VERSION}")
    if codec not in (CODEC_RAW, CODEC_ZSTD):
        raise InvalidFrame(f"codec {codec} is not known")
    if not 0 < count <= MAX_MESSAGES:
        raise InvalidFrame(f"count {count} is not between 1 and {MAX_MESSAGES}")
    if codec == CODEC_RAW and raw_bytes != body_size:
        raise InvalidFrame(f"raw size {raw_bytes} and body size {body_size} differ")
