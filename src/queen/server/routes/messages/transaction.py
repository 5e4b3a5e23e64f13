"""POST /api/v1/transaction: acks and pushes in one PostgreSQL transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from queen.core.cursor import AckResult
from queen.core.ids import message_id, parse_lease
from queen.errors import BadRequest, InvalidItem, LeaseLost
from queen.server.api.failures import decoded
from queen.server.api.routing import Doc, Route
from queen.server.api.scope import check_lease
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import Request, Response
from queen.server.routes.messages.ack import Prepared, prepare
from queen.server.routes.messages.push import Later, Planned, only_visible, part_by_time, plan
from queen.service.broker import Broker
from queen.service.consume.transact import Guard
from queen.wire.answers import iso
from queen.wire.requests import (
    MAX_OPERATIONS,
    AckOperation,
    PushItem,
    PushOperation,
    TransactionRequest,
)
from queen.wire.results import TransactionAnswer

_decoder = msgspec.json.Decoder(TransactionRequest)

_DOC = Doc(
    "messages",
    "Acknowledge and push in one transaction",
    """\
All operations are done in one transaction of the database, or none is. An ack whose lease is
no longer held, or a required lease that has ended, is a 409 and nothing was done. A transaction
whose acks were all taken before is a repeat: it succeeds, and what it pushes is there already.""",
    body=TransactionRequest,
    answers={200: TransactionAnswer},
    example={
        "operations": [
            {
                "type": "ack",
                "transactionId": "order-1042",
                "partitionId": "00000000-0000-8007-bfff-ffffffffffff",
                "leaseId": "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11",
                "consumerGroup": "billing",
            },
            {"type": "push", "items": [{"queue": "invoices", "payload": {"order": 1042}}]},
        ]
    },
    errors=(409,),
)


class TransactionRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [Route("POST", "/api/v1/transaction", Role.WRITE, self.transact, _DOC, scoped=True)]

    async def transact(self, request: Request) -> Response:
        wanted = decoded(_decoder, request.body)
        operations = wanted.operations
        if not 0 < len(operations) <= MAX_OPERATIONS:
            raise BadRequest(f"operations must hold between 1 and {MAX_OPERATIONS} operations")
        for rider in ("kv", "timers"):
            if getattr(wanted, rider):
                raise BadRequest(f"{rider} is not supported; nothing of the transaction was done")
        places = _places(operations)
        items = [item for _, item in places]
        planned, later = await plan_pushes(self._broker, request.caller, items)
        for one in planned:
            named = [items[index].transactionId for index in one.indexes]
            one.append.unnamed = frozenset(at for at, given in enumerate(named) if not given)
        prepared = await self._prepare_acks(request.caller, operations)
        for lease_id in map(parse_lease, wanted.requiredLeases or []):
            if lease_id is not None:
                await check_lease(self._broker, request.caller, lease_id)
        guards = await self._guards(wanted.requiredLeases or [], prepared)
        await self._broker.transactor.run(
            [one.append for one in planned],
            [one.message for one in later],
            list(prepared.ack_batches.values()),
            guards,
        )
        answer = {
            "transactionId": str(uuid.uuid4()),
            "success": True,
            "results": _results(operations, pushed_items(planned, later, places), prepared),
        }
        return Response(200, msgspec.json.encode(answer))

    async def _prepare_acks(
        self, caller: Caller, operations: Sequence[PushOperation | AckOperation]
    ) -> Prepared:
        acks = [one for one in operations if isinstance(one, AckOperation)]
        prepared = await prepare(self._broker, caller, acks, None)
        for error in prepared.refused.values():
            raise error
        return prepared

    async def _guards(self, required: list[str], prepared: Prepared) -> list[Guard]:
        """Return the leases that must live when the transaction commits.

        The published clients name leases here and not in their acks; an ack without one
        then uses the lease that holds its partition, and no other.
        """
        leases = {text: parse_lease(text) for text in required}
        ack_batches = list(prepared.ack_batches.values())
        # The acks check their own leases, and a repeated one may have ended its lease already.
        named = {one.lease_id for one in ack_batches}
        nameless = [one for one in ack_batches if one.lease_id is None]
        guards: list[Guard] = []
        for text, lease_id in leases.items():
            if lease_id in named:
                continue
            held = await self._broker.cursors_of(lease_id) if lease_id is not None else []
            mine = [one for one in nameless if one.key in held]
            if lease_id is not None and not held:
                mine = await self._broker.acker.with_receipt(lease_id, nameless)
            if lease_id is None or not (held or mine):
                raise LeaseLost(f"required lease {text!r} is not, or no longer, a lease")
            for one in mine:
                one.lease_id = lease_id
            acked = {one.key for one in mine}
            guards += [Guard(*key, lease_id) for key in held if key not in acked]
        if required and any(one.lease_id is None for one in nameless):
            raise LeaseLost
        return guards


async def plan_pushes(
    broker: Broker, caller: Caller, items: list[PushItem]
) -> tuple[list[Planned], list[Later]]:
    """Return the appends, and what is due later; one bad item refuses all."""
    indexes: Sequence[int] = range(len(items))
    later: list[Later] = []
    refused: list[InvalidItem] = []
    if any(item.is_timed for item in items):
        parted = await part_by_time(broker, caller, items, indexes)
        items, indexes, later, refused = parted
    planned, bad, _ = plan(items, indexes, trusted=False, subject=caller.subject)
    planned, hidden = await only_visible(broker, caller, planned)
    refused += bad + hidden
    if refused:
        first = min(refused, key=lambda error: error.index)
        reason = f"{first.reason}; nothing of the transaction was done"
        raise type(first)(first.index, reason)
    return planned, later


def _places(
    operations: Sequence[PushOperation | AckOperation],
) -> list[tuple[int, PushItem]]:
    """Return all pushed items, each with its operation."""
    return [
        (number, item)
        for number, operation in enumerate(operations)
        if isinstance(operation, PushOperation)
        for item in operation.items
    ]


def pushed_items(
    planned: list[Planned], later: list[Later], places: list[tuple[int, PushItem]]
) -> dict[int, list[dict[str, Any]]]:
    """Return the results of the pushed items by operation, in the order in which they came."""
    by_place: dict[int, dict[str, Any]] = {}
    for append, indexes, ids in planned:
        target = append.target
        assert target is not None
        for at, index in enumerate(indexes):
            duplicate = append.is_duplicate(at)
            offset = append.offset_of(at)
            by_place[index] = {
                "transactionId": ids[at],
                "messageId": None if offset < 0 else message_id(target.id, offset),
                "partitionId": target.uuid,
                "queueName": append.queue,
                "status": "duplicate" if duplicate else "queued",
            }
    for place, message in later:
        by_place[place] = {
            "transactionId": message.transaction_id,
            "messageId": None,
            "partitionId": None,
            "queueName": message.queue,
            "status": "scheduled",
            "deliverAt": iso(message.deliver_at),
        }
    by_operation: dict[int, list[dict[str, Any]]] = {}
    for place in sorted(by_place):
        by_operation.setdefault(places[place][0], []).append(by_place[place])
    return by_operation


def _results(
    operations: Sequence[PushOperation | AckOperation],
    by_operation: dict[int, list[dict[str, Any]]],
    prepared: Prepared,
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    acks = 0
    for number, operation in enumerate(operations):
        if isinstance(operation, PushOperation):
            pushed = by_operation.get(number, [])
            # A push of one item answers with the item's own fields, as the original does.
            single = pushed[0] if len(pushed) == 1 else {}
            row = {"index": number, "type": "push", "success": True, "count": len(pushed)}
            results.append({**row, **single, "items": pushed})
        else:
            result = prepared.result(acks, operation.transactionId)
            acks += 1
            results.append(
                {
                    "index": number,
                    "type": "ack",
                    "success": True,
                    "transactionId": operation.transactionId,
                    "error": None,
                    "dlq": result in (AckResult.DEAD, AckResult.ALREADY_DEAD),
                }
            )
    return results
