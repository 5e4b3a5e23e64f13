"""The RESP port of a server process, from its options to its end."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

import msgspec

from queen.server.auth.authenticator import Authenticator
from queen.server.auth.security import Security
from queen.server.resp.front import Front, RespLimits
from queen.server.stream_backend import StreamBackend
from queen.service.broker import Broker

_GRACE_S = 25.0
_HANDSHAKE_TIMEOUT_S = 10.0


class RespOptions(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 6379
    # Of a single command.
    request_bytes: int = RespLimits().request_bytes


async def serve_resp(
    options: RespOptions,
    bound: socket.socket,
    broker: Broker,
    backend: StreamBackend,
    authenticator: Authenticator | None,
    security: Security,
    ends: AsyncExitStack,
) -> None:
    """Serve clients of Redis on a bound socket until `ends` is left."""
    limits = RespLimits(
        request_bytes=options.request_bytes,
        held_bytes=max(RespLimits().held_bytes, 2 * options.request_bytes),
        connections=security.connection_limits(),
    )
    front = Front(
        backend.executor_for,
        None if authenticator is None else authenticator.authenticate,
        limits=limits,
        counts=broker.activity.resp,
        rates=security.rates(),
        port=options.port,
        worker=broker.activity.name.worker,
    )
    broker.supervisor.start("resp", front.watch)
    loop, tls = asyncio.get_running_loop(), security.tls()
    if tls is None:
        server = await loop.create_server(front.protocol, sock=bound)
    else:
        server = await loop.create_server(
            front.protocol, sock=bound, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S
        )
    ends.push_async_callback(front.stop, _GRACE_S)
    ends.callback(server.close)
