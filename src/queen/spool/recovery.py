"""The scan at start: every file that earlier processes left is read once, in a thread.

Nobody waits for it. The writer has begun a file of its own, and a reader that comes to damage
before the scan does the same with it, except for the cut. What the scan adds is to know how
many records wait, to tell of damage early, and to cut torn ends so that they are told once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence

from queen.errors import SpoolFailed
from queen.spool.disk.aside import Aside
from queen.spool.disk.files import SpoolFile
from queen.spool.disk.operations import FileOperations
from queen.spool.disk.scan import FileScan

_log = logging.getLogger(__name__)
_BATCH_RECORDS = 2000
_BATCH_BYTES = 1 << 20
# Of its time the scan works this share, so that those who serve get the interpreter.
_BUSY_SHARE = 0.5


class Recovery:
    """Reads the files that were there at start."""

    def __init__(
        self, files: Sequence[SpoolFile], aside: Aside, operations: FileOperations
    ) -> None:
        self._files = files
        self._aside = aside
        self._operations = operations
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def start(self) -> None:
        if not self._files:
            self._done.set()
            return
        self._thread = threading.Thread(target=self._run, name="spool-recovery", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        for file in self._files:
            try:
                self._recover(file)
            except FileNotFoundError:
                continue  # drained and removed before the scan came to it
            except (SpoolFailed, OSError) as error:
                _log.error("cannot scan the spool file %s: %s", file.path, error)
            if self._stopping.is_set():
                return
        self._done.set()

    def _recover(self, file: SpoolFile) -> None:
        scan = FileScan(file, self._aside, self._operations)
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                offset = scan.offset
                records = scan.read(0, _BATCH_RECORDS, _BATCH_BYTES)
                if records and file.first_seq == 0:
                    file.first_seq = records[0].seq
                if scan.offset == offset and not records:
                    self._finish(scan)
                    return
                self._stopping.wait((time.monotonic() - started) * (1 / _BUSY_SHARE - 1))
        finally:
            scan.close()

    def _finish(self, scan: FileScan) -> None:
        scan.find_end()
        if scan.torn_at is not None:
            self._cut(scan.file, scan.torn_at)
        scan.file.next_seq = scan.next_seq

    def _cut(self, file: SpoolFile, offset: int) -> None:
        """Cut a torn end, which is kept aside; if it could not be, leave it."""
        if not file.may_be_removed:
            return
        descriptor = os.open(file.path, os.O_WRONLY)
        try:
            self._operations.truncate(descriptor, offset)
            self._operations.sync(descriptor)
        finally:
            os.close(descriptor)
