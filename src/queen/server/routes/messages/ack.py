"""POST /api/v1/ack, /ack/batch, /ack/spans, /lease/:id/extend: what consumers did with their
messages."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from queen.core.cursor import AckResult
from queen.core.ids import parse_lease
from queen.core.names import QUEUE_MODE_GROUP
from queen.errors import BadRequest, Conflict, LeaseLost, NotFound, QueenError
from queen.server.answers.acks import TOO_LATE, check_spans, span_result
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response
from queen.service.acks.ack_batch import OffsetBatch
from queen.service.broker import Broker
from queen.service.intake.acks import STALE, GatheredAcks
from queen.wire import answers
from queen.wire.answers import MAX_ACKS
from queen.wire.requests import (
    MAX_EXTEND_S,
    AckBatchRequest,
    AckRequest,
    AckSpansRequest,
    ExtendRequest,
)
from queen.wire.results import (
    AckAnswer,
    AckBatchAnswer,
    AckSpansAnswer,
    ExtendAnswer,
)

_ack = msgspec.json.Decoder(AckRequest)
_batch = msgspec.json.Decoder(AckBatchRequest)
_spans = msgspec.json.Decoder(AckSpansRequest)
_extend = msgspec.json.Decoder(ExtendRequest)

_DEFAULT_EXTEND_S = 60

# A repeated acknowledgment is answered by the word of the first.
_WORDS = {AckResult.ALREADY: "completed", AckResult.ALREADY_DEAD: AckResult.DEAD.value}
_DEAD = {AckResult.DEAD, AckResult.ALREADY_DEAD}
_REFUSALS = {AckResult.LOST: STALE, AckResult.TOO_LATE: TOO_LATE}

_EXAMPLE = {
    "transactionId": "order-1042",
    "partitionId": "00000000-0000-8007-bfff-ffffffffffff",
    "leaseId": "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11",
    "consumerGroup": "billing",
    "status": "completed",
}
_ACK = Doc(
    "messages",
    "Acknowledge a message",
    """\
Says what became of one message of a lease. An ack that names its lease may be repeated: its
answer is then the same, unless it was a failure that ended the lease. 409 means that it was not
taken: the lease is no longer held and the message comes again, or it is a failure of a message
that is completed already. Without `leaseId` it is an ack of the lease that holds the partition for
the group at that moment, if any does.""",
    body=AckRequest,
    answers={200: AckAnswer},
    example=_EXAMPLE,
    errors=(409,),
)
_BATCH = Doc(
    "messages",
    "Acknowledge many messages",
    """\
Each is answered by itself: one that is refused does not hold up the others. `error` is there
when at least one was refused.""",
    body=AckBatchRequest,
    answers={200: AckBatchAnswer},
    example={"consumerGroup": "billing", "acknowledgments": [_EXAMPLE]},
)
_SPANS = Doc(
    "messages",
    "Acknowledge messages by their offsets",
    """\
Says what became of leased messages in runs of offsets, however many they are: what is `done`, and
what `failed`. Each span is answered by itself: one that is refused does not hold up the others.
What it says of a lease that is over changes nothing; repeated, it is answered as before, but for
failures that ended the lease and come again. Offsets that are not of the lease are `lost`.""",
    body=AckSpansRequest,
    answers={200: AckSpansAnswer},
    example={
        "consumerGroup": "billing",
        "spans": [
            {
                "partitionId": _EXAMPLE["partitionId"],
                "leaseId": _EXAMPLE["leaseId"],
                "done": [[0, 1]],
            }
        ],
    },
)
_EXTEND = Doc(
    "messages",
    "Prolong a lease",
    body=ExtendRequest,
    body_optional=True,
    answers={200: ExtendAnswer},
    example={"seconds": 120},
)


class AckRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/v1/ack", Role.WRITE, self.ack, _ACK, scoped=True),
            Route("POST", "/api/v1/ack/batch", Role.WRITE, self.batch, _BATCH, scoped=True),
            Route("POST", "/api/v1/ack/spans", Role.WRITE, self.spans, _SPANS, scoped=True),
            Route(
                "POST",
                "/api/v1/lease/{lease}/extend",
                Role.WRITE,
                self.extend,
                _EXTEND,
                scoped=True,
            ),
        ]

    async def ack(self, request: Request) -> Response:
        ack = decode_body(_ack, request.body)
        gathered = await self._broker.ack_intake.gather(request.caller, [ack])
        await self._broker.home.ack(gathered.batches)
        result = gathered.result(0, ack.transactionId)
        if isinstance(result, QueenError):
            raise result
        if result is AckResult.LOST:
            raise LeaseLost(f"Failed to acknowledge message: {STALE}")
        if result is AckResult.TOO_LATE:
            raise Conflict(f"Failed to acknowledge message: {TOO_LATE}")
        group = ack.consumerGroup
        answer = AckAnswer(
            transactionId=ack.transactionId,
            status=_WORDS.get(result, result.value),
            consumerGroup=None if group == QUEUE_MODE_GROUP else group,
            acknowledgedAt=answers.iso(datetime.now(UTC)),
            success=True,
            dlq=result in _DEAD,
        )
        return Response(200, msgspec.json.encode(answer))

    async def batch(self, request: Request) -> Response:
        body = decode_body(_batch, request.body)
        acks = body.acknowledgments
        if len(acks) > MAX_ACKS:
            raise BadRequest(f"more than {MAX_ACKS} acknowledgments in one request")
        gathered = await self._broker.ack_intake.gather(request.caller, acks, body.consumerGroup)
        if gathered.by_key:
            await self._broker.home.ack(gathered.batches)
        return Response(200, _batch_body(acks, gathered))

    async def spans(self, request: Request) -> Response:
        body = decode_body(_spans, request.body)
        check_spans(body.spans)
        gathered = await self._broker.ack_intake.gather_spans(
            request.caller, body.spans, body.consumerGroup
        )
        batches = [batch for batch in gathered if isinstance(batch, OffsetBatch)]
        if batches:
            await self._broker.home.ack([*batches])
        return Response(200, msgspec.json.encode(AckSpansAnswer([*map(span_result, gathered)])))

    async def extend(self, request: Request) -> Response:
        raw = request.body
        seconds = (decode_body(_extend, raw).seconds if raw else None) or _DEFAULT_EXTEND_S
        if not 1 <= seconds <= MAX_EXTEND_S:
            raise BadRequest(f"seconds must be between 1 and {MAX_EXTEND_S}")
        lease_id = parse_lease(request.params[0])
        if lease_id is not None:
            await self._broker.scope.check_lease(request.caller, lease_id)
        until = await self._broker.leases.extend(lease_id, seconds) if lease_id else None
        if until is None:
            raise NotFound("Lease not found or expired")
        at = answers.iso(until)
        answer = ExtendAnswer(
            leaseId=str(lease_id),
            extended=True,
            success=True,
            seconds=seconds,
            newExpiresAt=at,
            lease_expires_at=at,
            expiresAt=at,
        )
        return Response(200, msgspec.json.encode(answer))


def _batch_body(acks: list[AckRequest], gathered: GatheredAcks) -> bytes:
    if gathered.all_done():
        return answers.all_completed([ack.transactionId for ack in acks])
    results, refusals = [], []
    for index, ack in enumerate(acks):
        quoted = answers.json_text(ack.transactionId)
        result = gathered.result(index, ack.transactionId)
        refusal = _refusal(result)
        if refusal is not None:
            refusals.append(refusal)
        results.append(f'{{"index":{index},"transactionId":{quoted},{_outcome(result, refusal)}}}')
    tail = f',"error":{answers.json_text(_summary(refusals, len(acks)))}' if refusals else ""
    return f'{{"processed":{len(acks)},"results":[{",".join(results)}]{tail}}}'.encode()


def _summary(refusals: list[str], count: int) -> str:
    """Return the error of a batch. The clients published for the original broker look no further
    than this: some read no item of an object, others take any array for a success."""
    first = refusals[0]
    return first if count == 1 else f"{len(refusals)} of {count} were not taken: {first}"


def _refusal(result: AckResult | QueenError) -> str | None:
    """Return why an acknowledgment was not taken; None when it was."""
    return result.message if isinstance(result, QueenError) else _REFUSALS.get(result)


def _outcome(result: AckResult | QueenError, refusal: str | None) -> str:
    if isinstance(result, AckResult) and refusal is None:
        status, success, dead = _WORDS.get(result, result.value), True, result in _DEAD
    else:
        status, success, dead = "error", False, False
    fields = {"status": status, "success": success, "error": refusal, "dlq": dead}
    return msgspec.json.encode(fields).decode()[1:-1]
