"""One run at a time in a checkpoint on this machine.

Spark notices a second driver in a checkpoint by a file that is there already, and on a local
disk it looks before it writes: two may pass. Results would still be published once, but a batch
could be repeated with another end than the one that was published. So a run holds a lock on the
folder. The JVM holds it, since the JVM writes there and outlives a killed Python for a moment.

A JVM takes its time to start. So a command that starts one holds a second lock from its first
moment on: whoever comes meanwhile is told so before starting a JVM in vain.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from queen.errors import BadRequest, Conflict
from queen.spark.pipelines import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "queen.lock"
_START_FILE = "queen.start.lock"
# A run that was killed is gone by then.
_PATIENCE_S = 10.0
_TRY_AGAIN_S = 0.1

# Of this process. A lock belongs to a process as a whole, and is lost when any part of it
# closes the file: so nobody here opens a file that is held.
_held: dict[str, CheckpointLock] = {}
_guard = threading.Lock()


class CheckpointLock:
    """A lock on a checkpoint, held until it is released; without a path there is none to hold."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file: Any = None

    def release(self) -> None:
        with _guard:
            if self._path is None or _held.get(self._path) is not self:
                return
            del _held[self._path]
            self._file.close()

    def try_lock(self, spark: SparkSession) -> bool:
        if self._path is None:
            return True
        with _guard:
            if self._path in _held:
                return False
            jvm: Any = spark.sparkContext._jvm
            file = jvm.java.io.RandomAccessFile(self._path, "rw")
            if file.getChannel().tryLock() is None:
                file.close()
                return False
            self._file = file
            _held[self._path] = self
            return True


def check_is_free(folder: str) -> None:
    """Raise `Conflict` when another run works in a checkpoint, without a JVM to ask.

    Java locks a file as `lockf` does, so either sees the other's lock. A folder on shared storage
    is not looked at.
    """
    path = _plain_path(folder)
    if path is None:
        return
    deadline = time.monotonic() + _PATIENCE_S
    while is_locked(path / _FILE) or is_locked(path / _START_FILE):
        if time.monotonic() > deadline:
            raise _conflict(folder)
        time.sleep(_TRY_AGAIN_S)


@contextmanager
def hold_for_start(folder: str) -> Iterator[None]:
    """Hold a checkpoint of this machine while a JVM starts, and for as long as it runs.

    Raises as `lock_checkpoint` does. A folder on shared storage is not looked at.
    """
    path = _plain_path(folder)
    if path is None:
        yield
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / _START_FILE).open("ab")
    except OSError:
        raise _unusable(folder) from None
    with file:
        deadline = time.monotonic() + _PATIENCE_S
        while not _try_lock(file) or is_locked(path / _FILE):
            if time.monotonic() > deadline:
                raise _conflict(folder)
            time.sleep(_TRY_AGAIN_S)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed, unless another process has it locked."""
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        # A disk on which nothing can be locked: the JVM decides what to do there.
    return True


def is_locked(file: Path) -> bool:
    """Return whether another process holds a lock on a file, or this one."""
    import fcntl

    with _guard:
        if str(file.resolve()) in _held:
            return True
        try:
            with file.open("rb+") as opened:
                # Closing it gives the lock back.
                fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
        return False


def _plain_path(folder: str) -> Path | None:
    """Return a folder of this machine; None for one that only Hadoop can name."""
    scheme, colon, rest = folder.partition(":")
    if not colon:
        return Path(folder)
    return Path("/" + rest.lstrip("/")) if scheme == "file" else None


def _conflict(folder: str) -> Conflict:
    return Conflict(
        f"another run works in the checkpoint {folder}: stop that one first, or give this one a "
        "folder of its own (--checkpoint, or run(spark, checkpoint=…))"
    )


def _unusable(folder: str) -> BadRequest:
    return BadRequest(
        f"checkpoint: {folder!r} is no folder that can be made and written in; give another "
        "(--checkpoint, or run(spark, checkpoint=…))"
    )


def lock_checkpoint(spark: SparkSession, folder: str) -> CheckpointLock:
    """Lock a checkpoint; on shared storage nothing is locked, as nobody could tell.

    Raises `Conflict` when another run has it, `BadRequest` when there can be no such folder.
    """
    lock = CheckpointLock(_local_path(spark, folder))
    deadline = time.monotonic() + _PATIENCE_S
    while not lock.try_lock(spark):
        if time.monotonic() > deadline:
            raise _conflict(folder)
        time.sleep(_TRY_AGAIN_S)
    return lock


def _local_path(spark: SparkSession, folder: str) -> str | None:
    location, system = files.resolve(spark, folder)
    if not files.is_local(system):
        return None
    # Not by way of the file system, which raises errors of its own.
    local = system.pathToFile(location)
    local.mkdirs()
    if not (local.isDirectory() and local.canWrite()):
        raise _unusable(folder)
    return str(Path(local.getCanonicalPath()) / _FILE)
