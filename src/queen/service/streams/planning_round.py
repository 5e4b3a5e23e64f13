"""One round of planning: what is complete in one stream becomes windows, in one transaction.

Windows of a fixed duration are made of slides, which were looked at before. Sessions and counts
depend on what arrives: what they have gathered so far is kept between two rounds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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
from queen.service.streams.slides import SlidesUntil
from queen.storage.database import Record, Transaction

# How many segments one round of planning looks at; of one slide, all.
ROUND_SEGMENTS = 20_000
# Sessions and counts close when they close: how often somebody looks.
_LOOK_S = 0.5
_NEVER = datetime(9000, 1, 1, tzinfo=UTC)

_definitions = msgspec.json.Decoder(StreamDefinition)
_sessions = msgspec.msgpack.Decoder(Session)
_counts = msgspec.msgpack.Decoder(Counted)


class PlanningRound:
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

    async def plan(self, since: datetime | None, slides: SlidesUntil | None) -> int:
        """Write the windows that end in (since, target]; return how many."""
        if slides is not None:
            return await self._plan_timed(slides)
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

    async def _plan_timed(self, slides: SlidesUntil) -> int:
        definition = self._definition
        planned: int = await self._transaction.fetchval(
            "plan_windows",
            self._stream_id,
            definition.partitioned,
            definition.size,
            definition.slide,
            slides.since,
            slides.until,
            definition.emit_empty,
            *slides.slides.columns,
        )
        await self._remember(slides.until, more=slides.until < self._target)
        return planned

    # ---- windows that depend on what arrives ----

    async def _gather(self, since: datetime) -> int:
        """Gather what was written since; return how many windows that has closed."""
        rows = await self._transaction.fetch(
            "segments_to_gather", self._stream_id, since, self._target, ROUND_SEGMENTS
        )
        until = self._target
        if len(rows) >= ROUND_SEGMENTS:
            until = rows[-1]["created_at"] + timedelta(microseconds=1)
        arrived = self._by_key(rows)
        open_rows = await self._transaction.fetch("gathered", self._stream_id, list(arrived), until)
        gathered = {row["key"]: row["gathered"] for row in open_rows}
        closed = await self._close(arrived, gathered, until)
        await self._remember(until, more=until < self._target)
        return closed

    def _by_key(self, rows: list[Record]) -> dict[str, list[Written]]:
        """Return what was written for each key, in order of time."""
        arrived: dict[str, list[Written]] = {}
        for row in sorted(rows, key=_order):
            key = row["partition"] if self._definition.partitioned else GLOBAL_KEY
            written = Written(
                row["partition_id"],
                row["base_offset"],
                row["end_offset"],
                row["created_at"],
                row["bytes"],
            )
            arrived.setdefault(key, []).append(written)
        return arrived

    async def _close(
        self, arrived: dict[str, list[Written]], gathered: dict[str, bytes], until: datetime
    ) -> int:
        """Write the windows that are complete, keep what is left; return how many windows."""
        windows: list[tuple[str, Closed]] = []
        kept: list[tuple[str, datetime, datetime, bytes]] = []
        dropped: list[str] = []
        for key in sorted(arrived.keys() | gathered.keys()):
            closed, state = self._advance(gathered.get(key), arrived.get(key, []), until)
            windows += [(key, window) for window in closed]
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
            for number, (_, window) in enumerate(windows, start=1)
            for partition_id, (low, high) in window.ranges.items()
        ]
        await self._transaction.execute(
            "write_windows",
            self._stream_id,
            [key for key, _ in windows],
            [window.starts_at for _, window in windows],
            [window.ends_at for _, window in windows],
            [window.messages for _, window in windows],
            [window.bytes for _, window in windows],
            *map(list, zip(*ranges, strict=True)),
        )


def _order(row: Record) -> tuple[datetime, int, int]:
    return row["created_at"], row["partition_id"], row["base_offset"]


async def move_gathered(transaction: Transaction, queue_ids: list[int], by: timedelta) -> None:
    """Move the times of what streams over some queues have gathered, for tests."""
    rows = await transaction.fetch("gathered_of_queues", queue_ids)
    moved: list[bytes] = []
    for row in rows:
        is_session = _definitions.decode(row["definition"]).window_type == "session"
        decoder = _sessions if is_session else _counts
        moved.append(msgspec.msgpack.encode(decoder.decode(row["gathered"]).shift(by)))
    columns = [row["stream_id"] for row in rows], [row["key"] for row in rows], moved
    await transaction.execute("change_gathered", *columns)
