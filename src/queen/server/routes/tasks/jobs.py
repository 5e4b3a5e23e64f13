"""/api/v1/jobs: messages that call tasks, pushed under a key, finished with a result, asked for."""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec
from msgspec import Meta

from queen.core.columns.headers import trace_of
from queen.core.cursor import AckResult
from queen.core.names import DEFAULT_PARTITION, reason_against_transaction_id
from queen.core.tasks import jobs
from queen.errors import BadRequest, QueenError
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import iso_or_none
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.intake.items import add_trace
from queen.service.tasks.keys import UniqueJob
from queen.wire.parts import TransactionId
from queen.wire.requests import PushItem
from queen.wire.tasks import (
    MAX_FINISHED,
    MAX_WAIT_MS,
    FinishAnswer,
    FinishRequest,
    FinishResult,
    JobShown,
    UniquePush,
    UniquePushed,
)

_unique = msgspec.json.Decoder(UniquePush)
_finish = msgspec.json.Decoder(FinishRequest)

_ROOT = "/api/v1/jobs"
_TAG = "tasks"
_GROUP = "workers"
_NULL = msgspec.Raw(b"null")
_DEAD = (AckResult.DEAD, AckResult.ALREADY_DEAD)
_REFUSED = {
    AckResult.LOST: "Invalid or expired lease",
    AckResult.TOO_LATE: "Message is already completed; nothing was changed",
}


class JobRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        job = _ROOT + "/{queue}/{jobId}"
        return [
            Route("POST", _ROOT, Role.WRITE, self.push, _PUSH, scoped=True),
            Route("POST", _ROOT + "/finish", Role.WRITE, self.finish, _FINISH, scoped=True),
            Route("GET", job, Role.READ, self.show, _SHOW, scoped=True),
        ]

    async def push(self, request: Request) -> Response:
        sent = decode_body(_unique, request.body)
        check_name("consumer group", sent.consumer_group)
        if not 0 < len(sent.key.encode(errors="replace")) <= jobs.MAX_KEY_BYTES:
            raise BadRequest(f"key must have between 1 and {jobs.MAX_KEY_BYTES} bytes")
        reason = reason_against_transaction_id(sent.key)
        if reason:
            raise BadRequest(reason.replace("transactionId", "key"))
        if not 0 <= sent.hold_s <= jobs.MAX_KEEP_S:
            raise BadRequest(f"holdS must be between 0 and {jobs.MAX_KEEP_S}")
        item = _item(sent)
        add_trace([item], trace_of(request.headers))
        job = UniqueJob(item, sent.key, sent.consumer_group, sent.hold_s)
        holder = await self._broker.job_keys.push(request.caller, job)
        answer = UniquePushed(sent.queue, holder.partition, holder.job_id, holder.existed)
        return Response(200 if holder.existed else 201, msgspec.json.encode(answer))

    async def finish(self, request: Request) -> Response:
        sent = decode_body(_finish, request.body)
        if not 0 < len(sent.jobs) <= MAX_FINISHED:
            raise BadRequest(f"jobs must hold between 1 and {MAX_FINISHED} jobs")
        outcomes = await self._broker.job_results.finish(
            request.caller, sent.jobs, sent.consumer_group
        )
        answer = FinishAnswer([_result(outcome) for outcome in outcomes])
        return Response(200, msgspec.json.encode(answer))

    async def show(self, request: Request) -> Response:
        queue, job_id = request.params
        check_name("queue", queue)
        reason = reason_against_transaction_id(job_id)
        if reason:
            raise BadRequest(reason.replace("transactionId", "job id"))
        query = Query(request.query)
        partition = query.text("partition") or jobs.partition_of(job_id)
        group = query.text("consumerGroup") or _GROUP
        check_name("partition", partition)
        check_name("consumer group", group)
        wait_ms = query.number("wait", 0, 0, MAX_WAIT_MS)
        await self._broker.scope.queue(request.caller, queue)
        state = await self._broker.job_waits.wait(queue, job_id, partition, group, wait_ms / 1000)
        answer = JobShown(
            queue=queue,
            id=job_id,
            partition=partition,
            state=state.state,  # type: ignore[arg-type]
            has_result=state.result is not None and state.error is None,
            result=_NULL if state.result is None else msgspec.Raw(state.result),
            error=state.error,
            attempts=state.attempts,
            due_at=iso_or_none(state.due_at),
            finished_at=iso_or_none(state.finished_at),
            expires_at=iso_or_none(state.expires_at),
        )
        return Response(200, msgspec.json.encode(answer))


def _item(sent: UniquePush) -> PushItem:
    """Return what is pushed, with an id and a partition."""
    partition = sent.partition
    if partition is None:
        partition = jobs.partition_of(sent.transaction_id or "")
    job_id = sent.transaction_id or jobs.job_id_of(uuid.uuid4().hex, partition)
    return PushItem(
        queue=sent.queue,
        payload=sent.payload,
        partition=partition or DEFAULT_PARTITION,
        transactionId=job_id,
        headers=sent.headers,
        deliverAt=sent.deliver_at,
        delay=sent.delay,
    )


def _result(outcome: AckResult | QueenError) -> FinishResult:
    if isinstance(outcome, QueenError):
        return FinishResult(False, outcome.message, False)
    refusal = _REFUSED.get(outcome)
    return FinishResult(refusal is None, refusal, outcome in _DEAD)


_JOB_ID = Param("jobId", TransactionId, "The job's transaction id.", example="8f0c@Default")
_PUSH = Doc(
    _TAG,
    "Push a job unless another one has its key",
    """\
Of a key, one job of a queue at a time is scheduled, waiting or running. While one is, another is
not pushed: the answer is 200 and names the one that is there. Otherwise it is 201, and the job is
stored together with its key. Needs the database: it is never buffered.

A request with the header `traceparent` (and `tracestate`) gives it to a job that has none of its
own.""",
    body=UniquePush,
    answers={200: UniquePushed, 201: UniquePushed},
    example={
        "queue": "jobs",
        "key": "report-2026-01",
        "payload": {"task": "reports.build", "arguments": {"month": "2026-01"}},
    },
    errors=(404, 503),
)
_FINISH = Doc(
    _TAG,
    "Acknowledge jobs together with their results",
    """\
Each job is acknowledged and its result stored in one transaction. Each is answered by itself: one
whose lease is no longer held is refused with its result, and holds up no other. What is given up
is kept as failed, with its error. Repeated, it is answered as before.""",
    body=FinishRequest,
    answers={200: FinishAnswer},
    example={
        "consumerGroup": "billing",
        "jobs": [
            {
                "transactionId": "order-1042",
                "partitionId": "00000000-0000-8007-bfff-ffffffffffff",
                "leaseId": "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11",
                "result": {"pages": 12},
                "keepS": 3600,
            }
        ],
    },
)
_SHOW = Doc(
    _TAG,
    "Where a job stands, and its result",
    """\
`unknown` is a job that never was, or of which nothing is kept any more. With `wait` the answer
comes when the job has ended, or after so long.""",
    query=(
        Param("partition", str, "Where it was pushed; left out, what its id ends with."),
        Param("consumerGroup", str, "For whom it is done or not.", _GROUP),
        Param(
            "wait",
            Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)],
            "How many milliseconds to wait for its end.",
            0,
        ),
    ),
    answers={200: JobShown},
    path=(_JOB_ID,),
)
