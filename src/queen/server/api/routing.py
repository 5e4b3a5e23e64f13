"""Routes: what the server can be asked, by whom, and how that is described.

A route is declared once, beside its handler: method and path, the role it needs, and what
the API document says of it. The router, the access check and the document are made from
this one declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from queen.errors import NotFound
from queen.server.auth.access import Role
from queen.server.protocol.http import (
    JSON_HEADERS,
    Handler,
    QuickHandler,
    Request,
    Response,
    path_parts,
)

# Longer paths are looked up each time.
_KEPT_CHARACTERS = 256


class Param(NamedTuple):
    """A parameter in the query or the path, as the document describes it."""

    name: str
    # Anything msgspec can make a JSON schema of: `str`, `Annotated[int, Meta(ge=1)]`, …
    type: Any
    about: str
    default: Any = None
    example: Any = None
    # Every part of a path is; of the query only what a request cannot do without.
    required: bool = False


class Other(NamedTuple):
    """A body that is not JSON."""

    media_type: str
    about: str = ""


class Doc(NamedTuple):
    """What the API document says of a route."""

    tag: str
    summary: str
    about: str = ""
    query: tuple[Param, ...] = ()
    # The type of the request's body; None when it has none.
    body: Any = None
    # A body that may be left out although it has a type.
    body_optional: bool = False
    # What is taken in place of it.
    other_body: Other | None = None
    # The type of the answer for each status beside the errors; None is an empty body, a tuple
    # is any one of its types.
    answers: Mapping[int, Any] = {}
    # An example of the body that the tests send for real.
    example: Any = None
    # The errors it has beside those that all routes of its kind have.
    errors: tuple[int, ...] = ()
    # Parts of the path that mean something else than they usually do.
    path: tuple[Param, ...] = ()


class Route(NamedTuple):
    method: str
    path: str
    role: Role
    handler: Handler
    doc: Doc | None = None
    # The handler shows a caller that is limited to namespaces nothing else. Such a caller
    # does not reach a route that does not say so.
    scoped: bool = False
    # Nothing is changed, and the answer depends on nothing but the URL and what the caller may
    # see: onlookers share it (`queen.server.protocol.shared_answers`).
    shared: bool = False
    # Asked first, where most requests need no task.
    quick: QuickHandler | None = None


class Router:
    """Routes by exact path first, then by shape: a part in braces is a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes: list[Route] = []
        self._exact: dict[str, dict[str, Route]] = {}
        self._shaped: list[tuple[list[str], dict[str, Route]]] = []
        for route in routes:
            self._add(route)
        # The same few paths come again and again.
        self._find_kept = lru_cache(maxsize=4096)(self._find_shaped)

    def _add(self, route: Route) -> None:
        self.routes.append(route)
        if "{" not in route.path:
            self._exact.setdefault(route.path, {})[route.method] = route
            return
        shape = route.path.split("/")[1:]
        for other, methods in self._shaped:
            if other == shape:
                methods[route.method] = route
                return
        self._shaped.append((shape, {route.method: route}))

    def find(self, method: str, path: str) -> tuple[Route, tuple[str, ...]]:
        """Return the route of a request and the parameters in its path."""
        methods = self._exact.get(path)
        params: tuple[str, ...] = ()
        if methods is None:
            is_long = len(path) > _KEPT_CHARACTERS
            methods, params = self._find_shaped(path) if is_long else self._find_kept(path)
        return methods.get(method) or _not_allowed(path, methods), params

    def _find_shaped(self, path: str) -> tuple[dict[str, Route], tuple[str, ...]]:
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
    for expected, part in zip(shape, parts, strict=True):
        if expected.startswith("{"):
            params.append(part)
        elif expected != part:
            return None
    return tuple(params)


def _not_allowed(path: str, methods: Iterable[str]) -> Route:
    allowed = ", ".join(sorted(methods))

    async def refuse(_request: Request) -> Response:
        body = {"error": "Method not allowed", "code": "method_not_allowed", "retryable": False}
        return Response(405, msgspec.json.encode(body), (*JSON_HEADERS, ("allow", allowed)))

    return Route("", path, Role.OPEN, refuse)
