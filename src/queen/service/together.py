"""Asking once for all who ask together.

Five hundred consumers that wait for the same thing must not be five hundred questions to the
database. Whoever asks while the same question is under way gets its answer. That may be a
moment older than the asking, so this is for those who would ask again, or for what does not
change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class Together(Generic[Answer]):
    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Task[Answer]] = {}

    async def ask(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Return the answer to a question; `ask` is called unless it is under way already."""
        task = self._under_way.get(key)
        # One that is done is not under way, though the loop has not come to say so yet: whoever
        # asks until something changes would get the old answer at once, again and again, and
        # the loop would never come to it.
        if task is None or task.done():
            task = self._under_way[key] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._ended(key, done))
        # Who goes away does not take the answer from the others.
        return await asyncio.shield(task)

    def _ended(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        if not task.cancelled():
            # Whoever waits has it; there may be nobody left.
            task.exception()
