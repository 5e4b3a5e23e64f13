"""What was damaged: kept in files of its own, with the reason, and told loudly.

    aside/<file>-<from>-<to>.torn      the end of a file that its writer could not finish
    aside/<file>-<from>-<to>.damaged   bytes between records that are whole
    aside/<file>-<from>-<to>.missing   no bytes: records from one seq up to another are not there
    aside/<the same>.reason            a sentence

Nothing of this is ever read again by a spool. It is for people, and it is theirs to remove.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Literal, NamedTuple

from queen.spool.disk.files import SpoolFile
from queen.spool.disk.operations import FileOperations, write_all, write_durably

What = Literal["torn", "damaged", "missing"]

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 20


class AsideRange(NamedTuple):
    name: str
    what: str
    size_bytes: int
    reason: str


class Aside:
    """The damage of one spool. Whoever comes upon it tells it; it is kept and told once."""

    def __init__(self, folder: Path, operations: FileOperations) -> None:
        self.folder = folder
        self._operations = operations
        self._lock = threading.Lock()
        self._known = {path.name for path in self._kept()}

    def __len__(self) -> int:
        return len(self._known)

    def ranges(self) -> list[AsideRange]:
        return [
            AsideRange(path.name, path.suffix[1:], path.stat().st_size, _reason_of(path))
            for path in sorted(self._kept())
        ]

    def keep(self, file: SpoolFile, start: int, end: int, what: What, reason: str) -> bool:
        """Copy a range of a file; False when that is not possible now."""
        name = f"{file.path.stem}-{start}-{end}.{what}"
        with self._lock:
            if name in self._known:
                return True
            level = logging.WARNING if what == "torn" else logging.ERROR
            _log.log(level, "spool file %s, %d to %d: %s: %s", file.path, start, end, what, reason)
            try:
                self._write(name, file, (start, end) if what != "missing" else (0, 0), reason)
            except OSError as error:
                _log.error("cannot keep %s aside: %s", name, error)
                file.may_be_removed = False
                return False
            self._known.add(name)
            return True

    def _write(self, name: str, file: SpoolFile, span: tuple[int, int], reason: str) -> None:
        if not self.folder.exists():
            self.folder.mkdir()
            self._operations.sync_folder(self.folder.parent)
        path = self.folder / name
        write_durably(self._operations, path.with_name(name + ".reason"), reason.encode())
        fresh = path.with_name(name + ".new")
        fresh.unlink(missing_ok=True)
        target = self._operations.create(fresh)
        try:
            with file.path.open("rb") as source:
                position, end = span
                while position < end:
                    data = os.pread(source.fileno(), min(_CHUNK_BYTES, end - position), position)
                    if not data:
                        break
                    write_all(self._operations, target, data)
                    position += len(data)
            self._operations.sync(target)
        finally:
            os.close(target)
        fresh.rename(path)
        self._operations.sync_folder(self.folder)

    def _kept(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        kinds = {".torn", ".damaged", ".missing"}
        return [path for path in self.folder.iterdir() if path.suffix in kinds]


def _reason_of(path: Path) -> str:
    try:
        return path.with_name(path.name + ".reason").read_text(errors="replace")
    except FileNotFoundError:
        return ""
