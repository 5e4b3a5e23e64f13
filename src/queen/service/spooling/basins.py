"""The spools that this process holds, as basins to be drained.

    own       written to by pushes of this process
    adopted   left by processes that have ended; drained before all else, then given up
    waiting   what a queue does not take yet; made when first needed, looked at now and then

A basin knows how far it is drained as soon as the database has told it, and which of its records
were moved to it for good. Records that were there before this process are looked through once,
so that it is known which partitions they belong to.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from queen.core.cipher import KeyRing
from queen.errors import QueenError
from queen.service.spooling.records import MOVED, Spooled
from queen.spool.asynchronous import AsyncSpool
from queen.spool.disk.format import Record
from queen.spool.encryption import RingCipher
from queen.spool.folder import HeldFolder, SpoolRoot
from queen.spool.options import SpoolOptions
from queen.spool.spool import Spool


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Where the spools of a server are, and how they behave."""

    folder: Path
    # Whose records they are: the name of the database.
    owner: str = ""
    options: SpoolOptions = field(default_factory=SpoolOptions)
    # What a push that asks to be buffered, and does not say how, waits for.
    flush_ms: int = 100
    flush_messages: int = 100


class Basin:
    """One spool and how far it is drained."""

    def __init__(self, spool: AsyncSpool) -> None:
        self.spool = spool
        # None until the database has told it.
        self.position: int | None = None
        self.is_known = not spool.spool.had_files
        self.has_moved = False
        # Behind the last record that is known to be there.
        self.end_seq = 0
        # What was moved to it, and counts: first and last seq, in order.
        self._moves: list[tuple[int, int]] = []

    @property
    def id(self) -> UUID:
        return self.spool.id

    @property
    def has_moves(self) -> bool:
        return bool(self._moves)

    def add_move(self, first: int, last: int) -> None:
        self._moves.append((first, last))

    def forget_moves(self, done: int) -> None:
        self._moves = [move for move in self._moves if move[1] > done]

    def counts(self, record: Record) -> bool:
        """Return whether a record stands for itself. A copy that nobody noted does not."""
        if not record.kind & MOVED:
            return True
        at = bisect_right(self._moves, record.seq, key=lambda move: move[0]) - 1
        return at >= 0 and record.seq <= self._moves[at][1]


class Basins:
    """All of them."""

    def __init__(self, settings: SpoolSettings, keys: KeyRing) -> None:
        self.settings = settings
        self._root = SpoolRoot(settings.folder, settings.owner)
        self._cipher = RingCipher(keys) if keys else None
        self.own = Basin(self._open(self._root.claim()))
        self.waiting: Basin | None = None
        # At once: what comes from now on may have to go behind it.
        self.adopted = [Basin(self._open(held)) for held in self._root.adopt()]

    def __iter__(self) -> Iterator[Basin]:
        yield from self.adopted
        yield self.own
        if self.waiting is not None:
            yield self.waiting

    @property
    def are_known(self) -> bool:
        """Whether it is known of all records to which partitions they belong."""
        if not self.own.is_known:
            return False
        # None is adopted, nearly always.
        return not self.adopted or all(basin.is_known for basin in self.adopted)

    async def adopt(self) -> None:
        """Take over what processes that have ended since the start left behind."""
        held = await asyncio.to_thread(self._root.adopt)
        self.adopted += [Basin(self._open(folder)) for folder in held]

    async def move(self, moved: Sequence[Spooled]) -> tuple[int, int]:
        """Write records to the basin of those that wait, durably; return their first and last seq.

        They count there when the database has noted it.
        """
        if self.waiting is None:
            held = await asyncio.to_thread(self._root.create, self.own.id)
            self.waiting = Basin(self._open(held))
            self.waiting.position = 0
        spool = self.waiting.spool
        first = last = 0
        for run in _runs_of_one_kind(moved):
            bodies = [record.body for record in run]
            seqs = await spool.append(bodies, run[0].kind | MOVED, durable=True)
            first, last = first or seqs.start, seqs.stop - 1
        return first, last

    async def give_up(self, basin: Basin) -> bool:
        """Close a basin with nothing left to drain; return whether its folder is gone. It stays
        while something is in it, and with it what the database knows of it."""
        self.adopted.remove(basin)
        await basin.spool.close()
        return not await asyncio.to_thread(basin.spool.spool.path.exists)

    async def close(self) -> None:
        for basin in list(self):
            with suppress(QueenError, OSError):
                await basin.spool.close()

    def _open(self, held: HeldFolder) -> AsyncSpool:
        return AsyncSpool(Spool(held, self.settings.options, self._cipher))


def _runs_of_one_kind(moved: Sequence[Spooled]) -> list[list[Record]]:
    runs: list[list[Record]] = []
    for record in (record for spooled in moved for record in spooled.records):
        if runs and runs[-1][0].kind | MOVED == record.kind | MOVED:
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs
