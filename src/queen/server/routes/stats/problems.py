"""GET /api/v1/status/problems and /search: where to look first, and where something is."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from queen.core.ids import partition_uuid
from queen.errors import BadRequest
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import age_of, rounded
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.service.stats.statistics import Stamp
from queen.wire.answers import iso
from queen.wire.stats.overview import (
    OpenBreaker,
    ProblemList,
    RetentionRisk,
    SearchAnswer,
    SearchResult,
    StuckPartition,
)

_LONGEST_TEXT = 255
_MAX_EACH = 50


class ProblemRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        root = "/api/v1"
        return [
            Route(
                "GET",
                f"{root}/status/problems",
                Role.READ,
                self.problems,
                _PROBLEMS,
                scoped=True,
                shared=True,
            ),
            Route("GET", f"{root}/search", Role.READ, self.search, _SEARCH, scoped=True),
        ]

    async def problems(self, request: Request) -> Response:
        seconds = Query(request.query).number("minLagSeconds", 60, 0, 2**31)
        among, problems = listed(request.caller.namespaces), self._broker.problems
        stamp = await self._broker.statistics.current()
        stuck: list[Record] = []
        if stamp.at is not None:
            stuck = await problems.stuck(among, stamp.at - timedelta(seconds=seconds))
        answer = ProblemList(
            stats_age=age_of(stamp),
            stuck=[_stuck(row, stamp) for row in stuck],
            retention=[_risk(row) for row in await problems.retention_risks(among)],
            breakers=[_breaker(row) for row in await problems.open_breakers(among)],
        )
        return Response(200, msgspec.json.encode(answer))

    async def search(self, request: Request) -> Response:
        query = Query(request.query)
        text, each = query.text("q"), query.number("limit", 8, 1, _MAX_EACH)
        if not text or len(text) > _LONGEST_TEXT:
            raise BadRequest(f"query parameter 'q' has 1 to {_LONGEST_TEXT} characters")
        rows = await self._broker.search.names(text, listed(request.caller.namespaces), each)
        results = [SearchResult(row["kind"], row["name"], row["queue"]) for row in rows]
        return Response(200, msgspec.json.encode(SearchAnswer(results)))


def _stuck(row: Record, stamp: Stamp) -> StuckPartition:
    assert stamp.at is not None
    lag = (stamp.at - row["oldest_unread_at"]).total_seconds() + stamp.age_s
    return StuckPartition(
        queue=row["queue"],
        partition=row["partition"],
        partition_id=partition_uuid(row["partition_id"]),
        consumer_group=row["group_name"],
        pending=row["pending"],
        oldest_unread_at=iso(row["oldest_unread_at"]),
        lag_seconds=rounded(max(lag, 0.0)),
        attempts=row["attempts"],
        lease_expires_at=iso(row["lease_until"]) if row["lease_until"] else None,
        consumer=row["consumer"],
    )


def _risk(row: Record) -> RetentionRisk:
    return RetentionRisk(row["queue"], row["group_name"], row["pending"], iso(row["removed_at"]))


def _breaker(row: Record) -> OpenBreaker:
    times = iso(row["opened_at"]), iso(row["probe_at"])
    return OpenBreaker(row["queue"], row["group_name"], *times)


_PROBLEMS = Doc(
    "Status",
    "Where to look first",
    "Partitions in which a group has had something to read for long, with who holds them, "
    "groups whose oldest unread messages will be removed by retention, and groups that their "
    "breaker holds back. All are bounded, whatever the number of partitions.",
    query=(
        Param(
            "minLagSeconds",
            Annotated[int, Meta(ge=0, le=2**31)],
            "Only partitions in which something has waited for longer.",
            60,
        ),
    ),
    answers={200: ProblemList},
)
_SEARCH = Doc(
    "Resources",
    "Search everything that has a name",
    "Queues, groups, streams, pipelines and partitions whose name contains a text, whatever its "
    "case. Among more than 200,000 partitions some are not looked at.",
    query=(
        Param("q", str, "What the name contains.", example="orders", required=True),
        Param(
            "limit", Annotated[int, Meta(ge=1, le=_MAX_EACH)], "How many of each kind at most.", 8
        ),
    ),
    answers={200: SearchAnswer},
)
