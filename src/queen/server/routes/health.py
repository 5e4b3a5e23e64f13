"""Health: alive is not the same as ready.

`/health/live` answers as long as the process does; a supervisor that restarts on it does
not restart because of the database. `/health/ready` and `/health` ask the database.
"""

from __future__ import annotations

import msgspec

from queen import __version__
from queen.errors import QueenError
from queen.server.access import Role
from queen.server.http import Request, Response
from queen.server.routing import Route
from queen.service.broker import Broker


class HealthRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(method, path, Role.OPEN, handler)
            for method in ("GET", "HEAD")
            for path, handler in (
                ("/health", self.ready),
                ("/health/live", self.live),
                ("/health/ready", self.ready),
            )
        ]

    async def live(self, _request: Request) -> Response:
        return Response(200, b'{"status":"healthy"}')

    async def ready(self, request: Request) -> Response:
        about: dict[str, object] = {"server": "Queen"}
        if request.caller.role is not Role.OPEN:
            # Which version it is helps a stranger more than anybody else.
            about["worker_id"] = self._broker.activity.name.worker
            about["version"] = __version__
        try:
            await self._broker.database.fetchval("now")
        except QueenError:
            body = {"status": "unhealthy", "database": "disconnected", **about}
            return Response(503, msgspec.json.encode(body))
        body = {"status": "healthy", "database": "connected", **about}
        return Response(200, msgspec.json.encode(body))
