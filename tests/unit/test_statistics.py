"""Statistics: who asks sees what was done before."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queen.service.stats.statistics import Statistics

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_START = datetime(2030, 1, 1, tzinfo=UTC)


class _Rounds:
    """The jobs and the database of a server: rounds of counting, and the time."""

    def __init__(self, *others: timedelta) -> None:
        # How long ago the counts of another server began that are under way one after another.
        self._others = list(others)
        self._now = _START
        self.counted_at = _NEVER
        self.counted_here = 0

    def add(self, *_job: Any) -> None:
        pass

    async def run_once(self, _name: str, _work: Any) -> bool:
        self._now += timedelta(milliseconds=1)
        if self._others:
            self.counted_at = self._now - self._others.pop(0)
            return False
        self.counted_at = self._now
        self.counted_here += 1
        return True

    async def fetchrow(self, _name: str) -> dict[str, Any]:
        age_s = (self._now - self.counted_at).total_seconds()
        took = {"took_ms": 1.0, "rows_counted": 1, "bytes_at": _NEVER}
        return {"computed_at": self.counted_at, "now": self._now, "age_s": age_s, **took}


def _statistics(rounds: _Rounds, version: int = 1) -> Statistics:
    whole: Any = rounds
    return Statistics(whole, whole, lambda: version)


async def test_a_first_count_that_another_began_before_does_not_do() -> None:
    rounds = _Rounds(timedelta(milliseconds=50))
    stamp = await _statistics(rounds).current()
    assert rounds.counted_here == 1 and stamp.at is not None and stamp.at > _START


async def test_a_count_that_another_began_later_does() -> None:
    rounds = _Rounds(timedelta(milliseconds=50), timedelta(0))
    stamp = await _statistics(rounds).current()
    assert rounds.counted_here == 0 and stamp.at is not None and stamp.at > _START


@pytest.mark.parametrize(("began_ms_ago", "counted_here"), [(50, 1), (0, 0)])
async def test_a_refresh_is_not_what_another_began_before_it(
    began_ms_ago: int, counted_here: int
) -> None:
    rounds = _Rounds(timedelta(milliseconds=began_ms_ago))
    assert await _statistics(rounds).refresh() is True
    assert rounds.counted_here == counted_here


async def test_a_refresh_gives_up_when_others_count_all_the_time() -> None:
    rounds = _Rounds(*[timedelta(hours=1)] * 10_000)
    assert await _statistics(rounds).refresh() is False


@pytest.mark.parametrize("asked", [1, 5])
async def test_nothing_done_is_counted_once(asked: int) -> None:
    rounds = _Rounds()
    statistics = _statistics(rounds)
    for _ in range(asked):
        await statistics.current()
    assert rounds.counted_here == 1


class _Slow(_Rounds):
    """Answers after some turns of the loop, as a database does."""

    async def run_once(self, name: str, work: Any) -> bool:
        await _some_turns()
        return await super().run_once(name, work)

    async def fetchrow(self, name: str) -> dict[str, Any]:
        await _some_turns()
        return await super().fetchrow(name)


async def _some_turns() -> None:
    for _ in range(random.randrange(5)):
        await asyncio.sleep(0)


async def test_readers_beside_pushers_do_not_stop_the_loop() -> None:
    """A reader may come when a count is done and the one who asked for it has not run yet."""
    rounds = _Slow()
    version = 0
    whole: Any = rounds
    statistics = Statistics(whole, whole, lambda: version)

    async def push() -> None:
        nonlocal version
        for _ in range(2000):
            version += 1
            await asyncio.sleep(0)

    async def read() -> None:
        for _ in range(200):
            await statistics.current()

    async with asyncio.timeout(30):
        await asyncio.gather(*(push() for _ in range(4)), *(read() for _ in range(4)))
    assert rounds.counted_here > 0
