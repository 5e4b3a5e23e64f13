"""Together: one question for all who ask at the same time."""

from __future__ import annotations

import asyncio

import pytest

from queen.service.together import Together


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


def _asked(together: Together[int], oracle: _Oracle, *keys: str) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(together.ask(key, oracle.answer)) for key in keys]


async def test_who_asks_together_asks_once() -> None:
    together, oracle = Together[int](), _Oracle()
    asking = _asked(together, oracle, *["a"] * 500, "b")
    oracle.may_answer.set()
    assert set(await asyncio.gather(*asking)) == {1, 2}
    assert oracle.asked == 2
    assert await together.ask("a", oracle.answer) == 3


async def test_who_goes_away_takes_nothing_from_the_others() -> None:
    together, oracle = Together[int](), _Oracle()
    first, second = _asked(together, oracle, "a", "a")
    await asyncio.sleep(0)
    first.cancel()
    oracle.may_answer.set()
    assert await second == 1
    assert first.cancelled()


async def test_a_failure_is_everybodys_and_not_kept() -> None:
    together, oracle = Together[int](), _Oracle()
    oracle.fails = True
    asking = _asked(together, oracle, "a", "a")
    oracle.may_answer.set()
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in told] == [LookupError, LookupError]
    with pytest.raises(LookupError):
        await together.ask("a", oracle.answer)
    assert oracle.asked == 2


async def test_who_asks_in_the_moment_of_the_answer_gets_a_new_one() -> None:
    together, answered = Together[int](), asyncio.Event()
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
