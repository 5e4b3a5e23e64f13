"""A background loop that fails is told, counted and begun again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from queen.service.upkeep.supervisor import FAILING_AFTER, Supervisor
from tests.waiting import PATIENCE_S, until_met


async def test_a_loop_that_failed_runs_again_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, again, runs = Supervisor(), asyncio.Event(), 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise TypeError("a mistake of ours")
        again.set()
        await asyncio.Event().wait()

    supervisor.start("looking", run)
    await asyncio.wait_for(again.wait(), PATIENCE_S)
    (record,) = caplog.records
    assert "looking" in record.getMessage() and record.levelno == logging.ERROR
    assert record.exc_info is not None and record.exc_info[0] is TypeError
    assert supervisor.failures() == {"looking": 1}
    assert supervisor.failing() == []
    await supervisor.stop()


async def test_one_that_fails_again_and_again_is_named() -> None:
    supervisor = Supervisor()

    async def run() -> None:
        raise RuntimeError

    async def other() -> None:
        await asyncio.Event().wait()

    supervisor.start("broken", run)
    supervisor.start("good", other)
    await until_met(lambda: bool(supervisor.failing()))
    assert supervisor.failing() == ["broken"]
    assert supervisor.failures()["broken"] >= FAILING_AFTER
    assert supervisor.failures()["good"] == 0
    await supervisor.stop()


async def test_the_pauses_between_failures_grow() -> None:
    supervisor = Supervisor()

    async def run() -> None:
        raise RuntimeError

    supervisor.start("broken", run)
    began = asyncio.get_running_loop().time()
    await until_met(lambda: supervisor.failures()["broken"] == 4)
    # 0.1, 0.2 and 0.4 seconds lie between four failures.
    assert asyncio.get_running_loop().time() - began >= 0.6
    await supervisor.stop()


async def test_a_cancellation_inside_a_loop_does_not_end_it() -> None:
    supervisor, again, runs = Supervisor(), asyncio.Event(), 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            inner = asyncio.create_task(asyncio.Event().wait())
            inner.cancel()
            await inner
        again.set()
        await asyncio.Event().wait()

    supervisor.start("looking", run)
    await asyncio.wait_for(again.wait(), PATIENCE_S)
    await supervisor.stop()


async def test_stop_ends_loops_that_run_and_loops_that_pause() -> None:
    supervisor, running = Supervisor(), asyncio.Event()

    async def run() -> None:
        running.set()
        await asyncio.Event().wait()

    async def broken() -> None:
        raise RuntimeError

    supervisor.start("runs", run)
    supervisor.start("pauses", broken)
    await running.wait()
    await asyncio.wait_for(supervisor.stop(), PATIENCE_S)
    assert not [task for task in asyncio.all_tasks() if task.get_name() in ("runs", "pauses")]
