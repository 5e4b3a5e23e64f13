"""One spool: append at one end, read and release at the other.

A record has a seq. Whoever drains the spool reads behind the last seq that is done, and releases
what is done; files that are done as a whole are then removed. How far it is done is not kept
here: it belongs where the records go, to be moved in the same step that takes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import msgspec

from queen.errors import EncryptionUnavailable, SpoolFailed
from queen.spool.disk.aside import Aside, AsideRange
from queen.spool.disk.files import LIFE_SHIFT, SpoolFiles
from queen.spool.disk.format import FLAG_ENCRYPTED, Record
from queen.spool.disk.operations import FileOperations
from queen.spool.disk.output import OutputFile
from queen.spool.encryption import Cipher, Damaged
from queen.spool.folder import HeldFolder
from queen.spool.options import SpoolOptions
from queen.spool.quarantine import Quarantine, Refused
from queen.spool.reader import Reader
from queen.spool.recovery import Recovery
from queen.spool.room import Room, folder_bytes
from queen.spool.writer import Writer

_NO_KEY = "the spool is encrypted and this process has no key; set QUEEN_ENCRYPTION_KEY"


class SpoolStatistics(msgspec.Struct, kw_only=True):
    id: UUID
    # Behind what was released. A lower bound while files of earlier processes are scanned.
    records: int
    is_scanned: bool
    # On the disk, with everything that is set aside.
    bytes: int
    files: int
    # When the oldest record that waits was written; None when none waits.
    oldest_at_ms: int | None
    quarantined: int
    # Ranges of bytes, or of records, that were damaged.
    damaged: int


class Spool:
    """A spool that this process holds."""

    def __init__(
        self,
        held: HeldFolder,
        options: SpoolOptions | None = None,
        cipher: Cipher | None = None,
        operations: FileOperations | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._held = held
        self._options = options or SpoolOptions()
        self._cipher = cipher
        self._operations = operations or FileOperations()
        self._now_s = now_s
        self._id_bytes = held.id.bytes
        try:
            self._load()
        except BaseException:
            held.let_go()
            raise
        self._room = Room(held.path.parent, self._options, self._operations)
        self.writer = Writer(
            self._files,
            self._aside,
            held.begin_life,
            self._room,
            self._options,
            self._operations,
            now_s,
        )
        self._reader = Reader(self._files, self._aside, self._operations)
        self._reader_lock = threading.Lock()
        self._release_lock = threading.Lock()
        self._released = 0
        # The first record behind a seq, and when it was written.
        self._oldest: tuple[int, int] | None = None
        self.recovery.start()
        self.writer.start()

    def _load(self) -> None:
        path, operations = self._held.path, self._operations
        self._files = SpoolFiles(path, self._id_bytes)
        self._files.load()
        self.had_files = any(True for _ in self._files)
        self._aside = Aside(path / "aside", operations)
        self._quarantine = Quarantine(path, self._id_bytes, self._aside, operations, self._now_s)
        self.recovery = Recovery(list(self._files), self._aside, operations)

    @property
    def id(self) -> UUID:
        """The name under which a database keeps how far this spool is drained."""
        return self._held.id

    @property
    def path(self) -> Path:
        return self._held.path

    @property
    def first_new_seq(self) -> int:
        """Records below it were there when this process opened the spool; none above it were."""
        return (self._held.life_at_open + 1) << LIFE_SHIFT

    @property
    def released(self) -> int:
        return self._released

    def append(self, bodies: Sequence[bytes], kind: int, durable: bool | None = None) -> range:
        """Write records; return their seqs. With `durable` they are on the disk then.

        Raises `SpoolFull` when there is no room, with nothing written, and `SpoolFailed` when
        the disk failed and nobody knows whether they are there.
        """
        return self.writer.append(self.encrypt(bodies), kind, self.flags, durable)

    @property
    def flags(self) -> int:
        return 0 if self._cipher is None else FLAG_ENCRYPTED

    def encrypt(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        cipher = self._cipher
        if cipher is None:
            return bodies
        return [cipher.encrypt(self._id_bytes, body) for body in bodies]

    def read(
        self, after: int, max_records: int = 1000, max_bytes: int = 8 * 1024 * 1024
    ) -> list[Record]:
        """Return the next records behind a seq, in order; none when all are read.

        They are those of one file, so they may be fewer than were asked for.

        A record whose key is missing stops it with `EncryptionUnavailable`. A record that does
        not decrypt with its key goes to the quarantine.
        """
        with self._reader_lock:
            while records := self._reader.read(after, max_records, max_bytes):
                after = records[-1].seq
                readable = self._decrypt(records)
                if readable:
                    return readable
        return []

    def release(self, seq: int) -> None:
        """Say that everything up to a seq is done. Files that are done are removed."""
        with self._release_lock:
            self._released = max(self._released, seq)
            self.writer.begin_above(seq)
            self.writer.finish_if(self._is_worth_ending)
            if self._remove_drained():
                # The disk has its room again when nobody has the file open.
                with self._reader_lock:
                    self._reader.close()

    def refuse(self, refusals: Sequence[tuple[Record, str]]) -> None:
        """Put records aside, durably, each with the reason why it was refused."""
        flags = self.flags
        self._quarantine.put(
            [
                (Record(each.seq, each.kind, flags, each.at_ms, self.encrypt([each.body])[0]), why)
                for each, why in refusals
            ]
        )

    def quarantined(self, start: int = 0, count: int = 100) -> list[Refused]:
        return self._quarantine.page(start, count)

    def quarantined_record(self, seq: int) -> Record:
        """Return a record of the quarantine as it was before it was refused."""
        record = self._quarantine.read(seq)
        return Record(seq, record.kind, 0, record.at_ms, self._open_body(record))

    def retry(self, seqs: Sequence[int] | None = None) -> range:
        """Append records of the quarantine again, all of them by default; return their seqs.

        A crash in between leaves a record in both; it then is the transaction id that tells.
        """
        chosen = self._quarantine.seqs() if seqs is None else seqs
        appended = range(0)
        for seq in chosen:
            record = self._quarantine.read(seq)
            body = self._open_body(record)
            fresh = self.append([body], record.kind, durable=True)
            appended = range(appended.start or fresh.start, fresh.stop)
            self._quarantine.drop([seq])
        return appended

    def drop(self, seqs: Sequence[int] | None = None) -> None:
        """Forget records of the quarantine, all of them by default."""
        self._quarantine.drop(self._quarantine.seqs() if seqs is None else seqs)

    def damage(self) -> list[AsideRange]:
        return self._aside.ranges()

    def statistics(self) -> SpoolStatistics:
        files = list(self._files)
        return SpoolStatistics(
            id=self.id,
            records=sum(file.count_above(self._released) for file in files),
            is_scanned=self.recovery.is_done,
            bytes=folder_bytes(self._held.path),
            files=len(files),
            oldest_at_ms=self._oldest_at_ms(),
            quarantined=len(self._quarantine),
            damaged=len(self._aside),
        )

    def close(self) -> None:
        """Sync what waits and let the folder go; one with nothing in it is removed."""
        self.recovery.stop()
        self.writer.close()
        with self._release_lock, self._reader_lock:
            self._remove_drained()
            self._reader.close()
        self._quarantine.close()
        if self._held.is_empty():
            self._held.remove()
        else:
            self._held.let_go()

    def _oldest_at_ms(self) -> int | None:
        released, oldest = self._released, self._oldest
        if oldest is not None and oldest[0] == released:
            return oldest[1]
        try:
            at_ms = self._reader.first_time_ms(released)
        except SpoolFailed:
            # Who drains it is told; the other numbers are as good as ever.
            return None
        if at_ms is not None:
            # Once there is one it stays the first, and it may be large.
            self._oldest = released, at_ms
        return at_ms

    def _is_worth_ending(self, output: OutputFile) -> bool:
        """Whether a file is drained, and old or large enough that a new one pays, or takes more
        room than is left."""
        age_ms = self._now_s() * 1000 - output.created_ms
        return (
            output.next_seq <= self._released + 1
            and output.records > 0
            and (
                age_ms > self._options.max_file_age_ms
                or output.written_bytes > self._options.max_file_bytes // 2
                or self._room.is_less_than(output.written_bytes)
            )
        )

    def _remove_drained(self) -> bool:
        """Remove files that are done; return whether there was one."""
        removed = 0
        for file in self._files:
            if (
                file.number != self.writer.current_number
                and file.may_be_removed
                and file.is_drained_by(self._released)
            ):
                self._files.remove(file)
                self._operations.remove(file.path)
                removed += 1
        if removed:
            self._operations.sync_folder(self._held.path)
            self.writer.forget_room()
        return removed > 0

    def _decrypt(self, records: list[Record]) -> list[Record]:
        readable: list[Record] = []
        for record in records:
            try:
                record.body = self._open_body(record)
                record.flags &= ~FLAG_ENCRYPTED
            except EncryptionUnavailable:
                if not readable:
                    raise
                return readable
            except Damaged as error:
                self._quarantine.put([(record, f"it does not decrypt: {error}")])
                continue
            readable.append(record)
        return readable

    def _open_body(self, record: Record) -> bytes:
        if not record.flags & FLAG_ENCRYPTED:
            return record.body
        if self._cipher is None:
            raise EncryptionUnavailable(_NO_KEY)
        return self._cipher.decrypt(self._id_bytes, record.body)
