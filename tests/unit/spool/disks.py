"""Disks that fail, in the calls in which disks fail."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from queen.spool import Record, Spool, SpoolOptions, SpoolRoot
from queen.spool.disk.operations import FileOperations
from queen.spool.encryption import Cipher

JSON = 2


class FailingDisk(FileOperations):
    """Calls go through, or fail, as `fail` says when it is asked with the name of the call."""

    def __init__(self) -> None:
        self.fail: Callable[[str], OSError | None] = lambda call: None
        # The next write takes only so many bytes.
        self.short_write_bytes: int | None = None
        self.free: int | None = None
        self.calls: list[str] = []
        self.paths: dict[int, Path] = {}
        # What each file had when it was synced last.
        self.synced_bytes: dict[Path, int] = {}

    def _check(self, call: str) -> None:
        self.calls.append(call)
        error = self.fail(call)
        if error is not None:
            raise error

    def fail_next(self, *calls: str, number: int = errno.EIO) -> None:
        """Let the next call of each of these names fail, once."""
        waiting = list(calls)

        def fail(call: str) -> OSError | None:
            if waiting and waiting[0] == call:
                waiting.pop(0)
                return OSError(number, os.strerror(number))
            return None

        self.fail = fail

    def create(self, path: Path) -> int:
        self._check("create")
        descriptor = super().create(path)
        self.paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if self.short_write_bytes is not None:
            data, self.short_write_bytes = data[: self.short_write_bytes], None
            return super().write(descriptor, data)
        self._check("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        path, before = self.paths[descriptor], os.fstat(descriptor)
        self._check("sync")
        # The number of a file that is closed is given to the next one that is opened.
        if os.fstat(descriptor).st_ino != before.st_ino:
            self.calls.append("closed during a sync")
        self.synced_bytes[path] = before.st_size

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._check("truncate")
        super().truncate(descriptor, size_bytes)

    def sync_folder(self, folder: Path) -> None:
        self._check("sync_folder")

    def free_bytes(self, folder: Path) -> int:
        return super().free_bytes(folder) if self.free is None else self.free


class ForgetfulDisk(FileOperations):
    """A disk whose cache is lost in a crash, and whose syncs fail now and then.

    What was synced is kept. Of what was not, some prefix may have reached the disk. A sync that
    fails loses some of the bytes, and the next one of the same file succeeds nevertheless: this
    is how systems behave. A file is there after a crash if its folder was synced.
    """

    def __init__(self, chance: random.Random, failing: float) -> None:
        self._chance = chance
        self._failing = failing
        self._paths: dict[int, Path] = {}
        self._safe: dict[Path, bytes] = {}
        self._names: set[Path] = set()

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._paths[descriptor] = path
        return descriptor

    def sync(self, descriptor: int) -> None:
        path = self._paths.get(descriptor)
        if path is None or path.suffix != ".spool":
            return
        content = path.read_bytes()
        safe = self._safe.get(path, b"")
        if self._chance.random() < self._failing:
            self._lose(path, len(safe), len(content))
            raise OSError(errno.EIO, "the disk has lost something")
        self._safe[path] = content

    def _lose(self, path: Path, start: int, end: int) -> None:
        """Zeros stand where bytes were that had not been synced; often only later on."""
        if end > start and self._chance.random() < 0.5:
            at = self._chance.randrange(start, end)
            descriptor = os.open(path, os.O_WRONLY)
            os.pwrite(descriptor, bytes(min(512, end - at)), at)
            os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        self._names |= set(folder.glob("*.spool"))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._names.discard(path)

    def crash(self, folder: Path) -> None:
        """Leave in a folder what is there after the power has gone."""
        for path in folder.glob("*.spool"):
            if path not in self._names and self._chance.random() < 0.5:
                path.unlink()
                continue
            content, safe = path.read_bytes(), self._safe.get(path, b"")
            kept = self._chance.randint(len(safe), max(len(safe), len(content)))
            path.write_bytes(safe + content[len(safe) : kept])
        self._paths, self._names = {}, set(folder.glob("*.spool"))
        self._safe = {path: path.read_bytes() for path in self._names}


class QuickDisk(FileOperations):
    """Does not sync: where no power is lost, nothing is to be seen of it."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


def open_spool(
    root: Path,
    operations: FileOperations | None = None,
    *,
    now_s: Callable[[], float] | None = None,
    cipher: Cipher | None = None,
    **options: object,
) -> Spool:
    chosen = SpoolOptions(**{"min_free_bytes": 0, **options})  # type: ignore[arg-type]
    operations = operations or QuickDisk()
    held = SpoolRoot(root, operations=operations).claim()
    more = {} if now_s is None else {"now_s": now_s}
    return Spool(held, chosen, cipher, operations, **more)


@contextmanager
def spool_in(
    root: Path, operations: FileOperations | None = None, **options: object
) -> Iterator[Spool]:
    spool = open_spool(root, operations, **options)  # type: ignore[arg-type]
    try:
        yield spool
    finally:
        spool.close()


def read_all(spool: Spool, after: int = 0, max_records: int = 100) -> list[Record]:
    records: list[Record] = []
    while batch := spool.read(after, max_records):
        records += batch
        after = batch[-1].seq
    return records


def bodies_of(spool: Spool, after: int = 0) -> list[bytes]:
    return [record.body for record in read_all(spool, after)]


def spool_files(spool: Spool) -> list[Path]:
    return sorted(spool.path.glob("*.spool"))
