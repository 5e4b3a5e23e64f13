"""POST /api/v1/fetch/…: whole queues read by sealed time, in slices, from many machines.

cut       seal queues at one instant
plan      cut what was written between two of them into slices
slice     stream the segments of one slice
progress  note how far a group has read
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from queen.core.frame import CONTENT_TYPE
from queen.core.ids import parse_partition, partition_uuid
from queen.errors import BadRequest, NotFound
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Other, Route
from queen.server.auth.access import Role
from queen.server.protocol.answer_parts import stream_frames
from queen.server.protocol.http import Request, Response, check_name
from queen.service.broker import Broker
from queen.service.catalog import Partition, Queue
from queen.service.instants import instant_at, microseconds
from queen.service.read import sealed_reads
from queen.service.read.sealed_reads import OffsetRange, TimeRange
from queen.service.rows import Record
from queen.wire.cuts import (
    Cut,
    CutRequest,
    GroupPlace,
    Plan,
    PlanRequest,
    Point,
    Progress,
    ProgressRequest,
    QueueCount,
    QueueCut,
    QueuePlace,
    Range,
    Slice,
    SliceRequest,
)
from queen.wire.frames.joined_frame import ACCEPT_ANY_ORDER, ACCEPT_JOINED, accepted_frames

_cut = msgspec.json.Decoder(CutRequest)
_plan = msgspec.json.Decoder(PlanRequest)
_slice = msgspec.json.Decoder(SliceRequest)
_progress = msgspec.json.Decoder(ProgressRequest)

# The partitions that are asked for, of each queue; None is all.
_Chosen = dict[Queue, list[Partition] | None]
_ROOT = "/api/v1/fetch"
_CUT = Doc(
    "messages",
    "Seal queues at one instant",
    "Everything that was written to the queues before the instant can be read from now on, and"
    " nothing will ever be written before it again. With `since`, an instant that was answered"
    " before, nothing is sealed as long as nothing was written since: asking often is cheap."
    " With a `pattern` in place of names it holds for queues that are made later too: whoever asks"
    " again and again, and reads what lies between the answers, misses nothing of them.",
    body=CutRequest,
    answers={200: Cut},
    example={"queues": ["orders"]},
)
_PLAN = Doc(
    "messages",
    "Cut what was written to queues into slices of about equal size",
    "What was written from `since` on and before `until`, which must be sealed. With limits the"
    " answer ends earlier, at the latest instant before which there is no more than they allow,"
    " but not before the first message. Several machines may then read a slice each. To know how"
    " much is left, send `countSince`: `since` the first time, `until` of the plan before from"
    " then on; what was left, plus `counted`, less `planned`, is left now.",
    body=PlanRequest,
    answers={200: Plan},
    example={"sources": [{"queue": "orders", "since": 0}], "until": 1700000000000000, "slices": 4},
)
_SLICE = Doc(
    "messages",
    "Read the stored segments of a slice",
    "Streams frames, as the other routes of `fetch` do. Segments are whole: those of a range of"
    " offsets may reach beyond it. To those who accept"
    f" `{ACCEPT_JOINED}` small segments are sent many in one frame; to those who accept"
    f" `{ACCEPT_ANY_ORDER}` those that were merged come faster, and out of the order of time.",
    body=SliceRequest,
    answers={200: Other(CONTENT_TYPE, "Frames, one after the other; see `queen.core.frame`.")},
    example={
        "ranges": [
            {
                "queue": "orders",
                "start": {"at": 0, "partitionId": partition_uuid(0), "offset": 0},
                "end": {"at": 1700000000000000, "partitionId": partition_uuid(0), "offset": 0},
            }
        ]
    },
)
_PROGRESS = Doc(
    "groups",
    "Note how far a group has read by time",
    "The group has done everything of the queues before an instant. It is registered at first"
    " contact, holds retention back like any other, and has a lag; it cannot be popped with. A"
    " group that was moved since `moves` was answered stays where it was put.",
    body=ProgressRequest,
    answers={200: Progress},
    example={"group": "report", "sources": [{"queue": "orders"}], "doneUntil": 0},
    errors=(409,),
)


class SealedReadRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("POST", _ROOT + "/cut", Role.READ, self.cut, _CUT, scoped=True),
            Route("POST", _ROOT + "/plan", Role.READ, self.plan, _PLAN, scoped=True),
            Route("POST", _ROOT + "/slice", Role.READ, self.slice, _SLICE, scoped=True),
            Route("POST", _ROOT + "/progress", Role.WRITE, self.progress, _PROGRESS, scoped=True),
        ]

    async def cut(self, request: Request) -> Response:
        sent = decode_body(_cut, request.body)
        if sent.group is not None:
            check_name("consumer group", sent.group)
        if bool(sent.queues) == (sent.pattern is not None):
            raise BadRequest("give either `queues` or `pattern`")
        since = None if sent.since is None else instant_at(sent.since)
        if sent.pattern is not None:
            at, rows = await self._broker.sealed_reads.cut_matching(
                request.caller, sent.pattern, since, sent.group
            )
        else:
            queues = await self._queues(request, sent.queues)
            at, by_id = await self._broker.sealed_reads.cut(queues, since, sent.group)
            rows = [by_id[queue.id] for queue in queues]
        answer = Cut(microseconds(at), [_queue_cut(row) for row in rows])
        return Response(200, msgspec.json.encode(answer))

    async def plan(self, request: Request) -> Response:
        sent = decode_body(_plan, request.body)
        times = {source.queue: instant_at(source.since) for source in sent.sources}
        queues = await self._queues(request, list(times), existing=sent.existing)
        sources = {queue: times[queue.name] for queue in queues}
        partitions = {
            queue: await self._partitions(queue, sent.partitions) if sent.partitions else None
            for queue in queues
        }
        service, asked = self._broker.sealed_reads, instant_at(sent.until)
        until = await service.admit(sources, asked, sent.maxMessages, sent.maxBytes)
        planned = await self._plan_of(sent, sources, partitions, until, sent.slices)
        answer = _plan_on_wire(planned, await service.lost(sources))
        names = {part.name for chosen in partitions.values() for part in chosen or ()}
        answer.unknown = [name for name in sent.partitions if name not in names]
        if sent.countSince is not None and until < asked:
            since = dict.fromkeys(queues, instant_at(sent.countSince))
            counted = await self._plan_of(sent, since, partitions, asked, 1)
            answer.planned = _counts(planned, partitions)
            answer.counted = _counts(counted, partitions)
        return Response(200, msgspec.json.encode(answer))

    async def _plan_of(
        self,
        sent: PlanRequest,
        sources: dict[Queue, datetime],
        partitions: _Chosen,
        until: datetime,
        slices: int,
    ) -> sealed_reads.Plan:
        if not sent.partitions:
            return await self._broker.sealed_reads.plan(sources, until, slices)
        since = {part: sources[queue] for queue in sources for part in partitions[queue] or ()}
        offsets = (sent.fromOffset, sent.toOffset)
        return await self._broker.sealed_reads.plan_partitions(since, until, offsets, slices)

    async def slice(self, request: Request) -> None:
        sent = decode_body(_slice, request.body)
        asked = sent.ranges
        if sent.existing:
            names = [range_.queue for range_ in asked]
            queues = {queue.name for queue in await self._queues(request, names, existing=True)}
            asked = [range_ for range_ in asked if range_.queue in queues]
        ranges = [await self._range(request, range_) for range_ in asked]
        accepted = accepted_frames(request.headers.get(b"accept", b""))
        await stream_frames(request, self._broker.fetcher.ranges(ranges, accepted=accepted))

    async def progress(self, request: Request) -> Response:
        sent = decode_body(_progress, request.body)
        check_name("consumer group", sent.group)
        moves = {source.queue: source.moves for source in sent.sources}
        queues = await self._queues(request, list(moves), existing=sent.existing)
        done_until = instant_at(sent.doneUntil) if sent.doneUntil else None
        places = await self._broker.sealed_reads.progress(
            sent.group,
            {queue.id: moves[queue.name] for queue in queues},
            done_until,
            may_be_gone=sent.existing,
        )
        self._broker.groups.version += 1
        answer = Progress(
            [
                QueuePlace(queue.name, _place(places[queue.id]))
                for queue in queues
                if queue.id in places
            ]
        )
        return Response(200, msgspec.json.encode(answer))

    # ---- names to things ----

    async def _queues(
        self, request: Request, names: list[str], *, existing: bool = False
    ) -> list[Queue]:
        for name in names:
            check_name("queue", name)
        scope = self._broker.scope
        if existing:
            return await scope.queues_now(request.caller, names)
        return [await scope.existing_queue(request.caller, name) for name in dict.fromkeys(names)]

    async def _partitions(self, queue: Queue, names: list[str]) -> list[Partition]:
        partitions = []
        for name in dict.fromkeys(names):
            check_name("partition", name)
            partition = await self._broker.catalog.partition(queue, name)
            if partition is not None:
                partitions.append(partition)
        return partitions

    async def _range(self, request: Request, sent: Range) -> TimeRange | OffsetRange:
        check_name("queue", sent.queue)
        if sent.partitionId is not None:
            number = _partition_number(sent.partitionId)
            partition = (await self._broker.scope.partitions(request.caller, [number])).get(number)
            if partition is None or partition.queue.name != sent.queue:
                raise NotFound(f"Partition {sent.partitionId} not found")
            return OffsetRange(partition, sent.fromOffset, sent.toOffset)
        if sent.start is None or sent.end is None:
            raise BadRequest("a range has either `start` and `end`, or `partitionId`")
        queue = await self._broker.scope.existing_queue(request.caller, sent.queue)
        return TimeRange(queue, _point(sent.start), _point(sent.end))


def _point(point: Point) -> sealed_reads.Point:
    return sealed_reads.Point(
        instant_at(point.at), _partition_number(point.partitionId), point.offset
    )


def _partition_number(text: str) -> int:
    number = parse_partition(text)
    # A UUID holds 60 bits of it.
    if number is None:
        raise BadRequest(f"partitionId: {text!r} is not the id of a partition")
    return number


def _queue_cut(row: Record) -> QueueCut:
    return QueueCut(
        row["name"],
        microseconds(row["earliest"]) if row["earliest"] else None,
        microseconds(row["gone_until"]) if row["gone_until"] else None,
        row["messages"],
        row["bytes"],
        _place(row) if row["reads_by_time"] else None,
    )


def _place(row: Record) -> GroupPlace:
    done_until = microseconds(row["done_until"]) if row["done_until"] else None
    return GroupPlace(done_until, row["moves"], row["paused"])


def _plan_on_wire(plan: sealed_reads.Plan, lost: list[str]) -> Plan:
    slices = [
        Slice([_range_on_wire(range_) for range_ in part.ranges], part.messages, part.bytes)
        for part in plan.slices
    ]
    return Plan(lost, microseconds(plan.until), plan.messages, plan.bytes, slices)


def _counts(plan: sealed_reads.Plan, partitions: _Chosen) -> list[QueueCount]:
    """Return what a plan holds of each queue: of all of it, or of the partitions chosen."""
    counts = []
    for queue, chosen in partitions.items():
        ids = [queue.id] if chosen is None else [partition.id for partition in chosen]
        held = [plan.held[number] for number in ids if number in plan.held]
        messages, size = sum(part.messages for part in held), sum(part.bytes for part in held)
        counts.append(QueueCount(queue.name, messages, size))
    return counts


def _range_on_wire(range_: TimeRange | OffsetRange) -> Range:
    if isinstance(range_, TimeRange):
        return Range(range_.queue.name, _point_on_wire(range_.start), _point_on_wire(range_.end))
    partition = range_.partition
    return Range(
        partition.queue.name,
        partitionId=partition.uuid,
        fromOffset=range_.low,
        toOffset=range_.high,
    )


def _point_on_wire(point: sealed_reads.Point) -> Point:
    return Point(microseconds(point.at), partition_uuid(point.partition_id), point.offset)
