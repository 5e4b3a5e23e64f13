"""The calls to the file system that a spool makes, in one class.

Disks fail in these calls and nowhere else, so tests replace this class to let them fail.
"""

from __future__ import annotations

import os
from pathlib import Path


class FileOperations:
    def create(self, path: Path) -> int:
        """Return a descriptor to append to a file that is not there yet."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        # The size of the file is synced with the data; only its times are not.
        getattr(os, "fdatasync", os.fsync)(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, size_bytes)

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def read(self, descriptor: int, count: int, offset: int) -> bytes:
        return os.pread(descriptor, count, offset)

    def free_bytes(self, folder: Path) -> int:
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize

    def disk_bytes(self, folder: Path) -> int:
        stat = os.statvfs(folder)
        return stat.f_blocks * stat.f_frsize


def write_all(operations: FileOperations, descriptor: int, data: bytes) -> None:
    """Write all of it. A short write is gone on with: the next call says what is wrong."""
    written = operations.write(descriptor, data)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(data):
        count = operations.write(descriptor, view[written:])
        if count == 0:
            raise OSError("the file takes no more bytes")
        written += count


def write_durably(operations: FileOperations, path: Path, data: bytes) -> None:
    """Write a small file so that it is there as a whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = operations.create(fresh)
    try:
        write_all(operations, descriptor, data)
        operations.sync(descriptor)
    finally:
        os.close(descriptor)
    fresh.rename(path)
    operations.sync_folder(path.parent)
