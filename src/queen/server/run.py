"""One server process: the broker, HTTP in front of it, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable

import msgspec

from queen.core.cipher import parse_keys
from queen.errors import StartupError
from queen.server.api.app import App
from queen.server.auth.authenticator import Authenticator
from queen.server.auth.security import Security
from queen.server.protocol.connections import Connections
from queen.service.broker import Broker, Limits
from queen.service.preparation import Requirements
from queen.service.spooling.basins import SpoolSettings
from queen.service.stats.activity import ServerName

_BACKLOG = 1024
_GRACE_S = 25.0
_HANDSHAKE_TIMEOUT_S = 10.0


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    dsn: str = ""
    host: str = "127.0.0.1"
    port: int = 6632
    # Several processes listen on one port; the kernel deals the connections out.
    shared: bool = False
    # Which of them this is.
    worker: int = 0
    limits: Limits = Limits()
    # Hexadecimal keys, the first one encrypts; see `queen.core.cipher`.
    encryption_keys: str = ""
    security: Security = Security()
    # Where pushes go while the database is away; None when there is no such place.
    spool: SpoolSettings | None = None
    # The database is away: serve, and prepare it when it is back.
    unprepared: Requirements | None = None
    # Let tests move what is stored into the past.
    test_clock: bool = False


def listen(options: ServeOptions) -> socket.socket:
    """Return the bound socket, or say plainly why it cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if options.shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((options.host, options.port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        where = f"{options.host}:{options.port}"
        raise StartupError(f"cannot listen on {where}: {error.strerror}") from error
    bound.setblocking(False)
    return bound


async def serve(options: ServeOptions, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then let requests that are under way finish."""
    _calm_collector()
    security = options.security
    bound = listen(options)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    keys = parse_keys(options.encryption_keys)
    name = ServerName(port=options.port, worker=options.worker)
    # Left from the last to the first, each step whatever became of the one before it.
    async with contextlib.AsyncExitStack() as ends:
        ends.callback(bound.close)
        broker = await Broker.start(
            options.dsn, options.limits, keys, name, options.spool, options.unprepared
        )
        ends.push_async_callback(broker.stop)
        authenticator = Authenticator(security.auth, broker.tokens) if security.auth.is_on else None
        if authenticator is not None:
            await authenticator.start(broker.supervisor)
        origins = security.allowed_origins(options.host)
        app = App(broker, authenticator, origins, security.rates(), test_clock=options.test_clock)
        connections = Connections(app.handle, security.connection_limits(), origins)
        broker.supervisor.start("connections", connections.watch)
        server = await _create_server(connections, bound, security)
        ends.push_async_callback(connections.stop, _GRACE_S)
        # Parked polls are answered first: they would hold their connections to the end.
        ends.push_async_callback(broker.popper.close)
        ends.callback(server.close)
        ready()
        await _until_told(stopping, broker)


async def _until_told(stopping: asyncio.Event, broker: Broker) -> None:
    """Return when the server is to end; raises when its database turns out to be of no use."""
    told = asyncio.create_task(stopping.wait())
    await asyncio.wait((told, broker.refused), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if broker.refused.done():
        raise broker.refused.result()


async def _create_server(
    connections: Connections, bound: socket.socket, security: Security
) -> asyncio.AbstractServer:
    loop, tls = asyncio.get_running_loop(), security.tls()
    if tls is None:
        return await loop.create_server(connections.protocol, sock=bound)
    return await loop.create_server(
        connections.protocol, sock=bound, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S
    )


def _calm_collector() -> None:
    """Requests free what they use by themselves; the collector need not look so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
