"""Renewal: how a consumer keeps the lease of a window while it works.

A lease is renewed at half its time, so one lost renewal still leaves time for another. Time is
that of our own monotonic clock: a lease counts from when the window arrived, a renewal from when
it was sent. When no renewal came through until the end, the lease counts as lost without anyone
having said so, and whoever works on the window is to stop. Whether it really was is decided by
the server, when the window is acked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from queen.errors import LeaseLost, QueenError

if TYPE_CHECKING:
    from queen.client.streams.window import LeasedWindow

_log = logging.getLogger("queen.client")

# What a renewal that failed waits, as a share of the lease.
_PAUSE_SHARE = 0.1


async def kept_alive(window: LeasedWindow) -> None:
    """Renew the lease of a window; return when it is lost."""
    while not window.is_lost:
        if window.is_settled or window.lease_s <= 0:
            # Nothing is left to keep, or the server does not say for how long it is good.
            await asyncio.Event().wait()
        # A renewal by hand may have moved the end.
        early_s = window._good_until - window.lease_s / 2 - time.monotonic()
        if early_s > 0:
            await asyncio.sleep(early_s)
        else:
            await _renew(window)


async def _renew(window: LeasedWindow) -> None:
    try:
        async with asyncio.timeout(max(0.0, window._good_until - time.monotonic())):
            await window._renew(None)
    except LeaseLost:
        return
    except TimeoutError:
        _log.warning("the lease of a window could not be renewed in time")
    except QueenError as error:
        _log.warning("renewing the lease of a window: %s", error)
        await asyncio.sleep(_PAUSE_SHARE * window.lease_s)
