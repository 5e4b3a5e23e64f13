"""The planner: closes windows when their time has come, whether or not anybody waits for them.

Every server runs one. A stream is looked at when its next boundary, plus grace, has passed on
the database's clock. The source queues are sealed up to the boundary first, each in a
transaction of its own: after that nothing can be missing before it and nothing can appear
later. Then the stream's row is taken, and what is complete becomes windows; a server that
finds the row taken leaves the stream to the one that has it. What lies between two boundaries is
looked at before that, in pages: what is sealed does not change, and a day of many segments is
neither one statement nor one long transaction.

Seals wait for appends under way, and appends that come later wait behind a seal that waits.
So the planner asks politely for a while before it insists, and insists only for a moment at a
time. Streams are planned side by side: a queue that cannot be sealed holds up nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import msgspec

from queen.core.gathering import (
    Closed,
    Counted,
    Session,
    Written,
    gather_counts,
    gather_sessions,
)
from queen.core.streams import GLOBAL_KEY, StreamDefinition
from queen.errors import QueenError
from queen.service.events import Events
from queen.service.stats.activity import Histogram
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

# How many segments one round of planning looks at; of one slide, all.
_SEGMENTS = 20_000
# How many of them one statement looks at, and how many slides are kept before equal ones are
# put together.
PAGE_SEGMENTS = 20_000
_MANY_SLIDES = 100_000
# For how long a server has a stream to itself whose pages are many.
_DEFER_S = 10
# How many boundaries one round fills with empty windows.
_EMPTY_WINDOWS = 1000
# Sessions and counts close when they close: how often somebody looks.
_LOOK_S = 0.5
_POLITE_TRIES = 40
_POLITE_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 1.0
_SHORTEST_PAUSE_S = 0.002
# What a stream waits whose queue could not be sealed.
_REST_S = 0.2
_TAKEN_S = 0.02
# Streams that are planned at once; each takes a connection.
_AT_ONCE = 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# How often what nobody needs any more is removed, and how much of it at once.
FORGET_INTERVAL_S = 60.0
_FORGET_ROWS = 5000
_NEVER = datetime(9000, 1, 1, tzinfo=UTC)

_definition = msgspec.json.Decoder(StreamDefinition)
_sessions = msgspec.msgpack.Decoder(Session)
_counts = msgspec.msgpack.Decoder(Counted)


class Slides:
    """What partitions got between two boundaries, as columns."""

    NAMES = ("partitions", "at", "low", "high", "messages", "bytes")

    def __init__(self) -> None:
        self.columns: list[list[Any]] = [[] for _ in self.NAMES]
        self._merge_at = _MANY_SLIDES

    def add(self, page: Record) -> None:
        """Add what a page has found; the end of the page before may be in the same slides."""
        for column, name in zip(self.columns, self.NAMES, strict=True):
            column.extend(page[name])
        if len(self.columns[0]) > self._merge_at:
            self._merge()

    def _merge(self) -> None:
        merged: dict[tuple[int, datetime], list[Any]] = {}
        for partition_id, at, low, high, messages, size in zip(*self.columns, strict=True):
            one = merged.setdefault((partition_id, at), [partition_id, at, low, high, 0, 0])
            one[2], one[3] = min(one[2], low), max(one[3], high)
            one[4] += messages
            one[5] += size
        self.columns = [list(column) for column in zip(*merged.values(), strict=True)]
        self._merge_at = len(merged) + _MANY_SLIDES


class Timed(NamedTuple):
    """What windows that end in (since, until] are made of."""

    since: datetime
    until: datetime
    slides: Slides


class Planner:
    def __init__(
        self,
        database: Database,
        events: Events,
        page_segments: int = PAGE_SEGMENTS,
    ) -> None:
        self._database = database
        self._page_segments = page_segments
        self._events = events
        events.streams_changed.subscribe(self.wake)
        self._wake = asyncio.Event()
        self._turn = asyncio.Semaphore(_AT_ONCE)
        # Streams that are being planned here.
        self._under_way: dict[int, asyncio.Task[None]] = {}
        # For whoever watches: windows planned, and how long the rounds took.
        self.windows = 0
        self.seconds = Histogram(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

    def wake(self) -> None:
        """A stream is new or has changed: look now."""
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                pause_s = _LONGEST_PAUSE_S
                try:
                    await self._start_due()
                    pause_s = await self._pause_s()
                except QueenError as error:
                    _log.warning("planning streams: %s", error)
                except Exception:
                    _log.exception("planning streams failed")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
        finally:
            for task in self._under_way.values():
                task.cancel()

    async def _pause_s(self) -> float:
        due_s: float | None = await self._database.findval("next_plan", list(self._under_way))
        if due_s is None:
            return _LONGEST_PAUSE_S
        return min(max(due_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    async def plan_due(self) -> bool:
        """Plan every stream whose time has come; return whether there was one."""
        if under_way := await self._start_due():
            await asyncio.wait(under_way)
        return bool(under_way)

    async def _start_due(self) -> list[asyncio.Task[None]]:
        """Begin with every stream whose time has come; return what is under way."""
        for row in await self._database.fetch("streams_to_plan"):
            if row["id"] not in self._under_way:
                self._under_way[row["id"]] = asyncio.create_task(self._plan_one(row))
        return list(self._under_way.values())

    async def _plan_one(self, row: Record) -> None:
        try:
            async with self._turn:
                began = time.monotonic()
                await self._plan(row)
                self.seconds.observe(time.monotonic() - began)
        except QueenError as error:
            _log.warning("planning stream %s: %s", row["name"], error)
            # Whatever it is, it will not be over at once.
            await asyncio.sleep(_REST_S)
        except Exception:
            _log.exception("planning stream %s failed", row["name"])
            await asyncio.sleep(_LONGEST_PAUSE_S)
        finally:
            del self._under_way[row["id"]]
            self._wake.set()

    async def _plan(self, row: Record) -> None:
        definition = _definition.decode(row["definition"])
        target = _target(definition, row["now"])
        for queue_id in row["queue_ids"]:
            await self._seal(queue_id, target)
        since = await self._since(row)
        timed = None
        if definition.is_timed and since is not None:
            timed = await self._slides(row, definition, since, target)
        async with self._database.transaction() as transaction:
            taken = await _take(transaction, row, since)
            count = 0
            if taken is not None:
                round_ = _Round(transaction, row, definition, target, taken["now"])
                count = await round_.plan(since, timed)
        if taken is None:
            # Another server is at it, and has it done in a moment.
            await asyncio.sleep(_TAKEN_S)
        elif count:
            self.windows += count
            self._events.windows_planned(row["id"])

    async def _since(self, row: Record) -> datetime | None:
        """Return up to where a stream is planned, or else when its oldest message was written."""
        return cast(
            "datetime | None",
            row["planned_until"] or await self._database.fetchval("first_of_sources", row["id"]),
        )

    async def _slides(
        self, row: Record, definition: StreamDefinition, since: datetime, target: datetime
    ) -> Timed | None:
        """Return what the next windows are made of; None when none has ended."""
        if row["planned_until"] is None:
            since -= (since - _EPOCH) % definition.slide
        if since >= target:
            return None
        until = await self._bounded(row["id"], definition, since, target)
        slides = Slides()
        # A window that slides reaches back.
        at: datetime | None = since - definition.size + definition.slide
        while at is not None:
            at = await self._add_page(slides, row, definition.slide, at, until)
        return Timed(since, until, slides)

    async def _bounded(
        self, stream_id: int, definition: StreamDefinition, since: datetime, target: datetime
    ) -> datetime:
        """Return the boundary up to which there is about as much as one round should do."""
        slide = definition.slide
        if definition.emit_empty:
            target = min(target, since + _EMPTY_WINDOWS * slide)
        last: datetime | None = await self._database.findval(
            "instant_after", stream_id, since, _SEGMENTS
        )
        if last is None:
            return target
        return min(target, last - (last - _EPOCH) % slide + slide)

    async def _add_page(
        self, slides: Slides, row: Record, slide: timedelta, at: datetime, until: datetime
    ) -> datetime | None:
        """Add what was written from an instant on; return where the next page begins, if any."""
        limit = self._page_segments
        page = await self._database.fetchrow("slides_page", row["id"], slide, at, until, limit)
        slides.add(page)
        if page["looked"] < limit:
            return None
        known = row["id"], row["definition"], row["planned_until"]
        await self._database.execute("defer_plan", *known, _DEFER_S)
        return cast(datetime, page["looked_until"] + timedelta(microseconds=1))

    async def _seal(self, queue_id: int, at: datetime) -> None:
        for _ in range(_POLITE_TRIES):
            if await self._database.fetchval("seal_until", queue_id, at, False):
                return
            await asyncio.sleep(_POLITE_PAUSE_S)
        await self._database.fetchval("seal_until", queue_id, at, True)


async def _take(transaction: Transaction, row: Record, since: datetime | None) -> Record | None:
    """Take a stream to plan it; None when somebody else has it, or it is not what it was."""
    taken = await transaction.findrow("take_stream", row["id"])
    if taken is None or taken["definition"] != row["definition"]:
        return None
    begins = taken["planned_until"]
    if begins == row["planned_until"] is None:
        begins = await transaction.fetchval("first_of_sources", row["id"])
    if begins != since:
        # What was looked at is planned already, or to be planned anew, or (in a test) time has
        # passed meanwhile.
        return None
    # Asked after the row is ours: a source that was added since is not sealed.
    sources = await transaction.fetch("sources_of_stream", row["id"])
    if [source["queue_id"] for source in sources] != row["queue_ids"]:
        return None
    return taken


def _target(definition: StreamDefinition, now: datetime) -> datetime:
    """Return up to where everything is to be closed now."""
    reached = now - definition.grace
    if not definition.is_timed:
        return reached
    return reached - (reached - _EPOCH) % definition.slide


class _Round:
    """One look at one stream, in one transaction."""

    def __init__(
        self,
        transaction: Transaction,
        row: Record,
        definition: StreamDefinition,
        target: datetime,
        now: datetime,
    ) -> None:
        self._transaction = transaction
        self._stream_id: int = row["id"]
        self._planned_until: datetime | None = row["planned_until"]
        self._definition = definition
        self._target = target
        self._now = now

    async def plan(self, since: datetime | None, timed: Timed | None) -> int:
        """Write the windows that end in (since, target]; return how many."""
        if timed is not None:
            return await self._plan_timed(timed)
        if not self._definition.is_timed and since is not None and since < self._target:
            return await self._gather(since)
        await self._remember(self._planned_until, more=False)
        return 0

    async def _remember(self, until: datetime | None, *, more: bool) -> None:
        definition = self._definition
        if more:
            at = self._now
        elif definition.is_timed:
            at = self._target + definition.slide + definition.grace
        else:
            at = self._now + timedelta(seconds=_LOOK_S)
        await self._transaction.execute("set_planned_until", self._stream_id, until, at)

    # ---- windows whose boundaries are multiples of a duration ----

    async def _plan_timed(self, timed: Timed) -> int:
        definition = self._definition
        planned: int = await self._transaction.fetchval(
            "plan_windows",
            self._stream_id,
            definition.partitioned,
            definition.size,
            definition.slide,
            timed.since,
            timed.until,
            definition.emit_empty,
            *timed.slides.columns,
        )
        await self._remember(timed.until, more=timed.until < self._target)
        return planned

    # ---- windows that depend on what arrives ----

    async def _gather(self, since: datetime) -> int:
        rows = await self._transaction.fetch(
            "segments_to_gather", self._stream_id, since, self._target, _SEGMENTS
        )
        until = self._target
        if len(rows) >= _SEGMENTS:
            until = rows[-1]["created_at"] + timedelta(microseconds=1)
        arrived: dict[str, list[Written]] = {}
        for row in sorted(rows, key=_in_order):
            key = row["partition"] if self._definition.partitioned else GLOBAL_KEY
            arrived.setdefault(key, []).append(
                Written(
                    row["partition_id"],
                    row["base_offset"],
                    row["end_offset"],
                    row["created_at"],
                    row["bytes"],
                )
            )
        open_rows = await self._transaction.fetch("gathered", self._stream_id, list(arrived), until)
        gathered = {row["key"]: row["gathered"] for row in open_rows}
        closed = await self._close(arrived, gathered, until)
        await self._remember(until, more=until < self._target)
        return closed

    async def _close(
        self, arrived: dict[str, list[Written]], gathered: dict[str, bytes], until: datetime
    ) -> int:
        windows: list[tuple[str, Closed]] = []
        kept: list[tuple[str, datetime, datetime, bytes]] = []
        dropped: list[str] = []
        for key in sorted(arrived.keys() | gathered.keys()):
            closed, state = self._advance(gathered.get(key), arrived.get(key, []), until)
            windows += [(key, one) for one in closed]
            if state is not None:
                kept.append((key, *state))
            elif key in gathered:
                dropped.append(key)
        if kept:
            columns = map(list, zip(*kept, strict=True))
            await self._transaction.execute("keep_gathered", self._stream_id, *columns)
        if dropped:
            await self._transaction.execute("drop_gathered", self._stream_id, dropped)
        await self._write(windows)
        return len(windows)

    def _advance(
        self, state: bytes | None, arrived: list[Written], until: datetime
    ) -> tuple[list[Closed], tuple[datetime, datetime, bytes] | None]:
        """Return the windows of one key that are complete, and what is left of it."""
        definition = self._definition
        encode = msgspec.msgpack.encode
        if definition.window_type == "session":
            open_session = _sessions.decode(state) if state else None
            closed, left = gather_sessions(open_session, arrived, definition.gap, until)
            if left is None:
                return closed, None
            return closed, (left.first_at, left.last_at + definition.gap, encode(left))
        size = definition.window_size_count or 1
        counted = _counts.decode(state) if state else None
        closed, rest = gather_counts(counted, arrived, size, definition.slide_count)
        if not rest.runs:
            return closed, None
        return closed, (rest.runs[0].at, _NEVER, encode(rest))

    async def _write(self, windows: list[tuple[str, Closed]]) -> None:
        if not windows:
            return
        windows.sort(key=lambda pair: (pair[1].ends_at, pair[0]))
        ranges = [
            (number, partition_id, low, high)
            for number, (_, one) in enumerate(windows, start=1)
            for partition_id, (low, high) in one.ranges.items()
        ]
        await self._transaction.execute(
            "write_windows",
            self._stream_id,
            [key for key, _ in windows],
            [one.starts_at for _, one in windows],
            [one.ends_at for _, one in windows],
            [one.messages for _, one in windows],
            [one.bytes for _, one in windows],
            *map(list, zip(*ranges, strict=True)),
        )


def _in_order(row: Record) -> tuple[datetime, int, int]:
    return row["created_at"], row["partition_id"], row["base_offset"]


async def move_gathered(transaction: Transaction, queue_ids: list[int], by: timedelta) -> None:
    """Move the times of what streams over some queues have gathered, for tests."""
    rows = await transaction.fetch("gathered_of_queues", queue_ids)
    moved: list[bytes] = []
    for row in rows:
        is_session = _definition.decode(row["definition"]).window_type == "session"
        decoder = _sessions if is_session else _counts
        moved.append(msgspec.msgpack.encode(decoder.decode(row["gathered"]).shift(by)))
    columns = [row["stream_id"] for row in rows], [row["key"] for row in rows], moved
    await transaction.execute("change_gathered", *columns)


async def forget_windows(transaction: Transaction) -> bool:
    """Remove finished work, and windows whose messages are gone; return whether there is more."""
    done = await transaction.fetchval("forget_done_windows", _FORGET_ROWS)
    empty = await transaction.fetchval("forget_empty_windows", _FORGET_ROWS)
    return bool(max(done, empty) >= _FORGET_ROWS)
