"""POST …/seek: move a group to a time, an offset, the beginning or the end."""

from __future__ import annotations

import msgspec

from queen.errors import BadRequest, NotFound
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Route
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response, check_name
from queen.service.admin.groups import BEGINNING, END, SeekTarget
from queen.service.broker import Broker
from queen.service.catalog import Partition
from queen.service.rows import Record
from queen.wire.answers import iso
from queen.wire.groups import PartitionSeek, QueueSeek, SeekRequest

_decoder = msgspec.json.Decoder(SeekRequest)

_QUEUE_PATH = "/api/v1/consumer-groups/{group}/queues/{queue}/seek"
_PARTITION_PATH = "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek"
_ABOUT = (
    "The first message written at or after the timestamp is the next one that is read. Leases "
    "end and their acks are refused. A dry run says what would happen and changes nothing."
)


class SeekRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        queue = Doc(
            "groups",
            "Move a group in all partitions of a queue",
            _ABOUT,
            body=SeekRequest,
            answers={200: QueueSeek},
            example={"toEnd": True, "dryRun": True},
        )
        partition = Doc(
            "groups",
            "Move a group in one partition; without a body to the end",
            _ABOUT,
            body=SeekRequest,
            body_optional=True,
            answers={200: PartitionSeek},
            errors=(409,),
            example={"offset": 0},
        )
        return [
            Route("POST", _QUEUE_PATH, Role.WRITE, self.queue, queue, scoped=True),
            Route("POST", _PARTITION_PATH, Role.WRITE, self.partition, partition, scoped=True),
        ]

    async def queue(self, request: Request) -> Response:
        sent = decode_body(_decoder, request.body)
        target = _target(sent)
        if target is None or target.offset is not None:
            raise BadRequest(
                "Must specify either 'toEnd': true, 'toBeginning': true or 'timestamp'"
            )
        group, _ = await self._find(request)
        moved = await self._broker.groups.seek(group, None, target, dry=bool(sent.dryRun))
        await self._note(request, sent)
        answer = QueueSeek(
            success=True,
            consumerGroup=request.params[0],
            queueName=request.params[1],
            seekToEnd=bool(sent.toEnd),
            targetTimestamp=iso(moved.at) if moved.at else None,
            partitionsUpdated=moved.partitions,
            messagesAgain=moved.again,
            messagesSkipped=moved.skipped,
            dryRun=bool(sent.dryRun),
        )
        return Response(200, msgspec.json.encode(answer))

    async def partition(self, request: Request) -> Response:
        sent = decode_body(_decoder, request.body) if request.body else SeekRequest()
        target = _target(sent) or SeekTarget(END)
        group, partition = await self._find(request)
        assert partition is not None
        groups, dry = self._broker.groups, bool(sent.dryRun)
        moved = await groups.seek(group, partition, target, dry=dry)
        await self._note(request, sent)
        last = await groups.written_at(partition, moved.offset - 1)
        answer = PartitionSeek(
            success=True,
            consumerGroup=request.params[0],
            queueName=request.params[1],
            partitionName=request.params[2],
            updated=not dry,
            cursorMovedTo=iso(last) if last else None,
            offset=moved.offset,
            seekToEnd=target.at == END,
            targetTimestamp=iso(moved.at) if moved.at else None,
            partitionsUpdated=moved.partitions,
            messagesAgain=moved.again,
            messagesSkipped=moved.skipped,
            dryRun=dry,
        )
        return Response(200, msgspec.json.encode(answer))

    async def _note(self, request: Request, sent: SeekRequest) -> None:
        if not sent.dryRun:
            to = {name: value for name, value in msgspec.to_builtins(sent).items() if value}
            target = "/".join(request.params)
            await audit(self._broker, request, "group.seek", target, to=to)

    async def _find(self, request: Request) -> tuple[Record, Partition | None]:
        """Return group and partition of a request; all that it names must exist."""
        kinds = ("consumer group", "queue", "partition")
        for kind, name in zip(kinds, request.params, strict=False):
            check_name(kind, name)
        group, queue_name, *rest = request.params
        queue = await self._broker.scope.existing_queue(request.caller, queue_name)
        (row,) = await self._broker.groups.find(group, queue_name)
        if not rest:
            return row, None
        partition = await self._broker.catalog.partition(queue, rest[0])
        if partition is None:
            raise NotFound("Partition not found")
        return row, partition


def _target(sent: SeekRequest) -> SeekTarget | None:
    """Return where a request wants to go; None when it does not say."""
    targets = []
    if sent.toEnd:
        targets.append(SeekTarget(END))
    if sent.toBeginning:
        targets.append(SeekTarget(BEGINNING))
    if sent.timestamp is not None:
        targets.append(SeekTarget(parse_time("timestamp", sent.timestamp)))
    if sent.offset is not None:
        targets.append(SeekTarget(BEGINNING, sent.offset))
    if len(targets) > 1:
        raise BadRequest("Only one of 'toEnd', 'toBeginning', 'timestamp' and 'offset' can be")
    return targets[0] if targets else None
