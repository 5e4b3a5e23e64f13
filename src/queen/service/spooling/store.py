"""From the spool into the log: a batch of records, and how far the spool is drained, at once.

Both are one transaction, so a record is drained once wherever a server dies, and whatever its
queue does about ids that come twice.

What becomes of a record:

    stored     appended with the others of the batch
    moved      its queue is full, its partition is locked, or something it must be compared with
               cannot be read: it waits in the basin of those that wait, and what comes behind it
               for the same partition waits behind it
    refused    it can never be stored: it goes to the quarantine, with the reason

Moved and refused records are on the disk in their new place before the transaction that counts
them as done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from queen.errors import Contended, QueenError, Unavailable
from queen.service.log.append import Append
from queen.service.log.appender import Appender, Outcome, append_columns, outcomes
from queen.service.log.flush_share import Share
from queen.service.spooling.basins import Basin, Basins
from queen.service.spooling.first_tries import FirstTries
from queen.service.spooling.records import Spooled
from queen.spool.disk.format import Record
from queen.storage.database import Abandoned, Database, Transaction

_log = logging.getLogger(__name__)

_LOCK_WAIT_MS = 100


class _NotAppended(Abandoned):
    """Leaves the transaction with what the append said."""

    def __init__(self, rows: list[Outcome]) -> None:
        self.rows = rows


class Overtaken(Abandoned):
    """The spool is not drained as far as was believed."""


class TakenTogether(Abandoned):
    """A queue has no room for records that were gathered; for some of them it may have."""


class DrainBatch:
    """Records of one basin, and what becomes of them."""

    def __init__(self, basin: Basin, after: int, last: int, spooled: list[Spooled]) -> None:
        self.basin = basin
        self.after = after
        # The last record that was read, whether it counts or not.
        self.last = last
        self.spooled = spooled
        self.moved: set[Spooled] = set()
        self.given_up: set[Spooled] = set()
        self.refused: list[tuple[Record, str]] = []
        # Where the moved ones are; None when that must be written.
        self.moved_to: tuple[int, int] | None = None

    def __len__(self) -> int:
        return sum(len(spooled.records) for spooled in self.spooled)

    @property
    def ready(self) -> list[Spooled]:
        left_out = self.moved | self.given_up
        return [spooled for spooled in self.spooled if spooled not in left_out]

    @property
    def messages(self) -> int:
        return sum(len(spooled.append) for spooled in self.ready)

    def move(self, appends: Iterable[Append]) -> set[Append]:
        """Let appends wait, and all that come behind them in their partitions; return these."""
        first = set(appends)
        keys: set[tuple[str, str]] = set()
        moved: set[Append] = set()
        for spooled in self.spooled:
            if spooled.append in first:
                keys.add(spooled.key)
            if spooled.key in keys:
                self.moved.add(spooled)
                moved.add(spooled.append)
        self.moved_to = None
        return moved


class SpoolStore:
    def __init__(
        self, database: Database, appender: Appender, basins: Basins, tries: FirstTries
    ) -> None:
        self._database = database
        self._appender = appender
        self._basins = basins
        self._tries = tries

    async def locate(self, basin: Basin) -> None:
        """Ask how far a basin is drained, and what was moved to it."""
        rows = await self._database.fetch("spool_moves", basin.id)
        position = await self._database.findval("spool_position", basin.id) or 0
        basin.forget_moves(2**63)
        for row in rows:
            basin.add_move(row["first_seq"], row["last_seq"])
        basin.position = position

    async def forget(self, basin: Basin) -> None:
        await self._database.execute("forget_spool", basin.id)

    async def store(self, batch: DrainBatch) -> None:
        """Store a batch, or raise and change nothing that counts."""
        shares = await self._plan(batch)
        await self._appender.append(shares, lambda built: self._commit_once(batch, built))

    # ---- what can be stored ----

    async def _plan(self, batch: DrainBatch) -> list[Share]:
        shares = await self._group(batch)
        try:
            await self._compare(shares)
        except QueenError as error:
            _raise_outage(error)
            # One of them cannot be compared: each for itself.
            for share in shares:
                await self._compare_alone(batch, share)
        return await self._leave_refused(batch, shares)

    async def _group(self, batch: DrainBatch) -> list[Share]:
        appends = [spooled.append for spooled in batch.ready]
        while True:
            try:
                shares = await self._appender.group(appends, _LOCK_WAIT_MS)
                break
            except Contended:
                # A queue whose row somebody has locked: none of its partitions can be made.
                unmade = [append for append in appends if append.target is None]
                left = batch.move(unmade)
                appends = [append for append in appends if append not in left]
        lost = [append for append in appends if append.target is None]
        return _without(shares, batch.move(lost)) if lost else shares

    async def _compare(self, shares: list[Share]) -> None:
        """Mark what is stored already."""
        for share in shares:
            await self._tries.leave_out_stored(share)
        await self._appender.screen(shares, alone=True)

    async def _compare_alone(self, batch: DrainBatch, share: Share) -> None:
        """The same for one partition; it waits if that cannot be told."""
        try:
            await self._compare([share])
        except QueenError as error:
            _raise_outage(error)
            batch.move(share.appends)
            share.appends = []

    async def _leave_refused(self, batch: DrainBatch, shares: list[Share]) -> list[Share]:
        shares = [share for share in shares if share.appends]
        refused = await self._appender.drop_refused(shares)
        if any(len(s.records) > 1 and s.append in refused for s in batch.spooled):
            raise TakenTogether
        return _without(shares, batch.move(refused)) if refused else shares

    # ---- the transaction ----

    async def _commit_once(self, batch: DrainBatch, shares: list[Share]) -> list[Share] | None:
        """Commit; return what has to be built and tried again, None when it is done."""
        await self._put_elsewhere(batch)
        try:
            rows = await self._commit(batch, shares)
        except Contended:
            return await self._leave_locked(batch, shares)
        except _NotAppended as refused:
            return await self._learn(batch, shares, refused.rows)
        self._appender.tell(shares, rows)
        return None

    async def _put_elsewhere(self, batch: DrainBatch) -> None:
        if batch.refused:
            await batch.basin.spool.refuse(batch.refused)
        if batch.moved and batch.moved_to is None:
            in_order = [spooled for spooled in batch.spooled if spooled in batch.moved]
            batch.moved_to = await self._basins.move(in_order)

    async def _commit(self, batch: DrainBatch, shares: list[Share]) -> list[Outcome]:
        async with self._database.transaction() as transaction:
            await self._advance(transaction, batch)
            if not shares:
                return []
            columns = append_columns(shares, _LOCK_WAIT_MS)
            rows = outcomes(await transaction.fetch("append", *columns))
            if not all(row.is_appended for row in rows):
                raise _NotAppended(rows)
        return rows

    async def _advance(self, transaction: Transaction, batch: DrainBatch) -> None:
        basin = batch.basin
        advanced = await transaction.findval("advance_spool", basin.id, batch.after, batch.last)
        if advanced is None:
            raise Overtaken
        if basin.has_moves:
            await transaction.execute("forget_spool_moves", basin.id, batch.last)
        if batch.moved:
            assert self._basins.waiting is not None and batch.moved_to is not None
            waiting = self._basins.waiting.id
            await transaction.execute("note_spool_move", waiting, *batch.moved_to)

    async def _leave_locked(self, batch: DrainBatch, shares: list[Share]) -> list[Share]:
        """Let the partitions wait that somebody else has locked; return the others."""
        rows = await self._database.fetch(
            "unlocked_partitions",
            sorted({share.partition.queue.id for share in shares}),
            [share.partition.id for share in shares],
        )
        free = {row["id"] for row in rows}
        locked = [share for share in shares if share.partition.id not in free]
        return _without(shares, batch.move(a for share in locked for a in share.appends))

    async def _learn(
        self, batch: DrainBatch, shares: list[Share], rows: list[Outcome]
    ) -> list[Share]:
        """Find out what others wrote; return all of it, since nothing was committed."""
        moved: set[Append] = set()
        for share, row in zip(shares, rows, strict=True):
            try:
                await self._appender.learn_all([share], [row])
            except QueenError as error:
                _raise_outage(error)
                moved |= batch.move(share.appends)
        return _without(shares, moved) if moved else shares


def _raise_outage(error: QueenError) -> None:
    """Raise what is wrong with everything, or for good; what is left can wait by itself."""
    if not isinstance(error, Unavailable) or error.is_outage:
        raise error


def _without(shares: list[Share], moved: set[Append]) -> list[Share]:
    """Return what is left of shares."""
    for share in shares:
        share.appends = [append for append in share.appends if append not in moved]
    return [share for share in shares if share.appends]
