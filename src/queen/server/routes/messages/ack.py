"""POST /api/v1/ack, /ack/batch, /lease/:id/extend: what consumers did with their messages."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import astuple

from queen.core.cursor import ACK_STATUSES, AckResult, AckStatus
from queen.core.ids import parse_lease, parse_partition
from queen.core.names import QUEUE_MODE_GROUP, reason_against_name
from queen.errors import BadRequest, Conflict, LeaseLost, NotFound, QueenError
from queen.server.api.failures import decoded
from queen.server.api.routing import Doc, Route
from queen.server.api.scope import check_lease, partitions_for
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import Request, Response
from queen.service.broker import Broker
from queen.service.catalog import Partition
from queen.service.consume.ack import AckBatch, storable
from queen.wire import answers
from queen.wire.answers import MAX_ACKS
from queen.wire.requests import (
    MAX_EXTEND_S,
    AckBatchRequest,
    AckOperation,
    AckRequest,
    ExtendRequest,
)
from queen.wire.results import AckAnswer, AckBatchAnswer, ExtendAnswer

_one = msgspec.json.Decoder(AckRequest)
_batch = msgspec.json.Decoder(AckBatchRequest)
_extend = msgspec.json.Decoder(ExtendRequest)

_DEFAULT_EXTEND_S = 60

# A repeated acknowledgment is answered by the word of the first.
_WORDS = {AckResult.ALREADY: "completed", AckResult.ALREADY_DEAD: AckResult.DEAD.value}
_DEAD = {AckResult.DEAD, AckResult.ALREADY_DEAD}
_STALE = "Invalid or expired lease"
_TOO_LATE = "Message is already completed; nothing was changed"
_REFUSALS = {AckResult.LOST: _STALE, AckResult.TOO_LATE: _TOO_LATE}

_EXAMPLE = {
    "transactionId": "order-1042",
    "partitionId": "00000000-0000-8007-bfff-ffffffffffff",
    "leaseId": "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11",
    "consumerGroup": "billing",
    "status": "completed",
}
_ONE = Doc(
    "messages",
    "Acknowledge a message",
    """\
Says what became of one message of a lease. An ack that names its lease may be repeated: its
answer is then the same. 409 means that it was not taken: the lease is no longer held and the
message comes again, or it is a failure of a message that is completed already. Without `leaseId`
it is an ack of the lease that holds the partition for the group at that moment, if any does.""",
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
_EXTEND = Doc(
    "messages",
    "Prolong a lease",
    body=ExtendRequest,
    body_optional=True,
    answers={200: ExtendAnswer},
    example={"seconds": 120},
)


class Prepared:
    """The acknowledgments of a request, gathered by lease and partition."""

    def __init__(self) -> None:
        self.ack_batches: dict[tuple[int, int, uuid.UUID | None], AckBatch] = {}
        # For each item that cannot be looked up: why.
        self.refused: dict[int, QueenError] = {}
        # For each other item its batch; None when all share the only one.
        self.places: dict[int, AckBatch] | None = None

    def result(self, index: int, transaction_id: str) -> AckResult | QueenError:
        if self.places is None:
            (ack_batch,) = self.ack_batches.values()
        elif index in self.refused:
            return self.refused[index]
        else:
            ack_batch = self.places[index]
        return ack_batch.error or ack_batch.results.get(transaction_id, AckResult.LOST)

    def all_done(self) -> bool:
        """Whether every item was acknowledged as completed, and now is."""
        return self.places is None and all(one.all_done for one in self.ack_batches.values())


async def prepare(
    broker: Broker,
    caller: Caller,
    acks: Sequence[AckRequest | AckOperation],
    default_group: str | None,
) -> Prepared:
    """Find the partition, group and lease that each acknowledgment is about."""
    prepared = Prepared()
    if not acks:
        prepared.places = {}
        return prepared
    ids, partitions, statuses, errors, groups, leases = zip(*map(astuple, acks), strict=True)
    count = len(ids)
    known = {one: parse_partition(one) for one in set(partitions)}
    wanted = {one for one in known.values() if one is not None}
    found = await partitions_for(broker, caller, wanted)
    first = acks[0]
    alike = (
        partitions.count(first.partitionId) == count
        and leases.count(first.leaseId) == count
        and statuses.count(first.status) == count
        and groups.count(first.consumerGroup) == count
        and errors.count(None) == count
    )
    if alike and found:
        try:
            (partition,) = found.values()
            ack_batch, asked = await _ack_batch(broker, prepared, first, partition, default_group)
            ack_batch.statuses = dict.fromkeys(ids, asked)
            return prepared
        except QueenError:
            prepared.ack_batches.clear()
    prepared.places = {}
    for index, one in enumerate(acks):
        partition_id = known[one.partitionId]
        maybe = found.get(partition_id) if partition_id is not None else None
        try:
            ack_batch, asked = await _ack_batch(broker, prepared, one, maybe, default_group)
        except QueenError as error:
            prepared.refused[index] = error
            continue
        if ack_batch.statuses.get(one.transactionId, asked) is not asked:
            prepared.refused[index] = BadRequest("the request says something else of it, too")
            continue
        prepared.places[index] = ack_batch
        ack_batch.statuses[one.transactionId] = asked
        if one.error and asked is not AckStatus.DONE:
            ack_batch.errors[one.transactionId] = storable(one.error)
    return prepared


async def _ack_batch(
    broker: Broker,
    prepared: Prepared,
    one: AckRequest | AckOperation,
    partition: Partition | None,
    default_group: str | None,
) -> tuple[AckBatch, AckStatus]:
    """Return the batch an acknowledgment belongs to, and what it asks for."""
    asked = ACK_STATUSES.get(one.status or "completed")
    if asked is None:
        raise BadRequest(f"status {one.status!r} is not known: {', '.join(ACK_STATUSES)}")
    if partition is None:
        raise NotFound("Message not found: no such partition")
    lease_id = parse_lease(one.leaseId) if one.leaseId else None
    if one.leaseId and lease_id is None:
        raise LeaseLost(_STALE)
    group = one.consumerGroup or default_group or QUEUE_MODE_GROUP
    reason = reason_against_name("consumer group", group)
    if reason:
        raise BadRequest(reason)
    group_id = await broker.catalog.find_group(partition.queue, group)
    if group_id is None:
        raise LeaseLost(_STALE)
    key = (partition.id, group_id, lease_id)
    ack_batch = prepared.ack_batches.get(key)
    if ack_batch is None:
        ack_batch = AckBatch(partition, group, group_id, lease_id, {})
        prepared.ack_batches[key] = ack_batch
    return ack_batch, asked


class AckRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/v1/ack", Role.WRITE, self.one, _ONE, scoped=True),
            Route("POST", "/api/v1/ack/batch", Role.WRITE, self.batch, _BATCH, scoped=True),
            Route(
                "POST",
                "/api/v1/lease/{lease}/extend",
                Role.WRITE,
                self.extend,
                _EXTEND,
                scoped=True,
            ),
        ]

    async def one(self, request: Request) -> Response:
        ack = decoded(_one, request.body)
        prepared = await prepare(self._broker, request.caller, [ack], None)
        await self._broker.acker.ack(list(prepared.ack_batches.values()))
        result = prepared.result(0, ack.transactionId)
        if isinstance(result, QueenError):
            raise result
        if result is AckResult.LOST:
            raise LeaseLost(f"Failed to acknowledge message: {_STALE}")
        if result is AckResult.TOO_LATE:
            raise Conflict(f"Failed to acknowledge message: {_TOO_LATE}")
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
        body = decoded(_batch, request.body)
        acks = body.acknowledgments
        if len(acks) > MAX_ACKS:
            raise BadRequest(f"more than {MAX_ACKS} acknowledgments in one request")
        prepared = await prepare(self._broker, request.caller, acks, body.consumerGroup)
        if prepared.ack_batches:
            await self._broker.acker.ack(list(prepared.ack_batches.values()))
        return Response(200, _batch_body(acks, prepared))

    async def extend(self, request: Request) -> Response:
        raw = request.body
        seconds = (decoded(_extend, raw).seconds if raw else None) or _DEFAULT_EXTEND_S
        if not 1 <= seconds <= MAX_EXTEND_S:
            raise BadRequest(f"seconds must be between 1 and {MAX_EXTEND_S}")
        lease_id = parse_lease(request.params[0])
        if lease_id is not None:
            await check_lease(self._broker, request.caller, lease_id)
        until = await self._broker.extend(lease_id, seconds) if lease_id else None
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


def _batch_body(acks: list[AckRequest], prepared: Prepared) -> bytes:
    if prepared.all_done():
        return answers.all_completed([ack.transactionId for ack in acks])
    results, refusals = [], []
    for index, ack in enumerate(acks):
        quoted = answers.json_text(ack.transactionId)
        result = prepared.result(index, ack.transactionId)
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
