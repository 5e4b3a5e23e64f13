"""Asking once for all who ask together.

Five hundred consumers that wait for the same thing must not be five hundred questions to the
database. There are two ways to share one, and they differ in how old an answer may be:

    SingleFlight   whoever asks while the question is under way gets its answer, which may be a
               moment older than the asking: for those who would ask again, or for what does
               not change
    Rounds     whoever asks shares a question that has not begun yet, so the answer is never
               older than the asking: for those who must see what was committed before
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
Ask = Callable[[], Coroutine[Any, Any, Answer]]


class SingleFlight(Generic[Answer]):
    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Task[Answer]] = {}

    async def ask(self, key: Hashable, ask: Ask[Answer]) -> Answer:
        """Return the answer to a question; `ask` is called unless it is under way already."""
        task = self._under_way.get(key)
        # One that is done is not under way, though the loop has not come to say so yet: whoever
        # asks until something changes would get the old answer at once, again and again, and
        # the loop would never come to it.
        if task is None or task.done():
            task = self._under_way[key] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._end(key, done))
        # Who goes away does not take the answer from the others.
        return await asyncio.shield(task)

    def _end(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        _mark_error_seen(task)


class Rounds(Generic[Answer]):
    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Task[Answer]] = {}
        # Rounds that have not begun; whoever comes now may join.
        self._open: dict[Hashable, asyncio.Task[Answer]] = {}

    async def ask(self, key: Hashable, ask: Ask[Answer], pause: Ask[None] | None = None) -> Answer:
        """Return the answer to a question that is asked after this call; others may join it until
        the pause is over."""
        task = self._open.get(key)
        if task is None:
            before = self._last.get(key)
            task = asyncio.create_task(self._round(key, before, ask, pause))
            self._last[key] = self._open[key] = task
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    async def _round(
        self,
        key: Hashable,
        before: asyncio.Task[Answer] | None,
        ask: Ask[Answer],
        pause: Ask[None] | None,
    ) -> Answer:
        if before is not None:
            # One at a time. How it ended is for those who asked then.
            await asyncio.wait([before])
        if pause is not None:
            await pause()
        del self._open[key]
        return await ask()

    def _end(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        if self._last.get(key) is task:
            del self._last[key]
        if self._open.get(key) is task:
            # Cancelled before it could begin.
            del self._open[key]
        _mark_error_seen(task)


def _mark_error_seen(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task: whoever asked has it, but there may be nobody left, and
    asyncio complains of errors that nobody has seen."""
    if not task.cancelled():
        task.exception()
