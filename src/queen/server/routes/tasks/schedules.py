"""/api/v1/schedules: what is pushed again and again, by the calendar of a time zone."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from queen.core.names import reason_against_name
from queen.core.payload import reason_against_payload
from queen.core.tasks.jobs import MAX_SCHEDULE_NAME_BYTES
from queen.errors import BadRequest, Conflict
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body, failure
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import iso_or_none
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.service.tasks.schedules import ticks_of
from queen.wire.answers import iso
from queen.wire.paging import Pagination
from queen.wire.schedules import (
    MAX_BYTES_AT_ONCE,
    MAX_CATCH_UP,
    MAX_NEXT,
    ScheduleDeleted,
    SchedulePage,
    ScheduleRequest,
    ScheduleShown,
    ScheduleStored,
    ScheduleTicks,
)

_define = msgspec.json.Decoder(ScheduleRequest)

_ROOT = "/api/v1/schedules"
_SCHEDULE = _ROOT + "/{schedule}"
_TAG = "tasks"


class ScheduleRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", _ROOT, Role.WRITE, self.define, _DEFINE, scoped=True),
            Route("GET", _ROOT, Role.READ, self.page, _PAGE, scoped=True),
            Route("GET", _SCHEDULE, Role.READ, self.show, _SHOW, scoped=True),
            Route("GET", _SCHEDULE + "/next", Role.READ, self.next, _NEXT, scoped=True),
            Route("POST", _SCHEDULE + "/pause", Role.WRITE, self.pause, _PAUSE, scoped=True),
            Route("POST", _SCHEDULE + "/resume", Role.WRITE, self.resume, _RESUME, scoped=True),
            Route("DELETE", _SCHEDULE, Role.ADMIN, self.delete, _DELETE, scoped=True),
        ]

    async def define(self, request: Request) -> Response:
        sent = decode_body(_define, request.body)
        _check(sent)
        caller = request.caller
        await self._broker.scope.queue(caller, sent.queue)
        try:
            stored = await self._broker.schedules.define(
                sent, caller.subject, listed(caller.namespaces)
            )
        except Conflict as error:
            return failure(error, **error.details)
        if stored.created or stored.changed:
            await audit(
                self._broker,
                request,
                "schedule.define",
                sent.name,
                queue=sent.queue,
                cron=sent.cron,
            )
        answer = ScheduleStored(sent.name, stored.created, stored.changed, iso(stored.next_at))
        return Response(201 if stored.created else 200, msgspec.json.encode(answer))

    async def page(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, 100)
        queue = query.text("queue") or None
        if queue is not None:
            check_name("queue", queue)
            await self._broker.scope.queue(request.caller, queue)
        rows = await self._broker.schedules.page(
            listed(request.caller.namespaces), limit, offset, queue
        )
        total = rows[0]["total"] if rows else 0
        answer = SchedulePage([_shown(row) for row in rows], Pagination(limit, offset, total))
        return Response(200, msgspec.json.encode(answer))

    async def show(self, request: Request) -> Response:
        return Response(200, msgspec.json.encode(_shown(await self._find(request))))

    async def next(self, request: Request) -> Response:
        row = await self._find(request)
        count = Query(request.query).number("count", 10, 1, MAX_NEXT)
        ticks = ticks_of(row["cron"], row["zone"], row["now"], count)
        return Response(200, msgspec.json.encode(ScheduleTicks(row["name"], [*map(iso, ticks)])))

    async def pause(self, request: Request) -> Response:
        name = (await self._find(request))["name"]
        if await self._broker.schedules.pause(name):
            await audit(self._broker, request, "schedule.pause", name)
        return await self.show(request)

    async def resume(self, request: Request) -> Response:
        name = (await self._find(request))["name"]
        if await self._broker.schedules.resume(name):
            await audit(self._broker, request, "schedule.resume", name)
        return await self.show(request)

    async def delete(self, request: Request) -> Response:
        name = (await self._find(request))["name"]
        await self._broker.schedules.delete(name)
        await audit(self._broker, request, "schedule.delete", name)
        return Response(200, msgspec.json.encode(ScheduleDeleted(True, name)))

    async def _find(self, request: Request) -> Record:
        name = request.params[0]
        check_name("schedule", name)
        return await self._broker.schedules.find(name, listed(request.caller.namespaces))


def _check(sent: ScheduleRequest) -> None:
    """Raise `BadRequest` for a schedule that cannot be; its times are looked at later."""
    reason = (
        reason_against_name("schedule", sent.name)
        or reason_against_name("queue", sent.queue)
        or (reason_against_name("partition", sent.partition) if sent.partition else None)
        or reason_against_payload(bytes(sent.payload))
    )
    if reason is None and len(sent.name.encode()) > MAX_SCHEDULE_NAME_BYTES:
        reason = f"schedule name is longer than {MAX_SCHEDULE_NAME_BYTES} bytes"
    if reason is None and not 1 <= sent.catch_up_limit <= MAX_CATCH_UP:
        reason = f"catchUpLimit must be between 1 and {MAX_CATCH_UP}"
    at_once = sent.catch_up_limit if sent.catch_up == "all" else 1
    if reason is None and at_once * len(sent.payload) > MAX_BYTES_AT_ONCE:
        reason = f"payload times catchUpLimit is more than {MAX_BYTES_AT_ONCE} bytes"
    if reason:
        raise BadRequest(reason)


def _shown(row: Record) -> ScheduleShown:
    return ScheduleShown(
        name=row["name"],
        queue=row["queue"],
        partition=row["partition"],
        cron=row["cron"],
        zone=row["zone"],
        catch_up=row["catch_up"],
        catch_up_limit=row["catch_up_limit"],
        state="paused" if row["is_paused"] else "active",
        next_at=None if row["is_paused"] else iso(row["next_at"]),
        last_at=iso_or_none(row["last_at"]),
        ticks=row["ticks"],
        missed=row["missed"],
        payload_bytes=len(row["payload"]),
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )


_DEFINE = Doc(
    _TAG,
    "Push something again and again",
    """\
One message for each tick, on any number of servers. A time that does not exist because clocks are
put forward comes due at the end of the gap, one that exists twice the first time; with `*` for the
hour, hours are counted as they pass. The same definition again changes nothing; another one under
the same name is refused with 409, and `differs` says in which points, unless `replace` is true.""",
    body=ScheduleRequest,
    answers={200: ScheduleStored, 201: ScheduleStored},
    example={
        "name": "nightly-report",
        "queue": "jobs",
        "cron": "30 3 * * MON-FRI",
        "zone": "Europe/Berlin",
        "payload": {"task": "reports.build", "arguments": {"kind": "nightly"}},
        "replace": True,
    },
    errors=(404, 409),
)
_PAGE = Doc(
    _TAG,
    "Schedules by name",
    query=(Param("queue", str, "Only those for this queue."), *page_params(100)),
    answers={200: SchedulePage},
)
_SHOW = Doc(_TAG, "A schedule, and how it is doing", answers={200: ScheduleShown})
_NEXT = Doc(
    _TAG,
    "When a schedule comes due next",
    query=(Param("count", Annotated[int, Meta(ge=1, le=MAX_NEXT)], "How many times to tell.", 10),),
    answers={200: ScheduleTicks},
)
_PAUSE = Doc(_TAG, "Let a schedule rest", answers={200: ScheduleShown})
_RESUME = Doc(
    _TAG,
    "Let a schedule go on",
    "With the tick that comes next: what it has missed while it rested is not made up.",
    answers={200: ScheduleShown},
)
_DELETE = Doc(
    _TAG,
    "Delete a schedule",
    "What it has pushed stays.",
    answers={200: ScheduleDeleted},
)
