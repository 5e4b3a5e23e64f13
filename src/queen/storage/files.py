"""Files, locks and processes of an embedded PostgreSQL."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOG_TAIL_BYTES = 4096
_LOG_TAIL_LINES = 15


def open_lock(path: Path) -> int:
    # Close-on-exec, as always in Python: a program that we start must not hold our locks.
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(descriptor: int) -> None:
    # Unlocked before it is closed: a fork of this process may hold the descriptor too.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        release(descriptor)


def reap(pid: int) -> None:
    # The server is nobody's child once pg_ctl ends, and falls to process 1. In a container
    # that may be us.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def first_number(path: Path) -> int | None:
    try:
        first, _, _ = path.read_text().partition("\n")
    except FileNotFoundError:
        return None
    return int(first) if first.strip().isdigit() else None


def append_text(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])
