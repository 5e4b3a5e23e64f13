"""/api/v1/consumer-groups: what groups have read, and how to stop, resume and remove them."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from queen.core.ids import partition_uuid
from queen.errors import BadRequest
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.paging import MAX_LIMIT, page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import age_of, iso_or_none, lag_of
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.service.stats.statistics import Stamp
from queen.wire.answers import iso
from queen.wire.groups import (
    GroupDeleted,
    GroupEntry,
    GroupInQueue,
    GroupPartition,
    GroupPaused,
    GroupShared,
    LaggingPartition,
    SubscriptionChanged,
    SubscriptionRequest,
)

_subscription = msgspec.json.Decoder(SubscriptionRequest)

_ROOT = "/api/v1/consumer-groups"
_GROUP = _ROOT + "/{group}"
_QUEUE = _GROUP + "/queues/{queue}"
_LAGGING_S = 300
_ALL = 2**31

_PAGE = page_params(MAX_LIMIT)
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
            "groups", "All groups, one entry for each queue they read",
            "As they were counted `statsAge` seconds ago; at once while there is little.",
            query=_PAGE, answers={200: list[GroupEntry]},
        )  # fmt: skip
        lagging = Doc(
            "groups",
            "Partitions that groups are behind in, the worst first, at most 1000",
            "As they were counted `stats_age` seconds ago; at once while there are few.",
            query=(Param("minLagSeconds", int, "only those behind by more", 3600),),
            answers={200: list[LaggingPartition]},
        )
        show = Doc(
            "groups",
            "Where a group stands, by queue",
            "A page of the partitions of each queue, at most 1000 in all, and the sums over all"
            " of its partitions as they were counted `statsAge` seconds ago.",
            query=(*_PAGE, Param("queue", str, "only this queue")),
            answers={200: dict[str, GroupInQueue]},
        )
        return [
            Route("GET", _ROOT, Role.READ, self.all, all_groups, scoped=True),
            Route("GET", _ROOT + "/lagging", Role.READ, self.lagging, lagging, scoped=True),
            Route("GET", _GROUP, Role.READ, self.show, show, scoped=True),
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
        resume = Doc(
            "groups",
            "Serve a paused group again",
            "One that its breaker has paused, too.",
            answers={200: GroupPaused},
        )
        share = Doc(
            "groups",
            "Let consumers of a group hold messages of one partition at once, in no order",
            "The group keeps its place; what is leased stays so.",
            answers={200: GroupShared},
            errors=(409,),
        )
        order = Doc(
            "groups",
            "Let a group read each partition in order again",
            "The group keeps its place; what it has handed out before is finished first.",
            answers={200: GroupShared},
            errors=(409,),
        )
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
            Route("POST", _GROUP + "/share", Role.WRITE, self.share, share, scoped=True),
            Route("POST", _GROUP + "/order", Role.WRITE, self.order, order, scoped=True),
            Route("POST", _QUEUE + "/share", Role.WRITE, self.share, share, scoped=True),
            Route("POST", _QUEUE + "/order", Role.WRITE, self.order, order, scoped=True),
        ]

    # ---- reading ----

    async def all(self, request: Request) -> Response:
        limit, offset = page_of(Query(request.query), MAX_LIMIT)
        among = listed(request.caller.namespaces)
        stamp = await self._broker.statistics.current()
        rows = await self._broker.groups.page(None, None, limit, offset, among)
        return Response(200, msgspec.json.encode([self._entry(row, stamp) for row in rows]))

    async def lagging(self, request: Request) -> Response:
        seconds = Query(request.query).number("minLagSeconds", 3600, 0, 2**31)
        stamp = await self._broker.statistics.current()
        late: list[Record] = []
        if stamp.at is not None:
            before = stamp.at - timedelta(seconds=seconds)
            late = await self._broker.lag.lagging(before, listed(request.caller.namespaces))
        return Response(200, msgspec.json.encode([_lagging(row, stamp) for row in late]))

    async def show(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, MAX_LIMIT)
        queue = query.text("queue") or None
        stamp = await self._broker.statistics.current()
        rows = (await self._rows(request, request.params[0], queue))[:MAX_LIMIT]
        ids = [row["id"] for row in rows]
        partitions, more = await self._broker.lag.partitions(ids, limit, offset)
        answer = {
            row["queue"]: GroupInQueue(
                partitions=[_partition(partition) for partition in partitions.get(row["id"], [])],
                hasMore=row["id"] in more,
                members=self._consumers(row),
                partitionsWithLag=row["partitions_behind"] or 0,
                totalLag=row["pending"] or 0,
                maxTimeLag=lag_of(row, stamp),
                activeLeases=row["leased_partitions"] or 0,
                statsAge=age_of(stamp),
                paused=row["paused"],
                shared=row["shared"],
                subscriptionMode=row["subscription_mode"],
                subscriptionTimestamp=iso_or_none(row["starts_at"]),
                breakerOpenSince=iso_or_none(row["breaker_opened_at"]),
            )
            for row in rows
        }
        return Response(200, msgspec.json.encode(answer))

    # ---- changing ----

    async def delete(self, request: Request) -> Response:
        group, queue = _names(request)
        metadata = Query(request.query).text("deleteMetadata") not in ("false", "0")
        among = listed(request.caller.namespaces)
        rows = await self._broker.groups.page(group, queue, _ALL, 0, among)
        deleted = await self._broker.groups.delete(rows, metadata=metadata)
        await audit(self._broker, request, "group.delete", group, queue=queue, metadata=metadata)
        answer = GroupDeleted(True, group, deleted, metadata and bool(rows), bool(rows), queue)
        return Response(200, msgspec.json.encode(answer))

    async def subscribe(self, request: Request) -> Response:
        text = decode_body(_subscription, request.body).subscriptionTimestamp
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

    async def share(self, request: Request) -> Response:
        return await self._share(request, True)

    async def order(self, request: Request) -> Response:
        return await self._share(request, False)

    async def _share(self, request: Request, shared: bool) -> Response:
        group, queue = _names(request)
        rows = await self._rows(request, group, queue)
        await self._broker.groups.share(rows, shared)
        act = "group.share" if shared else "group.order"
        await audit(self._broker, request, act, group, queue=queue)
        answer = GroupShared(True, group, [row["queue"] for row in rows], shared)
        return Response(200, msgspec.json.encode(answer))

    async def _rows(self, request: Request, group: str, queue: str | None) -> list[Record]:
        check_name("consumer group", group)
        if queue is not None:
            check_name("queue", queue)
        among = listed(request.caller.namespaces)
        return await self._broker.groups.find(group, queue, among)

    def _entry(self, row: Record, stamp: Stamp) -> GroupEntry:
        seconds = lag_of(row, stamp)
        state = "Stable"
        # Of a group that was not counted yet nothing is known.
        if row["members"] == 0 and not row["reads_by_time"]:
            state = "Dead"
        elif seconds > _LAGGING_S:
            state = "Lagging"
        return GroupEntry(
            name=row["name"],
            topics=[row["queue"]],
            queueName=row["queue"],
            members=self._consumers(row),
            partitionsWithLag=row["partitions_behind"] or 0,
            totalLag=row["pending"] or 0,
            maxTimeLag=seconds,
            statsAge=age_of(stamp),
            state=state,
            paused=row["paused"],
            shared=row["shared"],
            activeLeases=row["leased_partitions"] or 0,
            subscriptionMode=row["subscription_mode"],
            subscriptionTimestamp=iso_or_none(row["starts_at"]),
            subscriptionCreatedAt=iso(row["created_at"]),
            lastUsedAt=iso(row["used_at"]),
            breakerOpenSince=iso_or_none(row["breaker_opened_at"]),
        )

    def _consumers(self, row: Record) -> int:
        """Return how many consumers of a group hold a lease, and how many wait here for one."""
        feed = self._broker.dispatcher.feed_of(row["queue_id"], row["id"])
        return (row["consumers"] or 0) + (0 if feed is None else feed.waiting)


def _names(request: Request) -> tuple[str, str | None]:
    group, *rest = request.params
    check_name("consumer group", group)
    for queue in rest:
        check_name("queue", queue)
    return group, rest[0] if rest else None


def _lagging(row: Record, stamp: Stamp) -> LaggingPartition:
    seconds = lag_of(row, stamp)
    return LaggingPartition(
        consumer_group=row["group_name"],
        queue_name=row["queue"],
        partition_name=row["partition"],
        partition_id=partition_uuid(row["partition_id"]),
        worker_id=None,
        offset_lag=row["pending"],
        time_lag_seconds=seconds,
        lag_hours=round(seconds / 3600, 2),
        oldest_unconsumed_at=iso(row["oldest_unread_at"]),
        last_consumed_at=None,
        stats_age=age_of(stamp),
    )


def _partition(row: Record) -> GroupPartition:
    return GroupPartition(
        partition=row["name"],
        partitionId=partition_uuid(row["id"]),
        workerId=row["consumers"] if row["live"] else None,
        lastConsumedAt=None,
        totalConsumed=row["committed"] or 0,
        position=row["position"],
        head=row["head"],
        offsetLag=max(row["head"] - row["position"] - row["ahead"], 0),
        timeLagSeconds=round(max(row["lag_seconds"] or 0.0, 0.0), 3),
        leaseActive=row["live"],
        leaseExpiresAt=iso(row["lease_until"]) if row["live"] else None,
        attempts=row["attempts"],
    )
