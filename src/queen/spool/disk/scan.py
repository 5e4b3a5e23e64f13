"""Reading one file from its start to its end, past whatever is damaged in it."""

from __future__ import annotations

import os

from queen.errors import SpoolFailed
from queen.spool.disk.aside import Aside
from queen.spool.disk.files import LIFE_SHIFT, SpoolFile
from queen.spool.disk.format import (
    HEADER_BYTES,
    STOP_DAMAGED,
    STOP_END,
    STOP_GAP,
    STOP_LIMIT,
    STOP_MORE,
    Parsed,
    Record,
    parse_records,
    wanted_bytes,
)
from queen.spool.disk.operations import FileOperations

_CHUNK_BYTES = 1 << 20
_MARK_BYTES = 4


class FileScan:
    """A position in one file. It may stand at the end of a file that grows, and go on later."""

    def __init__(self, file: SpoolFile, aside: Aside, operations: FileOperations) -> None:
        self.file = file
        self.offset = HEADER_BYTES
        self.next_seq = file.first_seq
        # Nothing follows: the file was closed, or later files have what comes next.
        self.has_ended = False
        # Where what follows the last whole record is damaged up to the end of the file.
        self.torn_at: int | None = None
        self._aside = aside
        self._operations = operations
        self._buffer = b""
        self._buffer_at = 0
        if file.is_of_later_version:
            raise SpoolFailed(f"{file.path} was written by a later version; use that one to drain")
        self._descriptor = os.open(file.path, os.O_RDONLY)
        if not file.has_good_header:
            self._tell_header()

    def _tell_header(self) -> None:
        size_bytes = self._readable_bytes()
        if size_bytes >= HEADER_BYTES:
            reason = "the header of the file is damaged"
            self._aside.keep(self.file, 0, HEADER_BYTES, "damaged", reason)
        elif size_bytes > 0:
            reason = "the file ends in its header; no record was written"
            self._aside.keep(self.file, 0, size_bytes, "torn", reason)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, after: int, max_records: int, max_bytes: int) -> list[Record]:
        """Return the next records above `after`; none at the end of what is written so far."""
        records: list[Record] = []
        while not self.has_ended:
            limit = self.file.limit
            bound = self._readable_bytes()
            if self.next_seq >= limit:
                self.has_ended = True
            elif self.offset >= bound or self._advance(
                records, bound, limit, after, max_records, max_bytes
            ):
                break
        return records

    def _readable_bytes(self) -> int:
        written = self.file.written_bytes
        return os.fstat(self._descriptor).st_size if written is None else written

    def find_end(self) -> None:
        """Say what is missing at the end of a file that another one follows."""
        if self.next_seq < self.file.limit:
            self._tell_missing(self.file.limit)

    def _advance(
        self,
        records: list[Record],
        bound: int,
        limit: int,
        after: int,
        max_records: int,
        max_bytes: int,
    ) -> bool:
        """Take what is in the buffer; True when that is as much as was asked for."""
        self._fill(bound)
        taken = sum(len(record.body) for record in records)
        parsed = parse_records(
            self._buffer,
            self.offset - self._buffer_at,
            self.file.key,
            records,
            next_seq=self.next_seq,
            after=after,
            below=limit,
            max_records=max_records,
            max_bytes=max_bytes - taken,
        )
        self.offset = self._buffer_at + parsed.position
        if parsed.stop == STOP_GAP:
            self._tell_missing(parsed.next_seq)
        self.next_seq = parsed.next_seq
        if parsed.stop == STOP_END:
            self.has_ended = True
        elif parsed.stop == STOP_DAMAGED or self._is_cut_off(parsed, bound):
            self._pass_damage(bound, limit)
        return parsed.stop == STOP_LIMIT

    def _is_cut_off(self, parsed: Parsed, bound: int) -> bool:
        """Whether a record says that it is longer than the rest of the file."""
        wanted = wanted_bytes(self._buffer, parsed.position)
        return parsed.stop == STOP_MORE and self.offset < bound < self.offset + wanted

    def _fill(self, bound: int) -> None:
        """Have the whole record at the offset in the buffer, as far as the file has it."""
        start = self.offset - self._buffer_at
        rest = self._buffer[start:] if 0 <= start < len(self._buffer) else b""
        if len(rest) >= wanted_bytes(rest, 0) and start < len(self._buffer) // 2:
            return
        end = min(bound, self.offset + max(_CHUNK_BYTES, wanted_bytes(rest, 0)))
        self._buffer = rest + self._read(self.offset + len(rest), end)
        self._buffer_at = self.offset
        wanted = min(wanted_bytes(self._buffer, 0), bound - self.offset)
        if len(self._buffer) < wanted:
            self._buffer += self._read(self.offset + len(self._buffer), self.offset + wanted)

    def _read(self, start: int, end: int) -> bytes:
        try:
            parts: list[bytes] = []
            while start < end:
                data = self._operations.read(self._descriptor, end - start, start)
                if not data:
                    break
                parts.append(data)
                start += len(data)
            return b"".join(parts)
        except OSError as error:
            # Not damage: what cannot be read now is neither skipped nor cut.
            raise SpoolFailed(f"{self.file.path} cannot be read: {error}") from error

    def _pass_damage(self, bound: int, limit: int) -> None:
        """Go to the next whole record, and set aside what lies before it."""
        start = self.offset
        end = self._find_record(start + 1, bound, limit)
        if end is None:
            self.torn_at = start
            reason = "the last record is not whole, and none follows"
            self._aside.keep(self.file, start, bound, "torn", reason)
        else:
            reason = "the record is damaged; the next whole record follows this range"
            self._aside.keep(self.file, start, end, "damaged", reason)
        self.offset = bound if end is None else end

    def _find_record(self, start: int, bound: int, limit: int) -> int | None:
        """Return where the next whole record begins. Marks tell where to look, sums decide."""
        mark = self.file.key.mark_bytes
        while start < bound:
            data = self._read(start, min(bound, start + _CHUNK_BYTES))
            at = data.find(mark)
            while at >= 0:
                if self._is_whole(start + at, bound, limit):
                    return start + at
                at = data.find(mark, at + 1)
            if len(data) <= _MARK_BYTES:
                break
            # The next mark may begin in the last bytes of this chunk.
            start += len(data) - _MARK_BYTES + 1
        return None

    def _is_whole(self, offset: int, bound: int, limit: int) -> bool:
        head = self._read(offset, min(bound, offset + 32))
        data = head + self._read(offset + 32, min(bound, offset + wanted_bytes(head, 0)))
        parsed = parse_records(
            data,
            0,
            self.file.key,
            [],
            next_seq=self.next_seq,
            after=0,
            below=limit,
            max_records=1,
            max_bytes=0,
        )
        return parsed.stop in (STOP_GAP, STOP_END, STOP_LIMIT)

    def _tell_missing(self, next_seq: int) -> None:
        # Where another process went on it began with a number of its own; nothing is missing.
        if self.next_seq >> LIFE_SHIFT != next_seq >> LIFE_SHIFT:
            return
        reason = f"records {self.next_seq} to {next_seq - 1} are missing"
        self._aside.keep(self.file, self.next_seq, next_seq, "missing", reason)
