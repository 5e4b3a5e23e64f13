"""One file that is being written: bytes go to its end, or it stays as it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from queen.errors import QueenError, SpoolFailed, SpoolFull
from queen.spool.disk.aside import Aside
from queen.spool.disk.files import SpoolFile, SpoolFiles
from queen.spool.disk.format import (
    HEADER_BYTES,
    Record,
    key_of,
    pack_end,
    pack_header,
    pack_records,
)
from queen.spool.disk.operations import FileOperations, write_all
from queen.spool.disk.scan import FileScan

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_COPY_RECORDS = 1000
_COPY_BYTES = 1 << 20


class OutputFile:
    """A file of this process, open for appending."""

    def __init__(self, file: SpoolFile, descriptor: int, created_ms: int) -> None:
        self.file = file
        self.descriptor = descriptor
        self.created_ms = created_ms
        self.written_bytes = HEADER_BYTES
        self.next_seq = file.first_seq
        # Up to here, and up to this seq, the disk has it.
        self.synced_bytes = HEADER_BYTES
        self.synced_seq = file.first_seq
        # Bytes lie behind the last whole record, or the file was closed: it gets no more.
        self.is_finished = False

    @property
    def records(self) -> int:
        return self.next_seq - self.file.first_seq

    def write(self, operations: FileOperations, data: bytes, next_seq: int) -> None:
        """Append whole records, or raise with the file as it was before."""
        try:
            write_all(operations, self.descriptor, data)
        except OSError as error:
            raise self._undo(operations, error) from error
        self.next_seq = next_seq
        self.written_bytes += len(data)
        self.file.next_seq = next_seq
        self.file.written_bytes = self.written_bytes

    def finish(self, operations: FileOperations, at_ms: int) -> None:
        """End the file in order. Without room for that it just has no end."""
        if not self.is_finished:
            end = pack_end(self.file.key, self.next_seq, at_ms)
            with suppress(SpoolFull, SpoolFailed):
                self.write(operations, end, self.next_seq)
            self.is_finished = True

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _undo(self, operations: FileOperations, error: OSError) -> QueenError:
        try:
            operations.truncate(self.descriptor, self.written_bytes)
        except OSError as failure:
            # Readers stop before the rest, in this process by its length, later by the first
            # seq of the next file.
            self.is_finished = True
            return SpoolFailed(f"the spool file cannot be repaired: {failure}")
        if error.errno not in _NO_SPACE:
            self.is_finished = True
            return SpoolFailed(f"the spool file cannot be written: {error}")
        return SpoolFull(f"the disk of the spool has no room: {error}")


class Leftover(NamedTuple):
    """What a file whose sync failed has behind its last sync. The next file gets it."""

    file: SpoolFile
    offset: int
    first_seq: int
    next_seq: int


def create_output(
    files: SpoolFiles,
    number: int,
    next_seq: int,
    created_ms: int,
    leftovers: Sequence[Leftover],
    aside: Aside,
    operations: FileOperations,
) -> tuple[OutputFile, list[range]]:
    """Make the next file of a spool, beginning with what files before it have left.

    Return the file and the seqs that could not be read any more. A file that cannot be made as
    a whole is not made.
    """
    # What was drained before it was synced is gone, and nobody needs it.
    leftovers = [leftover for leftover in leftovers if leftover.file.path.exists()]
    first_seq = min((leftover.first_seq for leftover in leftovers), default=next_seq)
    path = files.path_of(number)
    try:
        descriptor = operations.create(path)
    except OSError as error:
        raise refusal_of(error) from error
    file = SpoolFile(path, number, key_of(files.spool, number), first_seq)
    output = OutputFile(file, descriptor, created_ms)
    try:
        header = pack_header(number, first_seq, created_ms, files.spool)
        write_all(operations, descriptor, header)
        file.written_bytes = HEADER_BYTES
        lost = _copy_leftovers(output, leftovers, aside, operations)
    except (OSError, SpoolFull, SpoolFailed) as error:
        output.close()
        with suppress(OSError):
            operations.remove(path)
        raise (refusal_of(error) if isinstance(error, OSError) else error) from error
    output.next_seq = file.next_seq = next_seq
    return output, lost


def refusal_of(error: OSError) -> QueenError:
    kind = SpoolFull if error.errno in _NO_SPACE else SpoolFailed
    return kind(f"no spool file can be made: {error}")


def _copy_leftovers(
    output: OutputFile, leftovers: Sequence[Leftover], aside: Aside, operations: FileOperations
) -> list[range]:
    lost: list[range] = []
    for leftover in leftovers:
        next_seq = leftover.first_seq
        for records in _read_leftover(leftover, aside, operations):
            parts: list[bytes] = []
            for record in records:
                if record.seq > next_seq:
                    lost.append(range(next_seq, record.seq))
                fields = (record.seq, record.at_ms, record.kind, record.flags, (record.body,))
                next_seq = pack_records(parts, output.file.key, *fields)
            output.write(operations, b"".join(parts), next_seq)
        if next_seq < leftover.next_seq:
            lost.append(range(next_seq, leftover.next_seq))
    return lost


def _read_leftover(
    leftover: Leftover, aside: Aside, operations: FileOperations
) -> Iterator[list[Record]]:
    """Yield what can still be read. The sums tell whether it is what was written."""
    scan = FileScan(leftover.file, aside, operations)
    scan.offset, scan.next_seq = leftover.offset, leftover.first_seq
    try:
        while records := scan.read(0, _COPY_RECORDS, _COPY_BYTES):
            yield records
    except SpoolFailed:
        # It stays where it is, for a later reader with more luck.
        leftover.file.may_be_removed = False
    finally:
        scan.close()
