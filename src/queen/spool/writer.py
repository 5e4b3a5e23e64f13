"""The writer of a spool: appends in groups, and syncs in a thread of its own.

    append ──> queue ──> one write for all that wait ──> one sync for all that were written
    (any thread)         (whoever has the write lock)    (the thread; nobody holds a lock)

An append that need not be durable is written by its caller, which takes microseconds; the bytes
are then with the operating system and outlive this process, not the machine. An append that
must be durable waits for the sync that follows its write. While a sync runs, others write; the
next sync is for all of them.

When a write fails, the file is cut back to its last whole record and the callers are told.

When a sync fails, nobody knows which bytes the disk has, and a second sync that succeeds says
nothing: the system has forgotten that they were unwritten. So the file is left for good. What
was written since its last good sync is read back, compared with its checksums and written to a
new file under the same seqs, and synced there. The new file begins with the first of these seqs,
so that readers stop there in the old one. What cannot be read back, or fails a second time, is
told to those who wait for it; they do not know whether it is on the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from queen.errors import QueenError, SpoolFailed, SpoolFull
from queen.spool.disk.aside import Aside
from queen.spool.disk.files import FILE_SHIFT, LIFE_SHIFT, SpoolFiles
from queen.spool.disk.format import pack_records
from queen.spool.disk.operations import FileOperations
from queen.spool.disk.output import Leftover, OutputFile, create_output, refusal_of
from queen.spool.entries import Entry, EntryQueue, Notify, tell
from queen.spool.options import SpoolOptions
from queen.spool.room import Room

_log = logging.getLogger(__name__)
_GROUP_BYTES = 4 * 1024 * 1024
# The first failure is answered with a new file. A disk that fails there too is told.
_MOST_FAILURES = 2
_MOST_PATIENCE = 8


class Writer:
    """The only one who writes to the files of a spool."""

    def __init__(
        self,
        files: SpoolFiles,
        aside: Aside,
        begin_life: Callable[[int], int],
        room: Room,
        options: SpoolOptions,
        operations: FileOperations,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._aside = aside
        self._begin_life = begin_life
        self._options = options
        self._operations = operations
        self._now_s = now_s
        # Called, in any thread, after records were written.
        self.on_write: Callable[[], None] | None = None
        self._queue = EntryQueue(room, options.max_pending_bytes)
        # Guards everything below.
        self._write_lock = threading.Lock()
        self._next_seq = 0
        self._next_number = 0
        self._above_life = 0
        self._current: OutputFile | None = None
        self._unsynced: list[OutputFile] = []
        self._folder_is_unsynced = False
        self._leftovers: list[Leftover] = []
        # Written and not yet synced, or not yet told.
        self._waiting: list[Entry] = []
        self._to_tell: list[Entry] = []
        # Those for whom a sync runs just now; None when none runs.
        self._in_sync: list[Entry] | None = None
        # How many syncs have failed since one succeeded.
        self._failures = 0
        # Set when there is something to sync, and when somebody waits for it.
        self._work = threading.Event()
        self._hurry = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_durable_by_default(self) -> bool:
        return self._options.sync == "always"

    @property
    def current_number(self) -> int | None:
        """The number of the file that is being written."""
        current = self._current
        return None if current is None else current.file.number

    @property
    def last_seq(self) -> int | None:
        """The record that was written last; None when this process has written none."""
        next_seq = self._next_seq
        return next_seq - 1 if next_seq else None

    def append(
        self, bodies: Sequence[bytes], kind: int, flags: int = 0, durable: bool | None = None
    ) -> range:
        """Write records; return their seqs. Durable ones are on the disk when it returns."""
        durable = self.is_durable_by_default if durable is None else durable
        done = threading.Event() if durable else None
        entry = Entry(bodies, kind, flags, durable, None if done is None else _setter(done))
        self._queue.put(entry)
        with self._write_lock:
            to_tell = self._write_queue()
        tell(to_tell)
        if done is not None:
            self._demand_sync()
            done.wait()
        return entry.result()

    def try_append(self, bodies: Sequence[bytes], kind: int, flags: int = 0) -> range | None:
        """Write records that need not be durable, or return None when that means to wait."""
        if not self._write_lock.acquire(blocking=False):
            return None
        try:
            # To begin takes syncs, to begin again may take a long copy, and what others wait
            # for may be much.
            if self._next_number == 0 or self._leftovers or len(self._queue):
                return None
            entry = Entry(bodies, kind, flags, False)
            self._queue.put(entry)
            to_tell = self._write_queue()
        finally:
            self._write_lock.release()
        if to_tell:
            tell(to_tell)
        return entry.result()

    def submit(self, entry: Entry) -> None:
        """Let the thread write an entry, and sync it; it is told in the thread."""
        self._queue.put(entry)
        self._demand_sync()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write and sync what waits, and end the file in order."""
        self._queue.close()
        self._is_closing = True
        self._demand_sync()
        if self._thread is not None:
            self._thread.join()
        with self._write_lock:
            to_tell = self._write_queue()
            self._finish_current()
        tell(to_tell)
        self._sync()
        while self._waiting:
            self._sync()
        with self._write_lock:
            for output in self._unsynced:
                output.close()
            self._unsynced = []

    def begin_above(self, seq: int) -> None:
        """Write no record with this seq or one below it: they are done, as somebody knows.

        That is so when this folder is an old copy that was put back.
        """
        with self._write_lock:
            if max(self._next_seq - 1, self._above_life << LIFE_SHIFT) < seq:
                self._finish_current()
                self._above_life = seq >> LIFE_SHIFT
                self._next_number = 0

    def finish_if(self, is_drained: Callable[[OutputFile], bool]) -> None:
        """End the file that is being written, if it is one that can be removed then."""
        with self._write_lock:
            is_over = self._current is not None and is_drained(self._current)
            if is_over:
                self._finish_current()
        if is_over:
            # The thread closes it; only then the disk has its room again.
            self._demand_sync()

    def forget_room(self) -> None:
        self._queue.forget_room()

    # Writing. The write lock is held in all of these.

    def _write_queue(self) -> list[Entry]:
        """Write what waits; return whom to tell once the lock is free."""
        while group := self._queue.take(_GROUP_BYTES):
            try:
                self._write_group(group)
            except (SpoolFull, SpoolFailed) as error:
                self._queue.give_back(sum(entry.size_bytes for entry in group))
                self._refuse(group, error)
            except Exception as error:
                # Nobody may wait for ever, whatever it was.
                _log.exception("a spool has failed to write")
                self._refuse(group, SpoolFailed(f"the spool cannot be written: {error}"))
        if not self._to_tell:
            return self._to_tell
        to_tell, self._to_tell = self._to_tell, []
        return to_tell

    def _write_group(self, group: list[Entry]) -> None:
        size_bytes = sum(entry.size_bytes for entry in group)
        count = sum(len(entry.bodies) for entry in group)
        output = self._output_for(size_bytes, count)
        at_ms = int(self._now_s() * 1000)
        parts: list[bytes] = []
        seq = self._next_seq
        key = output.file.key
        for entry in group:
            end = pack_records(parts, key, seq, at_ms, entry.kind, entry.flags, entry.bodies)
            entry.seqs = range(seq, end)
            seq = end
        output.write(self._operations, b"".join(parts), seq)
        self._next_seq = seq
        for entry in group:
            # What is written is read back when it is needed again.
            entry.bodies = ()
            if entry.durable:
                self._waiting.append(entry)
            elif entry.notify is not None:
                self._to_tell.append(entry)
        if self._options.sync == "interval" and not self._work.is_set():
            self._work.set()
        if self.on_write is not None:
            self.on_write()

    def _refuse(self, entries: Sequence[Entry], error: QueenError) -> None:
        for entry in entries:
            # Each gets its own: it is raised by each of them, in threads of their own.
            entry.error = type(error)(error.message)
            entry.bodies = ()
            entry.seqs = range(0)
        self._to_tell += entries

    def _output_for(self, size_bytes: int, count: int) -> OutputFile:
        current = self._current
        if current is not None and (
            current.is_finished or self._is_over(current, size_bytes, count)
        ):
            self._finish_current()
            current = None
        if current is None:
            lost = self._begin_file()
            if lost:
                self._waiting = self._refuse_lost(self._waiting, lost)
            current = self._current
            assert current is not None
        return current

    def _is_over(self, output: OutputFile, size_bytes: int, count: int) -> bool:
        options = self._options
        return output.records > 0 and (
            output.written_bytes + size_bytes > options.max_file_bytes
            or output.records + count > options.max_file_records
            or self._now_s() * 1000 - output.created_ms > options.max_file_age_ms
        )

    def _begin_file(self) -> list[range]:
        """Begin the next file; return the seqs of files left behind that are lost."""
        if self._next_number & ((1 << FILE_SHIFT) - 1) == 0:
            try:
                life = self._begin_life(self._above_life)
            except OSError as error:
                raise refusal_of(error) from error
            self._next_number = (life << FILE_SHIFT) + 1
            self._next_seq = (life << LIFE_SHIFT) + 1
        number = self._next_number
        # A number is used once, even when no file came of it.
        self._next_number += 1
        self._current, lost = create_output(
            self._files,
            number,
            self._next_seq,
            int(self._now_s() * 1000),
            self._leftovers,
            self._aside,
            self._operations,
        )
        self._files.add(self._current.file)
        if not lost:
            self._let_go_of_leftovers()
        self._leftovers = []
        self._unsynced.append(self._current)
        self._queue.count_file()
        self._folder_is_unsynced = True
        return lost

    def _let_go_of_leftovers(self) -> None:
        """Files of which all that counts was copied can go; the others when they are drained."""
        for file, _, first_seq, _ in self._leftovers:
            if first_seq == file.first_seq and file.may_be_removed:
                self._files.remove(file)
                with suppress(OSError):
                    self._operations.remove(file.path)

    def _finish_current(self) -> None:
        output, self._current = self._current, None
        if output is None:
            return
        output.finish(self._operations, int(self._now_s() * 1000))
        if self._options.sync == "never" and not self._waiting and self._in_sync is None:
            # Nobody will ask for it to be synced.
            self._unsynced.remove(output)
            output.close()
        else:
            self._work.set()

    # Syncing, in the thread.

    def _demand_sync(self) -> None:
        self._hurry.set()
        self._work.set()

    def _run(self) -> None:
        while not self._is_closing:
            self._work.wait()
            if self._options.sync == "interval":
                # A disk that fails is tried less and less often, until somebody must know.
                patience = 1 << min(self._failures, _MOST_PATIENCE)
                self._hurry.wait(self._options.sync_interval_ms / 1000 * patience)
            self._work.clear()
            self._hurry.clear()
            try:
                self._sync()
            except Exception as error:
                # Nobody may wait for ever, whatever it was.
                _log.exception("the thread that syncs a spool has failed")
                self._refuse_all(SpoolFailed(f"the spool cannot be synced: {error}"))

    def _refuse_all(self, error: SpoolFailed) -> None:
        with self._write_lock:
            self._refuse([*(self._in_sync or ()), *self._waiting], error)
            self._waiting, self._in_sync = [], None
            to_tell, self._to_tell = self._to_tell, []
        tell(to_tell)

    def _sync(self) -> None:
        """Write what waits, sync all that is written, and tell who waited."""
        with self._write_lock:
            to_tell = self._write_queue()
            is_needed = self._options.sync != "never" or bool(self._waiting)
            if is_needed:
                waiting, self._waiting = self._waiting, []
                self._in_sync = waiting
                with_folder, self._folder_is_unsynced = self._folder_is_unsynced, False
                marks = [(each, each.written_bytes, each.next_seq) for each in self._unsynced]
            else:
                self._close_finished()
        tell(to_tell)
        if is_needed:
            self._sync_marks(marks, with_folder, waiting)

    def _sync_marks(
        self, marks: list[tuple[OutputFile, int, int]], with_folder: bool, waiting: list[Entry]
    ) -> None:
        try:
            for output, written_bytes, _ in marks:
                if output.synced_bytes != written_bytes or with_folder:
                    self._operations.sync(output.descriptor)
            if with_folder:
                self._operations.sync_folder(self._files.folder)
        except OSError as error:
            self._leave_files(error, waiting)
            return
        with self._write_lock:
            self._failures, self._in_sync = 0, None
            for output, written_bytes, next_seq in marks:
                output.synced_bytes, output.synced_seq = written_bytes, next_seq
                if output is not self._current and output.written_bytes == written_bytes:
                    self._unsynced.remove(output)
                    output.close()
        tell(waiting)

    def _close_finished(self) -> None:
        """Close files that nobody wants to be synced."""
        for output in self._unsynced:
            if output is not self._current:
                output.close()
        self._unsynced = [] if self._current is None else [self._current]

    def _leave_files(self, error: OSError, waiting: list[Entry]) -> None:
        """Never trust these files again: begin a new one with what they have unsynced."""
        _log.error("the spool in %s cannot be synced: %s", self._files.folder, error)
        with self._write_lock:
            self._failures += 1
            for output in self._unsynced:
                self._leftovers.append(
                    Leftover(output.file, output.synced_bytes, output.synced_seq, output.next_seq)
                )
                output.close()
            self._unsynced, self._current = [], None
            waiting += self._waiting
            self._waiting, self._in_sync = [], waiting
            for entry in waiting:
                entry.failures += 1
            given_up = [entry for entry in waiting if entry.failures >= _MOST_FAILURES]
            again = [entry for entry in waiting if entry.failures < _MOST_FAILURES]
            failure = SpoolFailed(f"the spool cannot be synced: {error}")
            self._refuse(given_up, failure)
            self._write_again(again)
            self._in_sync = None
            to_tell, self._to_tell = self._to_tell, []
        tell(to_tell)

    def _write_again(self, waiting: list[Entry]) -> None:
        try:
            lost = self._begin_file()
        except (SpoolFull, SpoolFailed) as error:
            self._refuse(waiting, SpoolFailed(f"the spool cannot be synced: {error.message}"))
            return
        self._waiting = self._refuse_lost(waiting, lost)
        if self._waiting:
            self._demand_sync()
        elif self._options.sync == "interval":
            self._work.set()

    def _refuse_lost(self, waiting: list[Entry], lost: list[range]) -> list[Entry]:
        """Tell those whose records are gone; return the others."""
        gone = [entry for entry in waiting if any(_overlap(entry.seqs, part) for part in lost)]
        if lost:
            _log.error("the spool in %s has lost the records %s", self._files.folder, lost)
            self._refuse(gone, SpoolFailed())
        return [entry for entry in waiting if entry not in gone]


def _overlap(seqs: range, others: range) -> bool:
    return seqs.start < others.stop and others.start < seqs.stop


def _setter(done: threading.Event) -> Notify:
    def notify(_: Sequence[Entry]) -> None:
        done.set()

    return notify
