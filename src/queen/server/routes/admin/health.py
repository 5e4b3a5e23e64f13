"""Health: alive is not the same as ready.

`/health/live` answers as long as the process does; a supervisor that restarts on it does
not restart because of the database. `/health/ready` and `/health` ask the database.

    healthy    200   serves
    degraded   200   serves, but something beside the requests fails again and again
    unhealthy  503   does not serve: the database does not answer, or it takes nothing

Whatever is wrong with the database, pushes are taken if there is a spool. Then `/health/ready` says
`degraded`: whoever sends traffic to servers that are ready shall go on sending. `/health`, which
means all of it, says `unhealthy`.

That the database takes nothing (a full disk, a standby) shows in the statements that it has
refused; half a minute after the last of them, or when one succeeds, it counts as mended.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from queen import __version__
from queen.errors import QueenError
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response
from queen.service.broker import Broker
from queen.wire.results import LiveAnswer, ReadyAnswer

_LIVE = Doc("health", "Is the process alive?", answers={200: LiveAnswer})
_HEALTH = Doc(
    "health",
    "Is all of it well?",
    "Asks the database. `healthy` and `degraded` are 200: requests are served, and `problems` says "
    "what else fails. `unhealthy` is 503: the database does not answer, or it has refused to "
    "write within the last half minute, because its disk is full or it is read-only.",
    answers={200: ReadyAnswer, 503: ReadyAnswer},
)
_READY = Doc(
    "health",
    "Can it serve?",
    "The same as `/health`, but `degraded` where that is `unhealthy` and the spool takes pushes.",
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
                ("/health", self.health, _HEALTH),
                ("/health/live", self.live, _LIVE),
                ("/health/ready", self.ready, _READY),
            )
        ]

    async def live(self, _request: Request) -> Response:
        return Response(200, _LIVE_BODY)

    async def ready(self, request: Request) -> Response:
        """Whether it takes anything: what the database does not take, the spool does."""
        answer = await self._look()
        if answer.status == "unhealthy" and self._broker.drain is not None:
            answer.status = "degraded"
            problems = [] if answer.problems is UNSET else answer.problems
            answer.problems = [*problems, "pushes wait in the spool, all else is refused"]
        return self._answer(request, answer)

    async def health(self, request: Request) -> Response:
        return self._answer(request, await self._look())

    async def _look(self) -> ReadyAnswer:
        answer = ReadyAnswer("healthy", "connected", "Queen")
        try:
            await self._broker.hot.fetchval("now")
        except QueenError:
            answer.status, answer.database = "unhealthy", "disconnected"
            return answer
        refusal = self._broker.hot.refusal()
        if refusal is not None:
            answer.status, answer.problems = "unhealthy", [refusal]
            return answer
        failing = self._broker.supervisor.failing()
        if failing:
            # Requests are served, and the other servers fail in the same way: whoever takes
            # servers out that are not ready must not take out all of them for this.
            answer.status = "degraded"
            answer.problems = [f"the loop {name} fails again and again" for name in failing]
        return answer

    def _answer(self, request: Request, answer: ReadyAnswer) -> Response:
        status = 503 if answer.status == "unhealthy" else 200
        if request.caller.role is not Role.OPEN:
            # Which version it is helps a stranger more than anybody else.
            answer.worker_id = self._broker.activity.name.worker
            answer.worker_role = self._broker.home.role
            answer.version = __version__
        return Response(status, msgspec.json.encode(answer))
