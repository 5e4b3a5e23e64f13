"""POST /api/v1/transaction: acks and pushes in one PostgreSQL transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from queen.core.cursor import Verdict
from queen.core.ids import message_id, parse_lease
from queen.errors import BadRequest, InvalidItem, LeaseLost
from queen.server.failures import bad_json
from queen.server.http import Request, Response
from queen.server.routes.ack import Prepared, prepare
from queen.server.routes.push import Planned, plan
from queen.service.broker import Broker
from queen.wire.requests import AckOperation, PushItem, PushOperation, TransactionRequest

_decoder = msgspec.json.Decoder(TransactionRequest)

MAX_OPERATIONS = 10_000


class TransactionRoute:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def __call__(self, request: Request) -> Response:
        body = request.body
        if not body:
            raise BadRequest("Empty request body")
        try:
            wanted = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise bad_json(error) from None
        operations = wanted.operations
        if not 0 < len(operations) <= MAX_OPERATIONS:
            raise BadRequest(f"operations must hold between 1 and {MAX_OPERATIONS} operations")
        planned, places = _plan_pushes(operations)
        prepared = await self._prepare_acks(operations, wanted.requiredLeases or [])
        await self._broker.transactor.run(
            [one.append for one in planned], list(prepared.settlements.values())
        )
        answer = {
            "transactionId": str(uuid.uuid4()),
            "success": True,
            "results": _results(operations, planned, places, prepared),
        }
        return Response(200, msgspec.json.encode(answer))

    async def _prepare_acks(
        self, operations: Sequence[PushOperation | AckOperation], required: list[str]
    ) -> Prepared:
        acks = [one for one in operations if isinstance(one, AckOperation)]
        prepared = await prepare(self._broker, acks, None)
        for error in prepared.refused.values():
            raise error
        for lease_id in required:
            await self._check_lease(lease_id, prepared)
        return prepared

    async def _check_lease(self, lease_id: str, prepared: Prepared) -> None:
        """A lease that the acks use is checked by them; any other must at least live."""
        parsed = parse_lease(lease_id)
        if parsed is None:
            raise LeaseLost(f"required lease {lease_id!r} is not a lease")
        if any(one.lease_id == parsed for one in prepared.settlements.values()):
            return
        for one in prepared.settlements.values():
            if one.lease_id is None:
                # The client named the lease here instead of in the operation.
                one.lease_id = parsed


def _plan_pushes(
    operations: Sequence[PushOperation | AckOperation],
) -> tuple[list[Planned], list[tuple[int, PushItem]]]:
    """Return the appends, and for each pushed item its operation."""
    places = [
        (number, item)
        for number, operation in enumerate(operations)
        if isinstance(operation, PushOperation)
        for item in operation.items
    ]
    items = [item for _, item in places]
    planned, refused = plan(items, range(len(items)), trusted=False)
    if refused:
        first = refused[0]
        raise InvalidItem(first.index, f"{first.reason}; nothing of the transaction was done")
    return planned, places


def _results(
    operations: Sequence[PushOperation | AckOperation],
    planned: list[Planned],
    places: list[tuple[int, PushItem]],
    prepared: Prepared,
) -> list[dict[str, Any]]:
    by_operation: dict[int, list[dict[str, Any]]] = {}
    for append, indexes, ids in planned:
        lane = append.lane
        assert lane is not None
        for at, index in enumerate(indexes):
            duplicate = append.is_duplicate(at)
            by_operation.setdefault(places[index][0], []).append(
                {
                    "transactionId": ids[at],
                    "messageId": message_id(lane.id, append.offset_of(at)),
                    "partitionId": lane.uuid,
                    "queueName": append.queue,
                    "status": "duplicate" if duplicate else "queued",
                }
            )
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
            verdict = prepared.verdict(acks, operation.transactionId)
            acks += 1
            results.append(
                {
                    "index": number,
                    "type": "ack",
                    "success": True,
                    "transactionId": operation.transactionId,
                    "error": None,
                    "dlq": verdict is Verdict.DEAD,
                }
            )
    return results
