"""The front: what the clients of the RESP port of one server process share, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from queen.server.auth.access import Caller
from queen.server.protocol.connections import ConnectionLimits
from queen.server.protocol.rates import Rates
from queen.server.resp.client import Client
from queen.server.resp.client_commands import CLIENT_SPEC
from queen.server.resp.connection import RespConnection
from queen.server.resp.connection_commands import CONNECTION_SPECS
from queen.server.resp.server_commands import SERVER_SPECS
from queen.server.resp.specs import HANDED_ON, Spec
from queen.service.stats.resp_counts import RespCounts
from queen.streambroker.replies import Executor, Failure

_log = logging.getLogger(__name__)

Authenticate = Callable[[str], Awaitable[Caller]]
ExecutorFor = Callable[[Caller], Executor]

# Tokens end and are revoked while their connections go on.
_RECHECK_S = 5.0
_STOPPING = Failure("UNBLOCKED the server is stopping")
# Ids of clients tell the server processes of a port apart.
_IDS_OF_A_WORKER = 1 << 40


class RespLimits(NamedTuple):
    # Of a client that has shown who it is, its arguments and what they take beside their bytes.
    request_bytes: int = 64 * 1024 * 1024
    stranger_bytes: int = 64 * 1024
    # Of all clients together; whoever sends more then, and holds much, is hung up on.
    held_bytes: int = 256 * 1024 * 1024
    # What a client may leave unread.
    unread_bytes: int = 256 * 1024 * 1024
    # For so long a stranger may stay, and a command may stop in its middle.
    stranger_s: float = 10.0
    command_s: float = 60.0
    connections: ConnectionLimits = ConnectionLimits()


class Front:
    def __init__(
        self,
        executor_for: ExecutorFor,
        authenticate: Authenticate | None = None,
        *,
        limits: RespLimits = RespLimits(),  # noqa: B008 (it cannot change)
        counts: RespCounts | None = None,
        rates: Rates | None = None,
        port: int = 0,
        worker: int = 0,
    ) -> None:
        self.executor_for = executor_for
        # None: whoever reaches the port is trusted.
        self.authenticate = authenticate
        self.limits = limits
        self.counts = counts or RespCounts()
        self.base_counts = RespCounts()
        self.rates = rates
        self.port = port
        self.specs: dict[bytes, Spec] = _all_specs()
        self.clients: dict[int, Client] = {}
        self.held_bytes = 0
        self.began_at = time.monotonic()
        self.is_stopping = False
        self._next_id = worker * _IDS_OF_A_WORKER
        self._connections: dict[Client, RespConnection] = {}
        # Those that run commands, although their client may have gone.
        self._working: set[RespConnection] = set()
        self._by_address: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()

    def protocol(self) -> RespConnection:
        return RespConnection(self)

    # ---- coming and going ----

    def add(self, connection: RespConnection, host: str, address: str, local: str) -> Client | None:
        """Return the new client, None when it is one too many."""
        limits = self.limits.connections
        total, same = len(self._connections), self._by_address[host]
        if total >= limits.total or same >= limits.per_address or self.is_stopping:
            self.counts.refused += 1
            return None
        self._next_id += 1
        client = Client(self, self._next_id, host, address, local)
        self.clients[client.id] = client
        self._connections[client] = connection
        self._by_address[host] += 1
        self.counts.accepted += 1
        self.counts.connections += 1
        self._empty.clear()
        return client

    def remove(self, client: Client) -> None:
        host = client.host
        del self.clients[client.id]
        del self._connections[client]
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]
        self.counts.connections -= 1
        self._note_if_empty()

    def begin_work(self, connection: RespConnection) -> None:
        self._working.add(connection)

    def end_work(self, connection: RespConnection) -> None:
        self._working.discard(connection)
        self._note_if_empty()

    def _note_if_empty(self) -> None:
        if not self._connections and not self._working:
            self._empty.set()

    def hang_up(self, clients: Iterable[Client], *, by: Client) -> None:
        for client in list(clients):
            if client is by:
                client.is_leaving = True
            else:
                self._connections[client].abort()

    def held_by(self, client: Client) -> int:
        return self._connections[client].held_bytes

    def reset_counts(self) -> None:
        """Let INFO count anew; the metrics go on."""
        self.base_counts = copy.copy(self.counts)

    # ---- as long as the server runs ----

    async def watch(self) -> None:
        """Close connections that send or read too slowly, or whose token is no longer good."""
        rechecked_at = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for connection in list(self._connections.values()):
                connection.check_time(now)
            if now - rechecked_at >= _RECHECK_S:
                rechecked_at = now
                await self.recheck()

    async def recheck(self) -> None:
        for client, connection in list(self._connections.items()):
            if not await client.recheck():
                connection.close_with(Failure("NOAUTH the token is no longer good"))

    async def stop(self, grace_s: float) -> None:
        """End waits with an error, let commands under way finish, and close."""
        self.is_stopping = True
        for client, connection in list(self._connections.items()):
            client.end_wait(_STOPPING)
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        for connection in list(self._connections.values()):
            connection.abort()


def _all_specs() -> dict[bytes, Spec]:
    own = {spec.name.upper().encode(): spec for spec in (*CONNECTION_SPECS, *SERVER_SPECS)}
    return {**HANDED_ON, **own, b"CLIENT": CLIENT_SPEC}
