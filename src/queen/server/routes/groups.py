"""/api/v1/consumer-groups: what groups have read, and how to stop, resume and remove them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from queen.core.ids import partition_uuid
from queen.errors import BadRequest
from queen.server.access import Role
from queen.server.audit import audit
from queen.server.failures import decoded
from queen.server.http import Query, Request, Response, check_name
from queen.server.routes.pop import parse_time
from queen.server.routing import Doc, Param, Route
from queen.server.sight import listed
from queen.service.broker import Broker
from queen.service.lag import Totals
from queen.storage.database import Record
from queen.wire.answers import iso
from queen.wire.groups import (
    GroupDeleted,
    GroupEntry,
    GroupInQueue,
    GroupPartition,
    GroupPaused,
    LaggingPartition,
    SubscriptionChanged,
    SubscriptionRequest,
)

_subscription = msgspec.json.Decoder(SubscriptionRequest)

_ROOT = "/api/v1/consumer-groups"
_GROUP = _ROOT + "/{group}"
_QUEUE = _GROUP + "/queues/{queue}"
_MAX_LIMIT = 1000
_MAX_PAGE_OFFSET = 2**31
_LAGGING_S = 300

_PAGE = (
    Param("limit", Annotated[int, Meta(ge=1, le=_MAX_LIMIT)], "at most this many", _MAX_LIMIT),
    Param("offset", Annotated[int, Meta(ge=0)], "skip this many", 0),
)
_METADATA = Param(
    "deleteMetadata", bool, "also forget the subscription; otherwise it starts from there", True
)


class GroupRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [*self._reading(), *self._changing()]

    def _reading(self) -> list[Route]:
        all_groups = Doc(
            "groups", "All groups, one entry for each queue they read", query=_PAGE,
            answers={200: list[GroupEntry]},
        )  # fmt: skip
        lagging = Doc(
            "groups",
            "Partitions that groups are behind in, the worst first, at most 1000",
            query=(Param("minLagSeconds", int, "only those behind by more", 3600),),
            answers={200: list[LaggingPartition]},
        )
        one = Doc(
            "groups",
            "Where a group stands, by queue",
            query=(*_PAGE, Param("queue", str, "only this queue")),
            answers={200: dict[str, GroupInQueue]},
        )
        return [
            Route("GET", _ROOT, Role.READ, self.all, all_groups, scoped=True),
            Route("GET", _ROOT + "/lagging", Role.READ, self.lagging, lagging, scoped=True),
            Route("GET", _GROUP, Role.READ, self.one, one, scoped=True),
        ]

    def _changing(self) -> list[Route]:
        deleted = Doc(
            "groups",
            "Delete a group's progress",
            "Leases end, dead letters stay. Who comes afterwards is a new group.",
            query=(_METADATA,),
            answers={200: GroupDeleted},
        )
        subscribed = Doc(
            "groups",
            "Change where a group starts in partitions it has not read",
            body=SubscriptionRequest,
            answers={200: SubscriptionChanged},
            example={"subscriptionTimestamp": "2026-01-01T00:00:00Z"},
        )
        pause = Doc("groups", "Give a group nothing until it is resumed",
                    answers={200: GroupPaused})  # fmt: skip
        resume = Doc("groups", "Serve a paused group again", answers={200: GroupPaused})
        return [
            Route("DELETE", _GROUP, Role.ADMIN, self.delete, deleted, scoped=True),
            Route("DELETE", _QUEUE, Role.ADMIN, self.delete, deleted, scoped=True),
            Route(
                "POST",
                _GROUP + "/subscription",
                Role.WRITE,
                self.subscribe,
                subscribed,
                scoped=True,
            ),
            Route("POST", _GROUP + "/pause", Role.WRITE, self.pause, pause, scoped=True),
            Route("POST", _GROUP + "/resume", Role.WRITE, self.resume, resume, scoped=True),
            Route("POST", _QUEUE + "/pause", Role.WRITE, self.pause, pause, scoped=True),
            Route("POST", _QUEUE + "/resume", Role.WRITE, self.resume, resume, scoped=True),
        ]

    # ---- reading ----

    async def all(self, request: Request) -> Response:
        limit, offset = page_of(Query(request.query), _MAX_LIMIT, _MAX_LIMIT)
        among = listed(request.caller.namespaces)
        rows = await self._broker.groups.page(None, None, limit, offset, among)
        totals = await self._broker.lag.totals([row["id"] for row in rows])
        entries = [_entry(row, totals[row["id"]]) for row in rows]
        return Response(200, msgspec.json.encode(entries))

    async def lagging(self, request: Request) -> Response:
        seconds = Query(request.query).number("minLagSeconds", 3600, 0, 2**31)
        late = await self._broker.lag.lagging(seconds, listed(request.caller.namespaces))
        groups = await self._broker.groups.names(list({one.group_id for one in late}))
        partitions = await self._broker.catalog.partitions(one.partition_id for one in late)
        entries = [
            LaggingPartition(
                consumer_group=groups[one.group_id]["name"],
                queue_name=groups[one.group_id]["queue"],
                partition_name=partitions[one.partition_id].name,
                partition_id=partition_uuid(one.partition_id),
                worker_id=None,
                offset_lag=one.messages,
                time_lag_seconds=round(one.seconds, 3),
                lag_hours=round(one.seconds / 3600, 2),
                oldest_unconsumed_at=iso(one.oldest_at),
                last_consumed_at=None,
            )
            for one in late
            # A queue may have been deleted meanwhile.
            if one.group_id in groups and one.partition_id in partitions
        ]
        return Response(200, msgspec.json.encode(entries))

    async def one(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, _MAX_LIMIT, _MAX_LIMIT)
        queue = query.text("queue") or None
        rows = (await self._rows(request, request.params[0], queue))[:_MAX_LIMIT]
        partitions = await self._broker.lag.partitions([row["id"] for row in rows], limit, offset)
        answer = {}
        for row in rows:
            found = partitions.get(row["id"], [])
            answer[row["queue"]] = GroupInQueue(
                partitions=[_partition(one) for one in found[:limit]],
                hasMore=len(found) > limit,
                paused=row["paused"],
                subscriptionMode=row["subscription_mode"],
                subscriptionTimestamp=iso(row["starts_at"]) if row["starts_at"] else None,
            )
        return Response(200, msgspec.json.encode(answer))

    # ---- changing ----

    async def delete(self, request: Request) -> Response:
        group, queue = _names(request)
        metadata = Query(request.query).text("deleteMetadata") not in ("false", "0")
        among = listed(request.caller.namespaces)
        rows = await self._broker.groups.page(group, queue, _MAX_PAGE_OFFSET, 0, among)
        deleted = await self._broker.groups.delete(rows, metadata=metadata)
        await audit(self._broker, request, "group.delete", group, queue=queue, metadata=metadata)
        answer = GroupDeleted(True, group, deleted, metadata and bool(rows), bool(rows), queue)
        return Response(200, msgspec.json.encode(answer))

    async def subscribe(self, request: Request) -> Response:
        text = decoded(_subscription, request.body).subscriptionTimestamp
        if not text:
            raise BadRequest("Missing subscriptionTimestamp in request body")
        starts_at = parse_time("subscriptionTimestamp", text)
        rows = await self._rows(request, request.params[0], None)
        await self._broker.groups.subscribe(rows, starts_at)
        await audit(self._broker, request, "group.subscribe", request.params[0], at=text)
        answer = SubscriptionChanged(True, request.params[0], iso(starts_at), len(rows))
        return Response(200, msgspec.json.encode(answer))

    async def pause(self, request: Request) -> Response:
        return await self._pause(request, True)

    async def resume(self, request: Request) -> Response:
        return await self._pause(request, False)

    async def _pause(self, request: Request, paused: bool) -> Response:
        group, queue = _names(request)
        rows = await self._rows(request, group, queue)
        await self._broker.groups.pause(rows, paused)
        act = "group.pause" if paused else "group.resume"
        await audit(self._broker, request, act, group, queue=queue)
        answer = GroupPaused(True, group, [row["queue"] for row in rows], paused)
        return Response(200, msgspec.json.encode(answer))

    async def _rows(self, request: Request, group: str, queue: str | None) -> list[Record]:
        check_name("consumer group", group)
        if queue is not None:
            check_name("queue", queue)
        among = listed(request.caller.namespaces)
        return await self._broker.groups.find(group, queue, among)


def page_of(query: Query, default: int, high: int) -> tuple[int, int]:
    """Return limit and offset of a page."""
    limit = query.number("limit", default, 1, high)
    return limit, query.number("offset", 0, 0, _MAX_PAGE_OFFSET)


def _names(request: Request) -> tuple[str, str | None]:
    group, *rest = request.params
    check_name("consumer group", group)
    for queue in rest:
        check_name("queue", queue)
    return group, rest[0] if rest else None


def _entry(row: Record, totals: Totals) -> GroupEntry:
    state = "Stable"
    if totals.members == 0:
        state = "Dead"
    elif totals.seconds > _LAGGING_S:
        state = "Lagging"
    return GroupEntry(
        name=row["name"],
        topics=[row["queue"]],
        queueName=row["queue"],
        members=totals.members,
        partitionsWithLag=totals.partitions_with_lag,
        totalLag=totals.messages,
        maxTimeLag=round(totals.seconds, 3),
        state=state,
        paused=row["paused"],
        activeLeases=totals.leases,
        subscriptionMode=row["subscription_mode"],
        subscriptionTimestamp=iso(row["starts_at"]) if row["starts_at"] else None,
        subscriptionCreatedAt=iso(row["created_at"]),
        lastUsedAt=iso(row["used_at"]),
    )


def _partition(row: Record) -> GroupPartition:
    return GroupPartition(
        partition=row["name"],
        partitionId=partition_uuid(row["id"]),
        workerId=None,
        lastConsumedAt=None,
        totalConsumed=row["committed"] or 0,
        position=row["position"],
        head=row["head"],
        offsetLag=max(row["head"] - row["position"], 0),
        timeLagSeconds=round(max(row["lag_seconds"] or 0.0, 0.0), 3),
        leaseActive=row["live"],
        leaseExpiresAt=iso(row["lease_until"]) if row["live"] else None,
        attempts=row["attempts"],
    )
