"""Health: alive is not the same as ready.

`/health/live` answers as long as the process does; a supervisor that restarts on it does
not restart because of the database. `/health/ready` and `/health` ask the database.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from queen import __version__
from queen.errors import QueenError
from queen.server.access import Role
from queen.server.http import Request, Response
from queen.server.routing import Doc, Route
from queen.service.broker import Broker
from queen.wire.results import LiveAnswer, ReadyAnswer

_LIVE = Doc("health", "Is the process alive?", answers={200: LiveAnswer})
_READY = Doc(
    "health",
    "Can it serve?",
    "Asks the database. Not ready is 503.",
    answers={200: ReadyAnswer, 503: ReadyAnswer},
)
_LIVE_BODY = msgspec.json.encode(LiveAnswer("healthy"))


class HealthRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(method, path, Role.OPEN, handler, doc)
            for method in ("GET", "HEAD")
            for path, handler, doc in (
                ("/health", self.ready, _READY),
                ("/health/live", self.live, _LIVE),
                ("/health/ready", self.ready, _READY),
            )
        ]

    async def live(self, _request: Request) -> Response:
        return Response(200, _LIVE_BODY)

    async def ready(self, request: Request) -> Response:
        try:
            await self._broker.database.fetchval("now")
        except QueenError:
            return self._readiness(request, 503, "unhealthy", "disconnected")
        return self._readiness(request, 200, "healthy", "connected")

    def _readiness(
        self,
        request: Request,
        status: int,
        state: Literal["healthy", "unhealthy"],
        database: Literal["connected", "disconnected"],
    ) -> Response:
        answer = ReadyAnswer(state, database, "Queen")
        if request.caller.role is not Role.OPEN:
            # Which version it is helps a stranger more than anybody else.
            answer.worker_id = self._broker.activity.name.worker
            answer.version = __version__
        return Response(status, msgspec.json.encode(answer))
