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

from queen.errors import Conflict
from queen.spark.pipelines import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "queen.lock"
# A run that was killed is gone by then.
_PATIENCE_S = 10.0
_LOOK_S = 0.1

# Of this process. A lock belongs to a process as a whole, and is lost when any part of it
# closes the file: so nobody here opens a file that is held.
_held: dict[str, CheckpointLock] = {}
_guard = threading.Lock()


class CheckpointLock:
    """That a checkpoint is this run's, until it is released; nothing, without a place."""

    def __init__(self, place: str | None) -> None:
        self._place = place
        self._file: Any = None

    def release(self) -> None:
        with _guard:
            if self._place is None or _held.get(self._place) is not self:
                return
            del _held[self._place]
            self._file.close()

    def try_now(self, spark: SparkSession) -> bool:
        if self._place is None:
            return True
        with _guard:
            if self._place in _held:
                return False
            jvm: Any = spark.sparkContext._jvm
            file = jvm.java.io.RandomAccessFile(self._place, "rw")
            if file.getChannel().tryLock() is None:
                file.close()
                return False
            self._file = file
            _held[self._place] = self
            return True


def hold(spark: SparkSession, folder: str) -> CheckpointLock:
    """Return a hold on a checkpoint; on shared storage it holds nothing, nobody could tell.

    Raises `Conflict` when another run has it.
    """
    made = CheckpointLock(_local_place(spark, folder))
    deadline = time.monotonic() + _PATIENCE_S
    while not made.try_now(spark):
        if time.monotonic() > deadline:
            raise Conflict(
                f"another run works in the checkpoint {folder}: stop that one first, or give "
                "this one a --checkpoint of its own"
            )
        time.sleep(_LOOK_S)
    return made


def _local_place(spark: SparkSession, folder: str) -> str | None:
    path, system = files.opened(spark, folder)
    if not files.is_local(system):
        return None
    system.mkdirs(path)
    return str(Path(system.pathToFile(path).getCanonicalPath()) / _FILE)
