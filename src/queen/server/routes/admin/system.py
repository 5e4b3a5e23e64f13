"""/api/v1/system/…: the processes that serve, what PostgreSQL says of itself, and the map."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from queen import __version__
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import iso_or_none, rounded
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.admin.machinery import ServerVitals
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.wire.admin import system as wire
from queen.wire.answers import iso

_TAG = "system"
_ROOT = "/api/v1/system"
_EDGES = 300
_MOST_EDGES = 1000

_SERVERS = Doc(
    _TAG,
    "The processes that serve",
    "Those that have reported within the last half minute, with what they used last.",
    answers={200: wire.ServerList},
)
_POSTGRES = Doc(
    _TAG,
    "How PostgreSQL is doing",
    "Counters since they began, so that two readings make a rate; the tables of the broker, "
    "transactions that are open for more than a second, and slow statements of the broker if "
    "PostgreSQL counts statements.",
    answers={200: wire.PostgresHealth},
)
_MAP = Doc(
    _TAG,
    "What flows through what into which queue",
    "Drawn from definitions, from transactions that acknowledge and push, from results of "
    "windows and from batches of Spark, within a day. The busiest edges come first when there are "
    "too many.",
    query=(
        Param("queue", str, "Only what is connected with this queue."),
        Param(
            "limit", Annotated[int, Meta(ge=1, le=_MOST_EDGES)], "At most so many edges.", _EDGES
        ),
    ),
    answers={200: wire.FlowMapAnswer},
)
_STEPS = Doc(
    _TAG,
    "When lone messages were where",
    "What the process that answers has noted since it was asked last: the steps of messages that "
    "were pushed, popped and acked one at a time in a queue. It follows one queue, for half a "
    "minute after each question. `queen bench --latency` makes a table of it.",
    query=(Param("queue", str, "The queue to follow.", example="orders", required=True),),
    answers={200: wire.StepList},
)


class SystemRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{_ROOT}/servers", Role.READ, self.servers, _SERVERS),
            Route("GET", f"{_ROOT}/postgres", Role.READ, self.postgres, _POSTGRES),
            Route("GET", f"{_ROOT}/map", Role.READ, self.map, _MAP, scoped=True),
            Route("GET", f"{_ROOT}/steps", Role.ADMIN, self.steps, _STEPS),
        ]

    async def servers(self, _request: Request) -> Response:
        servers = await self._broker.machinery.servers()
        name = self._broker.activity.name
        answer = wire.ServerList([_server(server) for server in servers], *name, __version__)
        return Response(200, msgspec.json.encode(answer))

    async def steps(self, request: Request) -> Response:
        queue = Query(request.query).text("queue")
        check_name("queue", queue)
        ahead_ns = await self._broker.clock.ahead_ns()
        self._broker.steps.follow(queue)
        steps = [wire.StepRow(*step) for step in self._broker.steps.take()]
        return Response(200, msgspec.json.encode(wire.StepList(steps, ahead_ns)))

    async def postgres(self, _request: Request) -> Response:
        machinery = self._broker.machinery
        row = await machinery.postgres()
        blocks = row["blocks_hit"] + row["blocks_read"]
        answer = wire.PostgresHealth(
            timestamp=iso(row["at"]),
            version=row["version"],
            started_at=iso(row["started_at"]),
            is_standby=row["is_standby"],
            size_bytes=row["size_bytes"],
            connections=row["connections"],
            max_connections=row["max_connections"],
            cache_hit_percent=rounded(100 * row["blocks_hit"] / blocks if blocks else 100.0),
            oldest_snapshot_seconds=rounded(await self._broker.numbers.oldest_snapshot_s()),
            totals=_totals(row),
            tables=[_table(table) for table in await machinery.tables()],
            held=[_held(held) for held in await machinery.held()],
            slow=[_slow(slow) for slow in await machinery.slow()],
            counts_statements=row["counts_statements"],
        )
        return Response(200, msgspec.json.encode(answer))

    async def map(self, request: Request) -> Response:
        query = Query(request.query)
        limit = query.number("limit", _EDGES, 1, _MOST_EDGES)
        queue = query.text("queue") or None
        if queue is not None:
            check_name("queue", queue)
            await self._broker.scope.queue(request.caller, queue)
        await self._broker.report.settle()
        namespaces = listed(request.caller.namespaces)
        drawing = await self._broker.flow_map.draw(namespaces, queue, limit)
        nodes = [wire.MapNode(*node) for node in drawing.nodes.values()]
        edges = [_edge(*edge) for edge in drawing.edges.values()]
        answer = wire.FlowMapAnswer(nodes, edges, drawing.is_cut)
        return Response(200, msgspec.json.encode(answer))


def _server(server: ServerVitals) -> wire.ServerRow:
    row, gauges = server
    is_sampled = bool(gauges)

    def whole(name: str) -> int | None:
        return int(gauges[name]) if is_sampled else None

    return wire.ServerRow(
        hostname=row["hostname"],
        port=row["port"],
        worker=row["worker"],
        started_at=iso(row["started_at"]),
        seen_at=iso(row["seen_at"]),
        cpu_percent=rounded(gauges["cpu_user_pct"] + gauges["cpu_system_pct"])
        if is_sampled
        else None,
        memory_bytes=whole("rss_bytes"),
        loop_lag_ms=rounded(gauges["loop_lag_ms"]) if is_sampled else None,
        connections=whole("pool_size"),
        connections_free=whole("pool_free"),
        parked_polls=whole("parked_polls"),
        requests_per_second=rounded(row["requests"] / row["minute_s"]) if is_sampled else None,
        database_errors=row["database_errors"],
    )


def _totals(row: Record) -> wire.PostgresTotals:
    return wire.PostgresTotals(
        wal_bytes=row["wal_bytes"],
        commits=row["commits"],
        rollbacks=row["rollbacks"],
        blocks_hit=row["blocks_hit"],
        blocks_read=row["blocks_read"],
        deadlocks=row["deadlocks"],
        temp_bytes=row["temp_bytes"],
        stats_reset=iso_or_none(row["stats_reset"]),
    )


def _table(row: Record) -> wire.DeadTuples:
    return wire.DeadTuples(
        row["table"], row["live"], row["dead"], iso_or_none(row["last_vacuum"]), row["bytes"]
    )


def _held(row: Record) -> wire.HeldTransaction:
    return wire.HeldTransaction(
        pid=row["pid"],
        application=row["application_name"],
        state=row["state"],
        seconds=rounded(row["seconds"]),
        state_seconds=rounded(row["state_seconds"]),
        waits_for=row["waits_for"],
        holds_back_vacuum=row["holds_back_vacuum"],
    )


def _slow(row: Record) -> wire.SlowStatement:
    return wire.SlowStatement(
        row["statement"],
        row["calls"],
        *(rounded(row[k]) for k in ("mean_ms", "max_ms", "total_ms")),
    )


def _edge(source: str, target: str, kind: str, per_second: float | None) -> wire.MapEdge:
    return wire.MapEdge(source, target, kind, None if per_second is None else rounded(per_second))
