"""The quarantine of a spool: records that were refused for what they are, with the reason.

They hold up nobody there. A person looks at them, and has them tried again or dropped. The file
has the format of spool files; the body of a record says what was refused, why, and when:

    | size of the note u32 | note, JSON | body as it was in the spool |

A record is put here before the drain moves past it. After a crash between the two it comes
again, and is found here by its seq.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from queen.errors import NotFound, SpoolFailed
from queen.spool.disk.aside import Aside
from queen.spool.disk.files import SpoolFile
from queen.spool.disk.format import (
    HEADER_BYTES,
    KIND_DROPPED,
    KIND_REFUSED,
    RECORD_HEADER_BYTES,
    Record,
    key_of,
    pack_header,
    pack_records,
)
from queen.spool.disk.operations import FileOperations, write_all
from queen.spool.disk.output import OutputFile, refusal_of
from queen.spool.disk.scan import FileScan

_NAME = "quarantine"
_SIZE = struct.Struct("<I")
# Once so many more notes of drops than records are in the file, it is written anew.
_MOST_DROPS = 1000


class Refused(msgspec.Struct, kw_only=True):
    """One record in quarantine, without its body."""

    seq: int
    kind: int
    flags: int
    at_ms: int
    refused_at_ms: int
    reason: str
    size_bytes: int


class Quarantine:
    """The refused records of one spool. All threads may use it."""

    def __init__(
        self,
        folder: Path,
        spool: bytes,
        aside: Aside,
        operations: FileOperations,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._path = folder / _NAME
        self._spool = spool
        self._aside = aside
        self._operations = operations
        self._now_s = now_s
        self._lock = threading.RLock()
        self._output: OutputFile | None = None
        # Where the record of each seq lies: offset and size of the body in the file.
        self._spans: dict[int, tuple[int, int]] = {}
        self._drops = 0
        self._load()

    def __len__(self) -> int:
        return len(self._spans)

    def put(self, refusals: Sequence[tuple[Record, str]]) -> None:
        """Keep records with their reasons, durably. What is here already is not kept twice."""
        with self._lock:
            fresh = [each for each in refusals if each[0].seq not in self._spans]
            bodies = [self._body_of(record, reason) for record, reason in fresh]
            spans = self._append(KIND_REFUSED, bodies)
            self._spans.update(zip((record.seq for record, _ in fresh), spans, strict=True))

    def page(self, start: int = 0, count: int = 100) -> list[Refused]:
        """Return a page of what is here, oldest first."""
        with self._lock:
            spans = list(self._spans.values())[start : start + count]
            return [_unpack(body)[0] for body in self._read_all(spans)]

    def read(self, seq: int) -> Record:
        """Return a record as it was in the spool."""
        with self._lock:
            if seq not in self._spans:
                raise NotFound(f"no record {seq} is in quarantine")
            (body,) = self._read_all([self._spans[seq]])
            refused, original = _unpack(body)
            return Record(seq, refused.kind, refused.flags, refused.at_ms, original)

    def seqs(self) -> list[int]:
        with self._lock:
            return list(self._spans)

    def drop(self, seqs: Sequence[int]) -> None:
        """Forget records for good."""
        with self._lock:
            known = [seq for seq in dict.fromkeys(seqs) if seq in self._spans]
            if not known:
                return
            if len(known) == len(self._spans):
                self._remove_file()
                return
            self._append(KIND_DROPPED, [struct.pack(f"<{len(known)}Q", *known)])
            for seq in known:
                del self._spans[seq]
            self._drops += len(known)
            if self._drops > _MOST_DROPS and self._drops > len(self._spans):
                self._rewrite()

    def close(self) -> None:
        with self._lock:
            if self._output is not None:
                self._output.close()
                self._output = None

    def _body_of(self, record: Record, reason: str) -> bytes:
        note = Refused(
            seq=record.seq,
            kind=record.kind,
            flags=record.flags,
            at_ms=record.at_ms,
            refused_at_ms=int(self._now_s() * 1000),
            reason=reason,
            size_bytes=len(record.body),
        )
        encoded = msgspec.json.encode(note)
        return _SIZE.pack(len(encoded)) + encoded + record.body

    def _load(self) -> None:
        if not self._path.exists():
            return
        file = SpoolFile(self._path, 0, key_of(self._spool, 0), 1)
        damage_before = len(self._aside)
        scan = FileScan(file, self._aside, self._operations)
        try:
            while records := scan.read(0, 1, 0):
                self._take(records[0], scan.offset)
        finally:
            scan.close()
        # Appending goes on behind whole records only; otherwise the file is written anew then.
        if scan.torn_at is None and len(self._aside) == damage_before:
            self._open_for_append(file, scan.offset, scan.next_seq)

    def _take(self, record: Record, end: int) -> None:
        if record.kind == KIND_REFUSED:
            refused, _ = _unpack(record.body)
            self._spans[refused.seq] = (end - len(record.body), len(record.body))
        elif record.kind == KIND_DROPPED:
            for (seq,) in struct.iter_unpack("<Q", record.body):
                self._spans.pop(seq, None)
                self._drops += 1

    def _open_for_append(self, file: SpoolFile, size_bytes: int, next_seq: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._output = OutputFile(file, descriptor, 0)
        self._output.written_bytes = file.written_bytes = size_bytes
        self._output.next_seq = next_seq

    def _append(self, kind: int, bodies: Sequence[bytes]) -> list[tuple[int, int]]:
        """Write and sync records; return where their bodies lie."""
        if not bodies:
            return []
        if self._output is None:
            self._rewrite()
        output = self._output
        assert output is not None
        parts: list[bytes] = []
        at_ms = int(self._now_s() * 1000)
        next_seq = pack_records(parts, output.file.key, output.next_seq, at_ms, kind, 0, bodies)
        offset = output.written_bytes
        try:
            output.write(self._operations, b"".join(parts), next_seq)
            self._operations.sync(output.descriptor)
        except OSError as error:
            self._distrust()
            raise SpoolFailed(f"the quarantine cannot be synced: {error}") from error
        finally:
            if output.is_finished:
                self._distrust()
        spans: list[tuple[int, int]] = []
        for body in bodies:
            offset += RECORD_HEADER_BYTES
            spans.append((offset, len(body)))
            offset += len(body)
        return spans

    def _distrust(self) -> None:
        """The next append begins with a new file; what is known is copied to it."""
        self.close()

    def _rewrite(self) -> None:
        """Write a new file with what is here, and put it in place of the old one."""
        bodies = self._read_all(list(self._spans.values()))
        fresh = self._path.with_name(_NAME + ".new")
        self.close()
        with suppress(FileNotFoundError):
            fresh.unlink()
        file = SpoolFile(self._path, 0, key_of(self._spool, 0), 1)
        parts = [pack_header(0, 1, int(self._now_s() * 1000), self._spool)]
        next_seq = pack_records(parts, file.key, 1, 0, KIND_REFUSED, 0, bodies)
        data = b"".join(parts)
        try:
            self._replace(fresh, data)
        except OSError as error:
            raise refusal_of(error) from error
        offset, spans = HEADER_BYTES, {}
        for seq, body in zip(self._spans, bodies, strict=True):
            spans[seq] = (offset + RECORD_HEADER_BYTES, len(body))
            offset += RECORD_HEADER_BYTES + len(body)
        self._spans, self._drops = spans, 0
        self._open_for_append(file, len(data), next_seq)

    def _replace(self, fresh: Path, data: bytes) -> None:
        descriptor = self._operations.create(fresh)
        try:
            write_all(self._operations, descriptor, data)
            self._operations.sync(descriptor)
        finally:
            os.close(descriptor)
        fresh.rename(self._path)
        self._operations.sync_folder(self._path.parent)

    def _remove_file(self) -> None:
        self.close()
        self._operations.remove(self._path)
        self._operations.sync_folder(self._path.parent)
        self._spans, self._drops = {}, 0

    def _read_all(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        if not spans:
            return []
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            return [self._operations.read(descriptor, size, at) for at, size in spans]
        except OSError as error:
            raise SpoolFailed(f"the quarantine cannot be read: {error}") from error
        finally:
            os.close(descriptor)


def _unpack(body: bytes) -> tuple[Refused, bytes]:
    (size,) = _SIZE.unpack_from(body)
    end = _SIZE.size + size
    return msgspec.json.decode(body[_SIZE.size : end], type=Refused), body[end:]
