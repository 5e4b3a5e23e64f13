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
from typing import cast

import msgspec

from queen.core.streams import StreamDefinition
from queen.errors import QueenError
from queen.service.events import Events
from queen.service.outages import level_of
from queen.service.stats.activity import Histogram
from queen.service.streams.planning_round import ROUND_SEGMENTS, PlanningRound
from queen.service.streams.slides import Slides, SlidesUntil
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

# How many segments one statement looks at.
PAGE_SEGMENTS = 20_000
# For how long a server has a stream to itself whose pages are many.
_DEFER_S = 10
# How many boundaries one round fills with empty windows.
_EMPTY_WINDOWS = 1000
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

_definitions = msgspec.json.Decoder(StreamDefinition)


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
                    _log.log(level_of(error), "planning streams: %s", error)
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
                self._under_way[row["id"]] = asyncio.create_task(self._try_plan(row))
        return list(self._under_way.values())

    async def _try_plan(self, row: Record) -> None:
        try:
            async with self._turn:
                began = time.monotonic()
                await self._plan(row)
                self.seconds.observe(time.monotonic() - began)
        except QueenError as error:
            _log.log(level_of(error), "planning stream %s: %s", row["name"], error)
            # Whatever it is, it will not be over at once.
            await asyncio.sleep(_REST_S)
        except Exception:
            _log.exception("planning stream %s failed", row["name"])
            await asyncio.sleep(_LONGEST_PAUSE_S)
        finally:
            del self._under_way[row["id"]]
            self._wake.set()

    async def _plan(self, row: Record) -> None:
        definition = _definitions.decode(row["definition"])
        target = _target(definition, row["now"])
        for queue_id in row["queue_ids"]:
            await self._seal(queue_id, target)
        since = await self._find_start(row)
        slides = None
        if definition.is_timed and since is not None:
            slides = await self._read_slides(row, definition, since, target)
        async with self._database.transaction() as transaction:
            taken = await _take(transaction, row, since)
            count = 0
            if taken is not None:
                planning = PlanningRound(transaction, row, definition, target, taken["now"])
                count = await planning.plan(since, slides)
        if taken is None:
            # Another server is at it, and has it done in a moment.
            await asyncio.sleep(_TAKEN_S)
        elif count:
            self.windows += count
            self._events.windows_planned(row["id"])

    async def _find_start(self, row: Record) -> datetime | None:
        """Return up to where a stream is planned, or else when its oldest message was written."""
        return cast(
            "datetime | None",
            row["planned_until"] or await self._database.fetchval("first_of_sources", row["id"]),
        )

    async def _read_slides(
        self, row: Record, definition: StreamDefinition, since: datetime, target: datetime
    ) -> SlidesUntil | None:
        """Return what the next windows are made of; None when none has ended."""
        if row["planned_until"] is None:
            since -= (since - _EPOCH) % definition.slide
        if since >= target:
            return None
        until = await self._find_bound(row["id"], definition, since, target)
        slides = Slides()
        # A window that slides reaches back.
        at: datetime | None = since - definition.size + definition.slide
        while at is not None:
            at = await self._add_page(slides, row, definition.slide, at, until)
        return SlidesUntil(since, until, slides)

    async def _find_bound(
        self, stream_id: int, definition: StreamDefinition, since: datetime, target: datetime
    ) -> datetime:
        """Return the boundary up to which there is about as much as one round should do."""
        slide = definition.slide
        if definition.emit_empty:
            target = min(target, since + _EMPTY_WINDOWS * slide)
        last: datetime | None = await self._database.findval(
            "instant_after", stream_id, since, ROUND_SEGMENTS
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
        version = row["id"], row["definition"], row["planned_until"]
        await self._database.execute("defer_plan", *version, _DEFER_S)
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


async def forget_windows(transaction: Transaction) -> bool:
    """Remove finished work, and windows whose messages are gone; return whether there is more."""
    done = await transaction.fetchval("forget_done_windows", _FORGET_ROWS)
    empty = await transaction.fetchval("forget_empty_windows", _FORGET_ROWS)
    return bool(max(done, empty) >= _FORGET_ROWS)
