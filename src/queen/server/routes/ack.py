"""POST /api/v1/ack, /ack/batch, /lease/:id/extend: what consumers did with their messages."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import astuple

from queen.core.cursor import WISHES, Verdict, Wish
from queen.core.ids import parse_lease, parse_partition
from queen.core.names import QUEUE_MODE_GROUP, reason_against_name
from queen.errors import BadRequest, LeaseLost, NotFound, QueenError
from queen.server.access import Caller, Role
from queen.server.failures import decoded
from queen.server.http import Request, Response
from queen.server.routing import Route
from queen.server.sight import check_lease, partitions_for
from queen.service.ack import Settlement
from queen.service.broker import Broker
from queen.service.catalog import Partition
from queen.wire import answers
from queen.wire.answers import MAX_ACKS
from queen.wire.requests import AckBatchRequest, AckOperation, AckRequest, ExtendRequest

_one = msgspec.json.Decoder(AckRequest)
_batch = msgspec.json.Decoder(AckBatchRequest)
_extend = msgspec.json.Decoder(ExtendRequest)

MAX_ERROR_CHARACTERS = 10_000
_DEFAULT_EXTEND_S = 60
_MAX_EXTEND_S = 24 * 3600

# What is right with the message once its verdict is known.
_SUCCESSES = {Verdict.DONE, Verdict.RETRY, Verdict.DEAD, Verdict.ALREADY}
_WORDS = {Verdict.ALREADY: "completed", Verdict.LOST: "error"}
_STALE = "Invalid or expired lease"


class Prepared:
    """The acknowledgments of a request, gathered by lease and partition."""

    def __init__(self) -> None:
        self.settlements: dict[tuple[int, int, uuid.UUID | None], Settlement] = {}
        # For each item that cannot be looked up: why.
        self.refused: dict[int, QueenError] = {}
        # For each other item its settlement; None when all share the only one.
        self.places: dict[int, Settlement] | None = None

    def verdict(self, index: int, transaction_id: str) -> Verdict | QueenError:
        if self.places is None:
            (settlement,) = self.settlements.values()
            return settlement.verdicts.get(transaction_id, Verdict.LOST)
        if index in self.refused:
            return self.refused[index]
        return self.places[index].verdicts.get(transaction_id, Verdict.LOST)

    def all_done(self) -> bool:
        """Whether every item was acknowledged as completed, and now is."""
        return self.places is None and all(one.all_done for one in self.settlements.values())


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
            settlement, wish = await _settlement(broker, prepared, first, partition, default_group)
            settlement.wishes = dict.fromkeys(ids, wish)
            return prepared
        except QueenError:
            prepared.settlements.clear()
    prepared.places = {}
    for index, one in enumerate(acks):
        partition_id = known[one.partitionId]
        maybe = found.get(partition_id) if partition_id is not None else None
        try:
            settlement, wish = await _settlement(broker, prepared, one, maybe, default_group)
        except QueenError as error:
            prepared.refused[index] = error
            continue
        prepared.places[index] = settlement
        settlement.wishes[one.transactionId] = wish
        if one.error and wish is not Wish.DONE:
            settlement.errors[one.transactionId] = storable(one.error)
    return prepared


def storable(error: str) -> str:
    """Return a consumer's error text as PostgreSQL can keep it."""
    return error[:MAX_ERROR_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}")


async def _settlement(
    broker: Broker,
    prepared: Prepared,
    one: AckRequest | AckOperation,
    partition: Partition | None,
    default_group: str | None,
) -> tuple[Settlement, Wish]:
    """Return the settlement an acknowledgment belongs to, and what it wishes."""
    wish = WISHES.get(one.status or "completed")
    if wish is None:
        raise BadRequest(f"status {one.status!r} is not known: {', '.join(WISHES)}")
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
    settlement = prepared.settlements.get(key)
    if settlement is None:
        settlement = Settlement(partition, group, group_id, lease_id, {})
        prepared.settlements[key] = settlement
    return settlement, wish


class AckRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/v1/ack", Role.WRITE, self.one, scoped=True),
            Route("POST", "/api/v1/ack/batch", Role.WRITE, self.batch, scoped=True),
            Route("POST", "/api/v1/lease/{lease}/extend", Role.WRITE, self.extend, scoped=True),
        ]

    async def one(self, request: Request) -> Response:
        ack = decoded(_one, request.body)
        prepared = await prepare(self._broker, request.caller, [ack], None)
        await self._broker.acker.ack(list(prepared.settlements.values()))
        verdict = prepared.verdict(0, ack.transactionId)
        if isinstance(verdict, QueenError):
            raise verdict
        if verdict is Verdict.LOST:
            raise LeaseLost(f"Failed to acknowledge message: {_STALE}")
        group = ack.consumerGroup
        return Response(
            200,
            msgspec.json.encode(
                {
                    "transactionId": ack.transactionId,
                    "status": _WORDS.get(verdict, verdict.value),
                    "consumerGroup": None if group == QUEUE_MODE_GROUP else group,
                    "acknowledgedAt": answers.iso(datetime.now(UTC)),
                    "success": True,
                    "dlq": verdict is Verdict.DEAD,
                }
            ),
        )

    async def batch(self, request: Request) -> Response:
        body = decoded(_batch, request.body)
        acks = body.acknowledgments
        if len(acks) > MAX_ACKS:
            raise BadRequest(f"more than {MAX_ACKS} acknowledgments in one request")
        prepared = await prepare(self._broker, request.caller, acks, body.consumerGroup)
        if prepared.settlements:
            await self._broker.acker.ack(list(prepared.settlements.values()))
        return Response(200, _batch_body(acks, prepared))

    async def extend(self, request: Request) -> Response:
        raw = request.body
        seconds = (decoded(_extend, raw).seconds if raw else None) or _DEFAULT_EXTEND_S
        if not 1 <= seconds <= _MAX_EXTEND_S:
            raise BadRequest(f"seconds must be between 1 and {_MAX_EXTEND_S}")
        lease_id = parse_lease(request.params[0])
        if lease_id is not None:
            await check_lease(self._broker, request.caller, lease_id)
        until = await self._broker.extend(lease_id, seconds) if lease_id else None
        if until is None:
            raise NotFound("Lease not found or expired")
        at = answers.iso(until)
        return Response(
            200,
            msgspec.json.encode(
                {
                    "leaseId": request.params[0],
                    "extended": True,
                    "success": True,
                    "seconds": seconds,
                    "newExpiresAt": at,
                    "lease_expires_at": at,
                    "expiresAt": at,
                }
            ),
        )


def _batch_body(acks: list[AckRequest], prepared: Prepared) -> bytes:
    if prepared.all_done():
        return answers.all_completed([ack.transactionId for ack in acks])
    results = []
    for index, ack in enumerate(acks):
        quoted = answers.json_text(ack.transactionId)
        outcome = _outcome(prepared.verdict(index, ack.transactionId))
        results.append(f'{{"index":{index},"transactionId":{quoted},{outcome}}}')
    return f'{{"processed":{len(acks)},"results":[{",".join(results)}]}}'.encode()


def _outcome(verdict: Verdict | QueenError) -> str:
    if isinstance(verdict, QueenError):
        status, error, success, dead = "error", verdict.message, False, False
    else:
        status = _WORDS.get(verdict, verdict.value)
        success = verdict in _SUCCESSES
        error = None if success else _STALE  # type: ignore[assignment]
        dead = verdict is Verdict.DEAD
    fields = {"status": status, "success": success, "error": error, "dlq": dead}
    return msgspec.json.encode(fields).decode()[1:-1]
