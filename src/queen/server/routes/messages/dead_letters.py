"""/api/v1/dlq: what groups have given up on, and its way back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import UNSET

from queen.core.columns.headers import headers_of
from queen.core.ids import message_id, partition_uuid
from queen.core.names import DEFAULT_PARTITION, QUEUE_MODE_GROUP
from queen.errors import BadRequest, EncryptionUnavailable, NotFound
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.paging import limit_of, limit_param, page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.admin.dead_letters import MOST_COUNTED, DeadLetterFilter, key_of_error
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.service.stats.reads import QueueFilter
from queen.wire import deadletters as wire
from queen.wire.answers import iso
from queen.wire.paging import Pagination

_decoder = msgspec.json.Decoder(wire.RetryRequest)

_ROOT = "/api/v1/dlq"
# Dead letters that one request may deliver again or remove.
_MAX_MOVED = 100_000
_MAX_ID = 2**62

_FILTER = (
    Param("queue", str, "only this queue"),
    Param("partition", str, "only this partition; needs a queue. Default stands for any"),
    Param("consumerGroup", str, "only this group; __QUEUE_MODE__ for consumers without one"),
    Param("error", str, "only those that died of exactly this"),
    Param(
        "errorKey", str, "the same by the `key` of an error, which is short however long that is"
    ),
    Param("from", str, "died at or after this ISO-8601 time"),
    Param("to", str, "died before this ISO-8601 time"),
)
_ID = (Param("id", str, "The id of a dead letter.", example="40201"),)
_LIST = Doc(
    "dead letters",
    "Dead letters, the latest first",
    query=(
        *_FILTER,
        *page_params(100),
    ),
    answers={200: wire.DeadLetterPage},
)
_ERRORS = Doc(
    "dead letters",
    "How many died of what, the most frequent first",
    "Of the latest 10,000 that match; `more` says whether there are older ones.",
    query=(*_FILTER, limit_param(100)),
    answers={200: wire.DeadLetterErrors},
)
_RETRY = Doc(
    "dead letters",
    "Deliver dead letters again",
    "Each goes back to the end of its partition, for the group that gave it up. It is "
    "removed here in the same transaction. Name ids or a queue.",
    body=wire.RetryRequest,
    answers={200: wire.Retried},
    example={"queue": "orders", "limit": 100},
)
_RETRY_ONE = Doc(
    "dead letters", "Deliver one dead letter again", answers={200: wire.Retried}, path=_ID
)
_PURGE = Doc(
    "dead letters",
    "Remove the dead letters of a queue for good",
    query=(_FILTER[0]._replace(example="orders", required=True), *_FILTER[1:]),
    answers={200: wire.Purged},
)
_DROP = Doc("dead letters", "Remove one dead letter for good", answers={200: wire.Purged}, path=_ID)


class DeadLetterRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._dead_letters = broker.dead_letters

    def routes(self) -> list[Route]:
        return [
            Route("GET", _ROOT, Role.READ, self.page, _LIST, scoped=True),
            Route("GET", _ROOT + "/errors", Role.READ, self.errors, _ERRORS, scoped=True),
            Route("POST", _ROOT + "/retry", Role.WRITE, self.retry, _RETRY, scoped=True),
            Route(
                "POST", _ROOT + "/{id}/retry", Role.WRITE, self.retry_one, _RETRY_ONE, scoped=True
            ),
            Route("DELETE", _ROOT, Role.ADMIN, self.purge, _PURGE, scoped=True),
            Route("DELETE", _ROOT + "/{id}", Role.ADMIN, self.drop, _DROP, scoped=True),
        ]

    async def page(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, 100)
        filter_ = await self._filter(request, _fields(query))
        rows, total = [], 0
        if filter_ is not None:
            rows = await self._dead_letters.page(filter_, limit, offset)
            total = await self._dead_letters.count(filter_)
        is_estimate = total >= MOST_COUNTED
        if filter_ is not None and is_estimate:
            total = max(total, await self._estimate(request, query, filter_))
        answer = wire.DeadLetterPage(
            [self._on_wire(row) for row in rows],
            total,
            limit,
            offset,
            Pagination(limit, offset, total),
            is_estimate,
        )
        return Response(200, msgspec.json.encode(answer))

    async def _estimate(self, request: Request, query: Query, filter_: DeadLetterFilter) -> int:
        """Return how many there were when they were counted last, as far as that can be said."""
        narrowed = (
            filter_.partition_id,
            filter_.group,
            filter_.error,
            filter_.since,
            filter_.until,
        )
        if any(part is not None for part in narrowed):
            return 0
        namespaces = listed(request.caller.namespaces)
        queues = QueueFilter(query.text("queue"), "", "", namespaces)
        row = await self._broker.numbers.sum_queues(queues)
        return int(row["dead_letters"])

    async def errors(self, request: Request) -> Response:
        query = Query(request.query)
        limit = limit_of(query, 100)
        filter_ = await self._filter(request, _fields(query))
        rows = await self._dead_letters.errors(filter_, limit) if filter_ is not None else []
        looked_at = rows[0]["looked_at"] if rows else 0
        answer = wire.DeadLetterErrors(
            [_error(row) for row in rows], looked_at, looked_at >= MOST_COUNTED
        )
        return Response(200, msgspec.json.encode(answer))

    async def retry(self, request: Request) -> Response:
        body = decode_body(_decoder, request.body)
        if not body.ids and not body.queue:
            raise BadRequest("name the dead letters by ids or by queue")
        limit = _MAX_MOVED if body.limit is None else body.limit
        if not 1 <= limit <= _MAX_MOVED:
            raise BadRequest(f"limit must be between 1 and {_MAX_MOVED}")
        fields = msgspec.to_builtins(body)
        filter_ = await self._filter(request, {k: v for k, v in fields.items() if v})
        if filter_ is not None and body.ids:
            filter_ = filter_._replace(ids=[_parse_id(text) for text in body.ids])
        retried = await self._dead_letters.retry(filter_, limit) if filter_ is not None else 0
        target = body.queue or ",".join(body.ids or ())
        await audit(self._broker, request, "deadletters.retry", target, retried=retried)
        return Response(200, msgspec.json.encode(wire.Retried(True, retried)))

    async def retry_one(self, request: Request) -> Response:
        retried = await self._dead_letters.retry(self._only(request), 1)
        if not retried:
            raise NotFound("Dead letter not found")
        await audit(self._broker, request, "deadletters.retry", request.params[0], retried=1)
        return Response(200, msgspec.json.encode(wire.Retried(True, retried)))

    async def purge(self, request: Request) -> Response:
        fields = _fields(Query(request.query))
        if "queue" not in fields:
            raise BadRequest("name the queue whose dead letters are to be removed")
        filter_ = await self._filter(request, fields)
        purged = await self._dead_letters.purge(filter_, _MAX_MOVED) if filter_ is not None else 0
        await audit(self._broker, request, "deadletters.purge", fields["queue"], purged=purged)
        return Response(200, msgspec.json.encode(wire.Purged(True, purged)))

    async def drop(self, request: Request) -> Response:
        if not await self._dead_letters.purge(self._only(request), 1):
            raise NotFound("Dead letter not found")
        await audit(self._broker, request, "deadletters.purge", request.params[0], purged=1)
        return Response(200, msgspec.json.encode(wire.Purged(True, 1)))

    def _only(self, request: Request) -> DeadLetterFilter:
        allowed = listed(request.caller.namespaces)
        return DeadLetterFilter(ids=[_parse_id(request.params[0])], namespaces=allowed)

    async def _filter(self, request: Request, fields: Mapping[str, str]) -> DeadLetterFilter | None:
        """Return what is asked for; None when it names something that does not exist."""
        error = fields.get("error")
        if "errorKey" in fields:
            error = await self._dead_letters.error_of(fields["errorKey"])
            if error is None:
                return None
        filter_ = DeadLetterFilter(
            group=fields.get("consumerGroup"),
            error=error,
            since=_time(fields, "from"),
            until=_time(fields, "to"),
            namespaces=listed(request.caller.namespaces),
        )
        if "queue" not in fields:
            if "partition" in fields:
                raise BadRequest("a partition is named without its queue")
            return filter_
        check_name("queue", fields["queue"])
        queue = await self._broker.scope.queue(request.caller, fields["queue"])
        if queue is None:
            return None
        filter_ = filter_._replace(queue_id=queue.id)
        if "partition" in fields:
            check_name("partition", fields["partition"])
            partition = await self._broker.catalog.partition(queue, fields["partition"])
            if partition is None:
                return None
            filter_ = filter_._replace(partition_id=partition.id)
        return filter_

    def _on_wire(self, row: Record) -> wire.DeadLetter:
        written, failed = iso(row["created_at"]), iso(row["failed_at"])
        payload, headers, unreadable = b"null", None, None
        try:
            payload = self._dead_letters.payload_of(row)
            headers = self._dead_letters.headers_of(row)
        except EncryptionUnavailable as error:
            # One that does not open hides no other of its page.
            unreadable = error.message
        return wire.DeadLetter(
            id=str(row["id"]),
            messageId=message_id(row["partition_id"], row["message_offset"]),
            partitionId=partition_uuid(row["partition_id"]),
            transactionId=row["transaction_id"],
            consumerGroup=_group(row["consumer_group"]),
            errorMessage=row["error"],
            retryCount=row["attempts"],
            data=msgspec.Raw(payload),
            unreadable=unreadable,
            traceId=row["trace_id"],
            producerSub=row["producer_sub"],
            queue=row["queue"],
            queueName=row["queue"],
            namespace=row["namespace"],
            task=row["task"],
            partition=row["partition"],
            partitionName=row["partition"],
            offset=row["message_offset"],
            createdAt=written,
            messageCreatedAt=written,
            originalCreatedAt=written,
            failedAt=failed,
            movedToDlqAt=failed,
            headers=headers_of(headers) or UNSET,
        )


def _fields(query: Query) -> dict[str, str]:
    fields = {param.name: text for param in _FILTER if (text := query.text(param.name))}
    if fields.get("partition") == DEFAULT_PARTITION:
        # The published client sends it when its user has named none.
        del fields["partition"]
    return fields


def _time(fields: Mapping[str, str], name: str) -> datetime | None:
    return parse_time(name, fields[name]) if name in fields else None


def _parse_id(text: str) -> int:
    # Counted first: Python refuses to read a number of thousands of digits.
    short = len(text) <= len(str(_MAX_ID))
    if not (short and text.isascii() and text.isdecimal() and int(text) < _MAX_ID):
        raise NotFound("Dead letter not found")
    return int(text)


def _group(name: str) -> str | None:
    return None if name == QUEUE_MODE_GROUP else name


def _error(row: Record) -> wire.DeadLetterError:
    return wire.DeadLetterError(
        row["queue"],
        _group(row["consumer_group"]),
        row["error"],
        key_of_error(row["error"]),
        row["letters"],
        iso(row["first_at"]),
        iso(row["last_at"]),
    )
