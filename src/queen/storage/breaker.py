"""The breaker: whether PostgreSQL answers, known before anybody has to wait for it.

    closed ──a probe fails──▶ open ──a probe succeeds──▶ closed

A probe is a question over a connection of its own, several times a second, and at once when a
statement found its connection broken. While the breaker is open nobody is sent to the database:
who would wait for a timeout is told so now. When the second probe fails too, the connections of
the pool are cut: whoever waits on them for an answer from a machine that is gone is told as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import asyncpg

from queen.errors import Unavailable

_log = logging.getLogger(__name__)

_NO_ANSWER = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_INTERVAL_S = 0.25
# Together less than a second. A machine that is only busy answers within that.
_PATIENCE_S = 0.65
_LOOKS = 13


class Probe(Protocol):
    async def ask(self) -> None:
        """Return when the database answers, raise when it does not."""
        ...

    def close(self) -> None: ...


class ConnectionProbe:
    """Asks over one connection that it keeps."""

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
        self._connect = connect
        self._connection: asyncpg.Connection | None = None

    async def ask(self) -> None:
        await _within_patience(self._ask())

    async def _ask(self) -> None:
        if self._connection is not None:
            try:
                await self._connection.fetchval("select 1")
                return
            except _NO_ANSWER:
                # It was cut, which says nothing of the next one.
                self.close()
        self._connection = await self._connect()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(asyncpg.InterfaceError):
                connection.terminate()


async def _within_patience(question: Coroutine[Any, Any, None]) -> None:
    """Wait for an answer, and raise `TimeoutError` if none comes.

    Looks again and again: while this process did not run, no answer could be heard, so that a
    process that was held up for seconds counts no more than one look of them.
    """
    asking = asyncio.ensure_future(question)
    try:
        for _ in range(_LOOKS):
            await asyncio.wait((asking,), timeout=_PATIENCE_S / _LOOKS)
            if asking.done():
                return asking.result()
        raise TimeoutError
    finally:
        asking.cancel()


class Breaker:
    """Open while the database does not answer. Until it runs, it is closed."""

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe
        self._prepare: Callable[[], Awaitable[None]] | None = None
        self._failures = 0
        self._suspected = asyncio.Event()
        self._opened, self._closed = asyncio.Event(), asyncio.Event()
        self._closed.set()
        self.opened_at: float | None = None
        # How often it opened.
        self.openings = 0
        # Called when the database is away and the pool's connections are of no use.
        self.cut: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None

    def begin_open(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Begin without a database. What has to be done to it comes before anybody is sent there;
        it raises `Unavailable` as long as it cannot be done."""
        self._prepare = prepare
        self.opened_at = time.monotonic()
        self._turn()

    def suspect(self) -> None:
        """A connection broke, or none could be had: find out now."""
        self._suspected.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def wait_open(self) -> None:
        await self._opened.wait()

    def _turn(self) -> None:
        """Wake those who wait for the state that it is in now."""
        now, before = (self._opened, self._closed) if self.is_open else (self._closed, self._opened)
        before.clear()
        now.set()

    async def run(self) -> None:
        if self._probe is None:
            return
        try:
            while True:
                self._suspected.clear()
                await self.look()
                await self._pause()
        finally:
            self._probe.close()

    async def look(self) -> None:
        """Ask the database once, and turn accordingly."""
        assert self._probe is not None
        try:
            if self._prepare is not None:
                await self._prepare()
                self._prepare = None
            await self._probe.ask()
        except (*_NO_ANSWER, Unavailable) as error:
            self._probe.close()
            self._note_failure(error)
        else:
            self._note_answer()

    async def _pause(self) -> None:
        if self._failures == 1:
            # Whether it is away for good is known in a moment.
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_INTERVAL_S):
                if self.is_open:
                    # There is nothing to suspect any more, and no reason to ask without a pause.
                    await asyncio.sleep(_INTERVAL_S)
                await self._suspected.wait()

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self.opened_at is None:
            self.opened_at = time.monotonic()
            self.openings += 1
            self._turn()
            _log.error("PostgreSQL does not answer: %s", str(error) or type(error).__name__)
        if self._failures == 2:
            self.cut()

    def _note_answer(self) -> None:
        self._failures = 0
        if self.opened_at is not None:
            _log.warning("PostgreSQL answers again after %.1f s", time.monotonic() - self.opened_at)
            self.opened_at = None
            self._turn()
