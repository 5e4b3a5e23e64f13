"""The HTTP application: a look-up, a handler, an answer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queen.errors import NotFound
from queen.server.http import JSON_HEADERS, Handler, Request, Response, path_parts
from queen.server.routes.ack import AckRoutes
from queen.server.routes.fetch import FetchRoutes
from queen.server.routes.health import HealthRoutes
from queen.server.routes.pop import PopRoutes
from queen.server.routes.push import PushRoute
from queen.server.routes.queues import QueueRoutes
from queen.server.routes.transaction import TransactionRoute
from queen.service.broker import Broker


def _not_allowed(methods: Iterable[str]) -> Handler:
    allowed = ", ".join(sorted(methods))

    async def refuse(_request: Request) -> Response:
        body = {"error": "Method not allowed", "code": "method_not_allowed", "retryable": False}
        return Response(405, msgspec.json.encode(body), (*JSON_HEADERS, ("allow", allowed)))

    return refuse


class Router:
    """Routes by exact path first, then by shape: a part in braces is a parameter."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        self._shaped: list[tuple[list[str], dict[str, Handler]]] = []

    def add(self, method: str, path: str, handler: Handler) -> None:
        if "{" not in path:
            self._exact.setdefault(path, {})[method] = handler
            return
        shape = path.split("/")[1:]
        for known, methods in self._shaped:
            if known == shape:
                methods[method] = handler
                return
        self._shaped.append((shape, {method: handler}))

    def find(self, method: str, path: str) -> tuple[Handler, tuple[str, ...]]:
        """Return the handler of a request and the parameters in its path."""
        methods = self._exact.get(path)
        params: tuple[str, ...] = ()
        if methods is None:
            methods, params = self._find_shaped(path)
        return methods.get(method) or _not_allowed(methods), params

    def _find_shaped(self, path: str) -> tuple[dict[str, Handler], tuple[str, ...]]:
        parts = path_parts(path)
        for shape, methods in self._shaped:
            params = _match(shape, parts)
            if params is not None:
                return methods, params
        raise NotFound("no such route")


def _match(shape: list[str], parts: list[str]) -> tuple[str, ...] | None:
    if len(shape) != len(parts):
        return None
    params = []
    for wanted, part in zip(shape, parts, strict=True):
        if wanted.startswith("{"):
            params.append(part)
        elif wanted != part:
            return None
    return tuple(params)


def routes(broker: Broker) -> Router:
    router = Router()
    pop, ack, queues = PopRoutes(broker), AckRoutes(broker), QueueRoutes(broker)
    fetch, health = FetchRoutes(broker), HealthRoutes(broker)
    router.add("POST", "/api/v1/push", PushRoute(broker))
    router.add("GET", "/api/v1/pop", pop.by_label)
    router.add("GET", "/api/v1/pop/queue/{queue}", pop.from_queue)
    router.add("GET", "/api/v1/pop/queue/{queue}/partition/{partition}", pop.from_partition)
    router.add("POST", "/api/v1/ack", ack.one)
    router.add("POST", "/api/v1/ack/batch", ack.batch)
    router.add("POST", "/api/v1/lease/{lease}/extend", ack.extend)
    router.add("POST", "/api/v1/transaction", TransactionRoute(broker))
    router.add("POST", "/api/v1/configure", queues.configure)
    router.add("DELETE", "/api/v1/resources/queues/{queue}", queues.delete)
    router.add("GET", "/api/v1/fetch/queue/{queue}", fetch.queue)
    router.add("GET", "/api/v1/fetch/queue/{queue}/partition/{partition}", fetch.partition)
    for method in ("GET", "HEAD"):
        router.add(method, "/health", health.ready)
        router.add(method, "/health/live", health.live)
        router.add(method, "/health/ready", health.ready)
    return router


class App:
    """From a request to its answer."""

    def __init__(self, broker: Broker) -> None:
        self._router = routes(broker)

    async def handle(self, request: Request) -> Response | None:
        handler, params = self._router.find(request.method, request.path)
        return await handler(request._replace(params=params) if params else request)
