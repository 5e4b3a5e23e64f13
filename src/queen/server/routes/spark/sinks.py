"""/api/v1/sink/:query, which names a sink: stage from many places, publish from one, once."""

from __future__ import annotations

import msgspec

from queen.core.frame import CONTENT_TYPE
from queen.errors import BadRequest
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Other, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import MAX_BODY_BYTES, Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.scope import listed
from queen.service.sinks.sinks import Batch, Stage
from queen.wire.sinks import (
    MAX_BATCH,
    MAX_TASK,
    AbortedSink,
    Attempt,
    BatchNumber,
    CommitSink,
    CommittedSink,
    Epoch,
    OpenedSink,
    OpenSink,
    Run,
    StagedPart,
    Task,
)

_open = msgspec.json.Decoder(OpenSink)
_commit = msgspec.json.Decoder(CommitSink)

_SINK = (Param("query", str, "What tells one query from another over its restarts."),)
_EXAMPLE_RUN = "5c9d1f7e-6a53-4c5e-9f0b-0f6f5b1c2d3e"
_EXAMPLE = {
    "run": _EXAMPLE_RUN,
    "epoch": 1,
    "batch": 0,
    "stages": [],
}
_OPEN = Doc(
    tag="sinks",
    summary="Let a run of a query publish, and none that opened before it",
    about="""\
Opening again with the same run gives the same epoch. Once a later run has opened, the earlier
one gets 409 for everything.""",
    body=OpenSink,
    answers={200: OpenedSink},
    example={"run": _EXAMPLE_RUN},
    errors=(404, 409),
    path=_SINK,
)
_STAGE = Doc(
    tag="sinks",
    summary="Stage messages of one attempt of a task",
    about="""\
Frames are checked as in a push, and kept where nobody sees them until the batch is committed. A
task that has much stages it in several parts; a part that is sent twice counts once. Stages that
nobody commits are removed after a day, or as soon as their batch is committed or a later run has
opened.""",
    query=(
        Param("epoch", Epoch, "What opening gave.", example=1, required=True),
        Param("run", Run, "The run that opened.", example=_EXAMPLE_RUN, required=True),
        Param("batch", BatchNumber, "The batch that the messages belong to.", 0),
        Param("task", Task, "Messages of a batch are in the order of tasks.", 0),
        Param("attempt", Attempt, "What tells this attempt of the task from others.", 0),
        Param("part", Task, "Messages of a task are in the order of parts.", 0),
        Param(
            "unique",
            bool,
            "All transaction ids are new: they need not be compared with what is stored.",
            False,
        ),
    ),
    other_body=Other(CONTENT_TYPE, "Frames, one after the other; see `queen.core.frame`."),
    answers={200: StagedPart},
    errors=(404, 409),
    path=_SINK,
)
_COMMIT = Doc(
    tag="sinks",
    summary="Publish a batch: all the named stages, once",
    about="""\
All messages of the named stages appear together, in one transaction that also records the batch.
A batch that is published already, or that is older than one, is answered with `already`, and
nothing is stored. Stages that are not named are dropped. Messages of one partition are in the
order of task, part and place.""",
    body=CommitSink,
    answers={200: CommittedSink},
    example=_EXAMPLE,
    errors=(404, 409, 429),
    path=_SINK,
)
_ABORT = Doc(
    tag="sinks",
    summary="Drop stages of a batch",
    about="What is published stays published.",
    body=CommitSink,
    answers={200: AbortedSink},
    example=_EXAMPLE,
    errors=(404, 409),
    path=_SINK,
)


class SinkRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        path = "/api/v1/sink/{query}/"
        return [
            Route("POST", path + "open", Role.WRITE, self.open, _OPEN, scoped=True),
            Route("POST", path + "stage", Role.WRITE, self.stage, _STAGE, scoped=True),
            Route("POST", path + "commit", Role.WRITE, self.commit, _COMMIT, scoped=True),
            Route("POST", path + "abort", Role.WRITE, self.abort, _ABORT, scoped=True),
        ]

    async def open(self, request: Request) -> Response:
        (sink,) = request.params
        check_name("query", sink)
        sent = decode_body(_open, request.body)
        check_name("run", sent.run)
        opened = await self._broker.sinks.open(
            sink, sent.run, listed(request.caller.namespaces), once=sent.once
        )
        last = opened.last_batch if opened.last_batch >= 0 else None
        return Response(200, msgspec.json.encode(OpenedSink(sink, opened.epoch, last)))

    async def stage(self, request: Request) -> Response:
        (sink,) = request.params
        check_name("query", sink)
        query = Query(request.query)
        stage = Stage(
            sink,
            query.number("batch", 0, 0, MAX_BATCH),
            query.text("run"),
            query.number("task", 0, 0, MAX_TASK),
            query.number("attempt", 0, 0, MAX_BATCH),
        )
        part = query.number("part", 0, 0, MAX_TASK)
        epoch = query.number("epoch", 0, 0, MAX_BATCH)
        if not epoch:
            raise BadRequest("query parameter 'epoch' is missing")
        check_name("run", stage.run)
        sinks = self._broker.sinks
        await sinks.check(sink, epoch, listed(request.caller.namespaces))
        appends = await self._broker.intake.appends_of_frames(
            request.caller, request.body, MAX_BODY_BYTES
        )
        staged = await sinks.stage(stage, part, appends, unique=query.flag("unique"))
        return Response(200, msgspec.json.encode(StagedPart(staged)))

    async def commit(self, request: Request) -> Response:
        batch = await self._batch(request)
        done = await self._broker.publisher.publish(batch)
        status = "committed" if done.is_new else "already"
        answer = CommittedSink(status, batch.number, done.messages, done.duplicates)
        return Response(200, msgspec.json.encode(answer))

    async def abort(self, request: Request) -> Response:
        parts = await self._broker.sinks.abort(await self._batch(request))
        return Response(200, msgspec.json.encode(AbortedSink(parts)))

    async def _batch(self, request: Request) -> Batch:
        (sink,) = request.params
        return await self._broker.sinks.batch(
            request.caller, sink, decode_body(_commit, request.body)
        )
