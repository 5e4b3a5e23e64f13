"""A clock that tests can turn forward.

Time comes from the broker's database and cannot be moved. `advance` moves what is stored into
the past instead, in one transaction: when messages were written, until when they are leased,
when they are retried or delivered, since when groups exist. The broker then looks again at
once. Delays, windows, leases, schedules, expiry and retention behave as if so much time had
passed; a consumer's own clock, and anything that sleeps, does not notice. Queues that a stream
reads together have one time: it passes for all of them.

Only a server started with `queen serve --test-clock` allows it, as those of `queen.testing`
are. It is for tests: never turn it on where messages matter.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from queen.client import Queen, SyncQueen
from queen.errors import NotFound, QueenError


class Clock:
    def __init__(self, queen: Queen) -> None:
        self._queen = queen

    async def advance(self, by: float | timedelta, *, queue: str | None = None) -> None:
        """Let so many seconds pass for a queue; without one, for all queues of the server."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        body: dict[str, Any] = {"seconds": seconds, "queue": queue}
        try:
            await self._queen.post("/api/v1/test/advance", body)
        except NotFound:
            raise QueenError(
                "this server's clock cannot be moved; use the one of queen.testing, or start "
                "yours with `queen serve --test-clock`"
            ) from None


class SyncClock:
    """The same for programs without asyncio."""

    def __init__(self, queen: SyncQueen) -> None:
        self._queen = queen

    def advance(self, by: float | timedelta, *, queue: str | None = None) -> None:
        """Let so many seconds pass for a queue; without one, for all queues of the server."""
        self._queen.wait_for(Clock(self._queen.asynchronous).advance(by, queue=queue))
