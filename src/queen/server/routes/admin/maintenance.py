"""/api/v1/system/maintenance: hold pushes or pops back on all servers."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from queen.errors import BadRequest, Unavailable
from queen.server.api.audit import audit
from queen.server.api.failures import UNDECODABLE
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response
from queen.service.admin.maintenance import POP, PUSH
from queen.service.broker import Broker
from queen.service.spooling.desk import SpoolNumbers
from queen.wire.admin.maintenance import (
    BufferStats,
    FailedFiles,
    MaintenanceRequest,
    MaintenanceState,
    MaintenanceTurned,
    PopMaintenance,
)

_decoder = msgspec.json.Decoder(MaintenanceRequest)

# What becomes of pushes, with a spool and without one.
_FATE = {True: "Pushes wait in the spool", False: "Pushes are refused"}
_PATH = "/api/v1/system/maintenance"
_POP_PATH = _PATH + "/pop"


class MaintenanceRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        read = Doc("system", "Whether pushes or pops are held back",
                   answers={200: MaintenanceState})  # fmt: skip
        push = Doc("system", "Hold pushes back: they wait in the spools of the servers",
                   body=MaintenanceRequest, answers={200: MaintenanceTurned},
                   example={"enabled": False})  # fmt: skip
        read_pop = Doc("system", "Whether pops are held back", answers={200: PopMaintenance})
        pop = Doc("system", "Hold pops back: every pop is empty at once",
                  body=MaintenanceRequest, answers={200: PopMaintenance},
                  example={"enabled": False})  # fmt: skip
        return [
            Route("GET", _PATH, Role.READ, self.read, read),
            Route("POST", _PATH, Role.ADMIN, self.turn_push, push),
            Route("GET", _POP_PATH, Role.READ, self.read_pop, read_pop),
            Route("POST", _POP_PATH, Role.ADMIN, self.turn_pop, pop),
        ]

    async def read(self, _request: Request) -> Response:
        maintenance = self._broker.maintenance
        # While the database is away, what it said last holds.
        with suppress(Unavailable):
            await maintenance.refresh()
        numbers = await self._broker.spool_desk.numbers()
        stats = BufferStats(
            numbers.records,
            numbers.quarantined,
            not numbers.is_database_away,
            FailedFiles(count=numbers.quarantined),
        )
        answer = MaintenanceState(
            maintenance.pushes_are_held,
            maintenance.pops_are_held,
            numbers.records,
            _is_healthy(numbers),
            stats,
        )
        return Response(200, msgspec.json.encode(answer))

    async def turn_push(self, request: Request) -> Response:
        enabled = _decode_enabled(request.body)
        await self._broker.maintenance.turn(PUSH, enabled)
        await audit(self._broker, request, "maintenance.push", "all", enabled=enabled)
        numbers = await self._broker.spool_desk.numbers()
        message = (
            f"Maintenance mode ENABLED. {_FATE[numbers.is_there]} until it is disabled."
            if enabled
            else "Maintenance mode DISABLED. Pushes are stored again, those that waited first."
        )
        answer = MaintenanceTurned(enabled, numbers.records, _is_healthy(numbers), message)
        return Response(200, msgspec.json.encode(answer))

    async def read_pop(self, _request: Request) -> Response:
        await self._broker.maintenance.refresh()
        return _pop_answer(self._broker.maintenance.pops_are_held)

    async def turn_pop(self, request: Request) -> Response:
        enabled = _decode_enabled(request.body)
        await self._broker.maintenance.turn(POP, enabled)
        await audit(self._broker, request, "maintenance.pop", "all", enabled=enabled)
        return _pop_answer(enabled)


def _is_healthy(numbers: SpoolNumbers) -> bool:
    return numbers.is_there and numbers.problem is None


def _decode_enabled(body: bytes) -> bool:
    try:
        return _decoder.decode(body).enabled
    except UNDECODABLE:
        raise BadRequest("enabled (boolean) is required") from None


def _pop_answer(enabled: bool) -> Response:
    message = (
        "Pop maintenance mode ENABLED. Every pop is empty until it is disabled."
        if enabled
        else "Pop maintenance mode DISABLED. Pops are served."
    )
    return Response(200, msgspec.json.encode(PopMaintenance(enabled, message)))
