"""Pages: every list is cut the same way, and the document says so the same way."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from queen.server.api.routing import Param
from queen.server.protocol.http import Query

# The largest page where a route does not say otherwise.
MAX_LIMIT = 1000
MAX_OFFSET = 10_000_000


def limit_param(default: int, highest: int = MAX_LIMIT) -> Param:
    return Param("limit", Annotated[int, Meta(ge=1, le=highest)], "How many at most", default)


def page_params(
    default: int, highest: int = MAX_LIMIT, furthest: int = MAX_OFFSET
) -> tuple[Param, Param]:
    """Return `limit` and `offset` as the document describes them."""
    offset = Annotated[int, Meta(ge=0, le=furthest)]
    return limit_param(default, highest), Param("offset", offset, "How many to skip", 0)


def limit_of(query: Query, default: int, highest: int = MAX_LIMIT) -> int:
    return query.number("limit", default, 1, highest)


def page_of(
    query: Query, default: int, highest: int = MAX_LIMIT, furthest: int = MAX_OFFSET
) -> tuple[int, int]:
    """Return the limit and the offset that a request asks for."""
    return limit_of(query, default, highest), query.number("offset", 0, 0, furthest)
