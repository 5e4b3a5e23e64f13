"""The format of spool files: what lies on the disk, and how it is read again.

All numbers are little-endian. A file is one header and records behind each other.

    file     0      4         6      8        16          24              32      48     60    64
             | QSPL | version | zero | number | first seq | created at ms | spool | zero | crc |
             | record | record | ...

    record   0      4     8      12     13      14     16    24      32
             | mark | crc | size | kind | flags | zero | seq | at ms | body, `size` bytes |

`number` orders the files of a spool. `seq` orders its records: it grows by one from record to
record, over all files. `first seq` says where a file begins, and so where every file before it
ends: records of an earlier file from there on do not count. That is how a file whose sync
failed is left behind (see `queen.spool.writer`).

`mark` is four bytes by which records are found again behind damage. Mark and the start value of
the checksum are made from the id of the spool and the number of the file. So the header is not
needed to read records, nothing that a producer can send looks like a record, and blocks that
the disk kept of some other file are not taken for records of this one.

The checksum of a record covers all of it behind the checksum, as it lies on the disk: when the
body is encrypted, it covers the encrypted body.

Kind 0 ends a file that was closed in order; it has no body, and its seq is that of the record
that would have been next. What the other kinds mean is their writer's affair.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

VERSION = 1
HEADER_BYTES = 64
RECORD_HEADER_BYTES = 32
# A longer one is not written, and a size above it is damage.
MAX_BODY_BYTES = 64 * 1024 * 1024

KIND_END = 0
KIND_FRAME = 1
KIND_JSON = 2
# Of a quarantine file: a record with its reason, and the note that it is gone.
KIND_REFUSED = 3
KIND_DROPPED = 4

FLAG_ENCRYPTED = 1

_MAGIC = b"QSPL"
_HEADER = struct.Struct("<4sHHQQQ16s12s")
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<IIIBBHQQ")
_MARK_AND_CRC = struct.Struct("<II")
_REST = struct.Struct("<IBBHQQ")
_CRC_COVERS_FROM = _MARK_AND_CRC.size


class Record(msgspec.Struct, gc=False):
    seq: int
    kind: int
    flags: int
    at_ms: int
    body: bytes


class FileKey(NamedTuple):
    """What distinguishes the records of one file from everything else."""

    mark: int
    seed: int

    @property
    def mark_bytes(self) -> bytes:
        return self.mark.to_bytes(4, "little")


def key_of(spool: bytes, number: int) -> FileKey:
    digest = hashlib.sha256(b"queen spool file" + spool + number.to_bytes(8, "little")).digest()
    # Never zero: zeros are what a disk shows that has lost something.
    return FileKey(int.from_bytes(digest[:4]) | 1, int.from_bytes(digest[4:8]))


class FileHeader(NamedTuple):
    version: int
    number: int
    first_seq: int
    created_ms: int
    spool: bytes


def pack_header(number: int, first_seq: int, created_ms: int, spool: bytes) -> bytes:
    fields = _HEADER.pack(_MAGIC, VERSION, 0, number, first_seq, created_ms, spool, bytes(12))
    return fields + _CRC.pack(crc32(fields))


def unpack_header(data: bytes) -> FileHeader | None:
    """Return the header of a file, or None when it is torn or damaged."""
    if len(data) < HEADER_BYTES:
        return None
    (crc,) = _CRC.unpack_from(data, _HEADER.size)
    if crc32(data[: _HEADER.size]) != crc:
        return None
    magic, version, _, number, first_seq, created_ms, spool, _ = _HEADER.unpack_from(data)
    return FileHeader(version, number, first_seq, created_ms, spool) if magic == _MAGIC else None


def pack_records(
    parts: list[bytes],
    key: FileKey,
    seq: int,
    at_ms: int,
    kind: int,
    flags: int,
    bodies: Sequence[bytes],
) -> int:
    """Add the bytes of some records to `parts`; return the seq that comes next."""
    mark, seed = key
    pack_front, pack_rest = _MARK_AND_CRC.pack, _REST.pack
    for body in bodies:
        rest = pack_rest(len(body), kind, flags, 0, seq, at_ms)
        parts += (pack_front(mark, crc32(body, crc32(rest, seed))), rest, body)
        seq += 1
    return seq


def pack_end(key: FileKey, next_seq: int, at_ms: int) -> bytes:
    parts: list[bytes] = []
    pack_records(parts, key, next_seq, at_ms, KIND_END, 0, (b"",))
    return b"".join(parts)


# Why `parse_records` stopped.
STOP_MORE = 0  # the last record is not there as a whole
STOP_LIMIT = 1  # there are as many as were asked for
STOP_DAMAGED = 2
STOP_END = 3  # the file ends in order, or the next one counts from here on
STOP_GAP = 4  # the next record is whole, and records before it are missing


class Parsed(NamedTuple):
    position: int
    stop: int
    # Of the record that comes next, and with `STOP_GAP` of the one that is not where it should.
    next_seq: int


def parse_records(  # noqa: PLR0911 - each is a way to stop
    data: bytes,
    position: int,
    key: FileKey,
    records: list[Record],
    *,
    next_seq: int,
    after: int,
    below: int,
    max_records: int,
    max_bytes: int,
) -> Parsed:
    """Add the records at `position` whose seq is above `after` and not above `below` - 1.

    Stops in front of what is not whole, and takes at least one record whatever its size.
    """
    mark, seed = key
    view = memoryview(data)
    unpack, make, keep = _RECORD.unpack_from, Record, records.append
    end = len(data)
    bytes_left = max_bytes
    while True:
        body_at = position + RECORD_HEADER_BYTES
        if body_at > end:
            return Parsed(position, STOP_MORE, next_seq)
        is_mark, crc, size, kind, flags, _, seq, at_ms = unpack(data, position)
        if is_mark != mark or size > MAX_BODY_BYTES:
            return Parsed(position, STOP_DAMAGED, next_seq)
        stop = body_at + size
        if stop > end:
            return Parsed(position, STOP_MORE, next_seq)
        if crc32(view[position + _CRC_COVERS_FROM : stop], seed) != crc:
            return Parsed(position, STOP_DAMAGED, next_seq)
        if seq >= below:
            return Parsed(position, STOP_END, next_seq)
        if seq > next_seq:
            return Parsed(position, STOP_GAP, seq)
        if kind == KIND_END:
            return Parsed(position, STOP_END, next_seq)
        if seq == next_seq:
            if seq > after:
                if bytes_left < size and records:
                    return Parsed(position, STOP_LIMIT, next_seq)
                bytes_left -= size
                keep(make(seq, kind, flags, at_ms, data[body_at:stop]))
                if len(records) >= max_records:
                    return Parsed(stop, STOP_LIMIT, next_seq + 1)
            next_seq += 1
        position = stop


def wanted_bytes(data: bytes, position: int) -> int:
    """Return how many bytes the record at `position` has, as far as it can be told."""
    if position + RECORD_HEADER_BYTES > len(data):
        return RECORD_HEADER_BYTES
    size: int = _RECORD.unpack_from(data, position)[2]
    return RECORD_HEADER_BYTES + min(size, MAX_BODY_BYTES)
