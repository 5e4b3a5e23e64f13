"""Room on the disk: asked for before anything is written.

Two bounds. The folder may hold so many bytes, with the spools of other processes in it; and so
many bytes of the disk stay free for others. Both are looked up now and then and counted down
in between, since asking the file system for each append costs more than the append.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from queen.errors import SpoolFull
from queen.spool.disk.format import HEADER_BYTES, RECORD_HEADER_BYTES
from queen.spool.disk.operations import FileOperations
from queen.spool.options import SpoolOptions

_LOOK_EVERY_S = 1.0
_FILE_BYTES = HEADER_BYTES + RECORD_HEADER_BYTES
# Of a small disk no more than a twentieth is left to others.
_RESERVED_SHARE = 20
# Somebody who is told no comes again at once; the folder is not walked each time.
_LOOK_AGAIN_S = 0.05


class Room:
    """What may still be written to a folder."""

    def __init__(self, root: Path, options: SpoolOptions, operations: FileOperations) -> None:
        self._root = root
        self._options = options
        self._operations = operations
        self._used_bytes = 0
        self._free_bytes = 0
        self._reserved_bytes = options.min_free_bytes
        self._looked_at = float("-inf")

    def take(self, wanted_bytes: int) -> None:
        """Count bytes that are about to be written; raises `SpoolFull` when they do not fit."""
        self._look(_LOOK_EVERY_S)
        if not self._fits(wanted_bytes):
            self._look(_LOOK_AGAIN_S)
            if not self._fits(wanted_bytes):
                raise SpoolFull(self._refusal())
        self._used_bytes += wanted_bytes
        self._free_bytes -= wanted_bytes

    def count_file(self) -> None:
        """Count what a new file has besides its records."""
        self._used_bytes += _FILE_BYTES
        self._free_bytes -= _FILE_BYTES

    def give_back(self, unwritten_bytes: int) -> None:
        self._used_bytes -= unwritten_bytes
        self._free_bytes += unwritten_bytes

    def is_less_than(self, some_bytes: int) -> bool:
        """Whether less is left than so much; as of the last look."""
        left = min(
            self._options.max_bytes - self._used_bytes, self._free_bytes - self._reserved_bytes
        )
        return left < some_bytes

    def forget(self) -> None:
        """Look again before the next answer: something was removed."""
        self._looked_at = float("-inf")

    def _fits(self, wanted_bytes: int) -> bool:
        # The next append may begin a file.
        wanted_bytes += _FILE_BYTES
        return (
            self._used_bytes + wanted_bytes <= self._options.max_bytes
            and self._free_bytes - wanted_bytes >= self._reserved_bytes
        )

    def _look(self, every_s: float) -> None:
        now = time.monotonic()
        if now - self._looked_at >= every_s:
            self._looked_at = now
            self._used_bytes = folder_bytes(self._root)
            self._free_bytes = self._operations.free_bytes(self._root)
            share = self._operations.disk_bytes(self._root) // _RESERVED_SHARE
            self._reserved_bytes = min(self._options.min_free_bytes, share)

    def _refusal(self) -> str:
        return (
            f"The spool is full: it holds {self._used_bytes} of "
            f"{self._options.max_bytes} bytes, and of {self._free_bytes} free bytes on its disk "
            f"{self._reserved_bytes} stay free. Send again when it is drained"
        )


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; what goes away meanwhile counts nothing."""
    total = 0
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return 0
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                total += folder_bytes(Path(entry.path))
            else:
                total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
    return total
