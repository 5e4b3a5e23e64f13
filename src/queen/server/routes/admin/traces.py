"""/api/v1/traces: what consumers tell about messages on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from queen.core.ids import parse_partition, partition_uuid
from queen.core.names import (
    QUEUE_MODE_GROUP,
    reason_against_name,
    reason_against_transaction_id,
)
from queen.core.payload import reason_against_payload
from queen.errors import BadRequest, NotFound
from queen.server.api.failures import decode_body
from queen.server.api.message_path import MESSAGE_PATH
from queen.server.api.paging import MAX_LIMIT, page_of, page_params
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.catalog import Partition
from queen.service.rows import Record
from queen.service.scope import listed
from queen.wire.admin import traces as wire
from queen.wire.answers import iso
from queen.wire.paging import Pagination

_decoder = msgspec.json.Decoder(wire.TraceRequest)

MAX_DATA_BYTES = 256 * 1024
MAX_NAMES = 100

_NULL = msgspec.Raw(b"null")


class TraceRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        record = Doc(
            "traces",
            "Record an event of a message",
            body=wire.TraceRequest,
            answers={201: wire.TraceRecorded},
            example={
                "transactionId": "order-1042",
                "partitionId": "00000000-0000-8007-bfff-ffffffffffff",
                "data": {"text": "card charged"},
                "traceNames": ["checkout-1042"],
            },
        )
        names = Doc(
            "traces", "Names, the last used first", query=page_params(50),
            answers={200: wire.TraceNames},
        )  # fmt: skip
        by_name = Doc(
            "traces", "The events that carry a name, oldest first", query=page_params(100),
            answers={200: wire.NamedTraces},
        )  # fmt: skip
        of_message = Doc(
            "traces", "The events of a message, oldest first", query=page_params(MAX_LIMIT),
            answers={200: wire.Traces}, path=MESSAGE_PATH,
        )  # fmt: skip
        root = "/api/v1/traces"
        return [
            Route("POST", root, Role.WRITE, self.record, record, scoped=True),
            Route("GET", root + "/names", Role.READ, self.names, names, scoped=True),
            Route("GET", root + "/by-name/{name}", Role.READ, self.by_name, by_name, scoped=True),
            Route(
                "GET",
                root + "/{partition}/{message}",
                Role.READ,
                self.of_message,
                of_message,
                scoped=True,
            ),
        ]

    async def record(self, request: Request) -> Response:
        event = decode_body(_decoder, request.body)
        if not event.transactionId or not event.partitionId:
            raise BadRequest("transactionId and partitionId are required")
        if event.data is msgspec.UNSET or not event.data:
            raise BadRequest("data is required")
        data = bytes(event.data)
        group = event.consumerGroup or QUEUE_MODE_GROUP
        kind = event.eventType or "info"
        names = _names_of(event.traceNames)
        reason = (
            reason_against_transaction_id(event.transactionId)
            or reason_against_name("consumer group", group)
            or reason_against_name("event type", kind)
            or _reason_against_data(data)
        )
        if reason:
            raise BadRequest(reason)
        partition = await self._partition(request, event.partitionId)
        made = await self._broker.traces.record(
            partition, event.transactionId, group, kind, data.decode(), names
        )
        return Response(201, msgspec.json.encode(wire.TraceRecorded(True, str(made))))

    async def of_message(self, request: Request) -> Response:
        partition_id, transaction_id = request.params
        limit, offset = page_of(Query(request.query), MAX_LIMIT)
        reason = reason_against_transaction_id(transaction_id)
        if reason:
            raise BadRequest(reason)
        partition = await self._partition(request, partition_id)
        rows, total = await self._broker.traces.of_message(partition, transaction_id, limit, offset)
        traces = [wire.Trace(**_common(row)) for row in rows]
        return _page_of(wire.Traces, traces, total, limit, offset)

    async def by_name(self, request: Request) -> Response:
        (name,) = request.params
        check_name("trace", name)
        limit, offset = page_of(Query(request.query), 100)
        among = listed(request.caller.namespaces)
        rows, total = await self._broker.traces.by_name(name, limit, offset, among)
        ids = [row["partition_id"] for row in rows]
        partitions = await self._broker.scope.partitions(request.caller, ids)
        payloads = await self._payloads(rows, partitions)
        traces = [
            wire.NamedTrace(
                **_common(row),
                transaction_id=row["transaction_id"],
                partition_id=partition_uuid(row["partition_id"]),
                message_payload=payloads[row["partition_id"], row["transaction_id"]],
                queue_name=partitions[row["partition_id"]].queue.name,
                partition_name=partitions[row["partition_id"]].name,
            )
            for row in rows
            # A queue may be deleted while we look.
            if row["partition_id"] in partitions
        ]
        return _page_of(wire.NamedTraces, traces, total, limit, offset)

    async def names(self, request: Request) -> Response:
        limit, offset = page_of(Query(request.query), 50)
        rows = await self._broker.traces.names(limit, offset, listed(request.caller.namespaces))
        names = [
            wire.TraceName(row["name"], row["events"], row["messages"], iso(row["last_seen"]))
            for row in rows
        ]
        total = rows[0]["total"] if rows else 0
        page = Pagination(limit, offset, total)
        answer = wire.TraceNames(names, len(names), total, limit, offset, page)
        return Response(200, msgspec.json.encode(answer))

    async def _partition(self, request: Request, text: str) -> Partition:
        partition_id = parse_partition(text)
        partitions: dict[int, Partition] = {}
        if partition_id is not None:
            partitions = await self._broker.scope.partitions(request.caller, [partition_id])
        if not partitions:
            raise NotFound("Partition not found")
        return next(iter(partitions.values()))

    async def _payloads(
        self, rows: list[Record], partitions: dict[int, Partition]
    ) -> dict[tuple[int, str], msgspec.Raw]:
        """Return the payload of each message that is still there, and null for the others."""
        payloads: dict[tuple[int, str], msgspec.Raw] = {}
        for row in rows:
            key = (row["partition_id"], row["transaction_id"])
            if key in payloads or key[0] not in partitions:
                continue
            message = await self._broker.message_finder.by_transaction_id(
                partitions[key[0]], key[1]
            )
            payloads[key] = msgspec.Raw(message.payload) if message is not None else _NULL
        return payloads


def _names_of(sent: str | list[str | None] | None) -> list[str]:
    """Return the names of an event, each once; empty ones are dropped."""
    names = [sent] if isinstance(sent, str) else sent or []
    kept = list(dict.fromkeys(name for name in names if name))
    if len(kept) > MAX_NAMES:
        raise BadRequest(f"traceNames has more than {MAX_NAMES} names")
    for name in kept:
        reason = reason_against_name("trace", name)
        if reason:
            raise BadRequest(f"traceNames: {reason}")
    return kept


def _reason_against_data(data: bytes) -> str | None:
    if len(data) > MAX_DATA_BYTES:
        return f"data is larger than {MAX_DATA_BYTES} bytes"
    reason = reason_against_payload(data)
    return reason.replace("payload", "data", 1) if reason else None


def _common(row: Record) -> dict[str, Any]:
    return {
        "id": str(row["id"]),
        "event_type": row["event_type"],
        "data": msgspec.Raw(row["data"].encode()),
        "consumer_group": row["consumer_group"],
        "worker_id": None,
        "created_at": iso(row["created_at"]),
        "trace_names": row["names"],
    }


def _page_of(
    shape: type[wire.Traces] | type[wire.NamedTraces],
    traces: Sequence[Any],
    total: int,
    limit: int,
    offset: int,
) -> Response:
    page = Pagination(limit, offset, total)
    answer = shape(list(traces), len(traces), total, limit, offset, page)
    return Response(200, msgspec.json.encode(answer))
