"""One spool that a client drains, and how far it is drained.

The broker knows nothing of spools, so how far one is drained stands in a small file beside it:

    <folder>/<id of a spool>.drained     {"to": seq, "open": [[first, last], ...]}

Records up to `to` are done but for those in `open`: their queue was full, or something else has
kept them back while others went past. The file is synced after each answer of the broker. A
process that is killed between an answer and the file sends the records of that answer again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import msgspec

from queen.spool import AsyncSpool, Record, Spool
from queen.spool.disk.operations import FileOperations, write_durably
from queen.spool.folder import HeldFolder

_log = logging.getLogger("queen.client")

SUFFIX = ".drained"


class Drained(msgspec.Struct):
    to: int = 0
    open: list[tuple[int, int]] = []

    def lacks(self, seq: int) -> bool:
        """Whether a record is still to be sent."""
        return seq > self.to or any(first <= seq <= last for first, last in self.open)

    @property
    def released(self) -> int:
        """Up to here everything is done."""
        return min((first - 1 for first, _ in self.open), default=self.to)


class Source:
    """A spool, read by one drain."""

    def __init__(self, held: HeldFolder, spool: Spool) -> None:
        self._held = held
        self.spool = spool
        self._asynchronous: AsyncSpool | None = None
        self._file = held.path.with_name(held.path.name + SUFFIX)
        self._before = _load(self._file)
        self._operations = FileOperations()
        self._lock = threading.Lock()
        self.read_to = self._before.released
        self.spool.release(self.read_to)
        # Records that were read and are not done: how many were read before each.
        self._open: dict[int, int] = {}
        self._count = 0
        self._saved = (self.read_to, 0)

    @property
    def asynchronous(self) -> AsyncSpool:
        if self._asynchronous is None:
            self._asynchronous = AsyncSpool(self.spool)
        return self._asynchronous

    @property
    def path(self) -> Path:
        return self._held.path

    @property
    def is_done(self) -> bool:
        return not self._open

    async def read(self, max_records: int, max_bytes: int) -> list[Record] | None:
        """Return the next records that are to be sent; None when all are read. It may be that
        those that were read are done."""
        records = await self.asynchronous.read(self.read_to, max_records, max_bytes)
        if not records:
            return None
        lacking = [record for record in records if self._before.lacks(record.seq)]
        for record in lacking:
            self._open[record.seq] = self._count
            self._count += 1
        # Those that were done before the start were released in another life of this object.
        self._count += len(records) - len(lacking)
        self.read_to = records[-1].seq
        return lacking

    def finish(self, seq: int) -> None:
        """Say that a record is done. `save` makes it known to the next process."""
        del self._open[seq]

    async def save(self) -> None:
        await asyncio.to_thread(self._save)

    def _save(self) -> None:
        open_seqs = sorted(self._open)
        drained = Drained(self.read_to, _ranges(open_seqs))
        if (self.read_to, len(open_seqs)) == self._saved:
            return
        with self._lock:
            write_durably(self._operations, self._file, msgspec.json.encode(drained))
            self._saved = (self.read_to, len(open_seqs))
        self.spool.release(drained.released)

    def count_waiting(self, in_spool: int) -> int:
        """Return how many records wait, of so many that are behind the last release."""
        if not self._open:
            return in_spool
        first = next(iter(self._open.values()))
        return in_spool - (self._count - first - len(self._open))

    def count_left(self) -> int:
        """Return how many records wait. All files are looked through; for who does nothing else."""
        self.spool.recovery.wait()
        count, after = self.spool.statistics().records, self._before.released
        while after < self._before.to and (records := self.spool.read(after)):
            count -= sum(not self._before.lacks(record.seq) for record in records)
            after = records[-1].seq
        return count

    def close(self) -> None:
        """Let the folder go; one with nothing in it is removed."""
        try:
            self._save()
        finally:
            self.spool.close()
        if not self._held.path.exists():
            self._file.unlink(missing_ok=True)

    def leave_to_parent(self) -> None:
        """In a forked process: the folder belongs to the one that has opened it."""
        self._held.let_go()


def sweep(root: Path) -> None:
    """Remove what is left of spools that are gone."""
    for file in root.glob(f"*{SUFFIX}*"):
        if not file.with_name(file.name.partition(SUFFIX)[0]).exists():
            file.unlink(missing_ok=True)


def _load(file: Path) -> Drained:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Drained)
    except FileNotFoundError:
        return Drained()
    except msgspec.DecodeError as error:
        _log.error("%s cannot be read, so its spool is sent from its beginning: %s", file, error)
        return Drained()


def _ranges(seqs: list[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges, first and last of each.

    >>> _ranges([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges
