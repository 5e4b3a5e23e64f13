"""Queues: configure and delete."""

from __future__ import annotations

import msgspec

from queen.core.names import labels_of, reason_against_name
from queen.core.options import QueueOptions, parse_options, reason_against_options
from queen.errors import BadRequest, NotFound
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import Request, Response, check_name
from queen.service.broker import Broker
from queen.wire.requests import ConfigureRequest, QueueConfiguration
from queen.wire.results import ConfigureAnswer, DeleteQueueAnswer

_decoder = msgspec.json.Decoder(ConfigureRequest)

_CONFIGURE = Doc(
    "queues",
    "Create a queue, or overwrite its configuration",
    "An option that is left out, or null, has its default, not what it was before.",
    body=QueueConfiguration,
    answers={201: ConfigureAnswer},
    example={
        "queue": "orders",
        "namespace": "shop",
        "task": "billing",
        "options": {"leaseTime": 60, "retryLimit": 5},
    },
)
# How long a configuration waits for the index of `dedup: forever`; the rest is built without it.
_INDEX_WAIT_S = 20.0
_DELETE = Doc(
    "queues",
    "Delete a queue with everything in it",
    "Partitions, messages, cursors and dead letters go with it.",
    answers={200: DeleteQueueAnswer},
)


class QueueRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/v1/configure", Role.WRITE, self.configure, _CONFIGURE, scoped=True),
            Route(
                "DELETE",
                "/api/v1/resources/queues/{queue}",
                Role.ADMIN,
                self.delete,
                _DELETE,
                scoped=True,
            ),
        ]

    async def configure(self, request: Request) -> Response:
        """Create a queue or overwrite its configuration; an omitted option has its default."""
        sent = _decode_configuration(request.body)
        options = _options_of(sent)
        namespace = await self._namespace_for(request.caller, sent)
        task = sent.task or ""
        queue_id, partition = await self._broker.queues.configure(
            sent.queue, namespace, task, options
        )
        ready = options.dedup != "forever" or await self._broker.indexer.wait_until_complete(
            queue_id, _INDEX_WAIT_S
        )
        await audit(self._broker, request, "queue.configure", sent.queue, namespace=namespace)
        answer = ConfigureAnswer(
            configured=True,
            queue=sent.queue,
            namespace=namespace,
            task=task,
            options=options,
            queueId=queue_id,
            partitionId=partition.uuid,
            dedupReady=ready,
        )
        return Response(201, msgspec.json.encode(answer))

    async def _namespace_for(self, caller: Caller, sent: ConfigureRequest) -> str:
        """Return the namespace that a queue is to have; a limited caller gives it its own."""
        if caller.namespaces is None:
            return sent.namespace or ""
        queue = await self._broker.scope.queue(caller, sent.queue)
        default = labels_of(sent.queue)[0] if queue is None else queue.namespace
        namespace = sent.namespace or default
        if not caller.sees(namespace):
            raise NotFound(f"Namespace {namespace!r} not found")
        return namespace

    async def delete(self, request: Request) -> Response:
        name = request.params[0]
        check_name("queue", name)
        await self._broker.scope.queue(request.caller, name)
        existed = await self._broker.queues.delete(name)
        await audit(self._broker, request, "queue.delete", name, existed=existed)
        answer = DeleteQueueAnswer(deleted=True, queue=name, existed=existed)
        return Response(200, msgspec.json.encode(answer))


def _decode_configuration(body: bytes) -> ConfigureRequest:
    sent = decode_body(_decoder, body)
    reason = reason_against_name("queue", sent.queue)
    for kind, label in (("namespace", sent.namespace), ("task", sent.task)):
        if reason is None and label:
            reason = reason_against_name(kind, label)
    if reason:
        raise BadRequest(reason)
    return sent


def _options_of(sent: ConfigureRequest) -> QueueOptions:
    raw = sent.options or {}
    reason = reason_against_options(raw)
    if reason:
        raise BadRequest(reason)
    try:
        return parse_options(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"options: {error}") from None
