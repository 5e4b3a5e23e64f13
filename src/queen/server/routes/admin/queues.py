"""Queues: configure, look at their options, change some of them, and delete."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.core.names import labels_of, reason_against_name
from queen.core.options import (
    MAX_SECONDS,
    QueueOptions,
    describe_options,
    named_options,
    parse_options,
    reason_against_options,
)
from queen.errors import BadRequest, NotFound
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Param, Route
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.admin.queues import Configuration, QueueChange
from queen.service.broker import Broker
from queen.wire.requests import (
    AlterQueueRequest,
    ConfigureRequest,
    QueueChanges,
    QueueConfiguration,
)
from queen.wire.results import (
    AlterQueueAnswer,
    ConfigureAnswer,
    DeleteQueueAnswer,
    OlderMessages,
    OptionChange,
    QueueOptionsAnswer,
)

_decoder = msgspec.json.Decoder(ConfigureRequest)
_alter_decoder = msgspec.json.Decoder(AlterQueueRequest)

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
_OPTIONS_PATH = "/api/v1/resources/queues/{queue}/options"
_OLDER_PATH = "/api/v1/resources/queues/{queue}/older"
_OPTIONS = Doc(
    "queues",
    "All options of a queue",
    "Each with its value, its default, whether somebody has set it, what it means and what it "
    "may be. An option that was not set follows the default.",
    answers={200: QueueOptionsAnswer},
)
_ALTER = Doc(
    "queues",
    "Change some options of a queue",
    "Whatever is not named stays as it is; two who change different options at once both get "
    "theirs. A null option goes back to its default. Encryption and labels go only when that is "
    "said: `encryptionEnabled: false`, and an empty namespace or task.",
    body=QueueChanges,
    answers={200: AlterQueueAnswer, 201: AlterQueueAnswer},
    example={"options": {"leaseTime": 60, "retryLimit": 5}},
    errors=(404, 409),
)
_OLDER = Doc(
    "queues",
    "How many messages are older than some seconds",
    "What a retention of so many seconds would remove now, read or not; of merged segments within "
    "ten minutes.",
    query=(Param("seconds", int, "written longer ago than this", required=True, example="3600"),),
    answers={200: OlderMessages},
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
            Route("GET", _OPTIONS_PATH, Role.READ, self.options, _OPTIONS, scoped=True),
            Route("PATCH", _OPTIONS_PATH, Role.WRITE, self.alter, _ALTER, scoped=True),
            Route("GET", _OLDER_PATH, Role.READ, self.older, _OLDER, scoped=True),
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
        named = _named_of(sent.options or {})
        options = parse_options(named)
        namespace = await self._namespace_for(request.caller, sent)
        task = sent.task or ""
        queue_id, partition = await self._broker.queues.configure(
            sent.queue, namespace, task, named
        )
        ready = await self._dedup_ready(queue_id, options)
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

    async def _dedup_ready(self, queue_id: int, options: QueueOptions) -> bool:
        return options.dedup != "forever" or await self._broker.indexer.wait_until_complete(
            queue_id, _INDEX_WAIT_S
        )

    async def options(self, request: Request) -> Response:
        """All options of a queue, each with what it may be."""
        name = request.params[0]
        check_name("queue", name)
        await self._broker.scope.existing_queue(request.caller, name)
        stored = await self._broker.queues.stored(name)
        if stored is None:
            raise NotFound(f"Queue {name!r} not found")
        configuration = stored.configuration
        answer = QueueOptionsAnswer(
            queue=name,
            namespace=configuration.namespace,
            task=configuration.task,
            revision=stored.revision,
            options=describe_options(configuration.named),
        )
        return Response(200, msgspec.json.encode(answer))

    async def older(self, request: Request) -> Response:
        """How many messages an option that removes by age would meet now."""
        name = request.params[0]
        check_name("queue", name)
        seconds = Query(request.query).number("seconds", 0, 0, MAX_SECONDS)
        queue = await self._broker.scope.existing_queue(request.caller, name)
        messages, is_cut = await self._broker.queues.count_older(queue.id, seconds)
        return Response(200, msgspec.json.encode(OlderMessages(name, seconds, messages, is_cut)))

    async def alter(self, request: Request) -> Response:
        """Change what is named of a queue, and leave the rest."""
        name = request.params[0]
        check_name("queue", name)
        sent = decode_body(_alter_decoder, request.body)
        _check_labels(namespace=sent.namespace, task=sent.task)
        change = await self._within_reach(request.caller, name, _change_of(sent))
        altered = await self._broker.queues.alter(name, change)
        changed = _changes(altered.before, altered.now)
        options = parse_options(altered.now.named)
        ready = await self._dedup_ready(altered.id, options)
        detail = {change.name: [change.before, change.now] for change in changed}
        await audit(
            self._broker, request, "queue.alter", name, created=altered.is_new, changed=detail
        )
        answer = AlterQueueAnswer(
            configured=True,
            queue=name,
            namespace=altered.now.namespace,
            task=altered.now.task,
            options=options,
            queueId=altered.id,
            partitionId=altered.partition.uuid,
            dedupReady=ready,
            created=altered.is_new,
            revision=altered.revision,
            changed=changed,
        )
        return Response(201 if altered.is_new else 200, msgspec.json.encode(answer))

    async def _within_reach(self, caller: Caller, name: str, change: QueueChange) -> QueueChange:
        """Return a change that a limited caller may make; a queue it creates gets a namespace of
        its own."""
        queue = await self._broker.scope.queue(caller, name)
        if caller.namespaces is None:
            return change
        if queue is None and not change.namespace:
            change = change._replace(namespace=labels_of(name)[0])
        if change.namespace is not None and not caller.sees(change.namespace):
            raise NotFound(f"Namespace {change.namespace!r} not found")
        return change

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
    if reason:
        raise BadRequest(reason)
    _check_labels(namespace=sent.namespace, task=sent.task)
    return sent


def _check_labels(**labels: str | None) -> None:
    for kind, label in labels.items():
        reason = reason_against_name(kind, label) if label else None
        if reason:
            raise BadRequest(reason)


def _named_of(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a request names; raises `BadRequest` for one that makes no sense."""
    reason = reason_against_options(raw)
    if reason:
        raise BadRequest(reason)
    return named_options(raw)


def _change_of(sent: AlterQueueRequest) -> QueueChange:
    raw = sent.options or {}
    unset = sorted(name for name, value in raw.items() if value is None)
    if "encryptionEnabled" in unset:
        raise BadRequest("encryptionEnabled: say false to take encryption off, null does not")
    return QueueChange(
        namespace=sent.namespace,
        task=sent.task,
        named=_named_of(raw),
        unset=unset,
        create=sent.create,
        revision=sent.revision,
    )


def _changes(before: Configuration, now: Configuration) -> list[OptionChange]:
    """Return what is different, labels first."""
    old, new = _flat(before), _flat(now)
    return [OptionChange(name, old[name], new[name]) for name in new if old[name] != new[name]]


def _flat(configuration: Configuration) -> dict[str, Any]:
    options = msgspec.to_builtins(parse_options(configuration.named))
    return {"namespace": configuration.namespace, "task": configuration.task, **options}
