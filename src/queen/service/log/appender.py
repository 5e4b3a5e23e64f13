"""Appending: the one way into the log.

    plan      appends by partition, their ids compared with what is stored
    build     segments of what is new, in the order of locks
    append    one statement for all partitions: each says appended, or why not
    learn     what others wrote meanwhile, for those that were refused; then build again

Who appends decides what a round is (a flush, a transaction, what the relay has taken) and what
becomes of a partition that was refused; the rest is here, once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from queen.errors import QueenError, Unavailable
from queen.service.catalog import Catalog, Partition
from queen.service.events import Events
from queen.service.log.admission import Admission
from queen.service.log.append import Append
from queen.service.log.dedup import Dedup
from queen.service.log.flush_share import Share
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.stats.activity import Activity
from queen.storage.database import Database

APPENDED, SUSPECT, MISSING, STALE, BEHIND = range(5)
# A partition that many servers write can raise suspicions again and again; each round makes
# progress for somebody, so this is never reached by honest traffic.
_MAX_ROUNDS = 50


class Outcome(NamedTuple):
    """What the append said of one partition."""

    outcome: int
    head: int
    created_at: datetime
    unseen: bytes | None

    @property
    def is_appended(self) -> bool:
        return self.outcome == APPENDED

    @property
    def is_outdated(self) -> bool:
        """Whether the partition or its queue is not what this server took it for."""
        return self.outcome in (STALE, MISSING)


# One round: tries to append shares that are built, and returns those to build and try again;
# None when everything is done.
Round = Callable[[list[Share]], Awaitable[list[Share] | None]]


async def try_in_rounds(attempt: Callable[[], Awaitable[bool]]) -> None:
    """Try until it is done. A try that is not has found out what others wrote meanwhile."""
    for _ in range(_MAX_ROUNDS):
        if await attempt():
            return
    raise Unavailable("too many servers write the same transaction ids at once")


def append_call(shares: list[Share], wait_ms: int) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that appends shares, and its arguments: a lone segment has its own."""
    if is_lone(shares):
        return "append_lone", lone_arguments(shares[0], wait_ms)
    return "append", append_columns(shares, wait_ms)


def is_lone(shares: list[Share]) -> bool:
    """Whether there is a single segment, which is compared with what others wrote lately alone."""
    return len(shares) == 1 and len(shares[0].segments) == 1 and shares[0].dedup != "forever"


def lone_arguments(share: Share, wait_ms: int) -> tuple[Any, ...]:
    (built,) = share.segments
    partition = share.partition
    return (
        partition.queue.id,
        partition.id,
        built.size,
        share.known,
        share.known_at,
        built.codec,
        built.hashes,
        built.body,
        partition.queue.revision,
        wait_ms,
    )


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


class Appender:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        dedup: Dedup,
        encryption: SegmentEncryption,
        cache: SegmentCache,
        activity: Activity,
        events: Events,
    ) -> None:
        self._catalog = catalog
        self._dedup = dedup
        self._encryption = encryption
        self._admission = Admission(database, encryption)
        self._cache = cache
        self._activity = activity
        self._events = events

    async def append(self, shares: list[Share], attempt: Round) -> None:
        """Build segments and try to append them, until nothing is left."""
        left = shares

        async def build_and_try() -> bool:
            nonlocal left
            again = await attempt(self.build(left))
            left = again or []
            return again is None

        await try_in_rounds(build_and_try)

    # ---- plan ----

    async def plan(self, appends: list[Append]) -> list[Share]:
        """Group appends by partition and mark what is stored already; all of them or none."""
        shares = await self.group(appends)
        for append in appends:
            if append.error is not None:
                raise append.error
        await self._dedup.screen(shares)
        for share in shares:
            share.raise_refusal()
        return shares

    async def group(self, appends: list[Append], wait_ms: int | None = None) -> list[Share]:
        """Group appends by partition, and make what does not exist. An append whose queue was
        deleted in the same moment has an error instead."""
        unknown = [(append.queue, append.partition) for append in appends if append.target is None]
        if unknown:
            await self._catalog.resolve(unknown, wait_ms)
        # By id: of a partition that was forgotten meanwhile there may be two objects.
        grouped: dict[int, list[Append]] = {}
        latest: dict[int, Partition] = {}
        for append in appends:
            if append.target is None:
                append.target = self._catalog.known(append.queue, append.partition)
            if append.target is None:
                append.error = Unavailable("a queue was deleted while it was written")
                append.fail(append.error)
            else:
                latest[append.target.id] = append.target
                grouped.setdefault(append.target.id, []).append(append)
        return [Share(latest[number], group) for number, group in grouped.items()]

    async def check_admission(self, shares: list[Share]) -> None:
        """Raise why a queue does not take one of the appends, if there is one."""
        for error in (await self._admission.refusals(shares)).values():
            raise error

    async def admit(self, shares: list[Share]) -> list[Share]:
        """Answer the appends that cannot be stored; return what is left."""
        for append, error in (await self.drop_refused(shares)).items():
            append.fail(error)
        return [share for share in shares if share.appends]

    async def drop_refused(self, shares: list[Share]) -> dict[Append, QueenError]:
        """Take out of the shares what cannot be stored; return it with the reasons."""
        dropped: dict[Append, QueenError] = {}
        for share in shares:
            dropped |= share.drop_refused()
        refused = await self._admission.refusals([share for share in shares if share.appends])
        for share in shares if refused else ():
            share.refused = {
                append: refused[append] for append in share.appends if append in refused
            }
            dropped |= share.drop_refused()
        return dropped

    async def screen(self, shares: list[Share], *, alone: bool) -> list[Share]:
        """Mark what is stored already; return the shares for which that takes long."""
        return await self._dedup.screen(shares, alone=alone)

    # ---- build ----

    def build(self, shares: list[Share]) -> list[Share]:
        """Make segments of what is new, in lock order; answer shares that have nothing new."""
        kept = []
        for share in shares:
            share.build(self._encryption)
            if share.segments:
                kept.append(share)
            else:
                share.answer()
        kept.sort(key=lambda share: share.partition.id)
        return kept

    # ---- after the statement ----

    def tell(self, shares: list[Share], rows: list[Outcome], *, at_once: bool = False) -> None:
        """Answer what was committed, and tell those who wait for it. With `at_once`, whoever sent
        it is answered before anything else is done, and not when the event loop is free."""
        written = [pair for pair in zip(shares, rows, strict=True) if pair[1].is_appended]
        for share, row in written:
            share.place(row.head)
            if at_once:
                share.answer_at_once()
        for share, row in written:
            self._remember(share, row)
        if written:
            self._dedup.remember([share for share, _ in written])
            self._events.written([share.partition for share, _ in written])
            for share, _ in written:
                share.answer()

    def _remember(self, share: Share, row: Outcome) -> None:
        self._activity.count_stored(share)
        if row.head < min(share.head, share.partition.head):
            self._catalog.went_back(share.partition, row.head)
        base = row.head
        for built in share.segments:
            encoded = built.codec, built.body
            self._cache.put(share.partition.id, base, row.created_at, built.columns, *encoded)
            base += built.size
        share.partition.saw_head(base)
        self._dedup.note_appended(share, base, row.created_at, row.unseen)

    async def learn_all(self, shares: list[Share], rows: list[Outcome]) -> list[Share]:
        """Return the partitions that were refused, ready for another try: all of them or none."""
        refused = [
            (share, row) for share, row in zip(shares, rows, strict=True) if not row.is_appended
        ]
        for share, row in refused:
            await self.learn(share, row)
            if row.is_outdated:
                await self._dedup.screen([share])
            share.raise_refusal()
        return [share for share, _ in refused]

    async def learn(self, share: Share, row: Outcome) -> None:
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
                self._dedup.note_unseen(share, row.head, row.created_at, row.unseen)
            await self._dedup.screen([share])

    async def _find_again(self, share: Share) -> None:
        """A partition is gone: find, or make, the one that now has its name."""
        queue, name = share.key
        self._catalog.forget_queue(queue)
        await self._catalog.resolve([(queue, name)])
        partition = self._catalog.known(queue, name)
        if partition is None:
            raise Unavailable("a queue was deleted while it was written")
        share.partition = partition
        for append in share.appends:
            append.target = partition


def answer_refused(share: Share) -> None:
    """Answer what cannot be stored, and what counts on it."""
    for append, error in share.drop_refused().items():
        append.fail(error)
