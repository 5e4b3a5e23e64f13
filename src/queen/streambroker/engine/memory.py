"""Streams in memory: the commands at once, under one lock, for any number of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from queen.streambroker.engine import commands
from queen.streambroker.engine.keyspace import Arguments, Keyspace, Limits, Wait
from queen.streambroker.engine.waiting import Waiter, Waiters
from queen.streambroker.replies import NO_ARRAY, Reply

assert commands


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryExecutor:
    def __init__(
        self,
        max_length: int = 0,
        max_pending: int = 0,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._space = Keyspace(Limits(max_length, max_pending))
        self._clock = clock
        self._lock = threading.Lock()
        self._waiters = Waiters()

    async def execute(
        self, commands: Sequence[Arguments], *, is_atomic: bool = False
    ) -> list[Reply]:
        if is_atomic:
            with self._lock:
                now = self._clock()
                replies = [self._run(command, now, may_wait=False) for command in commands]
                self._serve()
            return [reply for reply in replies if not isinstance(reply, Wait)]
        return [await self._execute(command) for command in commands]

    def _run(self, command: Arguments, now: int, *, may_wait: bool) -> Reply | Wait:
        return self._space.run(command, now, may_wait=may_wait)

    async def _execute(self, command: Arguments) -> Reply:
        with self._lock:
            reply = self._run(command, self._clock(), may_wait=True)
            if not isinstance(reply, Wait):
                self._serve()
                return reply
            waiter = Waiter(reply)
            self._waiters.add(waiter)
        try:
            return await self._wait(waiter)
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    async def _wait(self, waiter: Waiter) -> Reply:
        """Wait until a reader is served, or its time is over."""
        wait = waiter.wait
        ends_at = time.monotonic() + wait.for_ms / 1000 if wait.for_ms else None
        while True:
            left = None if ends_at is None else ends_at - time.monotonic()
            if left is not None and left <= 0:
                break
            again = None if wait.again_in_ms is None else wait.again_in_ms / 1000
            within = min((each for each in (left, again) if each is not None), default=None)
            if await waiter.woken(within):
                return waiter.reply
            with self._lock:
                reply = self._look_again(waiter)
            if not isinstance(reply, Wait):
                return reply
            wait = reply
        with self._lock:
            return waiter.reply if waiter.is_served else NO_ARRAY

    def _look_again(self, waiter: Waiter) -> Reply | Wait:
        if waiter.is_served:
            return waiter.reply
        reply = self._run(waiter.wait.command, self._clock(), may_wait=True)
        self._serve()
        return reply

    def _serve(self) -> None:
        """Let those who wait for streams that have changed try again."""
        space = self._space
        while space.ready:
            ready, space.ready = space.ready, set()
            for waiter in self._waiters.on(ready):
                reply = self._run(waiter.wait.command, self._clock(), may_wait=True)
                if not isinstance(reply, Wait):
                    self._waiters.remove(waiter)
                    waiter.serve(reply)
