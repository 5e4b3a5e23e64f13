"""Paths and queries that came before are answered from memory, and as before."""

from __future__ import annotations

import pytest

from queen.errors import BadRequest, NotFound
from queen.server.api.routing import Route, Router
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response, query_of


async def _answer(_request: Request) -> Response:
    return Response(200)


ROUTES = [
    Route("GET", "/queue/{queue}", Role.READ, _answer),
    Route("DELETE", "/queue/{queue}", Role.ADMIN, _answer),
    Route("GET", "/queue/{queue}/partition/{partition}", Role.READ, _answer),
]


@pytest.mark.parametrize("name", ["a", "a" * 300], ids=["short", "long"])
def test_a_path_leads_to_its_route_each_time(name: str) -> None:
    router = Router(ROUTES)
    for _ in range(2):
        assert router.find("GET", f"/queue/{name}") == (ROUTES[0], (name,))
        assert router.find("DELETE", f"/queue/{name}") == (ROUTES[1], (name,))
        assert router.find("GET", f"/queue/{name}/partition/p%2F") == (ROUTES[2], (name, "p/"))
        assert router.find("POST", f"/queue/{name}")[0].role is Role.OPEN
        with pytest.raises(NotFound):
            router.find("GET", f"/other/{name}")
        with pytest.raises(BadRequest):
            router.find("GET", f"/queue/{name}%ff")


@pytest.mark.parametrize("more", ["", "&x=" + "y" * 300], ids=["short", "long"])
def test_a_query_says_the_same_each_time(more: str) -> None:
    for _ in range(2):
        query = query_of(f"batch=10&wait=true&group=a%20b{more}")
        assert query.number("batch", 1, 1, 100) == 10
        assert (query.flag("wait"), query.text("group")) == (True, "a b")
        with pytest.raises(BadRequest):
            query_of(f"group=%ff{more}")
