"""The breaker opens when the database does not answer, and closes when it does."""

from __future__ import annotations

import asyncio

import pytest

from queen.errors import Unavailable
from queen.storage.breaker import Breaker
from tests.waiting import until_met


class FakeProbe:
    """Answers, or not."""

    def __init__(self) -> None:
        self.fails = False
        self.asked = 0
        self.closed = 0

    async def ask(self) -> None:
        self.asked += 1
        if self.fails:
            raise ConnectionRefusedError("nobody")

    def close(self) -> None:
        self.closed += 1


def is_open(breaker: Breaker) -> bool:
    # Asked anew each time, and the checker of types knows that.
    return breaker.is_open


async def test_one_failure_opens_it_and_the_second_cuts_connections() -> None:
    probe = FakeProbe()
    breaker = Breaker(probe)
    cut: list[int] = []
    breaker.cut = lambda: cut.append(probe.asked)
    await breaker.look()
    assert breaker.opened_at is None
    probe.fails = True
    await breaker.look()
    assert is_open(breaker) and cut == []
    for _ in range(3):
        await breaker.look()
    assert cut == [3] and breaker.openings == 1
    probe.fails = False
    await breaker.look()
    assert not is_open(breaker)
    await asyncio.wait_for(breaker.wait_closed(), 1)


async def test_a_suspicion_is_looked_into_at_once_and_never_in_a_spin() -> None:
    probe = FakeProbe()
    breaker = Breaker(probe)
    running = asyncio.create_task(breaker.run())
    try:
        await until_met(lambda: probe.asked == 1)
        probe.fails = True
        breaker.suspect()
        await until_met(lambda: is_open(breaker))
        asked = probe.asked
        for _ in range(100):
            breaker.suspect()
            await asyncio.sleep(0)
        assert probe.asked <= asked + 2
        probe.fails = False
        await breaker.wait_closed()
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert probe.closed > 0


async def test_a_database_that_was_away_at_the_start_is_prepared_first() -> None:
    probe = FakeProbe()
    breaker = Breaker(probe)
    prepared: list[str] = []

    async def prepare() -> None:
        prepared.append("tried")
        if len(prepared) < 3:
            raise Unavailable
        assert is_open(breaker)

    breaker.begin_open(prepare)
    assert is_open(breaker)
    for _ in range(2):
        await breaker.look()
        assert is_open(breaker) and probe.asked == 0
    await breaker.look()
    assert not is_open(breaker) and probe.asked == 1
    await breaker.look()
    assert len(prepared) == 3
