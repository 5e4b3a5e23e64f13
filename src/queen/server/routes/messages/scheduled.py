"""Scheduled messages: what is still to come, and calling it off."""

from __future__ import annotations

import msgspec

from queen.core.names import reason_against_transaction_id
from queen.errors import BadRequest, NotFound
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.wire.answers import iso
from queen.wire.parts import TransactionId
from queen.wire.scheduled import Cancelled, ScheduledMessage, ScheduledPage

_LIST = Doc(
    tag="scheduled",
    summary="Messages that are not due yet, soonest first",
    query=(
        Param("queue", str, "Only those for this queue."),
        *page_params(100),
    ),
    answers={200: ScheduledPage},
)
_CANCEL = Doc(
    tag="scheduled",
    summary="Cancel what is scheduled under a transaction id",
    about="Whatever this removes is never delivered. What is due already cannot be cancelled.",
    answers={200: Cancelled},
    path=(Param("transactionId", TransactionId, "What it was pushed with.", example="order-1042"),),
)


class ScheduledRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        message = "/api/v1/scheduled/{queue}/{transactionId}"
        return [
            Route("GET", "/api/v1/scheduled", Role.READ, self.page, _LIST, scoped=True),
            Route("DELETE", message, Role.WRITE, self.cancel, _CANCEL, scoped=True),
        ]

    async def page(self, request: Request) -> Response:
        query = Query(request.query)
        queue = query.text("queue") or None
        if queue is not None:
            check_name("queue", queue)
            await self._broker.scope.queue(request.caller, queue)
        limit, offset = page_of(query, 100)
        among = listed(request.caller.namespaces)
        rows = await self._broker.outbox.page(queue, among, limit + 1, offset)
        messages = [_message_of(row) for row in rows[:limit]]
        page = ScheduledPage(messages, limit, offset, more=len(rows) > limit)
        return Response(200, msgspec.json.encode(page))

    async def cancel(self, request: Request) -> Response:
        queue, transaction_id = request.params
        check_name("queue", queue)
        reason = reason_against_transaction_id(transaction_id)
        if reason:
            raise BadRequest(reason)
        await self._broker.scope.queue(request.caller, queue)
        among = listed(request.caller.namespaces)
        cancelled = await self._broker.outbox.cancel(queue, transaction_id, among)
        if not cancelled:
            raise NotFound("nothing is scheduled for this queue under this transaction id")
        answer = Cancelled(len(cancelled), queue, transaction_id)
        return Response(200, msgspec.json.encode(answer))


def _message_of(row: Record) -> ScheduledMessage:
    return ScheduledMessage(
        queue=row["queue"],
        partition=row["partition"],
        transaction_id=row["transaction_id"],
        trace_id=row["trace_id"],
        deliver_at=iso(row["deliver_at"]),
        scheduled_at=iso(row["staged_at"]),
        payload_bytes=row["payload_bytes"],
    )
