"""Sessions and counts do not depend on how often somebody looked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from queen.core.gathering import (
    Closed,
    Counted,
    Session,
    Written,
    gather_counts,
    gather_sessions,
)

_START = datetime(2026, 1, 1, tzinfo=UTC)
_GAP = timedelta(seconds=10)

# Seconds to the next segment, its partition, and how many messages it has.
_steps = st.lists(st.tuples(st.integers(0, 25), st.integers(1, 3), st.integers(1, 7)), max_size=40)
_looks = st.lists(st.integers(0, 400), max_size=8)


def _written(steps: list[tuple[int, int, int]]) -> list[Written]:
    """Segments in the order of time, those of each partition one after the other."""
    found, at, heads = [], _START, dict.fromkeys((1, 2, 3), 0)
    for seconds, partition, count in steps:
        at += timedelta(seconds=seconds)
        low = heads[partition]
        heads[partition] = low + count
        found.append(Written(partition, low, low + count, at, count * 10))
    return sorted(found, key=lambda one: (one.at, one.partition_id, one.low))


def _instants(looks: list[int]) -> list[datetime]:
    end = _START + timedelta(days=1)
    return [*sorted({_START + timedelta(seconds=second) for second in looks}), end]


def _sessions(segments: list[Written], looks: list[int]) -> tuple[list[Closed], Session | None]:
    closed: list[Closed] = []
    session: Session | None = None
    since = _START
    for until in _instants(looks):
        arrived = [one for one in segments if since <= one.at < until]
        if session is not None:
            # Through the database and back.
            session = msgspec.msgpack.decode(msgspec.msgpack.encode(session), type=Session)
        found, session = gather_sessions(session, arrived, _GAP, until)
        closed += found
        since = until
    return closed, session


@given(_steps, _looks)
def test_sessions_are_the_same_however_often_one_looks(
    steps: list[tuple[int, int, int]], looks: list[int]
) -> None:
    segments = _written(steps)
    assert _sessions(segments, looks) == _sessions(segments, [])


@given(_steps, _looks)
def test_every_message_is_in_one_session(
    steps: list[tuple[int, int, int]], looks: list[int]
) -> None:
    segments = _written(steps)
    closed, left = _sessions(segments, looks)
    assert left is None
    held = [
        (partition, offset)
        for one in closed
        for partition, (low, high) in one.ranges.items()
        for offset in range(low, high)
    ]
    written = [(one.partition_id, at) for one in segments for at in range(one.low, one.high)]
    assert sorted(held) == sorted(written)
    assert sum(one.messages for one in closed) == len(written)
    assert sum(one.bytes for one in closed) == 10 * len(written)


@given(_steps)
def test_a_session_is_quiet_at_its_ends_only(steps: list[tuple[int, int, int]]) -> None:
    segments = _written(steps)
    closed, _ = _sessions(segments, [])
    for one in closed:
        times = [segment.at for segment in segments if one.starts_at <= segment.at < one.ends_at]
        assert times[0] == one.starts_at
        assert times[-1] + _GAP == one.ends_at
        assert all(late - early < _GAP for early, late in pairwise(times))
    assert all(early.ends_at <= late.starts_at for early, late in pairwise(closed))


@given(_steps, _looks, st.integers(1, 9), st.integers(1, 9))
def test_counts_are_slices_of_the_sequence(
    steps: list[tuple[int, int, int]], looks: list[int], size: int, slide: int
) -> None:
    size, slide = max(size, slide), min(size, slide)
    segments = _written(steps)
    sequence = [
        (one.partition_id, offset) for one in segments for offset in range(one.low, one.high)
    ]
    closed: list[Closed] = []
    counted: Counted | None = None
    since = _START
    for until in _instants(looks):
        arrived = [one for one in segments if since <= one.at < until]
        found, counted = gather_counts(counted, arrived, size, slide)
        counted = msgspec.msgpack.decode(msgspec.msgpack.encode(counted), type=Counted)
        closed += found
        since = until
    starts = range(0, len(sequence) - size + 1, slide)
    assert len(closed) == len(starts)
    for first, one in zip(starts, closed, strict=True):
        held = {
            (partition, offset)
            for partition, (low, high) in one.ranges.items()
            for offset in range(low, high)
        }
        assert held == set(sequence[first : first + size])
        assert one.messages == size
    assert counted is not None
    assert counted.messages == len(sequence) - len(starts) * slide


@given(_steps, st.integers(-1000, 1000))
def test_what_is_open_can_be_moved_in_time(steps: list[tuple[int, int, int]], seconds: int) -> None:
    by = timedelta(seconds=seconds)
    segments = _written(steps)
    later = [one._replace(at=one.at + by) for one in segments]
    _, session = gather_sessions(None, segments, timedelta(days=1), _START)
    _, moved = gather_sessions(None, later, timedelta(days=1), _START + by)
    assert (session and session.shift(by)) == moved
    _, counted = gather_counts(None, segments, 1000, 1000)
    _, counted_later = gather_counts(None, later, 1000, 1000)
    assert counted.shift(by) == counted_later
