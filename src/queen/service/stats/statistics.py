"""Statistics: how much lies in the queues, and how far each group has come.

Counting means looking at every partition, so no request does it when there are many. A job
counts page by page, all pages at one instant (a repeatable-read transaction), and leaves the
sums in tables that a request reads. It rests twenty times as long as it has worked, so it
takes a twentieth of one connection however many partitions there are.

When counting is cheap a request may as well do it itself. Then whoever asks sees the present:

    cheap           counted again when this server has changed something, or after 250 ms
    dear            the stored numbers, with their age

Cheap is what took less than 15 ms, or looks at few rows: the first count after a start is
slow, whatever it counts.

Bytes are counted on their own clock: that reads every segment.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from queen.errors import QueenError
from queen.service.singleflight import Rounds
from queen.service.stats.lag import MAX_LAGGING, Worst
from queen.service.upkeep.jobs import Jobs
from queen.storage.database import Database, Record, Transaction

JOB = "statistics"
_INTERVAL_S = 1.0
# How often a server counts that has done nothing since: leases lapse, and others may have died.
_IDLE_INTERVAL_S = 10.0
_BYTES_INTERVAL_S = 10.0
_REST = 20
_CHEAP_MS = 15.0
_CHEAP_ROWS = 3000
_STALE_S = 0.25
_PAGE_PARTITIONS = 10_000
_PAGE_DEAD_LETTERS = 100_000
_PAGE_SEGMENTS = 100_000
_TRIES = 20
_FIRST_TRIES = 1000
_REFRESH_TRIES = 500
_TRY_PAUSE_S = 0.01


class _Extent(Enum):
    """What a round is to count."""

    DUE = "due"
    CHEAP = "cheap"
    ALL = "all"


class Stamp(NamedTuple):
    """When the numbers were true."""

    at: datetime | None
    age_s: float
    bytes_at: datetime | None


class _Count:
    """Sums of one queue or of one group."""

    __slots__ = (
        "behind",
        "consumers",
        "dead_letters",
        "done",
        "leased",
        "leased_partitions",
        "members",
        "oldest",
        "outstanding",
        "partitions",
        "retained",
        "written",
    )

    def __init__(self) -> None:
        self.partitions = self.written = self.retained = self.outstanding = 0
        self.leased = self.leased_partitions = self.done = self.behind = self.dead_letters = 0
        self.members = self.consumers = 0
        self.oldest: datetime | None = None

    def add(self, row: Record) -> None:
        self.partitions += row["partitions"]
        self.written += row["written"]
        self.retained += row["retained"]
        self.outstanding += row["outstanding"]
        self.leased += row["leased"]
        self.leased_partitions += row["leased_partitions"]
        self.done += row["done"]
        self.behind += row["behind"]
        self.members += row["members"]
        self.consumers += row["consumers"]
        if row["oldest"] is not None:
            self.oldest = min(self.oldest or row["oldest"], row["oldest"])


class Statistics:
    def __init__(self, database: Database, jobs: Jobs, version: Callable[[], int]) -> None:
        self._database = database
        self._jobs = jobs
        # Grows with everything this server does.
        self._version = version
        self._counted_version = -1
        # When it was seen last that there is something to count, and what the version was then.
        self._looked_at = float("-inf")
        self._looked_version = -1
        self._before_round = (-1, 0.0)
        self._rounds = Rounds[None]()
        jobs.add(JOB, _INTERVAL_S, self._count_what_is_due, "repeatable_read", self._is_needed)

    async def current(self) -> Stamp:
        """Return the instant of the stored numbers, after counting again if that is cheap."""
        row = await self._round()
        if _is_never(row):
            # Zeros would be a lie. The first count of a database is worth a wait.
            await self._count_since(row["now"], _FIRST_TRIES)
            row = await self._round()
        if self._is_stale(row):
            # A count under way may have begun before the caller's own push was committed.
            await self._rounds.ask(JOB, self._count_anew)
            row = await self._round()
        return _stamp(row)

    async def stamp(self) -> Stamp:
        """Return the instant of the stored numbers, whatever their age."""
        return _stamp(await self._round())

    async def refresh(self) -> bool:
        """Count everything now, whatever it costs; false when others were at it all the time.

        What another server began before it was asked here may lack what the caller has done.
        """
        asked_at = (await self._round())["now"]
        for _ in range(_REFRESH_TRIES):
            if await self._run(_Extent.ALL) or (await self._round())["computed_at"] >= asked_at:
                return True
            await asyncio.sleep(_TRY_PAUSE_S)
        return False

    async def _round(self) -> Record:
        return await self._database.fetchrow("stats_round")

    async def _run(self, extent: _Extent) -> bool:
        # What this server does from here on the count may not see.
        version = self._version()
        has_run = await self._jobs.run_once(JOB, partial(self._count_extent, extent))
        if has_run:
            self._counted_version = version
        return has_run

    def _is_stale(self, row: Record) -> bool:
        if row["took_ms"] >= _CHEAP_MS and row["rows_counted"] > _CHEAP_ROWS:
            return False
        return self._version() != self._counted_version or float(row["age_s"]) > _STALE_S

    async def _count_anew(self) -> None:
        await self._count_since((await self._round())["now"])

    async def _count_since(self, since: datetime, tries: int = _TRIES) -> None:
        for _ in range(tries):
            try:
                await self._run(_Extent.CHEAP)
            except QueenError:
                # A queue was deleted under the count, or another server's count came first.
                await asyncio.sleep(_TRY_PAUSE_S)
            # Another server may be counting; its numbers will do if it began late enough.
            row = await self._round()
            if row["computed_at"] >= since or (tries == _FIRST_TRIES and not _is_never(row)):
                return
            await asyncio.sleep(_TRY_PAUSE_S)

    # ---- counting ----

    def _is_needed(self) -> bool:
        """Whether this server has done something since a count that it knows of, or long ago."""
        now, version = time.monotonic(), self._version()
        if version == self._looked_version and now - self._looked_at < _IDLE_INTERVAL_S:
            return False
        # Before the transaction begins: what is done from here on it may not see.
        self._before_round = version, now
        return True

    async def _count_what_is_due(self, transaction: Transaction) -> bool:
        if await self._count_extent(_Extent.DUE, transaction):
            self._looked_version, self._looked_at = self._before_round
        return False

    async def _count_extent(self, extent: _Extent, transaction: Transaction) -> bool:
        """Count everything at one instant, unless that was done a moment ago: then it is false for
        one that only counts what is due."""
        await transaction.execute("commit_lazily")
        last = await transaction.fetchrow("stats_round")
        is_due = extent is not _Extent.DUE or _is_due(last["age_s"], last["took_ms"], _INTERVAL_S)
        if is_due:
            await self._count(transaction, last["now"])
        cheap = last["bytes_took_ms"] < _CHEAP_MS or last["segments_counted"] <= _CHEAP_ROWS
        due = _is_due(last["bytes_age_s"], last["bytes_took_ms"], _BYTES_INTERVAL_S)
        if due or extent is _Extent.ALL or (extent is _Extent.CHEAP and cheap):
            await self._count_bytes(transaction, last["now"])
        return is_due

    async def _count(self, transaction: Transaction, at: datetime) -> None:
        started = time.perf_counter()
        queues: defaultdict[int, _Count] = defaultdict(_Count)
        groups: defaultdict[int, _Count] = defaultdict(_Count)
        worst = Worst(await transaction.fetchval("stats_namespaces"))
        await _count_partitions(transaction, at, queues, groups, worst)
        await _count_dead_letters(transaction, queues, groups)
        await transaction.execute("store_queue_stats", *_queue_columns(queues))
        await transaction.execute("store_group_stats", *_group_columns(groups))
        await transaction.execute("store_lagging", *worst.columns())
        counts = (*queues.values(), *groups.values())
        rows = sum(count.partitions + count.dead_letters for count in counts)
        took_ms = (time.perf_counter() - started) * 1000
        await transaction.execute("store_round", at, took_ms, rows)

    async def _count_bytes(self, transaction: Transaction, at: datetime) -> None:
        started = time.perf_counter()
        segments: defaultdict[int, int] = defaultdict(int)
        sizes: defaultdict[int, int] = defaultdict(int)
        last, count = [-1, -1], _PAGE_SEGMENTS
        while count == _PAGE_SEGMENTS:
            rows = await transaction.fetch("stats_bytes", *last, _PAGE_SEGMENTS)
            count = 0
            for row in rows:
                segments[row["queue_id"]] += row["segments"]
                sizes[row["queue_id"]] += row["bytes"]
                count += row["segments"]
                last = row["last"]
        await transaction.execute(
            "store_bytes", list(segments), list(segments.values()), [sizes[q] for q in segments]
        )
        took_ms = (time.perf_counter() - started) * 1000
        await transaction.execute("store_bytes_round", at, took_ms, sum(segments.values()))


async def _count_partitions(
    transaction: Transaction,
    at: datetime,
    queues: defaultdict[int, _Count],
    groups: defaultdict[int, _Count],
    worst: Worst,
) -> None:
    low, size = 0, _PAGE_PARTITIONS
    while size == _PAGE_PARTITIONS:
        bound = await transaction.fetchrow("stats_bound", low, _PAGE_PARTITIONS)
        size = bound["size"]
        if not size:
            return
        limits = worst.share, MAX_LAGGING
        rows = await transaction.fetch("stats_page", low, bound["high"], at, *limits)
        worst.add([row for row in rows if row["partition_id"] is not None])
        for row in rows:
            group_id = row["group_id"]
            if row["partition_id"] is None:
                (queues[row["queue_id"]] if group_id is None else groups[group_id]).add(row)
        low = bound["high"]


async def _count_dead_letters(
    transaction: Transaction,
    queues: defaultdict[int, _Count],
    groups: defaultdict[int, _Count],
) -> None:
    last, count = 0, _PAGE_DEAD_LETTERS
    while count == _PAGE_DEAD_LETTERS:
        rows = await transaction.fetch("stats_dead_letters", last, _PAGE_DEAD_LETTERS)
        count = 0
        for row in rows:
            queues[row["queue_id"]].dead_letters += row["letters"]
            groups[row["group_id"]].dead_letters += row["letters"]
            count += row["letters"]
            last = max(last, row["last"])


def _is_due(age_s: Any, took_ms: float, interval_s: float) -> bool:
    return float(age_s) >= max(interval_s, _REST * took_ms / 1000)


def _is_never(row: Record) -> bool:
    """Whether nothing was counted yet; the table then says 1970."""
    return bool(row["computed_at"].year <= 1970)


def _stamp(row: Record) -> Stamp:
    if _is_never(row):
        return Stamp(None, 0.0, None)
    bytes_at = row["bytes_at"] if row["bytes_at"].year > 1970 else None
    return Stamp(row["computed_at"], max(float(row["age_s"]), 0.0), bytes_at)


def _queue_columns(queues: dict[int, _Count]) -> tuple[list[Any], ...]:
    counts = list(queues.values())
    return (
        list(queues),
        [count.partitions for count in counts],
        [count.written for count in counts],
        [count.retained for count in counts],
        [count.outstanding for count in counts],
        [count.leased_partitions for count in counts],
        [count.leased for count in counts],
        [count.dead_letters for count in counts],
    )


def _group_columns(groups: dict[int, _Count]) -> tuple[list[Any], ...]:
    counts = list(groups.values())
    return (
        list(groups),
        [count.outstanding for count in counts],
        [count.behind for count in counts],
        [count.leased_partitions for count in counts],
        [count.leased for count in counts],
        [count.done for count in counts],
        [count.dead_letters for count in counts],
        [count.oldest for count in counts],
        [count.members for count in counts],
        [count.consumers for count in counts],
    )
