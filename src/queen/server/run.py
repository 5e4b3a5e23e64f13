"""One server process: the broker, HTTP in front of it, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable

import msgspec

from queen.core.cipher import parse_keys
from queen.errors import QueenError
from queen.server.api.app import App
from queen.server.auth.authenticator import Authenticator
from queen.server.auth.security import Security
from queen.server.protocol.connections import Connections
from queen.server.protocol.listening import bind
from queen.server.resp.serving import RespOptions, serve_resp
from queen.server.stream_backend import DURABLE, StreamBackend, stream_backend
from queen.service.broker import Broker, Limits
from queen.service.preparation import Requirements
from queen.service.spooling.basins import SpoolSettings
from queen.service.stats.activity import ServerName
from queen.wire.admin.system import Setting

_log = logging.getLogger(__name__)

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
    # The folder in which they find each other.
    home: str | None = None
    limits: Limits = Limits()
    # Hexadecimal keys, the first one encrypts; see `queen.core.cipher`.
    encryption_keys: str = ""
    security: Security = Security()
    # Where pushes go while the database is away; None when there is no such place.
    spool: SpoolSettings | None = None
    # The database is away: serve, and prepare it when it is back.
    unprepared: Requirements | None = None
    # None: clients of Redis are not served.
    resp: RespOptions | None = None
    # Where streams with the verbs of Redis are; see `queen.server.stream_backend`.
    stream_backend: str = DURABLE
    log_level: str = "info"
    # text, or json.
    log_format: str = "text"
    # Where the embedded PostgreSQL has its data; None for a database of the user's.
    data_dir: str | None = None
    # Let tests move what is stored into the past.
    test_clock: bool = False
    # What it was told, for whoever asks; see `queen.server.routes.admin.settings`.
    settings: tuple[Setting, ...] = ()
    # Serve pages for people beside the API.
    dashboard: bool = True


def listen(options: ServeOptions) -> socket.socket:
    """Return the bound socket, or say plainly why it cannot be had."""
    return bind(options.host, options.port, shared=options.shared)


def listen_for_resp(options: ServeOptions) -> socket.socket | None:
    """The same for clients of Redis; None when they are not served."""
    resp = options.resp
    return None if resp is None else bind(resp.host, resp.port, shared=options.shared)


async def serve(options: ServeOptions, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then let requests that are under way finish."""
    _calm_collector()
    security = options.security
    bound, bound_resp = listen(options), listen_for_resp(options)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    keys = parse_keys(options.encryption_keys)
    name = ServerName(port=options.port, worker=options.worker)
    # Left from the last to the first, each step whatever became of the one before it.
    async with contextlib.AsyncExitStack() as ends:
        ends.callback(bound.close)
        if bound_resp is not None:
            ends.callback(bound_resp.close)
        broker = await Broker.start(
            options.dsn,
            options.limits,
            keys,
            name,
            options.spool,
            options.unprepared,
            options.home,
        )
        ends.push_async_callback(broker.stop)
        authenticator = Authenticator(security.auth, broker.tokens) if security.auth.is_on else None
        if authenticator is not None:
            await authenticator.start(broker.supervisor)
        backend = stream_backend(options.stream_backend, broker)
        app = _app_of(options, broker, authenticator, backend)
        origins = security.allowed_origins(options.host)
        connections = Connections(app.handle, security.connection_limits(), origins, app.begin)
        broker.supervisor.start("connections", connections.watch)
        server = await _create_server(connections, bound, security)
        ends.push_async_callback(connections.stop, _GRACE_S)
        # Parked polls are answered first: they would hold their connections to the end.
        ends.push_async_callback(broker.popper.close)
        ends.callback(broker.home.close_pops)
        ends.push_async_callback(broker.entries.close)
        ends.push_async_callback(backend.close)
        # Before them: each answer from now on says that it is the last one of its connection.
        ends.callback(connections.announce_stop)
        ends.callback(server.close)
        if options.resp is not None and bound_resp is not None:
            await serve_resp(
                options.resp, bound_resp, broker, backend, authenticator, security, ends
            )
        await broker.home.settle()
        ready()
        broker.background.start(_say_what_is_kept(broker))
        await _until_told(stopping, broker)


def _app_of(
    options: ServeOptions,
    broker: Broker,
    authenticator: Authenticator | None,
    backend: StreamBackend,
) -> App:
    return App(
        broker,
        authenticator,
        options.security.allowed_origins(options.host),
        options.security.rates(),
        test_clock=options.test_clock,
        backend=backend,
        settings=options.settings,
        dashboard=options.dashboard,
    )


async def _say_what_is_kept(broker: Broker) -> None:
    """Tell whoever reads the log what is kept for ever: a disk that fills says nothing until it is
    full."""
    with contextlib.suppress(QueenError):
        await broker.statistics.current()
        sentence = (await broker.storage.forecast()).sentence()
        if sentence is not None:
            _log.warning("%s; see `queen queue alter` and retentionSeconds", sentence)


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
