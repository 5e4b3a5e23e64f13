"""The reader of a spool: records in order, over all files, while the writer goes on."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from queen.spool.disk.aside import Aside
from queen.spool.disk.files import SpoolFile, SpoolFiles
from queen.spool.disk.format import Record
from queen.spool.disk.operations import FileOperations
from queen.spool.disk.scan import FileScan

# A drain that failed reads again from where it began, which is not far back.
_REMEMBERED_POSITIONS = 64


class _Position(NamedTuple):
    """Records behind a seq begin here."""

    after: int
    file: SpoolFile
    offset: int
    next_seq: int


class Reader:
    """One position in a spool. It is used by one thread at a time."""

    def __init__(self, files: SpoolFiles, aside: Aside, operations: FileOperations) -> None:
        self._files = files
        self._aside = aside
        self._operations = operations
        self._scan: FileScan | None = None
        self._last_seq = 0
        self._positions: deque[_Position] = deque(maxlen=_REMEMBERED_POSITIONS)

    def read(self, after: int, max_records: int, max_bytes: int) -> list[Record]:
        """Return records behind a seq in order: at most so many, but one whatever its size."""
        if self._scan is None or after != self._last_seq:
            self.close()
            self._scan = self._seek(after)
        while (scan := self._scan) is not None:
            # Asked first: what is written to this file before another begins is read below.
            following = self._files.behind(scan.file)
            position = _Position(after, scan.file, scan.offset, scan.next_seq)
            records = scan.read(after, max_records, max_bytes)
            if records:
                self._positions.append(position)
                self._last_seq = records[-1].seq
                return records
            if scan.file.written_bytes is None:
                scan.file.next_seq = scan.next_seq
            if following is None:
                break
            scan.find_end()
            self.close()
            self._scan = self._open(following)
        self._last_seq = after
        return []

    def first_time_ms(self, after: int) -> int | None:
        """Return when the first record behind a seq was written. Any thread may ask."""
        beside = Reader(self._files, self._aside, self._operations)
        beside._positions.extend(list(self._positions))
        try:
            records = beside.read(after, 1, 0)
            return records[0].at_ms if records else None
        finally:
            beside.close()

    def close(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _seek(self, after: int) -> FileScan | None:
        near = [position for position in self._positions if position.after <= after]
        if near:
            nearest = max(near, key=lambda position: position.after)
            scan = self._open(nearest.file)
            if scan is not None:
                scan.offset, scan.next_seq = nearest.offset, nearest.next_seq
                return scan
        file = self._files.containing(after + 1)
        return None if file is None else self._open(file)

    def _open(self, file: SpoolFile) -> FileScan | None:
        try:
            return FileScan(file, self._aside, self._operations)
        except FileNotFoundError:
            # Removed since: it was drained.
            return None
