"""GET /api/v1/openapi.json and /docs: what the server can be asked, for programs and people.

The page and what it loads lie beside this package and are read once, when the server starts;
nothing of a request ever becomes part of a file's path. The page loads nothing from elsewhere
and its policy forbids it to, so a broker without internet shows it all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib.resources import files
from typing import Any

import msgspec

from queen.server.api.openapi import document
from queen.server.api.routing import Doc, Other, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Handler, Headers, Request, Response

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_GUARDS: Headers = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
)
# By path: the file, and what it is.
_PAGES = {
    "/docs": ("docs.html", "text/html"),
    "/docs/docs.css": ("docs.css", "text/css"),
    "/docs/docs.js": ("docs.js", "text/javascript"),
}

_DOCUMENT = Doc(
    "about",
    "This document",
    "OpenAPI 3.1; made from the same declarations as the routes themselves.",
    answers={200: dict[str, Any]},
)
_PAGE = Doc("about", "A page to try the API")
_PART = Doc("about", "A part of that page")


class AboutRoutes:
    """Describes the routes it is given, and its own."""

    def __init__(self, others: Iterable[Route]) -> None:
        self._others = list(others)

    def routes(self) -> list[Route]:
        routes = [
            Route("GET", path, Role.OPEN, self.document, _DOCUMENT, scoped=True)
            for path in ("/api/v1/openapi.json", "/openapi.json")
        ]
        for path, (name, media_type) in _PAGES.items():
            doc = _PAGE if path == "/docs" else _PART
            doc = doc._replace(answers={200: Other(media_type)})
            routes.append(
                Route("GET", path, Role.OPEN, _handler(name, media_type), doc, scoped=True)
            )
        return routes

    async def document(self, _request: Request) -> Response:
        return Response(200, self._document)

    @cached_property
    def _document(self) -> bytes:
        return msgspec.json.encode(document([*self._others, *self.routes()]))


def _handler(name: str, media_type: str) -> Handler:
    body = files("queen.server").joinpath("pages", name).read_bytes()
    response = Response(200, body, (("content-type", f"{media_type}; charset=utf-8"), *_GUARDS))

    async def page(_request: Request) -> Response:
        return response

    return page
