"""The files of one spool: which there are, where each begins, and how far it counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from queen.spool.disk.format import (
    HEADER_BYTES,
    VERSION,
    FileKey,
    key_of,
    parse_records,
    unpack_header,
)

SUFFIX = ".spool"
# A process that opens a spool takes the next life: its files and its records get numbers that
# nobody had before, so nothing has to be read before the first append.
LIFE_SHIFT = 40
FILE_SHIFT = 24
# Above every seq; what a database calls bigint ends here.
NO_LIMIT = 1 << 63


class SpoolFile:
    """What is known of one file. The writer and the scan at start tell it, others read it."""

    def __init__(self, path: Path, number: int, key: FileKey, first_seq: int) -> None:
        self.path = path
        self.number = number
        self.key = key
        self.first_seq = first_seq
        # Records from here on do not count: a later file has them.
        self.limit = NO_LIMIT
        # The seq behind its last record; None while nobody has read it to its end.
        self.next_seq: int | None = None
        # Of the files of this process: how much of the file are whole records.
        self.written_bytes: int | None = None
        # False while damaged bytes of it could not be copied elsewhere; then it is not removed.
        self.may_be_removed = True
        self.has_good_header = True
        self.is_of_later_version = False

    def count_above(self, seq: int) -> int:
        """Return how many records above a seq it has; 0 while that is not known."""
        if self.next_seq is None:
            return 0
        return max(0, min(self.next_seq, self.limit) - max(self.first_seq, seq + 1))

    def is_drained_by(self, seq: int) -> bool:
        """Whether no record of it that counts comes after `seq`."""
        if self.limit <= max(seq + 1, self.first_seq):
            return True
        return self.next_seq is not None and self.next_seq <= seq + 1


class SpoolFiles:
    """The files of a folder in the order of their numbers. All threads may ask."""

    def __init__(self, folder: Path, spool: bytes) -> None:
        self.folder = folder
        self.spool = spool
        self._lock = threading.Lock()
        self._files: list[SpoolFile] = []

    def load(self) -> None:
        """Look what is there. Of each file only its start is read."""
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            number = number_of(path)
            if number is not None:
                self.add(load_file(path, number, self.spool))

    def __iter__(self) -> Iterator[SpoolFile]:
        with self._lock:
            return iter(list(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def path_of(self, number: int) -> Path:
        return self.folder / f"{number:016x}{SUFFIX}"

    def add(self, file: SpoolFile) -> None:
        with self._lock:
            # Where a file begins that has lost its start is not known: then it ends no other.
            for earlier in reversed(self._files if file.first_seq else []):
                if earlier.limit <= file.first_seq:
                    break
                earlier.limit = file.first_seq
            self._files.append(file)

    def remove(self, file: SpoolFile) -> None:
        """Forget a file, which somebody else may have done already."""
        with self._lock, suppress(ValueError):
            self._files.remove(file)

    def containing(self, seq: int) -> SpoolFile | None:
        """Return the file in which a seq is, or would be written."""
        with self._lock:
            return next((file for file in self._files if file.limit > seq), None)

    def behind(self, file: SpoolFile) -> SpoolFile | None:
        """Return the next file in which a record can count."""
        with self._lock:
            later = (each for each in self._files if each.number > file.number)
            return next((each for each in later if each.limit > each.first_seq), None)


def number_of(path: Path) -> int | None:
    try:
        return int(path.stem, 16)
    except ValueError:
        return None


def load_file(path: Path, number: int, spool: bytes) -> SpoolFile:
    """Return what the start of a file tells. Without a good header the first record tells it."""
    with path.open("rb") as opened:
        header = unpack_header(opened.read(HEADER_BYTES))
        key = key_of(spool, number)
        if header is not None and (header.number, header.spool) == (number, spool):
            file = SpoolFile(path, number, key, header.first_seq)
            file.is_of_later_version = header.version != VERSION
            return file
        first_seq = _first_seq(opened.read(), key)
    file = SpoolFile(path, number, key, first_seq)
    file.has_good_header = False
    return file


def _first_seq(data: bytes, key: FileKey) -> int:
    """Return the seq of the record at the start of some bytes, 0 when there is none."""
    # Zero is no seq, so it stops in front of the first record, and tells where it stands.
    return parse_records(
        data, 0, key, [], next_seq=0, after=0, below=NO_LIMIT, max_records=1, max_bytes=1
    ).next_seq
