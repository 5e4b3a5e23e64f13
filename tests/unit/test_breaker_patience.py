"""Whether PostgreSQL answers is not decided by a process that could not listen."""

from __future__ import annotations

import asyncio
from typing import cast

import asyncpg
import pytest

from queen.storage.breaker import ConnectionProbe
from tests.waiting import spend, spend_async


class SlowConnection:
    """Answers after a while, if at all."""

    def __init__(self, after_s: float | None) -> None:
        self._after_s = after_s

    async def fetchval(self, _question: str) -> int:
        await (asyncio.Event().wait() if self._after_s is None else spend_async(self._after_s))
        return 1

    def terminate(self) -> None:
        pass


def probe_of(connection: SlowConnection) -> ConnectionProbe:
    async def connect() -> asyncpg.Connection:
        return cast("asyncpg.Connection", connection)

    return ConnectionProbe(connect)


async def test_a_database_that_does_not_answer_is_noticed() -> None:
    probe = probe_of(SlowConnection(None))
    await probe.ask()
    with pytest.raises(TimeoutError):
        await probe.ask()


async def test_a_process_that_was_held_up_asks_on() -> None:
    probe = probe_of(SlowConnection(0.1))
    await probe.ask()
    asking = asyncio.create_task(probe.ask())
    await spend_async(0)
    # Longer than a probe is patient.
    spend(1)
    await asking
