"""The supervisor: keeps loops that never end from ending.

A loop handles the errors that it expects and goes on. One that it does not expect would end it
without a word, and the server would go on without whatever the loop did. Here such an error is
logged with its traceback and counted, and the loop begins again after a pause, which grows as
long as it keeps failing.

    runs ──error──▶ pauses ──▶ runs again ──a minute without an error──▶ well

A loop that has failed several times and has not run well since is *failing*, which is what
`/health` says of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

# So many failures, with no minute without one between them, make a loop a failing one.
FAILING_AFTER = 3
_WELL_AFTER_S = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_STOP_TIMEOUT_S = 10.0

Loop = Callable[[], Awaitable[None]]


class _SupervisedLoop:
    """One loop and how it does."""

    def __init__(self, name: str, run: Loop) -> None:
        self.name = name
        self.run = run
        # Since the start, and since it last ran well.
        self.failures = 0
        self.in_a_row = 0
        self.began_at: float | None = None

    def note_failure(self) -> None:
        if self._ran_well():
            self.in_a_row = 0
        self.failures += 1
        self.in_a_row += 1
        self.began_at = None

    @property
    def is_failing(self) -> bool:
        return self.in_a_row >= FAILING_AFTER and not self._ran_well()

    def pause_s(self) -> float:
        return float(min(_FIRST_PAUSE_S * 2 ** min(self.in_a_row - 1, 20), _LONGEST_PAUSE_S))

    def _ran_well(self) -> bool:
        return self.began_at is not None and time.monotonic() - self.began_at >= _WELL_AFTER_S


class Supervisor:
    def __init__(self) -> None:
        self._loops: dict[str, _SupervisedLoop] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}

    def start(self, name: str, run: Loop) -> None:
        """Run a loop under a name until `stop`."""
        loop = self._loops[name] = _SupervisedLoop(name, run)
        self._tasks[asyncio.create_task(self._keep(loop), name=name)] = name

    def failures(self) -> dict[str, int]:
        """Return how often each loop has ended by an error."""
        return {name: loop.failures for name, loop in self._loops.items()}

    def failing(self) -> list[str]:
        """Return the loops that end again and again."""
        return [name for name, loop in self._loops.items() if loop.is_failing]

    async def stop(self) -> None:
        """End all loops; one that does not end is named and left behind."""
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            return
        _, left = await asyncio.wait(self._tasks, timeout=_STOP_TIMEOUT_S)
        for task in left:
            _log.error("the loop %s does not end", self._tasks[task])

    async def _keep(self, loop: _SupervisedLoop) -> None:
        while True:
            loop.began_at = time.monotonic()
            try:
                await loop.run()
                _log.error("the loop %s has ended by itself; it begins again", loop.name)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                # Something inside it was cancelled, not the loop.
                _log.exception("the loop %s was cut off; it begins again", loop.name)
            except Exception:
                _log.exception("the loop %s has failed; it begins again", loop.name)
            loop.note_failure()
            await asyncio.sleep(loop.pause_s())


def _is_cancelled() -> bool:
    """Return whether the running task itself was told to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
