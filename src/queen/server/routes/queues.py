"""Queues: configure and delete."""

from __future__ import annotations

import msgspec

from queen.core.names import reason_against_name
from queen.core.options import QueueOptions, parse_options, reason_against_options
from queen.errors import BadRequest
from queen.server.access import Role
from queen.server.failures import decoded
from queen.server.http import Request, Response, check_name
from queen.server.routing import Route
from queen.service.broker import Broker
from queen.wire.requests import ConfigureRequest

_decoder = msgspec.json.Decoder(ConfigureRequest)


class QueueRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/v1/configure", Role.WRITE, self.configure),
            Route("DELETE", "/api/v1/resources/queues/{queue}", Role.ADMIN, self.delete),
        ]

    async def configure(self, request: Request) -> Response:
        """Create a queue or overwrite its configuration; an omitted option has its default."""
        wanted = _decode(request.body)
        options = _options_of(wanted)
        namespace, task = wanted.namespace or "", wanted.task or ""
        queue_id, partition = await self._broker.configure(wanted.queue, namespace, task, options)
        answer = {
            "configured": True,
            "queue": wanted.queue,
            "namespace": namespace,
            "task": task,
            "options": options,
            "queueId": queue_id,
            "partitionId": partition.uuid,
        }
        return Response(201, msgspec.json.encode(answer))

    async def delete(self, request: Request) -> Response:
        name = request.params[0]
        check_name("queue", name)
        existed = await self._broker.delete_queue(name)
        answer = {"deleted": True, "queue": name, "existed": existed}
        return Response(200, msgspec.json.encode(answer))


def _decode(body: bytes) -> ConfigureRequest:
    wanted = decoded(_decoder, body)
    reason = reason_against_name("queue", wanted.queue)
    for kind, label in (("namespace", wanted.namespace), ("task", wanted.task)):
        if reason is None and label:
            reason = reason_against_name(kind, label)
    if reason:
        raise BadRequest(reason)
    return wanted


def _options_of(wanted: ConfigureRequest) -> QueueOptions:
    raw = wanted.options or {}
    reason = reason_against_options(raw)
    if reason:
        raise BadRequest(reason)
    try:
        return parse_options(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"options: {error}") from None
