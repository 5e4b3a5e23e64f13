"""The only module of the tests that sleeps.

A test that waits for something looks until it is there, and gives up after far more time than
it could need: a pause that is long enough today is too short on a busy machine, and too long
on every other. `until` and `until_async` do that.

Where time itself is the matter, a handler that is slow or a producer that takes its time, a
test says so with `spend` and `spend_async`. They are not for waiting until others are done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
_LOOK_S = 0.01


def until(condition: Callable[[], T], within_s: float = PATIENCE_S, look_s: float = _LOOK_S) -> T:
    """Look until a condition is true; return what it found."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {within_s} s: {found!r}"
        time.sleep(look_s)
    return found


async def until_async(
    condition: Callable[[], Awaitable[T]], within_s: float = PATIENCE_S, look_s: float = _LOOK_S
) -> T:
    """The same with a question that is awaited, and other tasks go on meanwhile."""
    async with asyncio.timeout(within_s):
        while not (found := await condition()):  # noqa: ASYNC110
            await asyncio.sleep(look_s)
    return found


async def until_met(
    condition: Callable[[], T], within_s: float = PATIENCE_S, look_s: float = _LOOK_S
) -> T:
    """Look until a condition is true, and let other tasks go on meanwhile."""

    async def look() -> T:
        return condition()

    return await until_async(look, within_s, look_s)


def spend(seconds: float) -> None:
    """Be slow on purpose."""
    time.sleep(seconds)


async def spend_async(seconds: float) -> None:
    """Be slow on purpose, and let other tasks go on."""
    await asyncio.sleep(seconds)
