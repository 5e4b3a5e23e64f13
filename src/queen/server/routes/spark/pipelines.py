"""/api/v1/pipelines: what Spark computes, and how that is going."""

from __future__ import annotations

import msgspec

from queen.core.ids import parse_message
from queen.core.names import reason_against_name
from queen.errors import BadRequest, Conflict, NotFound
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body, failure
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Route
from queen.server.api.stats_rows import iso_or_none
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.acks.ack_batch import storable
from queen.service.admin.pipelines import definition_of, progress_of, state_of
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.wire import pipelines as wire
from queen.wire.answers import iso
from queen.wire.paging import Pagination

_define = msgspec.json.Decoder(wire.DefineRequest)
_progress = msgspec.json.Decoder(wire.Progress)
_set_aside = msgspec.json.Decoder(wire.SetAsideRequest)

_ROOT = "/api/v1/pipelines"
_PIPELINE = _ROOT + "/{pipeline}"
_TAG = "pipelines"


class PipelineRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", _ROOT, Role.WRITE, self.define, _DEFINE, scoped=True),
            Route("GET", _ROOT, Role.READ, self.page, _PAGE, scoped=True),
            Route("GET", _PIPELINE, Role.READ, self.show, _SHOW, scoped=True),
            Route("DELETE", _PIPELINE, Role.ADMIN, self.delete, _DELETE, scoped=True),
            Route("POST", _PIPELINE + "/progress", Role.WRITE, self.report, _REPORT, scoped=True),
            Route("POST", _PIPELINE + "/stop", Role.WRITE, self.stop, _STOP, scoped=True),
            Route(
                "POST",
                _PIPELINE + "/dead-letters",
                Role.WRITE,
                self.set_aside,
                _SET_ASIDE,
                scoped=True,
            ),
        ]

    async def define(self, request: Request) -> Response:
        sent = decode_body(_define, request.body)
        definition = sent.definition
        reason = _reason_against_names(definition) or wire.reason_against(definition)
        if reason:
            raise BadRequest(reason)
        await self._check_sight(request.caller, definition)
        try:
            stored = await self._broker.pipelines.define(
                definition, replace=sent.replace, among=listed(request.caller.namespaces)
            )
        except Conflict as error:
            return failure(error, **error.details)
        if stored.created or stored.changed:
            await audit(
                self._broker, request, "pipeline.define", definition.name, version=stored.version
            )
        answer = wire.Defined(definition.name, *stored)
        return Response(201 if stored.created else 200, msgspec.json.encode(answer))

    async def page(self, request: Request) -> Response:
        limit, offset = page_of(Query(request.query), 100)
        rows = await self._broker.pipelines.page(listed(request.caller.namespaces), limit, offset)
        total = rows[0]["total"] if rows else 0
        answer = wire.Pipelines(
            [_pipeline_on_wire(row) for row in rows], Pagination(limit, offset, total)
        )
        return Response(200, msgspec.json.encode(answer))

    async def show(self, request: Request) -> Response:
        return Response(200, msgspec.json.encode(_pipeline_on_wire(await self._find(request))))

    async def delete(self, request: Request) -> Response:
        name = (await self._find(request))["name"]
        await self._broker.pipelines.delete(name)
        await audit(self._broker, request, "pipeline.delete", name)
        return Response(200, msgspec.json.encode(wire.PipelineDeleted(True, name)))

    async def report(self, request: Request) -> Response:
        progress = decode_body(_progress, request.body)
        name = (await self._find(request))["name"]
        stop = await self._broker.pipelines.report(name, progress)
        return Response(200, msgspec.json.encode(wire.Heard(stop)))

    async def stop(self, request: Request) -> Response:
        name = (await self._find(request))["name"]
        running = await self._broker.pipelines.stop(name)
        await audit(self._broker, request, "pipeline.stop", name)
        return Response(200, msgspec.json.encode(wire.StopAsked(True, running)))

    async def set_aside(self, request: Request) -> Response:
        sent = decode_body(_set_aside, request.body)
        name = (await self._find(request))["name"]
        errors = {}
        for message in sent.messages:
            position = parse_message(message.id)
            if position is None:
                raise BadRequest(f"{message.id!r} is not the id of a message")
            errors[position] = storable(message.error)
        partitions = await self._broker.scope.partitions(request.caller, {at for at, _ in errors})
        count = await self._broker.dead_letters.set_aside(name, partitions, errors)
        return Response(200, msgspec.json.encode(wire.SetAsideAnswer(True, count)))

    async def _find(self, request: Request) -> Record:
        name = request.params[0]
        check_name("pipeline", name)
        return await self._broker.pipelines.find(name, listed(request.caller.namespaces))

    async def _check_sight(self, caller: Caller, definition: wire.Definition) -> None:
        """Raise `NotFound` when a pipeline is, or touches, what the caller may not see."""
        if not caller.sees(definition.namespace):
            raise NotFound("the namespace is not yours")
        hidden = await self._broker.scope.hidden_queues(caller, _queues_of(definition))
        if hidden:
            raise NotFound(f"Queue {min(hidden)!r} not found")


def _queues_of(definition: wire.Definition) -> list[str]:
    read = [queue for side in definition.reads for queue in side.queues]
    written = [definition.output.queue, definition.late_to, definition.errors_to]
    return [*read, *(queue for queue in written if queue is not None)]


def _reason_against_names(definition: wire.Definition) -> str | None:
    reason = reason_against_name("pipeline", definition.name)
    if reason is None and definition.namespace:
        reason = reason_against_name("namespace", definition.namespace)
    names = _queues_of(definition)
    return reason or next(
        filter(None, (reason_against_name("queue", name) for name in names)), None
    )


def _pipeline_on_wire(row: Record) -> wire.PipelineShown:
    definition = definition_of(row)
    output = definition.output
    return wire.PipelineShown(
        name=row["name"],
        namespace=row["namespace"],
        kind=definition.kind,
        state=state_of(row),
        reads=wire.names_read(definition),
        writes=output.queue or output.table or output.files,
        late_to=definition.late_to,
        fingerprint=row["fingerprint"],
        version=row["version"],
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
        reported_at=iso_or_none(row["reported_at"]),
        started_at=iso_or_none(row["started_at"]),
        runs=row["runs"],
        definition=definition,
        progress=progress_of(row),
    )


_EXAMPLE = {
    "definition": {
        "name": "orders-per-minute",
        "reads": [
            {
                "name": "orders",
                "queues": ["orders"],
                "schema": "user string, amount double, ts timestamp",
                "eventTime": "data.ts",
            }
        ],
        "window": {"type": "tumbling", "sizeMs": 60000},
        "graceMs": 30000,
        "keys": {"user": "data.user"},
        "aggregates": {"total": "sum(data.amount)", "n": "count(*)"},
        "lateTo": "late-orders",
        "output": {"queue": "totals"},
    },
    "replace": True,
}
_DEFINE = Doc(
    _TAG,
    "Store what a pipeline does",
    "The same definition again changes nothing. Another one under the same name is refused "
    "with 409, and `differs` says in which points, unless `replace` is true.",
    body=wire.DefineRequest,
    answers={200: wire.Defined, 201: wire.Defined},
    example=_EXAMPLE,
    errors=(404, 409),
)
_PAGE = Doc(_TAG, "Pipelines by name", query=page_params(100), answers={200: wire.Pipelines})
_SHOW = Doc(_TAG, "A pipeline, and how it is doing", answers={200: wire.PipelineShown})
_DELETE = Doc(
    _TAG,
    "Forget a pipeline",
    "Its queues, its group and its checkpoint stay.",
    answers={200: wire.PipelineDeleted},
)
_REPORT = Doc(
    _TAG,
    "Tell how a run is doing",
    "Runs call this every few seconds; the answer says whether to stop.",
    body=wire.Progress,
    answers={200: wire.Heard},
    example={"runId": "6f1c1f0e", "state": "running", "inputRows": 1200, "lateRows": 3},
)
_SET_ASIDE = Doc(
    _TAG,
    "Set messages aside on which a pipeline fails",
    """\
They become dead letters of the group that has the name of the pipeline, each with its error. To set
a message aside twice is to do it once.""",
    body=wire.SetAsideRequest,
    answers={200: wire.SetAsideAnswer},
    example={
        "messages": [
            {
                "id": "00000000-0000-8007-8000-0000000000ff",
                "error": "eventTime cannot be computed: timestamp_millis(data.at)",
            }
        ]
    },
    errors=(404,),
)
_STOP = Doc(
    _TAG,
    "Ask the run of a pipeline to stop",
    "It ends after the micro-batch it is in. `running` says whether one seems to be there.",
    answers={200: wire.StopAsked},
)
