"""The connections of one server: how many there may be, what they share, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from queen.server.protocol.connection import Connection
from queen.server.protocol.held_bytes import Room
from queen.server.protocol.http import Begin, Request, Response
from queen.server.protocol.known_heads import KnownHeads
from queen.server.protocol.origins import Origins

_log = logging.getLogger(__name__)

Handle = Callable[[Request], Coroutine[Any, Any, Response | None]]


class ConnectionLimits(NamedTuple):
    """How many connections a server process takes, of all clients and of one address, and how
    long one may read nothing of what is written to it."""

    total: int = 10_000
    per_address: int = 5_000
    write_timeout_s: float = 60.0


class Connections:
    """What the connections of one server share."""

    def __init__(
        self,
        handle: Handle,
        limits: ConnectionLimits | None = None,
        origins: Origins | None = None,
        begin: Begin | None = None,
    ) -> None:
        self.handle = handle
        # The same for requests that are not large; it need not make a task for each.
        self.begin: Begin = begin or handle
        self.loop = asyncio.get_running_loop()
        self.origins = origins or Origins()
        self.connections: set[Connection] = set()
        self.limits = limits or ConnectionLimits()
        self._by_address: Counter[str] = Counter()
        self.room = Room()
        self.heads = KnownHeads()
        self.stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    def protocol(self) -> Connection:
        return Connection(self)

    def add(self, connection: Connection) -> bool:
        """Count a connection; false when it is one too many."""
        self.connections.add(connection)
        self._by_address[connection.address] += 1
        self._empty.clear()
        return (
            len(self.connections) <= self.limits.total
            and self._by_address[connection.address] <= self.limits.per_address
        )

    def remove(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        if not self.connections:
            self._empty.set()

    def announce_stop(self) -> None:
        """Let connections end with the answer that they are at."""
        self.stopping = True

    async def stop(self, grace_s: float) -> None:
        """Close idle connections now, the others after their answer, all after the grace."""
        self.announce_stop()
        for connection in list(self.connections):
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        for connection in list(self.connections):
            connection.abort()

    async def watch(self) -> None:
        """Close connections that send or read too slowly or not at all."""
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            self.heads.forget_old(now)
            for connection in list(self.connections):
                try:
                    connection.check_time(now)
                except Exception:
                    # The others are watched on, whatever is wrong with this one.
                    _log.exception("a connection could not be checked")
                    connection.abort()
