"""The HTTP application: a look-up, a handler, an answer."""

from __future__ import annotations

from collections.abc import Iterator

from queen.server.http import Request, Response
from queen.server.routes.ack import AckRoutes
from queen.server.routes.analytics import AnalyticsRoutes
from queen.server.routes.deadletters import DeadLetterRoutes
from queen.server.routes.fetch import FetchRoutes
from queen.server.routes.groups import GroupRoutes
from queen.server.routes.health import HealthRoutes
from queen.server.routes.maintenance import MaintenanceRoutes
from queen.server.routes.messages import MessageRoutes
from queen.server.routes.metrics import MetricsRoutes
from queen.server.routes.pop import PopRoutes
from queen.server.routes.push import PushRoutes
from queen.server.routes.queues import QueueRoutes
from queen.server.routes.resources import ResourceRoutes
from queen.server.routes.scheduled import ScheduledRoutes
from queen.server.routes.seek import SeekRoutes
from queen.server.routes.status import StatusRoutes
from queen.server.routes.traces import TraceRoutes
from queen.server.routes.transaction import TransactionRoutes
from queen.server.routing import Route, Router
from queen.service.broker import Broker

# One class for each resource; each declares its routes beside their handlers.
_RESOURCES = (
    PushRoutes,
    PopRoutes,
    AckRoutes,
    TransactionRoutes,
    ScheduledRoutes,
    QueueRoutes,
    DeadLetterRoutes,
    MessageRoutes,
    FetchRoutes,
    GroupRoutes,
    SeekRoutes,
    TraceRoutes,
    MaintenanceRoutes,
    ResourceRoutes,
    StatusRoutes,
    AnalyticsRoutes,
    MetricsRoutes,
    HealthRoutes,
)


def routes(broker: Broker) -> Iterator[Route]:
    for resource in _RESOURCES:
        yield from resource(broker).routes()


class App:
    """From a request to its answer."""

    def __init__(self, broker: Broker) -> None:
        self._activity = broker.activity
        self._router = Router(routes(broker))

    async def handle(self, request: Request) -> Response | None:
        self._activity.requests += 1
        route, params = self._router.find(request.method, request.path)
        return await route.handler(request._replace(params=params) if params else request)
