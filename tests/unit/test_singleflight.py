"""SingleFlight and Rounds: one question for all who ask at the same time."""

from __future__ import annotations

import asyncio

import pytest

from queen.service.singleflight import Rounds, SingleFlight


class _Oracle:
    """Answers how often it was asked, when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.fails = False

    async def answer(self) -> int:
        self.asked += 1
        await self.may_answer.wait()
        if self.fails:
            raise LookupError
        return self.asked


def _asked(together: SingleFlight[int], oracle: _Oracle, *keys: str) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(together.ask(key, oracle.answer)) for key in keys]


async def test_who_asks_together_asks_once() -> None:
    together, oracle = SingleFlight[int](), _Oracle()
    asking = _asked(together, oracle, *["a"] * 500, "b")
    oracle.may_answer.set()
    assert set(await asyncio.gather(*asking)) == {1, 2}
    assert oracle.asked == 2
    assert await together.ask("a", oracle.answer) == 3


async def test_who_goes_away_takes_nothing_from_the_others() -> None:
    together, oracle = SingleFlight[int](), _Oracle()
    first, second = _asked(together, oracle, "a", "a")
    await asyncio.sleep(0)
    first.cancel()
    oracle.may_answer.set()
    assert await second == 1
    assert first.cancelled()


async def test_a_failure_is_everybodys_and_not_kept() -> None:
    together, oracle = SingleFlight[int](), _Oracle()
    oracle.fails = True
    asking = _asked(together, oracle, "a", "a")
    oracle.may_answer.set()
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in told] == [LookupError, LookupError]
    with pytest.raises(LookupError):
        await together.ask("a", oracle.answer)
    assert oracle.asked == 2


async def _turn(times: int = 5) -> None:
    """Let everybody who can go on do so."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_a_round_that_has_begun_takes_nobody_in() -> None:
    rounds, oracle = Rounds[int](), _Oracle()
    first = asyncio.create_task(rounds.ask("a", oracle.answer))
    await _turn()
    assert oracle.asked == 1
    later = [asyncio.create_task(rounds.ask("a", oracle.answer)) for _ in range(100)]
    await _turn()
    assert oracle.asked == 1, "one at a time"
    oracle.may_answer.set()
    assert await first == 1
    assert set(await asyncio.gather(*later)) == {2}


async def test_rounds_go_on_after_a_failure_and_a_caller_who_left() -> None:
    rounds, oracle, good = Rounds[int](), _Oracle(), _Oracle()
    oracle.fails = True
    first = asyncio.create_task(rounds.ask("a", oracle.answer))
    await _turn()
    second, third = (asyncio.create_task(rounds.ask("a", good.answer)) for _ in range(2))
    await _turn()
    second.cancel()
    oracle.may_answer.set()
    with pytest.raises(LookupError):
        await first
    good.may_answer.set()
    assert await third == 1
    assert await rounds.ask("a", good.answer) == 2


async def test_a_crowd_never_keeps_the_loop_to_itself() -> None:
    """Callers that find a round done before its creator has run must yield, not spin."""
    rounds = Rounds[None]()
    count = 0

    async def count_one() -> None:
        nonlocal count
        count += 1
        await asyncio.sleep(0)

    async def ask(times: int) -> None:
        for _ in range(times):
            await rounds.ask("a", count_one)

    async with asyncio.timeout(30):
        await asyncio.gather(*(ask(50) for _ in range(20)))
    assert 50 <= count <= 1000


async def test_who_asks_in_the_moment_of_the_answer_gets_a_new_one() -> None:
    together, answered = SingleFlight[int](), asyncio.Event()
    asked = 0

    async def answer() -> int:
        nonlocal asked
        asked += 1
        # Whoever waits for this runs before the loop has noted that the question is over.
        answered.set()
        return asked

    async def late() -> int:
        await answered.wait()
        return await together.ask("a", answer)

    waiting = asyncio.create_task(late())
    await asyncio.sleep(0)
    assert await together.ask("a", answer) == 1
    assert await waiting == 2
