"""Work that nobody waits for, kept until it is done and never lost in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("background work failed: %s", task.exception())

    async def finish(self, timeout_s: float) -> None:
        """Wait until all of it is done, or for so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
