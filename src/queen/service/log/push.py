"""Push: many requests, few commits.

All appends that are waiting when a flush starts go into one transaction. Appends to the
same partition that are small are merged into one segment, in the order they arrived.

A flush waits for nobody: a partition that is locked, or whose ids must be compared with
stored ones, is set aside and stored alone, and what comes for it meanwhile waits behind it.
What is wrong with one partition, or with one append, is told to that one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from queen.errors import Contended, OutcomeUnknown, Overloaded, QueenError, Unavailable
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog, Partition
from queen.service.log.admission import Admission
from queen.service.log.append import OWN_SEGMENT_MESSAGES, Append, Request
from queen.service.log.aside import Aside
from queen.service.log.batcher import Batcher
from queen.service.log.dedup import Dedup
from queen.service.log.flush_share import Share
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import Vault
from queen.service.stats.activity import Activity
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 128 * 1024 * 1024
_MAX_ASIDE_BYTES = 64 * 1024 * 1024
_MAX_FLUSH_APPENDS = 1000
_MAX_FLUSH_BYTES = 8 * 1024 * 1024
APPENDED, SUSPECT, MISSING, STALE, BEHIND = range(5)
# How long a flush waits for a lock before it goes on without the partition: longer than another
# server holds one, shorter than anybody minds.
_LOCK_WAIT_MS = 100
# A partition that many servers write can raise suspicions again and again; each round makes
# progress for somebody, so this is never reached by honest traffic.
MAX_ROUNDS = 50


class Outcome(NamedTuple):
    """What the append said of one partition."""

    outcome: int
    head: int
    created_at: datetime
    unseen: bytes | None

    @property
    def is_appended(self) -> bool:
        return self.outcome == APPENDED


def append_columns(shares: list[Share], wait_ms: int | None = None) -> tuple[Any, ...]:
    """Return the arguments of the append statement. Shares must be in order of partition id."""
    queues = sorted({share.partition.queue.id for share in shares})
    part, before, counts, codecs, hashes, bodies = [], [], [], [], [], []
    for number, share in enumerate(shares, 1):
        position = 0
        for built in share.segments:
            part.append(number)
            before.append(position)
            counts.append(built.size)
            codecs.append(built.codec)
            hashes.append(built.hashes)
            bodies.append(built.body)
            position += built.size
    return (
        queues,
        [share.partition.id for share in shares],
        [share.total for share in shares],
        [share.known for share in shares],
        [share.compares_index for share in shares],
        part,
        before,
        counts,
        codecs,
        hashes,
        bodies,
        [share.partition.queue.revision for share in shares],
        [share.dedup == "forever" for share in shares],
        [share.known_at for share in shares],
        wait_ms,
    )


def outcomes(rows: Iterable[Iterable[Any]]) -> list[Outcome]:
    return [Outcome(*row) for row in rows]


class Pusher:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        dedup: Dedup,
        vault: Vault,
        cache: SegmentCache,
        activity: Activity,
        committed: Callable[[list[Partition]], None],
        maintenance: Maintenance,
        flushes: int,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._dedup = dedup
        self._vault = vault
        self._admission = Admission(database, vault)
        self._cache = cache
        self._activity = activity
        self._committed = committed
        self._maintenance = maintenance
        # A partition always goes through the same one, so its appends stay in order and no two
        # flushes of this server wait for one lock.
        self._batchers: list[Batcher[Append]] = [
            Batcher(
                self._flush,
                max_items=_MAX_FLUSH_APPENDS,
                max_weight=_MAX_FLUSH_BYTES,
                max_waiting_weight=_MAX_WAITING_BYTES // flushes,
            )
            for _ in range(flushes)
        ]
        self._aside: Aside[Append] = Aside(
            self._flush_alone,
            self._fail,
            max_items=_MAX_FLUSH_APPENDS,
            max_weight=_MAX_FLUSH_BYTES,
        )

    async def push(self, appends: list[Append]) -> None:
        """Store messages; returns after the commit. Raises when none of them were stored; where
        only some were not, their appends say why."""
        if not appends:
            return
        self._maintenance.check_push()
        batchers = [self._batcher_of(append) for append in appends]
        for append, batcher in zip(appends, batchers, strict=True):
            batcher.check_room(append.weight)
        if self._aside.weight > _MAX_ASIDE_BYTES and any(map(self._is_held_up, appends)):
            raise Overloaded
        request = Request(appends)
        for append, batcher in zip(appends, batchers, strict=True):
            self._prepare(append)
            batcher.submit(append)
        await request.done
        errors = [append.error for append in appends if append.error is not None]
        if len(errors) == len(appends):
            raise errors[0]
        self._activity.pushed(appends)

    @property
    def waiting(self) -> int:
        """How many appends wait for a flush."""
        return sum(batcher.waiting for batcher in self._batchers) + len(self._aside)

    def _prepare(self, append: Append) -> None:
        """Do what needs no database while it is busy with the flush before this one."""
        share = self._catalog.cached(append.queue, append.partition)
        append.target = share
        if len(append) >= OWN_SEGMENT_MESSAGES and append.encoded is None:
            append.encode()
        if share is not None and share.queue.options.dedup != "off":
            append.hash()

    def _batcher_of(self, append: Append) -> Batcher[Append]:
        return self._batchers[hash((append.queue, append.partition)) % len(self._batchers)]

    async def drained(self) -> None:
        for batcher in self._batchers:
            await batcher.drained()
        await self._aside.drained()

    # ---- one flush ----

    async def _flush(self, appends: list[Append]) -> None:
        ready: list[Append] = []
        for append in appends:
            if self._is_held_up(append):
                self._set_aside((append.queue, append.partition), [append])
            else:
                ready.append(append)
        if ready:
            await self._try(ready, alone=False)

    def _is_held_up(self, append: Append) -> bool:
        return self._aside.holds((append.queue, append.partition))

    def _set_aside(self, key: tuple[str, str], appends: list[Append]) -> None:
        for append in appends:
            append.is_aside = True
        self._aside.put(key, appends)

    async def _flush_alone(self, appends: list[Append]) -> None:
        """Store what was set aside of one partition."""
        for append in appends:
            append.is_aside = False
        await self._try(appends, alone=True)

    async def _try(self, appends: list[Append], *, alone: bool) -> None:
        try:
            await self._store(appends, alone=alone)
        except Exception as error:
            if alone and isinstance(error, Contended):
                raise
            if not isinstance(error, QueenError):
                _log.exception("a flush failed")
            if alone or isinstance(error, Unavailable):
                self._fail(appends, error if isinstance(error, QueenError) else QueenError())
            else:
                # Nothing was stored, because of one of them: each finds out by itself.
                self._part(appends)

    def _part(self, appends: list[Append]) -> None:
        for append in appends:
            if append.request is not None and not append.is_aside:
                self._set_aside((append.queue, append.partition), [append])

    def _fail(self, appends: Iterable[Append], error: QueenError) -> None:
        for append in appends:
            if append.request is not None and not append.is_aside:
                append.answer(error)
                append.request = None

    async def _store(self, appends: list[Append], *, alone: bool) -> None:
        shares = await self._ready(await self._reachable(appends, alone=alone), alone=alone)
        for _ in range(MAX_ROUNDS):
            shares = self.build(shares)
            if not shares:
                return
            started = time.perf_counter()
            try:
                rows = await self._append(shares)
            except Contended:
                if alone:
                    raise
                shares = await self._unlocked(shares)
                continue
            self._activity.flushed(
                sum(share.total for share in shares), time.perf_counter() - started
            )
            self._tell(shares, rows)
            shares = await self._refused(shares, rows, alone=alone)
        raise Unavailable("too many servers write the same transaction ids at once")

    def _tell(self, shares: list[Share], rows: list[Outcome]) -> None:
        """Answer what was committed. Whatever goes wrong with that, it is stored."""
        try:
            self.appended(shares, rows)
        except Exception:
            _log.exception("what was stored could not be told")
            for share, row in zip(shares, rows, strict=True):
                if row.is_appended:
                    self._fail(share.appends, OutcomeUnknown())

    def _leave(self, shares: Iterable[Share]) -> None:
        """Leave partitions to be stored alone."""
        for share in shares:
            self._set_aside(share.key, share.appends)

    async def _unlocked(self, shares: list[Share]) -> list[Share]:
        """Set aside the partitions that somebody else has locked; return the others."""
        rows = await self._database.fetch(
            "unlocked_partitions",
            sorted({share.partition.queue.id for share in shares}),
            [share.partition.id for share in shares],
        )
        free = {row["id"] for row in rows}
        self._leave(share for share in shares if share.partition.id not in free)
        return [share for share in shares if share.partition.id in free]

    async def _ready(self, shares: list[Share], *, alone: bool) -> list[Share]:
        """Compare ids, and ask the queues; answer what is refused, set aside what takes long."""
        slow = await self._dedup.screen(shares, alone=alone)
        self._leave(slow)
        return await self._admitted([share for share in shares if share not in slow])

    async def _admitted(self, shares: list[Share]) -> list[Share]:
        """Answer the appends that cannot be stored; return what is left."""
        for share in shares:
            self._answer_refused(share)
        refused = await self._admission.refusals([share for share in shares if share.appends])
        for share in shares if refused else ():
            share.refused = {one: refused[one] for one in share.appends if one in refused}
            self._answer_refused(share)
        return [share for share in shares if share.appends]

    def _answer_refused(self, share: Share) -> None:
        for append, error in share.drop_refused().items():
            self._fail([append], error)

    async def check_admission(self, shares: list[Share]) -> None:
        """Raise why a queue takes one of the appends not, if there is one."""
        for error in (await self._admission.refusals(shares)).values():
            raise error

    async def plan(self, appends: list[Append]) -> list[Share]:
        """Group appends by partition and mark what is stored already; all of them or none."""
        shares = await self._shares(appends)
        for append in appends:
            if append.error is not None:
                raise append.error
        await self._screen_all(shares)
        return shares

    async def _screen_all(self, shares: list[Share]) -> None:
        await self._dedup.screen(shares)
        for share in shares:
            for error in share.refused.values():
                raise error

    async def _reachable(self, appends: list[Append], *, alone: bool) -> list[Share]:
        """Group appends by partition; leave those whose partitions cannot be made at once."""
        try:
            return await self._shares(appends, _LOCK_WAIT_MS)
        except Contended:
            if alone:
                raise
        known = []
        for append in appends:
            is_made = self._catalog.known(append.queue, append.partition) is not None
            if append.target is not None or is_made:
                known.append(append)
            else:
                self._set_aside((append.queue, append.partition), [append])
        return await self._shares(known, _LOCK_WAIT_MS)

    async def _shares(self, appends: list[Append], wait_ms: int | None = None) -> list[Share]:
        unknown = [(one.queue, one.partition) for one in appends if one.target is None]
        if unknown:
            await self._catalog.resolve(unknown, wait_ms)
        grouped: dict[Partition, list[Append]] = {}
        for append in appends:
            if append.target is None:
                append.target = self._catalog.known(append.queue, append.partition)
            if append.target is None:
                append.error = Unavailable("a queue was deleted while it was written")
                self._fail([append], append.error)
            else:
                grouped.setdefault(append.target, []).append(append)
        return [Share(partition, group) for partition, group in grouped.items()]

    def build(self, shares: list[Share]) -> list[Share]:
        """Make segments of what is new, in lock order; answer shares that have nothing new."""
        kept = []
        for share in shares:
            share.build(self._vault)
            if share.segments:
                kept.append(share)
            else:
                self._answer(share)
        kept.sort(key=lambda share: share.partition.id)
        return kept

    async def _append(self, shares: list[Share]) -> list[Outcome]:
        columns = append_columns(shares, _LOCK_WAIT_MS)
        try:
            rows = await self._database.fetch("append", *columns)
        except OutcomeUnknown:
            if any(share.known is None for share in shares):
                raise
            # The same ids again: if the first try was committed, this one finds it.
            for share in shares:
                for append in share.appends:
                    append.first_try_head = share.partition.head
            try:
                rows = await self._database.fetch("append", *columns)
            except Unavailable:
                raise OutcomeUnknown from None
        return outcomes(rows)

    def appended(self, shares: list[Share], rows: list[Outcome]) -> None:
        """Answer what was committed, and tell those who wait for it."""
        written: list[Share] = []
        for share, row in zip(shares, rows, strict=True):
            if row.is_appended:
                self._appended(share, row)
                written.append(share)
        if written:
            self._dedup.remember(written)
            self._committed([share.partition for share in written])
            for share in written:
                self._answer(share)

    async def _refused(
        self, shares: list[Share], rows: list[Outcome], *, alone: bool
    ) -> list[Share]:
        """Find out why partitions were refused; return those that are ready to be tried again."""
        again, old = [], []
        for share, row in zip(shares, rows, strict=True):
            if row.is_appended:
                continue
            if row.outcome in (STALE, MISSING):
                old.append((share, row))
            elif not alone and row.created_at is not None:
                # Stored ids have to be read, or much that others wrote.
                self._leave([share])
            else:
                again.append((share, row))
        for share, row in [*old, *again]:
            try:
                await self._learn(share, row)
            except QueenError as error:
                self._fail(share.appends, error)
                share.appends = []
        for share, _ in again:
            self._answer_refused(share)
        renewed = await self._ready([share for share, _ in old if share.appends], alone=alone)
        return renewed + [share for share, _ in again if share.appends]

    async def refused(self, shares: list[Share], rows: list[Outcome]) -> list[Share]:
        """Return the partitions that were refused, ready for another try: all of them or none."""
        again = [
            (share, row) for share, row in zip(shares, rows, strict=True) if not row.is_appended
        ]
        for share, row in again:
            await self._learn(share, row)
            if row.outcome in (STALE, MISSING):
                await self._dedup.screen([share])
            for error in share.refused.values():
                raise error
        return [share for share, _ in again]

    def _appended(self, share: Share, row: Outcome) -> None:
        self._activity.stored(share)
        if row.head < min(share.head, share.partition.head):
            self._catalog.went_back(share.partition, row.head)
        offset = row.head
        for append in share.appends:
            append.base_offset = offset
            offset += len(append) - len(append.repeats or ())
        base = row.head
        for built in share.segments:
            self._cache.put(share.partition.id, base, row.created_at, built.columns)
            base += built.size
        share.partition.saw_head(base)
        self._dedup.appended(share, base, row.created_at, row.unseen)

    def _answer(self, share: Share) -> None:
        for append in share.appends:
            append.answer()
            append.request = None

    async def _learn(self, share: Share, row: Outcome) -> None:
        """Find out what others did to a partition that an append was refused for."""
        partition = share.partition
        if row.outcome == MISSING:
            await self._find_again(share)
        elif row.outcome == STALE:
            await self._catalog.reload(partition.queue)
        elif share.compares_index:
            await self._dedup.verify_indexed(share)
        elif row.created_at is not None:
            if row.outcome == BEHIND:
                partition.known = None
            else:
                self._dedup.met_unseen(share, row.head, row.created_at, row.unseen)
            await self._dedup.screen([share])

    async def _find_again(self, share: Share) -> None:
        """A partition is gone: find, or make, the one that now has its name."""
        queue, name = share.key
        self._catalog.forget_queue(queue)
        await self._catalog.resolve([(queue, name)])
        found = self._catalog.known(queue, name)
        if found is None:
            raise Unavailable("a queue was deleted while it was written")
        share.partition = found
        for append in share.appends:
            append.target = found
