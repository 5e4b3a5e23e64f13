"""POST /api/v1/transaction: acks and pushes in one PostgreSQL transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from queen.core.columns.headers import trace_of
from queen.core.cursor import AckResult
from queen.core.ids import parse_lease
from queen.errors import BadRequest
from queen.server.answers.pushes import pushed_items
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response
from queen.service.broker import Broker
from queen.service.intake.acks import GatheredAcks
from queen.service.intake.items import Planned, add_trace
from queen.service.intake.pushes import Later
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
        sent = decode_body(_decoder, request.body)
        operations = sent.operations
        if not 0 < len(operations) <= MAX_OPERATIONS:
            raise BadRequest(f"operations must hold between 1 and {MAX_OPERATIONS} operations")
        for rider in ("kv", "timers"):
            if getattr(sent, rider):
                raise BadRequest(f"{rider} is not supported; nothing of the transaction was done")
        broker, caller = self._broker, request.caller
        places = _places(operations)
        add_trace((item for _, item in places), trace_of(request.headers))
        planned, later = await broker.intake.plan_all(caller, [item for _, item in places])
        acks = [operation for operation in operations if isinstance(operation, AckOperation)]
        gathered = await broker.ack_intake.gather(caller, acks)
        for error in gathered.refused.values():
            raise error
        required = sent.requiredLeases or []
        for lease_id in map(parse_lease, required):
            if lease_id is not None:
                await broker.scope.check_lease(caller, lease_id)
        guards = await broker.transactor.guards(required, gathered.batches)
        await broker.transactor.run(
            [plan.append for plan in planned],
            [scheduled.message for scheduled in later],
            gathered.batches,
            guards,
        )
        answer = {
            "transactionId": str(uuid.uuid4()),
            "success": True,
            "results": _results(operations, _by_operation(planned, later, places), gathered),
        }
        return Response(200, msgspec.json.encode(answer))


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


def _by_operation(
    planned: list[Planned], later: list[Later], places: list[tuple[int, PushItem]]
) -> dict[int, list[dict[str, Any]]]:
    """Return the results of the pushed items by operation, in the order in which they came."""
    by_operation: dict[int, list[dict[str, Any]]] = {}
    for place, fields in pushed_items(planned, later).items():
        by_operation.setdefault(places[place][0], []).append(fields)
    return by_operation


def _results(
    operations: Sequence[PushOperation | AckOperation],
    by_operation: dict[int, list[dict[str, Any]]],
    gathered: GatheredAcks,
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
            result = gathered.result(acks, operation.transactionId)
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
