"""What time it is for streams: the database's, as it was last told, and what has passed since."""

from __future__ import annotations

import time

from queen.service.clock import Clock


class DatabaseTime:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The database's ms, without ours that have passed; None: it was never told.
        self._ahead_ms: float | None = None

    async def begin(self) -> None:
        """Ask once; from then on every commit tells."""
        if self._ahead_ms is None:
            self.saw(int((await self._clock.now()).timestamp() * 1000))

    def saw(self, now_ms: int) -> None:
        self._ahead_ms = now_ms - time.monotonic() * 1000

    def now_ms(self) -> int:
        assert self._ahead_ms is not None
        return int(time.monotonic() * 1000 + self._ahead_ms)
