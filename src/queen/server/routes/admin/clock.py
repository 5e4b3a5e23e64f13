"""/api/v1/test/advance: let time pass. Only a server with `--test-clock` has it."""

from __future__ import annotations

import msgspec

from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response, check_name
from queen.service.broker import Broker
from queen.wire.admin.clock import Advanced, AdvanceRequest

_decoder = msgspec.json.Decoder(AdvanceRequest)


class ClockRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        advance = Doc(
            "test",
            "Let time pass for a queue, or for all",
            "Every stored instant moves into the past: delays are over, leases have lapsed, "
            "messages are old. Only servers started with `--test-clock` have this.",
            body=AdvanceRequest,
            answers={200: Advanced},
            example={"seconds": 60, "queue": "orders"},
        )
        return [Route("POST", "/api/v1/test/advance", Role.ADMIN, self.advance, advance)]

    async def advance(self, request: Request) -> Response:
        sent = decode_body(_decoder, request.body)
        if sent.queue is not None:
            check_name("queue", sent.queue)
        queues = await self._broker.time_steps.advance(sent.seconds, sent.queue)
        await audit(
            self._broker, request, "clock.advance", sent.queue or "all", seconds=sent.seconds
        )
        return Response(200, msgspec.json.encode(Advanced(True, sent.seconds, queues)))
