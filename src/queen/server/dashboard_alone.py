"""The dashboard without a broker: its pages, and whatever they ask passed on to a cluster.

A page may talk to the origin it came from and to no other, so this process stands in front of the
servers. It keeps nothing: no token, no answer. A request goes to the first server that can be
reached; one that has been sent is not sent again to another unless it only reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence

from queen.client.transport.http import Answer, Server
from queen.errors import NotFound, Unreachable
from queen.server.api.routing import Router
from queen.server.protocol.connections import Connections
from queen.server.protocol.http import Request, Response
from queen.server.protocol.listening import bind
from queen.server.protocol.origins import Origins
from queen.server.routes.admin.dashboard import dashboard_routes

_CONNECT_S = 3.0
_ANSWER_S = 60.0
_GRACE_S = 5.0
# What of a request the servers need to know, and what of an answer the page.
_PASSED_ON = (b"authorization", b"content-type", b"if-none-match")
_PASSED_BACK = (
    b"content-type",
    b"content-security-policy",
    b"www-authenticate",
    b"retry-after",
    b"allow",
    b"etag",
)


class DashboardAlone:
    """Answers browsers: pages by itself, all else by asking a server."""

    def __init__(self, urls: Sequence[str], origins: Origins) -> None:
        self._servers = [Server(url, None) for url in urls]
        self._origins = origins
        self._router = Router(dashboard_routes())

    async def handle(self, request: Request) -> Response | None:
        preflight = self._origins.admit(request)
        if preflight is not None:
            return preflight
        with contextlib.suppress(NotFound):
            route, params = self._router.find(request.method, request.path)
            return await route.handler(request._replace(params=params))
        return _passed_back(await self._ask(request))

    async def _ask(self, request: Request) -> Answer:
        refused = Unreachable("no server was named")
        for server in self._servers:
            try:
                return await _ask_one(server, request)
            except Unreachable as error:
                refused = error
                if request.method != "GET" and not isinstance(error, _NotSent):
                    break
        raise Unreachable(refused.message)

    def close(self) -> None:
        for server in self._servers:
            server.close()


class _NotSent(Unreachable):
    """A server cannot be reached; it knows nothing of the request."""


async def _ask_one(server: Server, request: Request) -> Answer:
    # One that has lain idle may be closed at any moment: what changes something gets its own.
    connection = server.free_connection() if request.method == "GET" else None
    if connection is None:
        try:
            connection = await server.connect(_CONNECT_S)
        except Unreachable as error:
            raise _NotSent(error.message) from None
    try:
        async with asyncio.timeout(_ANSWER_S):
            answer = await connection.ask(_text(server, request))
    except TimeoutError:
        raise Unreachable(f"{server.url} did not answer within {_ANSWER_S:.0f} s") from None
    finally:
        server.give_back(connection)
    return answer


def _text(server: Server, request: Request) -> bytes:
    """Return a request as it goes on the wire."""
    target = f"{request.path}?{request.query}" if request.query else request.path
    lines = [
        f"{request.method} {target} HTTP/1.1".encode(),
        b"host: " + server.host_header,
        b"content-length: %d" % len(request.body),
    ]
    lines += [
        name + b": " + request.headers[name] for name in _PASSED_ON if name in request.headers
    ]
    return b"\r\n".join((*lines, b"", request.body))


def _passed_back(answer: Answer) -> Response:
    headers = tuple(
        (name.decode(), answer.headers[name].decode("latin-1"))
        for name in _PASSED_BACK
        if name in answer.headers
    )
    return Response(answer.status, answer.body, headers)


async def serve_dashboard(
    urls: Sequence[str], host: str, port: int, *, local_only: bool, ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM or SIGINT."""
    origins = Origins(local_names_only=local_only)
    alone = DashboardAlone(urls, origins)
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    connections = Connections(alone.handle, origins=origins)
    watching = asyncio.create_task(connections.watch())
    server = await loop.create_server(connections.protocol, sock=bind(host, port, shared=False))
    ready()
    await stopping.wait()
    server.close()
    await connections.stop(_GRACE_S)
    watching.cancel()
    alone.close()
