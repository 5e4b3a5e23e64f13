"""/api/v1/spool: what waits in files beside the server, and what could not be stored."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from queen.errors import BadRequest
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response
from queen.service.broker import Broker
from queen.service.spooling.desk import QuarantinedRecord
from queen.wire.admin import spool as wire
from queen.wire.answers import iso

_TAG = "spool"
_PATH = "/api/v1/spool"
_SHOWN_IDS = 100
_choice = msgspec.json.Decoder(wire.ChooseRecords)

_STATE = Doc(
    _TAG,
    "What waits in the spool",
    "Pushes wait there because they asked to, or because the database is away. Each process of a "
    "server has a spool of its own; this is the one of the process that answers.",
    answers={200: wire.SpoolState},
)
_QUARANTINE = Doc(
    _TAG,
    "Records that can never be stored, with the reasons",
    query=(
        *page_params(100),
        Param("payloads", bool, "Show what the messages hold, too.", False),
    ),
    answers={200: wire.QuarantinePage},
)
_RETRY = Doc(
    _TAG,
    "Spool such records again, behind what waits",
    body=wire.ChooseRecords,
    body_optional=True,
    answers={200: wire.SettledRecords},
    errors=(404,),
)
_DROP = Doc(
    _TAG,
    "Forget such records for good",
    body=wire.ChooseRecords,
    body_optional=True,
    answers={200: wire.SettledRecords},
    errors=(404,),
)


class SpoolRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        quarantine = f"{_PATH}/quarantine"
        return [
            Route("GET", _PATH, Role.READ, self.state, _STATE),
            # Messages of all queues: nobody who may see only some of them.
            Route("GET", quarantine, Role.ADMIN, self.quarantine, _QUARANTINE),
            Route("POST", f"{quarantine}/retry", Role.ADMIN, self.retry, _RETRY),
            Route("POST", f"{quarantine}/drop", Role.ADMIN, self.drop, _DROP),
        ]

    async def state(self, _request: Request) -> Response:
        numbers = await self._broker.spool_desk.numbers()
        answer = wire.SpoolState(
            enabled=numbers.is_there,
            worker=self._broker.activity.name.worker,
            database="away" if numbers.is_database_away else "connected",
            outages=numbers.outages,
            records=numbers.records,
            counted=numbers.is_counted,
            bytes=numbers.bytes,
            files=numbers.files,
            oldest_at=None if numbers.oldest_at_ms is None else _iso_ms(numbers.oldest_at_ms),
            waiting=numbers.waiting,
            quarantined=numbers.quarantined,
            damaged=numbers.damaged,
            buffered_messages=numbers.buffered_messages,
            failover_messages=numbers.failover_messages,
            drained_messages=numbers.drained_messages,
            batches=numbers.batches,
            last_batch_records=numbers.last_batch_records,
            problem=numbers.problem or self._reason_to_wait(),
        )
        return Response(200, msgspec.json.encode(answer))

    def _reason_to_wait(self) -> str | None:
        is_held = self._broker.maintenance.pushes_are_held
        return "pushes are held back: maintenance is on" if is_held else None

    async def quarantine(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, 100)
        records = await self._broker.spool_desk.quarantined(limit, offset)
        rendered = [_rendered(record, query.flag("payloads")) for record in records]
        answer = wire.QuarantinePage(rendered, self._broker.activity.name.worker)
        return Response(200, msgspec.json.encode(answer))

    async def retry(self, request: Request) -> Response:
        count = await self._broker.spool_desk.retry(_chosen(request))
        await audit(self._broker, request, "spool.retry", "quarantine", records=count)
        return Response(200, msgspec.json.encode(wire.SettledRecords(count)))

    async def drop(self, request: Request) -> Response:
        count = await self._broker.spool_desk.drop(_chosen(request))
        await audit(self._broker, request, "spool.drop", "quarantine", records=count)
        return Response(200, msgspec.json.encode(wire.SettledRecords(count)))


def _chosen(request: Request) -> list[tuple[UUID, int]] | None:
    """Return the records that a request names; None when it names none, which means all."""
    ids = decode_body(_choice, request.body).ids if request.body else None
    return None if ids is None else [_parse(record_id) for record_id in ids]


def _parse(record_id: str) -> tuple[UUID, int]:
    spool, _, seq = record_id.partition(":")
    try:
        return UUID(spool), int(seq)
    except ValueError:
        raise BadRequest(f"{record_id[:80]!r} is no id of a record") from None


def _rendered(record: QuarantinedRecord, with_payloads: bool) -> wire.QuarantinedRecord:
    refused, append = record.refused, record.append
    rendered = wire.QuarantinedRecord(
        id=f"{record.spool_id}:{refused.seq}",
        reason=refused.reason,
        spooled_at=_iso_ms(refused.at_ms),
        refused_at=_iso_ms(refused.refused_at_ms),
        bytes=refused.size_bytes,
    )
    if append is not None:
        rendered.queue, rendered.partition = append.queue, append.partition
        rendered.messages = len(append)
        rendered.transaction_ids = [bytes(each).decode() for each in append.ids[:_SHOWN_IDS]]
        if with_payloads:
            shown = range(min(len(append), _SHOWN_IDS))
            rendered.payloads = [msgspec.Raw(append.body_of(at)) for at in shown]
    return rendered


def _iso_ms(at_ms: int) -> str:
    return iso(datetime.fromtimestamp(at_ms / 1000, UTC))
