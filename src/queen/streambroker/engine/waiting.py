"""Readers that wait for something to come, served in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from queen.errors import QueenError
from queen.streambroker.engine.keyspace import Wait
from queen.streambroker.replies import Reply


class Waiter:
    """One reader. It may be served by any thread, and learns of it in its own loop."""

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.is_served = False
        self.reply: Reply = None
        self.error: QueenError | None = None
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def fail(self, error: QueenError) -> None:
        """Tell it that nobody knows what there is to read."""
        self.error = error
        self.serve(None)

    def result(self) -> Reply:
        if self.error is not None:
            raise self.error
        return self.reply

    def serve(self, reply: Reply) -> None:
        self.is_served, self.reply = True, reply
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def woken(self, within_s: float | None) -> bool:
        """Wait until it is served; returns whether it was."""
        try:
            async with asyncio.timeout(within_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True


class Waiters:
    def __init__(self) -> None:
        # In the order in which they came.
        self._by_key: dict[bytes, dict[Waiter, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: Waiter) -> None:
        self._count += 1
        for key in waiter.wait.keys:
            self._by_key.setdefault(key, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter, if it is not forgotten already."""
        is_known = False
        for key in waiter.wait.keys:
            waiters = self._by_key.get(key, {})
            if waiter in waiters:
                is_known = True
                del waiters[waiter]
                if not waiters:
                    del self._by_key[key]
        self._count -= is_known

    def on(self, keys: Iterable[bytes]) -> list[Waiter]:
        """Return who waits for any of some streams; the first of each stream first."""
        return list(dict.fromkeys(waiter for key in keys for waiter in self._by_key.get(key, ())))

    @property
    def keys(self) -> set[bytes]:
        return set(self._by_key)
