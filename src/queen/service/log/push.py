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
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from queen.core.pacing.shares import FairOrder
from queen.errors import Contended, OutcomeUnknown, Overloaded, QueenError, Unavailable
from queen.service.catalog import Catalog, Partition
from queen.service.log.append import OWN_SEGMENT_MESSAGES, Append, Request
from queen.service.log.appender import (
    Appender,
    Outcome,
    answer_refused,
    append_call,
    is_lone,
    lone_arguments,
    outcomes,
)
from queen.service.log.aside import Aside
from queen.service.log.batcher import Batcher
from queen.service.log.flush_share import Share
from queen.service.log.segment_cache import StoredSegment
from queen.service.stats.activity import Activity
from queen.service.stats.steps import Steps
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 128 * 1024 * 1024
_MAX_ASIDE_BYTES = 64 * 1024 * 1024
_MAX_FLUSH_APPENDS = 1000
_MAX_FLUSH_BYTES = 8 * 1024 * 1024
# How long a flush waits for a lock before it goes on without the partition: longer than another
# server holds one, shorter than anybody minds.
_LOCK_WAIT_MS = 100


class Receiver(Protocol):
    """A consumer that waits for a segment."""

    @property
    def arguments(self) -> tuple[object, ...]:
        """What leases it to the consumer, with the append."""

    def take(self, stored: StoredSegment, epoch: int | None) -> None:
        """It is stored, and leased if there is an epoch; nobody was told yet."""

    def leave_unclear(self) -> None:
        """Nobody knows what became of it."""

    def finish(self) -> None:
        """Everybody else was told, whatever there was to tell."""


# Returns who waits for what is appended to a partition, if there is somebody.
FindReceiver = Callable[[Partition], Receiver | None]


class Pusher:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        appender: Appender,
        find_receiver: FindReceiver,
        activity: Activity,
        flushes: int,
        steps: Steps,
        weights: Mapping[str, int],
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._appender = appender
        self._find_receiver = find_receiver
        self._activity = activity
        self._steps = steps
        # How often something was written.
        self.flushes = 0
        # A partition always goes through the same one, so its appends stay in order and no two
        # flushes of this server wait for one lock.
        self._batchers: list[Batcher[Append]] = [
            Batcher(
                self._flush,
                max_items=_MAX_FLUSH_APPENDS,
                max_weight=_MAX_FLUSH_BYTES,
                max_waiting_weight=_MAX_WAITING_BYTES // flushes,
                order=FairOrder(weights, self._owner_of) if weights else None,
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
        """Store messages, and count that; raises when none of them were stored."""
        await self.store(appends)
        raise_if_none_stored(appends)
        self._activity.count_push(appends)

    async def store(self, appends: list[Append]) -> None:
        """Store messages; returns after the commit. Appends that were not stored say why."""
        if appends:
            await self.submit(appends).wait()

    def submit(self, appends: list[Append]) -> Request:
        """Begin to store messages; what is returned tells when each append has its answer."""
        batchers = [self._batcher_of(append) for append in appends]
        for append, batcher in zip(appends, batchers, strict=True):
            batcher.check_room(append.weight, append)
        if self._aside.weight > _MAX_ASIDE_BYTES and any(map(self._is_held_up, appends)):
            raise Overloaded
        request = Request(appends)
        self._note("taken", appends)
        for append, batcher in zip(appends, batchers, strict=True):
            self._prepare(append)
            batcher.submit(append)
        return request

    @property
    def waiting(self) -> int:
        """How many appends wait for a flush."""
        return sum(batcher.waiting for batcher in self._batchers) + len(self._aside)

    def _prepare(self, append: Append) -> None:
        """Do what needs no database while it is busy with the flush before this one."""
        partition = self._catalog.cached(append.queue, append.partition)
        append.target = partition
        if len(append) >= OWN_SEGMENT_MESSAGES and append.encoded is None:
            append.encode()
        if partition is not None and partition.queue.options.dedup != "off":
            append.hash()

    def _owner_of(self, append: Append) -> tuple[str, str]:
        """By what the order of an append is kept, and its namespace as far as it is known."""
        queue = self._catalog.cached_queue(append.queue)
        return append.queue, queue.namespace if queue is not None else ""

    def _batcher_of(self, append: Append) -> Batcher[Append]:
        return self._batchers[hash((append.queue, append.partition)) % len(self._batchers)]

    async def drain(self) -> None:
        for batcher in self._batchers:
            await batcher.drain()
        await self._aside.drain()

    # ---- one flush ----

    def _note(self, step: str, appends: list[Append]) -> None:
        if self._steps.queue is not None and len(appends) == 1:
            self._steps.note(appends[0].queue, step)

    async def _flush(self, appends: list[Append]) -> None:
        self._note("flushed", appends)
        ready: list[Append] = []
        for append in appends:
            if self._is_held_up(append):
                self._set_aside((append.queue, append.partition), [append])
            else:
                ready.append(append)
        if ready:
            self.flushes += 1
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
                self._separate(appends)

    def _separate(self, appends: list[Append]) -> None:
        for append in appends:
            if append.request is not None and not append.is_aside:
                self._set_aside((append.queue, append.partition), [append])

    def _fail(self, appends: Iterable[Append], error: QueenError) -> None:
        for append in appends:
            append.fail(error)

    async def _store(self, appends: list[Append], *, alone: bool) -> None:
        shares = await self._group_reachable(appends, alone=alone)
        shares = await self._screen(shares, alone=alone)
        await self._appender.append(shares, lambda built: self._append_some(built, alone=alone))

    async def _append_some(self, shares: list[Share], *, alone: bool) -> list[Share] | None:
        """Append; return what has to be tried again, None when there is nothing to do."""
        if not shares:
            return None
        receiver = self._find_receiver(shares[0].partition) if is_lone(shares) else None
        try:
            rows = await self._append_and_tell(shares, receiver)
        except Contended:
            if alone:
                raise
            return await self._leave_locked(shares)
        finally:
            if receiver is not None:
                receiver.finish()
        if all(row.is_appended for row in rows):
            return None
        return await self._learn(shares, rows, alone=alone)

    async def _append_and_tell(
        self, shares: list[Share], receiver: Receiver | None
    ) -> list[Outcome]:
        started = time.perf_counter()
        self._note("sent", shares[0].appends)
        rows = await self._append(shares, receiver)
        self._activity.count_flush(
            sum(share.total for share in shares), time.perf_counter() - started
        )
        self._steps.note_written(shares[0].partition.queue.name, rows[0].created_at)
        self._note("stored", shares[0].appends)
        self._tell(shares, rows)
        self._note("told", shares[0].appends)
        return rows

    async def _append(self, shares: list[Share], receiver: Receiver | None) -> list[Outcome]:
        statement, arguments = append_call(shares, _LOCK_WAIT_MS)
        try:
            if receiver is not None:
                return await self._append_and_lease(shares[0], receiver)
            rows = await self._database.fetch(statement, *arguments)
        except OutcomeUnknown:
            if receiver is not None:
                receiver.leave_unclear()
            for share in shares:
                share.note_try()
            if any(share.known is None for share in shares):
                raise
            # The same ids again: if the first try was committed, this one finds it.
            try:
                rows = await self._database.fetch(statement, *arguments)
            except Unavailable:
                raise OutcomeUnknown from None
        return outcomes(rows)

    async def _append_and_lease(self, share: Share, receiver: Receiver) -> list[Outcome]:
        arguments = *lone_arguments(share, _LOCK_WAIT_MS), *receiver.arguments
        ((*outcome, epoch),) = await self._database.fetch("append_and_lease", *arguments)
        row = Outcome(*outcome)
        if row.is_appended:
            (built,) = share.segments
            encoded = built.columns, built.codec, built.body
            receiver.take(StoredSegment(row.head, row.created_at, *encoded), epoch)
        return [row]

    def _tell(self, shares: list[Share], rows: list[Outcome]) -> None:
        """Answer what was committed. Whatever goes wrong with that, it is stored."""
        try:
            # Who is alone waits for nothing that somebody else might want.
            is_alone = len(shares) == 1 and not self.waiting
            self._appender.tell(shares, rows, at_once=is_alone)
        except Exception:
            _log.exception("what was stored could not be told")
            for share, row in zip(shares, rows, strict=True):
                if row.is_appended:
                    self._fail(share.appends, OutcomeUnknown())

    def _leave(self, shares: Iterable[Share]) -> None:
        """Leave partitions to be stored alone."""
        for share in shares:
            self._set_aside(share.key, share.appends)

    async def _leave_locked(self, shares: list[Share]) -> list[Share]:
        """Set aside the partitions that somebody else has locked; return the others."""
        rows = await self._database.fetch(
            "unlocked_partitions",
            sorted({share.partition.queue.id for share in shares}),
            [share.partition.id for share in shares],
        )
        free = {row["id"] for row in rows}
        self._leave(share for share in shares if share.partition.id not in free)
        return [share for share in shares if share.partition.id in free]

    async def _screen(self, shares: list[Share], *, alone: bool) -> list[Share]:
        """Compare ids, and ask the queues; answer what is refused, set aside what takes long."""
        slow = await self._appender.screen(shares, alone=alone)
        self._leave(slow)
        return await self._appender.admit([share for share in shares if share not in slow])

    async def _group_reachable(self, appends: list[Append], *, alone: bool) -> list[Share]:
        """Group appends by partition; leave those whose partitions cannot be made at once."""
        try:
            return await self._appender.group(appends, _LOCK_WAIT_MS)
        except Contended:
            if alone:
                raise
        reachable = []
        for append in appends:
            is_made = self._catalog.known(append.queue, append.partition) is not None
            if append.target is not None or is_made:
                reachable.append(append)
            else:
                self._set_aside((append.queue, append.partition), [append])
        return await self._appender.group(reachable, _LOCK_WAIT_MS)

    async def _learn(self, shares: list[Share], rows: list[Outcome], *, alone: bool) -> list[Share]:
        """Find out why partitions were refused; return those that are ready to be tried again."""
        suspect, outdated = [], []
        for share, row in zip(shares, rows, strict=True):
            if row.is_appended:
                continue
            if row.is_outdated:
                outdated.append((share, row))
            elif not alone and row.created_at is not None:
                # Stored ids have to be read, or much that others wrote.
                self._leave([share])
            else:
                suspect.append((share, row))
        for share, row in [*outdated, *suspect]:
            try:
                await self._appender.learn(share, row)
            except QueenError as error:
                self._fail(share.appends, error)
                share.appends = []
        for share, _ in suspect:
            answer_refused(share)
        renewed = await self._screen([share for share, _ in outdated if share.appends], alone=alone)
        return renewed + [share for share, _ in suspect if share.appends]


def raise_if_none_stored(appends: list[Append]) -> None:
    """Raise why, when nothing was stored; where some was, the other appends say it."""
    errors = [append.error for append in appends if append.error is not None]
    if errors and len(errors) == len(appends):
        raise errors[0]
