"""Windows that depend on what arrives: sessions and counts.

Segments of the sources come in the order of time, everything before an instant complete. Each
key gathers runs of offsets until its window is full or its session has ended. The state of a
key between two looks is small and goes through the database as bytes; given the same segments
the windows are the same, however often somebody looked in between.

All messages of a segment have one time, so a session never ends inside of one. A count may:
its window takes a part of the segment, and the runs stay contiguous in each partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec


class Written(NamedTuple):
    """A segment: which offsets of a partition were written when."""

    partition_id: int
    low: int
    high: int
    at: datetime
    bytes: int


class Run(msgspec.Struct, array_like=True):
    """Offsets [low, high) of a partition, written at one instant."""

    partition_id: int
    low: int
    high: int
    at: datetime
    bytes: int

    @property
    def count(self) -> int:
        return self.high - self.low

    def part(self, first: int, last: int) -> Run:
        """Return the messages [first, last), counted from the first of the run."""
        size = self.bytes * (last - first) // max(1, self.count)
        return Run(self.partition_id, self.low + first, self.low + last, self.at, size)


class Closed(NamedTuple):
    """A window that is complete: its time, and [low, high) of each partition in it."""

    starts_at: datetime
    ends_at: datetime
    ranges: dict[int, tuple[int, int]]
    messages: int
    bytes: int


class Session(msgspec.Struct, array_like=True):
    """A session that is still open."""

    first_at: datetime
    last_at: datetime
    # Partition, first offset, offset after the last.
    ranges: dict[int, tuple[int, int]]
    messages: int
    bytes: int

    def add(self, segment: Written) -> None:
        self.last_at = segment.at
        low, _ = self.ranges.get(segment.partition_id, (segment.low, segment.high))
        self.ranges[segment.partition_id] = (low, segment.high)
        self.messages += segment.high - segment.low
        self.bytes += segment.bytes

    def shift(self, by: timedelta) -> Session:
        """Return the same, so much later."""
        times = self.first_at + by, self.last_at + by
        return Session(*times, self.ranges, self.messages, self.bytes)

    def close(self, gap: timedelta) -> Closed:
        """Return the window of a session after which nothing came for so long."""
        return Closed(self.first_at, self.last_at + gap, self.ranges, self.messages, self.bytes)


def gather_sessions(
    session: Session | None, arrived: Iterable[Written], gap: timedelta, until: datetime
) -> tuple[list[Closed], Session | None]:
    """Add what arrived before `until`; return the sessions that ended by then, and the open one."""
    closed: list[Closed] = []
    for segment in arrived:
        if session is not None and segment.at - session.last_at >= gap:
            closed.append(session.close(gap))
            session = None
        if session is None:
            session = Session(segment.at, segment.at, {}, 0, 0)
        session.add(segment)
    if session is not None and session.last_at + gap <= until:
        closed.append(session.close(gap))
        session = None
    return closed, session


class Counted(msgspec.Struct, array_like=True):
    """The messages that may still be in a window: the oldest begins the next one."""

    runs: list[Run]
    messages: int

    def shift(self, by: timedelta) -> Counted:
        """Return the same, so much later."""
        runs = [msgspec.structs.replace(run, at=run.at + by) for run in self.runs]
        return Counted(runs, self.messages)


def gather_counts(
    counted: Counted | None, arrived: Iterable[Written], size: int, slide: int
) -> tuple[list[Closed], Counted]:
    """Add what arrived; return the windows that became full, and what is left."""
    runs = list(counted.runs) if counted else []
    messages = counted.messages if counted else 0
    for segment in arrived:
        runs.append(Run(segment.partition_id, segment.low, segment.high, segment.at, segment.bytes))
        messages += segment.high - segment.low
    closed: list[Closed] = []
    while messages >= size:
        closed.append(_window(_first_messages(runs, size)))
        runs = _drop_first(runs, slide)
        messages -= slide
    return closed, Counted(runs, messages)


def _first_messages(runs: list[Run], count: int) -> list[Run]:
    """Return the first so many messages."""
    first: list[Run] = []
    for run in runs:
        if count <= 0:
            break
        taken = min(count, run.count)
        first.append(run if taken == run.count else run.part(0, taken))
        count -= taken
    return first


def _drop_first(runs: list[Run], count: int) -> list[Run]:
    """Return all but the first so many messages."""
    for at, run in enumerate(runs):
        if count < run.count:
            return [run.part(count, run.count) if count else run, *runs[at + 1 :]]
        count -= run.count
    return []


def _window(runs: list[Run]) -> Closed:
    ranges: dict[int, tuple[int, int]] = {}
    for run in runs:
        low, _ = ranges.get(run.partition_id, (run.low, run.high))
        ranges[run.partition_id] = (low, run.high)
    return Closed(
        runs[0].at,
        # The first instant after its last message.
        runs[-1].at + timedelta(microseconds=1),
        ranges,
        sum(run.count for run in runs),
        sum(run.bytes for run in runs),
    )
