"""Renewal of windows: see `queen.client.queues.renewal` for how a lease is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queen.client.queues.renewal import keep

if TYPE_CHECKING:
    from queen.client.streams.window import LeasedWindow


class _WindowLease:
    """The lease of a window, for whoever keeps it."""

    def __init__(self, window: LeasedWindow) -> None:
        self._window = window
        self.lease_s = window.lease_s

    @property
    def is_lost(self) -> bool:
        return self._window.is_lost

    @property
    def is_settled(self) -> bool:
        return self._window.is_settled

    @property
    def good_until(self) -> float:
        return self._window._good_until

    async def renew_within(self, left_s: float) -> None:
        await self._window._renew(None, left_s)


async def keep_alive(window: LeasedWindow) -> None:
    """Renew the lease of a window; return when it is lost."""
    await keep(_WindowLease(window))
