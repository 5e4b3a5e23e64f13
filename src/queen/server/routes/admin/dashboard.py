"""The dashboard on the broker's own port: files that were read once, and nothing else.

These routes are for browsers and are not part of the API document. They do no work beside
answering with bytes that are there: a broker that nobody looks at pays nothing for them.
"""

from __future__ import annotations

from queen.dashboard.files import PAGES, PREFIX, StaticFile, static_files
from queen.server.api.routing import Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Handler, Request, Response


def dashboard_routes() -> list[Route]:
    """Every address of a page, and every file that pages are made of. Open to all: what is to be
    seen comes from the API, which asks who is asking."""
    served = static_files()
    page = _handler(served[PREFIX])
    routes = [Route("GET", path, Role.OPEN, page, scoped=True) for path in PAGES]
    for path, file in served.items():
        if path != PREFIX:
            routes.append(Route("GET", path, Role.OPEN, _handler(file), scoped=True))
    return routes


def _handler(file: StaticFile) -> Handler:
    whole = Response(200, file.body, file.headers)
    unchanged = Response(304, b"", file.headers)
    etag = file.etag.encode()

    async def answer(request: Request) -> Response:
        return unchanged if request.headers.get(b"if-none-match") == etag else whole

    return answer
