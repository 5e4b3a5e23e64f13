"""Streams on the log in PostgreSQL, in this process: the broker of a server without the server.

It prepares the database as a server does, keeps a few connections to it, and takes its part among
the servers that are there: streams, and who waits for them, are the same for all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import NamedTuple

from queen.core.cipher import parse_keys
from queen.errors import Unavailable, Unreachable
from queen.service.broker import Broker, Limits
from queen.service.preparation import Requirements, prepare
from queen.service.stats.activity import ServerName
from queen.streambroker.commands import ALL_COMMANDS, CommandStreamBroker
from queen.streambroker.interface import Capability
from queen.streambroker.replies import Executor, Reply

CONNECTIONS = 4
DURABLE_CAPABILITIES = frozenset({Capability.LASTING})


class Everybody(NamedTuple):
    """Who has the database needs no token to see all of it."""

    subject: str | None = None
    namespaces: frozenset[str] | None = None

    def sees(self, _namespace: str) -> bool:
        return True


class DurableStreamBroker(CommandStreamBroker):
    """A stream broker on PostgreSQL. What was answered is committed."""

    def __init__(
        self,
        url: str,
        *,
        connections: int = CONNECTIONS,
        encryption_key: str | None = None,
        allow_weak_durability: bool = False,
    ) -> None:
        """Take the URL of a database, and the keys of encrypted queues if there are any; these
        come from QUEEN_ENCRYPTION_KEY otherwise. Belongs to the event loop that first uses it."""
        keys = encryption_key if encryption_key is not None else os.environ.get(_KEY_VARIABLE, "")
        self._starting = _StartingExecutor(url, connections, keys, allow_weak_durability)
        super().__init__(self._starting, commands=ALL_COMMANDS, capabilities=DURABLE_CAPABILITIES)

    async def open(self) -> None:
        await self._starting.start()

    async def close(self) -> None:
        await self._starting.close()


_KEY_VARIABLE = "QUEEN_ENCRYPTION_KEY"
_CLOSED = "the stream broker is closed"


class _StartingExecutor:
    """Runs commands on a broker that starts with the first of them."""

    def __init__(self, url: str, connections: int, keys: str, allow_weak: bool) -> None:
        self._url = url
        self._limits = Limits(connections=connections)
        self._keys = parse_keys(keys)
        self._requirements = Requirements(allow_weak, bool(self._keys))
        self._turn = asyncio.Lock()
        self._broker: Broker | None = None
        self._executor: Executor | None = None
        self._is_closed = False

    async def start(self) -> Executor:
        async with self._turn:
            if self._is_closed:
                raise Unreachable(_CLOSED)
            if self._executor is None:
                await prepare(self._url, self._requirements)
                # Several processes of a machine may do the same; none has a port of its own.
                name = ServerName(worker=os.getpid())
                self._broker = await Broker.start(self._url, self._limits, self._keys, name)
                self._executor = self._broker.entries.executor_for(Everybody())
            return self._executor

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        executor = self._executor
        if executor is None or self._is_closed:
            executor = await self.start()
        try:
            return await executor.execute(commands, is_atomic=is_atomic)
        except Unavailable as error:
            if self._is_closed:
                raise Unreachable(_CLOSED) from error
            raise

    async def close(self) -> None:
        """Answer who waits, and let go of the database."""
        async with self._turn:
            self._is_closed = True
            broker, self._broker, self._executor = self._broker, None, None
        if broker is not None:
            await broker.stop()
