"""Renewal: how a consumer keeps a lease while it works.

A lease is renewed at half its time. A renewal that failed is tried again soon, and then again
after pauses that grow but leave time for more: what is left of the lease is time to get through,
not time to sleep. Time is that of our own monotonic clock: a lease counts from when it arrived, a
renewal from when it was sent. When none came through until the end, the lease counts as lost
without anyone having said so, and whoever works under it is to stop. Whether it really was is
decided by the server, when the work is acked.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Protocol

from queen.errors import LeaseLost, QueenError

if TYPE_CHECKING:
    from queen.client.queen import Queen

_log = logging.getLogger("queen.client")

# The first pause after a renewal that failed, and the longest, as shares of the lease.
_FIRST_PAUSE_SHARE = 0.01
_LONGEST_PAUSE_SHARE = 0.1


class Renewable(Protocol):
    """What is leased for a while."""

    lease_s: float

    @property
    def is_lost(self) -> bool: ...

    @property
    def is_settled(self) -> bool: ...

    @property
    def good_until(self) -> float:
        """When it ends, by our own monotonic clock."""

    async def renew_within(self, left_s: float) -> None:
        """Prolong it; raise `LeaseLost` when it is over."""


async def keep(lease: Renewable) -> None:
    """Renew a lease; return when it is lost."""
    pause_s = 0.0
    while not lease.is_lost:
        if lease.is_settled or lease.lease_s <= 0:
            # Nothing is left to keep, or the server does not say for how long it is good.
            await asyncio.Event().wait()
        # A renewal by hand may have moved the end.
        early_s = lease.good_until - lease.lease_s / 2 - time.monotonic()
        if early_s > 0:
            await asyncio.sleep(early_s)
        elif await _try_to_renew(lease):
            pause_s = 0.0
        else:
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_SHARE * lease.lease_s)
            pause_s = pause_s or _FIRST_PAUSE_SHARE * lease.lease_s
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311


async def _try_to_renew(lease: Renewable) -> bool:
    """Try to renew a lease for as long as it lasts; return whether there is nothing to repeat."""
    left_s = max(0.0, lease.good_until - time.monotonic())
    try:
        async with asyncio.timeout(left_s):
            await lease.renew_within(left_s)
    except LeaseLost:
        return True
    except TimeoutError:
        _log.warning("a lease could not be renewed in time")
        return True
    except QueenError as error:
        _log.warning("renewing a lease: %s", error)
        return False
    return True


class BatchLease:
    """The lease of a batch of messages of a queue."""

    is_settled = False

    def __init__(self, queen: Queen, lease_id: str, server: str, lease_s: float) -> None:
        self._queen = queen
        self._lease_id = lease_id
        # Who granted it; empty where there is only one server.
        self._server = server
        self.lease_s = lease_s
        self.good_until = time.monotonic() + lease_s
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether it is over: somebody else may have the messages, so drop them."""
        return self.is_lost_at(time.monotonic())

    def is_lost_at(self, now: float) -> bool:
        return self._is_lost or now > self.good_until

    async def renew_within(self, left_s: float) -> None:
        sent_at = time.monotonic()
        seconds = max(1, round(self.lease_s))
        try:
            await self._queen.renew_within(self._lease_id, self._server, seconds, left_s)
        except LeaseLost:
            self._is_lost = True
            raise
        self.good_until = sent_at + self.lease_s

    async def keep(self) -> None:
        """Renew it; say so at once when it is lost."""
        await keep(self)
        _log.warning("the lease of a batch was lost; its messages come again")


class KeptLease:
    """A lease that is renewed from half its time on, until it is let go."""

    def __init__(self, lease: BatchLease | None) -> None:
        self.lease = lease
        self._renewing: asyncio.Task[None] | None = None
        # Most batches are done long before: a timer costs less than a task.
        self._timer: asyncio.TimerHandle | None = None
        if lease is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(lease.lease_s / 2, self._begin, lease)

    def _begin(self, lease: BatchLease) -> None:
        self._renewing = asyncio.create_task(lease.keep())

    def let_go(self) -> None:
        """Renew it no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
