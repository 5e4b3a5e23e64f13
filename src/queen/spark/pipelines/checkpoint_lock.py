"""One run at a time in a checkpoint on this machine.

Spark notices a second driver in a checkpoint by a file that is there already, and on a local
disk it looks before it writes: two may pass. Results would still be published once, but a batch
could be repeated with another end than the one that was published. So a run holds a lock on the
folder. The JVM holds it, since the JVM writes there and outlives a killed Python for a moment.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queen.errors import BadRequest, Conflict
from queen.spark.pipelines import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "queen.lock"
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


def lock_checkpoint(spark: SparkSession, folder: str) -> CheckpointLock:
    """Lock a checkpoint; on shared storage nothing is locked, as nobody could tell.

    Raises `Conflict` when another run has it, `BadRequest` when there can be no such folder.
    """
    lock = CheckpointLock(_local_path(spark, folder))
    deadline = time.monotonic() + _PATIENCE_S
    while not lock.try_lock(spark):
        if time.monotonic() > deadline:
            raise Conflict(
                f"another run works in the checkpoint {folder}: stop that one first, or give "
                "this one a folder of its own (--checkpoint, or run(spark, checkpoint=…))"
            )
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
        raise BadRequest(
            f"checkpoint: {folder!r} is no folder that can be made and written in; give another "
            "(--checkpoint, or run(spark, checkpoint=…))"
        )
    return str(Path(local.getCanonicalPath()) / _FILE)
