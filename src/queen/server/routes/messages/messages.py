"""/api/v1/messages: looking at single messages, and taking them out of the way.

A message is named by its partition and its transaction id, or, in place of that, by its own
id, which is found at once however long the partition is.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from queen.core.columns.headers import HEADERS, headers_of
from queen.core.ids import message_id, parse_message, parse_partition
from queen.core.names import QUEUE_MODE_GROUP, reason_against_name
from queen.errors import BadRequest, Conflict, NotFound
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.message_path import MESSAGE_PATH
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.time_range import RANGE_PARAMS, time_range_of
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.acks.ack_batch import storable
from queen.service.admin.dead_letters import DeadLetterFilter
from queen.service.broker import Broker
from queen.service.catalog import Partition, Queue
from queen.service.log.message import Message
from queen.service.read.browse import BrowsedMessage
from queen.wire import messages as wire
from queen.wire.answers import iso

_move = msgspec.json.Decoder(wire.MoveRequest)

_ROOT = "/api/v1/messages"
_MESSAGE = _ROOT + "/{partition}/{message}"
_CLEAR = "/api/v1/queues/{queue}/clear"
_MAX_OFFSET = 100_000
# A list over several queues reads the newest of each.
_MAX_QUEUES = 200
# How many messages are looked through for those with a status.
_MAX_LOOKED_AT = 10_000
_END = 2**62
# So much of a payload is a preview.
_PREVIEW_BYTES = 240
_LONGEST_TEXT = 255
_TEXT = (
    "only those with this in their payload or transaction id, whatever its case; needs a queue. "
    "The search ends after 10,000 messages or 32 MB"
)
_AT = "only the message with this offset; needs a partition"
_STATUSES = ("pending", "processing", "completed", "dead_letter")


class MessageRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [*self._reading(), *self._changing()]

    def _reading(self) -> list[Route]:
        listed = Doc(
            "messages",
            "Messages, newest first",
            query=(
                Param("queue", str, "only this queue"),
                Param("partition", str, "only this partition; needs a queue"),
                Param("ns", str, "only queues of this namespace"),
                Param("task", str, "only queues of this task"),
                Param("status", str, f"only those that are {', '.join(_STATUSES)}"),
                Param("text", str, _TEXT),
                Param("at", Annotated[int, msgspec.Meta(ge=0, le=_END)], _AT),
                Param("preview", bool, "how each payload begins", False),
                *RANGE_PARAMS,
                *page_params(200, furthest=_MAX_OFFSET),
            ),
            answers={200: wire.MessagePage},
        )
        show = Doc(
            "messages",
            "One message and what became of it",
            answers={200: wire.MessageDetail},
            path=MESSAGE_PATH,
        )
        return [
            Route("GET", _ROOT, Role.READ, self.page, listed, scoped=True),
            Route("GET", _MESSAGE, Role.READ, self.show, show, scoped=True),
        ]

    def _changing(self) -> list[Route]:
        deleted = Doc(
            "messages",
            "Delete one message",
            "Its payload is gone at once and no group is shown it again.",
            answers={200: wire.MessageDeleted},
            path=MESSAGE_PATH,
        )
        retry = Doc(
            "messages",
            "Deliver a message again to the groups that have given it up",
            answers={200: wire.MessageRetried},
            errors=(409,),
            path=MESSAGE_PATH,
        )
        move = Doc(
            "messages",
            "Set a message aside as a dead letter",
            body=wire.MoveRequest,
            body_optional=True,
            answers={200: wire.MessageMoved},
            errors=(409,),
            path=MESSAGE_PATH,
        )
        clear = Doc(
            "queues",
            "Delete all messages of a queue, or of one partition",
            query=(Param("partition", str, "only this partition"),),
            answers={200: wire.QueueCleared},
        )
        return [
            Route("DELETE", _MESSAGE, Role.WRITE, self.delete, deleted, scoped=True),
            Route("POST", _MESSAGE + "/retry", Role.WRITE, self.retry, retry, scoped=True),
            Route("POST", _MESSAGE + "/dlq", Role.WRITE, self.move, move, scoped=True),
            Route("DELETE", _CLEAR, Role.ADMIN, self.clear, clear, scoped=True),
        ]

    # ---- reading ----

    async def page(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, 200, furthest=_MAX_OFFSET)
        status = query.text("status")
        if status and status not in _STATUSES:
            raise BadRequest(f"status {status!r} is not known: {', '.join(_STATUSES)}")
        queues, partition = await self._queues(request, query)
        if query.text("at"):
            return await self._page_at(query, partition)
        time_range = time_range_of(query, await self._broker.clock.now())
        preview = _PREVIEW_BYTES if query.flag("preview") else 0
        reading: dict[str, Any] = {
            "partition": partition,
            "from_time": time_range.start,
            "to_time": time_range.end,
            "payload_bytes": preview,
        }
        looked_at = None
        if query.text("text"):
            most = _MAX_LOOKED_AT if status else offset + limit
            messages, looked_at = await self._search(query, queues, most, reading)
        elif len(queues) == 1 and not status:
            newest = self._broker.browser.newest
            messages = await newest(queues[0], limit=limit, offset=offset, **reading)
            return _page(messages, messages, preview)
        else:
            # What does not have the status is skipped, so that many more are looked at.
            most = _MAX_LOOKED_AT if status else offset + limit
            newest = self._broker.browser.newest
            messages = [
                message
                for queue in queues
                for message in await newest(queue, limit=most, **reading)
            ]
        messages = [message for message in messages if status in ("", message.status)]
        messages.sort(key=lambda message: message.created_at, reverse=True)
        return _page(messages[offset : offset + limit], messages, preview, looked_at)

    async def _search(
        self, query: Query, queues: list[Queue], most: int, reading: dict[str, Any]
    ) -> tuple[list[BrowsedMessage], int]:
        text = query.text("text")
        if not query.text("queue"):
            raise BadRequest("a text is searched for in one queue; name it")
        if len(text) > _LONGEST_TEXT:
            raise BadRequest(f"query parameter 'text' has at most {_LONGEST_TEXT} characters")
        if not queues:
            return [], 0
        return await self._broker.browser.containing(queues[0], text, limit=most, **reading)

    async def _page_at(self, query: Query, partition: Partition | None) -> Response:
        offset = query.number("at", 0, 0, _END)
        if not query.text("partition"):
            raise BadRequest("an offset is named without its partition")
        message = None if partition is None else await self._broker.browser.at(partition, offset)
        messages = [] if message is None else [message]
        preview = _PREVIEW_BYTES if query.flag("preview") else 0
        return _page(messages, messages, preview)

    async def _queues(self, request: Request, query: Query) -> tuple[list[Queue], Partition | None]:
        """Return the queues that a list is about, and the partition if there is one."""
        for kind, name in (("queue", "queue"), ("partition", "partition"), ("namespace", "ns")):
            if query.text(name):
                check_name(kind, query.text(name))
        if not query.text("queue"):
            if query.text("partition"):
                raise BadRequest("a partition is named without its queue")
            labelled = await self._broker.catalog.queues_by_label(
                query.text("ns"), query.text("task")
            )
            visible = [queue for queue in labelled if request.caller.sees(queue.namespace)]
            return visible[:_MAX_QUEUES], None
        queue = await self._broker.scope.queue(request.caller, query.text("queue"))
        if queue is None:
            return [], None
        if not query.text("partition"):
            return [queue], None
        partition = await self._broker.catalog.partition(queue, query.text("partition"))
        return ([queue] if partition is not None else []), partition

    async def show(self, request: Request) -> Response:
        partition, message = await self._find(request)
        browsed = await self._broker.browser.at(partition, message.offset)
        if browsed is None:
            raise NotFound("Message not found")
        return Response(200, msgspec.json.encode(_detail(browsed)))

    async def _find(self, request: Request) -> tuple[Partition, Message]:
        """Return the message that a path names."""
        place, name = request.params
        partition_id = parse_partition(place)
        partition = None
        if partition_id is not None:
            partitions = await self._broker.scope.partitions(request.caller, [partition_id])
            partition = partitions.get(partition_id)
        if partition is None:
            raise NotFound("Message not found")
        lookup, parsed = self._broker.message_finder, parse_message(name)
        message = None
        if parsed is not None and parsed[0] == partition_id:
            message = await lookup.at(partition, parsed[1])
        if message is None:
            message = await lookup.by_transaction_id(partition, name)
        if message is None:
            raise NotFound("Message not found")
        return partition, message

    # ---- changing ----

    async def delete(self, request: Request) -> Response:
        partition, message = await self._find(request)
        if not await self._broker.eraser.delete(partition, message.offset):
            raise NotFound("Message not found")
        await audit(self._broker, request, "message.delete", "/".join(request.params))
        answer = wire.MessageDeleted(True, "Message deleted successfully", *request.params)
        return Response(200, msgspec.json.encode(answer))

    async def retry(self, request: Request) -> Response:
        partition, message = await self._find(request)
        rows = await self._broker.dead_letters.of_message(partition.id, message.offset)
        if not rows:
            raise Conflict(
                "no group has given the message up; to read it again, seek the group back"
            )
        filter_ = DeadLetterFilter(ids=[row["id"] for row in rows])
        retried = await self._broker.dead_letters.retry(filter_, len(rows))
        await audit(self._broker, request, "message.retry", "/".join(request.params))
        answer = wire.MessageRetried(True, retried, *request.params)
        return Response(200, msgspec.json.encode(answer))

    async def move(self, request: Request) -> Response:
        body = decode_body(_move, request.body or b"{}")
        if body.consumer_group:
            reason = reason_against_name("consumer group", body.consumer_group)
            if reason:
                raise BadRequest(reason)
        partition, message = await self._find(request)
        error = storable(body.error) if body.error else None
        groups = await self._broker.dead_letters.move(
            partition, message, body.consumer_group, error
        )
        if not groups:
            raise Conflict("no group has the message still to do")
        target = "/".join(request.params)
        await audit(self._broker, request, "message.dlq", target, groups=groups)
        answer = wire.MessageMoved(True, len(groups), groups, *request.params)
        return Response(200, msgspec.json.encode(answer))

    async def clear(self, request: Request) -> Response:
        name = request.params[0]
        check_name("queue", name)
        queue = await self._broker.scope.existing_queue(request.caller, name)
        partition = None
        partition_name = Query(request.query).text("partition")
        if partition_name:
            check_name("partition", partition_name)
            partition = await self._broker.catalog.partition(queue, partition_name)
            if partition is None:
                raise NotFound("Partition not found")
        removed = await self._broker.eraser.clear(queue, partition)
        await audit(
            self._broker, request, "queue.clear", name, partition=partition_name, removed=removed
        )
        answer = wire.QueueCleared(True, True, name, partition_name or None, removed)
        return Response(200, msgspec.json.encode(answer))


def _page(
    shown: list[BrowsedMessage],
    messages: list[BrowsedMessage],
    preview: int,
    looked_at: int | None = None,
) -> Response:
    entries = [_entry(message, preview) for message in shown]
    return Response(200, msgspec.json.encode(wire.MessagePage(entries, _mode(messages), looked_at)))


def _mode(messages: list[BrowsedMessage]) -> wire.Mode:
    names = {group.group for message in messages for group in message.groups}
    bus = len(names - {QUEUE_MODE_GROUP})
    return wire.Mode(QUEUE_MODE_GROUP in names, bus, _mode_type(QUEUE_MODE_GROUP in names, bus))


def _mode_type(queue_mode: bool, bus_groups: int) -> str:
    if queue_mode:
        return "hybrid" if bus_groups else "queue"
    return "bus" if bus_groups else "none"


def _fields(message: BrowsedMessage) -> dict[str, object]:
    partition, queue = message.partition, message.partition.queue
    return {
        "id": message_id(partition.id, message.offset),
        "transaction_id": message.transaction_id,
        "partition_id": partition.uuid,
        "queue_path": f"{queue.name}/{partition.name}",
        "queue": queue.name,
        "partition": partition.name,
        "namespace": queue.namespace,
        "task": queue.task,
        "offset": message.offset,
        "status": message.status,
        "queue_status": message.queue_status,
        "bus_status": wire.BusStatus(message.consumed_by, message.bus_groups),
        "trace_id": message.column("traceId"),
        "producer_sub": message.column("producerSub"),
        "queue_priority": queue.options.priority,
        "created_at": iso(message.created_at),
        "lease_expires_at": iso(message.lease_until) if message.lease_until else None,
        "unreadable": message.unreadable,
    }


def _entry(message: BrowsedMessage, preview: int) -> wire.ListedMessage:
    # A character that the end of the preview has cut in two is left out.
    begins = message.payload[:preview].decode(errors="ignore") if preview else None
    return wire.ListedMessage(
        **_fields(message),  # type: ignore[arg-type]
        preview=begins,
        headers=headers_of(message.column(HEADERS)),
    )


def _detail(message: BrowsedMessage) -> wire.MessageDetail:
    options = message.partition.queue.options
    mode = _mode([message])
    payload = msgspec.Raw(message.payload)
    errors = [group.error for group in message.groups if group.error]
    return wire.MessageDetail(
        **_fields(message),  # type: ignore[arg-type]
        mode=wire.DetailMode(
            mode.has_queue_mode, mode.bus_groups_count, mode.type, message.consumed_by
        ),
        error_message=errors[0] if errors else None,
        retry_count=message.retry_count,
        queue_config=wire.MessageConfig(
            options.lease_time,
            options.retry_limit,
            options.retry_delay,
            options.ttl,
            options.priority,
        ),
        is_encrypted=options.encryption_enabled,
        consumer_groups=[
            wire.GroupStanding(
                group.group,
                group.status,
                group.status in ("completed", "dead_letter"),
                iso(group.lease_until) if group.lease_until else None,
                group.retry_count,
                group.error,
                group.consumer,
                group.attempt,
            )
            for group in message.groups
        ],
        payload=payload,
        data=payload,
        headers=headers_of(message.column(HEADERS)),
    )
