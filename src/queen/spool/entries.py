"""What waits to be written: the records of one append, and who is told how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from queen.errors import Overloaded, PayloadTooLarge, QueenError, SpoolFailed
from queen.spool.disk.format import MAX_BODY_BYTES, RECORD_HEADER_BYTES
from queen.spool.room import Room

Notify = Callable[[Sequence["Entry"]], None]


class Entry:
    """One append. `seqs` and `error` are set before `notify` is called."""

    __slots__ = (
        "bodies",
        "durable",
        "error",
        "failures",
        "flags",
        "kind",
        "notify",
        "seqs",
        "size_bytes",
    )

    def __init__(
        self,
        bodies: Sequence[bytes],
        kind: int,
        flags: int,
        durable: bool,
        notify: Notify | None = None,
    ) -> None:
        self.bodies = bodies
        self.kind = kind
        self.flags = flags
        self.durable = durable
        self.notify = notify
        sizes = [len(body) for body in bodies]
        if max(sizes, default=0) > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"a record of the spool has at most {MAX_BODY_BYTES} bytes")
        self.size_bytes = sum(sizes) + RECORD_HEADER_BYTES * len(sizes)
        self.seqs = range(0)
        self.error: QueenError | None = None
        self.failures = 0

    def result(self) -> range:
        if self.error is not None:
            raise self.error
        return self.seqs


def tell(entries: Sequence[Entry]) -> None:
    """Tell everybody who asked to be told, each of them once for all of their entries."""
    by_notify: dict[Notify, list[Entry]] = {}
    for entry in entries:
        if entry.notify is not None:
            by_notify.setdefault(entry.notify, []).append(entry)
    for notify, theirs in by_notify.items():
        notify(theirs)


class EntryQueue:
    """Entries that wait to be written, in the order in which they came. Bounded in bytes."""

    def __init__(self, room: Room, max_bytes: int) -> None:
        self._room = room
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._bytes = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Take an entry, or raise what speaks against it. Nothing is written before that."""
        size_bytes = entry.size_bytes
        with self._lock:
            if self._is_closed:
                raise SpoolFailed("the spool is closed")
            if self._entries and self._bytes + size_bytes > self._max_bytes:
                raise Overloaded("too much waits to be written to the spool")
            self._room.take(size_bytes)
            self._entries.append(entry)
            self._bytes += size_bytes

    def close(self) -> None:
        with self._lock:
            self._is_closed = True

    def take(self, max_bytes: int) -> list[Entry]:
        """Return the oldest entries up to so many bytes, or the oldest alone."""
        with self._lock:
            entries = self._entries
            if self._bytes <= max_bytes:
                self._entries, self._bytes = [], 0
                return entries
            count, size_bytes = 1, entries[0].size_bytes
            while count < len(entries) and size_bytes + entries[count].size_bytes <= max_bytes:
                size_bytes += entries[count].size_bytes
                count += 1
            self._entries = entries[count:]
            self._bytes -= size_bytes
            return entries[:count]

    def count_file(self) -> None:
        with self._lock:
            self._room.count_file()

    def give_back(self, unwritten_bytes: int) -> None:
        with self._lock:
            self._room.give_back(unwritten_bytes)

    def forget_room(self) -> None:
        with self._lock:
            self._room.forget()
