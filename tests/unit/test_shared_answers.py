"""Shared answers: made once for all who may see the same, and never for anybody else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from queen.errors import Unavailable
from queen.server.auth.access import TRUSTED, Caller, Role
from queen.server.protocol import shared_answers
from queen.server.protocol.http import ClientConnection, Handler, Request, Response
from queen.server.protocol.shared_answers import SharedAnswers
from tests.waiting import spend_async

_OF_A = Caller("a", Role.READ, frozenset({"a"}))
# Kept, so that no two of them are the same.
_connections: list[ClientConnection] = []
_OF_B = Caller("b", Role.READ, frozenset({"b"}))


class Questions:
    """A handler that counts how often it is asked, and can be held."""

    def __init__(self) -> None:
        self.count = 0
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()
        self.error: Exception | None = None

    async def answer(self, request: Request) -> Response:
        self.count += 1
        count = self.count
        self.asked.set()
        await self.free.wait()
        if self.error is not None:
            raise self.error
        seen = ",".join(sorted(request.caller.namespaces or ["all"]))
        return Response(200, f"{count} {seen}".encode())


class Sleeps:
    """A clock that goes on when somebody sleeps, and only then."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    async def pass_by(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
async def questions() -> Questions:
    return Questions()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    sleeps = Sleeps()
    monkeypatch.setattr(shared_answers, "time", SimpleNamespace(monotonic=lambda: sleeps.now))
    monkeypatch.setattr(shared_answers, "asyncio", SimpleNamespace(sleep=sleeps.pass_by))
    return sleeps


def _connection() -> ClientConnection:
    _connections.append(cast("ClientConnection", object()))
    return _connections[-1]


async def _ask(
    handler: Handler,
    caller: Caller = TRUSTED,
    query: str = "",
    connection: ClientConnection | None = None,
) -> str:
    asker = connection or _connection()
    response = await handler(Request("GET", "/status", query, {}, b"", asker, caller=caller))
    assert response is not None
    return response.body.decode()


async def test_who_asks_before_an_answer_is_begun_shares_it(questions: Questions) -> None:
    status = SharedAnswers().sharing(questions.answer)
    questions.free.clear()
    first = asyncio.create_task(_ask(status))
    await questions.asked.wait()
    others = [asyncio.create_task(_ask(status)) for _ in range(9)]
    await spend_async(0)
    first.cancel()
    others[0].cancel()
    questions.free.set()
    # The first was begun before they asked, so it is not for them.
    assert await asyncio.gather(*others[1:]) == ["2 all"] * 8


async def test_nobody_gets_what_was_made_for_others(questions: Questions) -> None:
    status = SharedAnswers().sharing(questions.answer)
    asking = [
        _ask(status),
        _ask(status, _OF_A),
        _ask(status, _OF_B),
        _ask(status, Caller("reader", Role.READ)),
        _ask(status, query="from=x"),
        _ask(status, Caller("another", Role.READ, frozenset({"a"}))),
    ]
    answers = await asyncio.gather(*asking)
    assert [answer.split()[1] for answer in answers] == ["all", "a", "b", "all", "all", "a"]
    assert questions.count == 5 and answers[1] == answers[5]


async def test_an_error_is_told_to_those_who_asked(questions: Questions) -> None:
    status = SharedAnswers().sharing(questions.answer)
    questions.error = Unavailable()
    with pytest.raises(Unavailable):
        await _ask(status)
    questions.error = None
    assert await _ask(status) == "2 all"


async def test_many_who_look_all_the_time_wait_for_each_other(
    questions: Questions, sleeps: Sleeps
) -> None:
    answers = SharedAnswers()

    async def slow(request: Request) -> Response:
        sleeps.now += 0.1
        return await questions.answer(request)

    status = answers.sharing(slow)
    # What is free after a quiet time.
    for _ in range(2):
        await _ask(status)
    assert sleeps.slept == [0.0] * 2
    asked = [asyncio.create_task(_ask(status)) for _ in range(10)]
    await asyncio.gather(*asked)
    await asyncio.gather(*[asyncio.create_task(_ask(status)) for _ in range(10)])
    assert questions.count == 4
    assert sleeps.slept[-1] == 1.0


async def test_who_looks_alone_does_not_wait(questions: Questions, sleeps: Sleeps) -> None:
    async def slow(request: Request) -> Response:
        sleeps.now += 0.1
        return await questions.answer(request)

    status, alone = SharedAnswers().sharing(slow), _connection()
    assert [await _ask(status, connection=alone) for _ in range(5)][-1] == "5 all"
    assert sleeps.slept == [0.0] * 5


async def test_who_asked_last_is_remembered_of_so_many_questions(
    questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_answers, "_MAX_ASKERS", 10)
    answers = SharedAnswers()
    status = answers.sharing(questions.answer)
    for number in range(100):
        await _ask(status, query=f"n={number}")
    assert len(answers._askers) == 10
