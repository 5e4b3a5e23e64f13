"""The HTTP application: a look-up, a handler, an answer."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from queen.errors import Forbidden, NotFound, QueenError
from queen.server.api.audit import audit_line
from queen.server.api.routing import Route, Router
from queen.server.auth.access import Role
from queen.server.auth.authenticator import Authenticator
from queen.server.protocol.http import Begun, Request, Response
from queen.server.protocol.origins import Origins
from queen.server.protocol.rates import Rates
from queen.server.protocol.shared_answers import SharedAnswers
from queen.server.routes.admin.about import AboutRoutes
from queen.server.routes.admin.access import AccessRoutes
from queen.server.routes.admin.clock import ClockRoutes
from queen.server.routes.admin.dashboard import dashboard_routes
from queen.server.routes.admin.health import HealthRoutes
from queen.server.routes.admin.maintenance import MaintenanceRoutes
from queen.server.routes.admin.queues import QueueRoutes
from queen.server.routes.admin.settings import SettingsRoutes
from queen.server.routes.admin.spool import SpoolRoutes
from queen.server.routes.admin.system import SystemRoutes
from queen.server.routes.admin.traces import TraceRoutes
from queen.server.routes.entries.entries import EntryRoutes
from queen.server.routes.entries.entry_groups import EntryGroupRoutes
from queen.server.routes.entries.entry_reads import EntryReadRoutes
from queen.server.routes.groups.groups import GroupRoutes
from queen.server.routes.groups.seek import SeekRoutes
from queen.server.routes.messages.ack import AckRoutes
from queen.server.routes.messages.dead_letters import DeadLetterRoutes
from queen.server.routes.messages.fetch import FetchRoutes
from queen.server.routes.messages.messages import MessageRoutes
from queen.server.routes.messages.pop import PopRoutes
from queen.server.routes.messages.push import PushRoutes
from queen.server.routes.messages.scheduled import ScheduledRoutes
from queen.server.routes.messages.sealed_reads import SealedReadRoutes
from queen.server.routes.messages.transaction import TransactionRoutes
from queen.server.routes.sdk.sdk_queries import SdkQueryRoutes
from queen.server.routes.spark.pipelines import PipelineRoutes
from queen.server.routes.spark.sinks import SinkRoutes
from queen.server.routes.stats.analytics import AnalyticsRoutes
from queen.server.routes.stats.metrics import MetricsRoutes
from queen.server.routes.stats.problems import ProblemRoutes
from queen.server.routes.stats.queue_status import QueueStatusRoutes
from queen.server.routes.stats.resources import ResourceRoutes
from queen.server.routes.stats.status import StatusRoutes
from queen.server.routes.stats.status_series import StatusSeriesRoutes
from queen.server.routes.stats.storage import StorageRoutes
from queen.server.routes.streams.stream_lists import StreamListRoutes
from queen.server.routes.streams.stream_ranges import StreamRangeRoutes
from queen.server.routes.streams.stream_timeline import StreamTimelineRoutes
from queen.server.routes.streams.streams import StreamRoutes
from queen.server.routes.tasks.jobs import JobRoutes
from queen.server.routes.tasks.schedules import ScheduleRoutes
from queen.server.stream_backend import LogBackend, StreamBackend
from queen.service.broker import Broker
from queen.wire.admin.system import Setting

# One class for each resource; each declares its routes beside their handlers.
_RESOURCES = (
    PushRoutes,
    PopRoutes,
    AckRoutes,
    TransactionRoutes,
    SdkQueryRoutes,
    ScheduledRoutes,
    JobRoutes,
    ScheduleRoutes,
    SinkRoutes,
    QueueRoutes,
    DeadLetterRoutes,
    MessageRoutes,
    FetchRoutes,
    SealedReadRoutes,
    GroupRoutes,
    SeekRoutes,
    StreamRoutes,
    StreamListRoutes,
    StreamRangeRoutes,
    StreamTimelineRoutes,
    TraceRoutes,
    PipelineRoutes,
    MaintenanceRoutes,
    SystemRoutes,
    SpoolRoutes,
    ResourceRoutes,
    StatusRoutes,
    ProblemRoutes,
    QueueStatusRoutes,
    StatusSeriesRoutes,
    StorageRoutes,
    AnalyticsRoutes,
    MetricsRoutes,
    HealthRoutes,
    AccessRoutes,
)


# The same, for streams with the verbs of Redis, wherever these are.
_STREAM_RESOURCES = (EntryRoutes, EntryGroupRoutes, EntryReadRoutes)


def routes(
    broker: Broker,
    *,
    test_clock: bool = False,
    backend: StreamBackend | None = None,
    settings: Sequence[Setting] = (),
) -> list[Route]:
    streams = backend or LogBackend(broker)
    declared = [route for resource in _RESOURCES for route in resource(broker).routes()]
    declared += [route for resource in _STREAM_RESOURCES for route in resource(streams).routes()]
    declared += SettingsRoutes(settings).routes()
    if test_clock:
        declared += ClockRoutes(broker).routes()
    return [*declared, *AboutRoutes(declared).routes()]


class App:
    """From a request to its answer."""

    def __init__(
        self,
        broker: Broker,
        authenticator: Authenticator | None = None,
        origins: Origins | None = None,
        rates: Rates | None = None,
        *,
        test_clock: bool = False,
        backend: StreamBackend | None = None,
        settings: Sequence[Setting] = (),
        dashboard: bool = True,
    ) -> None:
        self._activity = broker.activity
        declared = routes(broker, test_clock=test_clock, backend=backend, settings=settings)
        answers = SharedAnswers()
        shared = [
            route._replace(handler=answers.sharing(route.handler)) if route.shared else route
            for route in declared
        ]
        self._router = Router([*shared, *(dashboard_routes() if dashboard else ())])
        # None: whoever reaches the server is trusted.
        self._authenticator = authenticator
        self._origins = origins or Origins()
        self._rates = rates

    @property
    def routes(self) -> list[Route]:
        return self._router.routes

    def begin(self, request: Request) -> Response | Begun | Coroutine[Any, Any, Response | None]:
        """Begin to answer a request, without a task where its route can do that."""
        try:
            route, params = self._router.find(request.method, request.path)
        except QueenError:
            return self.handle(request)
        if route.quick is None:
            return self.handle(request)
        if self._authenticator is not None:
            caller = self._authenticator.remembered(request)
            if caller is None:
                return self.handle(request)
            request = request._replace(params=params, caller=caller)
        elif params:
            request = request._replace(params=params)
        self._activity.requests += 1
        preflight = self._origins.admit(request)
        if preflight is not None:
            return preflight
        if self._authenticator is not None:
            _check_role(request, route)
        if self._rates is not None:
            self._rates.admit(request)
        assert route.quick is not None
        return route.quick(request) or route.handler(request)

    async def handle(self, request: Request) -> Response | None:
        self._activity.requests += 1
        preflight = self._origins.admit(request)
        if preflight is not None:
            return preflight
        route, params = self._router.find(request.method, request.path)
        if self._authenticator is not None:
            caller = await self._authenticator.identify(request, route.role)
            request = request._replace(params=params, caller=caller)
            _check_role(request, route)
        elif params:
            request = request._replace(params=params)
        if self._rates is not None:
            self._rates.admit(request)
        return await route.handler(request)


def _check_role(request: Request, route: Route) -> None:
    """Raise unless the caller may use a route. What nobody has allowed is forbidden."""
    caller = request.caller
    if caller.role < route.role:
        if route.role is Role.ADMIN:
            audit_line(request, f"{route.method} {route.path}", request.path, "refused", {})
        raise Forbidden("Insufficient permissions")
    if caller.namespaces is not None and not route.scoped:
        raise NotFound("no such route")
