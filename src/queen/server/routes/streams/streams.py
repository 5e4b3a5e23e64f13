"""POST /api/v1/stream/…: define a stream, and work on its windows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from queen.core.columns.headers import trace_of
from queen.core.frame import CONTENT_TYPE
from queen.core.names import reason_against_name
from queen.core.streams import StreamDefinition, complete
from queen.errors import BadRequest, LeaseLost, NotFound, PayloadTooLarge
from queen.server.answers.pushes import pushed_items
from queen.server.answers.windows import page_bits, ranges_of, window_bits
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.paging import limit_of, limit_param
from queen.server.api.routing import Doc, Other, Param, Route
from queen.server.api.times import parse_time
from queen.server.auth.access import Caller, Role
from queen.server.protocol.answer_parts import answer_in_parts, stream_frames
from queen.server.protocol.held_bytes import SMALL_BODY_BYTES
from queen.server.protocol.http import EMPTY, Query, Request, Response, check_name
from queen.server.protocol.long_poll import unless_gone
from queen.service.admin.groups import BEGINNING
from queen.service.broker import Broker
from queen.service.intake.items import add_trace
from queen.service.scope import check_stream_is_seen
from queen.service.streams.content import PagePosition
from queen.service.streams.definitions import Stream
from queen.service.streams.work import (
    Lease,
    LeasedWindow,
    Owner,
    parse_window_lease,
    spans_of,
    window_lease,
)
from queen.wire import streams as wire
from queen.wire.answers import iso
from queen.wire.frames.joined_frame import accepted_frames

_TAG = "streams"
_PAGE = 1000

_define = msgspec.json.Decoder(wire.DefineRequest)
_poll = msgspec.json.Decoder(wire.PollRequest)
_ack = msgspec.json.Decoder(wire.AckRequest)
_renew = msgspec.json.Decoder(wire.RenewRequest)
_seek = msgspec.json.Decoder(wire.SeekRequest)

_LEASE = "00000007-0000-0000-002a-5f0c1d9e7a3b"

_DEFINE = Doc(
    _TAG,
    "Define a stream, or replace its definition",
    """\
Source queues that do not exist are created. A change that would cut other windows than those
that were delivered is a 409 that says what differs, unless `recut` is true: then all windows
are cut again, and each group goes on from the oldest message it had not finished.""",
    body=wire.DefineRequest,
    answers={201: wire.DefineAnswer},
    example={
        "name": "user-behaviour",
        "namespace": "analytics",
        "source_queue_names": ["user-clicks", "user-purchases"],
        "partitioned": True,
        "window_type": "tumbling",
        "window_duration_ms": 60000,
        "window_grace_period_ms": 5000,
    },
    errors=(409,),
)
_POLL = Doc(
    _TAG,
    "Lease the next window of a stream",
    """\
Waits until a window is ready, at most `timeout` milliseconds; then 204. A group that does not
exist yet is made, and begins with the first message unless `subscriptionMode` is `new` or
`subscriptionFrom` says otherwise. `messages` is `"ref"` when the window is larger than
`maxInlineBytes`: fetch them page by page with the lease.""",
    body=wire.PollRequest,
    answers={200: wire.PollAnswer, 204: None},
    example={"streamName": "user-behaviour", "consumerGroup": "billing", "timeout": 0},
)
_ACK = Doc(
    _TAG,
    "Acknowledge a window, or give it back",
    """\
With `success` false it is tried again after a pause, and set aside after the last retry; with
`release` too it comes again at once and nothing is counted, for nobody is at fault. What is in
`push`, or was staged in the `sink` that is named, is stored in the same transaction as the ack:
both or neither. A lease that has ended is a 409 and nothing is done; the same ack twice is
answered like the first.""",
    body=wire.AckRequest,
    answers={200: wire.AckAnswer},
    example={"leaseId": _LEASE, "success": True},
    errors=(404, 409),
)
_RENEW = Doc(
    _TAG,
    "Prolong the lease of a window",
    "It ends so many milliseconds from now.",
    body=wire.RenewRequest,
    answers={200: wire.RenewAnswer},
    example={"leaseId": _LEASE, "extend_ms": 30000},
)
_SEEK = Doc(
    _TAG,
    "Move a group of a stream to a time",
    """\
The next window is the first one that ends after the time, for every key. Leases end and their
acks are refused. `beginning` and `now` are times too.""",
    body=wire.SeekRequest,
    answers={200: wire.SeekAnswer},
    example={
        "streamName": "user-behaviour",
        "consumerGroup": "billing",
        "timestamp": "2026-01-01T00:00:00Z",
    },
)
_MESSAGES = Doc(
    _TAG,
    "Read the messages of a leased window",
    """\
Range by range, in the order of offsets. With `Accept: application/vnd.queen.segment` the stored
segments are streamed as frames instead; the first and the last of a range may reach beyond it.""",
    query=(
        Param("leaseId", str, "The lease of the window.", required=True, example=_LEASE),
        Param("after", str, "Where the page before said that the next one begins."),
        limit_param(_PAGE, 10_000),
    ),
    answers={200: (wire.MessagesPage, Other(CONTENT_TYPE, "Frames; see `queen.core.frame`."))},
    errors=(409,),
)


class StreamRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        base = "/api/v1/stream"
        return [
            Route("POST", f"{base}/define", Role.WRITE, self.define, _DEFINE, scoped=True),
            Route("POST", f"{base}/poll", Role.WRITE, self.poll, _POLL, scoped=True),
            Route("POST", f"{base}/ack", Role.WRITE, self.ack, _ACK, scoped=True),
            Route("POST", f"{base}/renew-lease", Role.WRITE, self.renew, _RENEW, scoped=True),
            Route("POST", f"{base}/seek", Role.WRITE, self.seek, _SEEK, scoped=True),
            Route("GET", f"{base}/messages", Role.WRITE, self.messages, _MESSAGES, scoped=True),
        ]

    # ---- define ----

    async def define(self, request: Request) -> Response:
        sent = decode_body(_define, request.body)
        definition = _definition_of(sent)
        namespace = sent.namespace or ""
        await self._check_sight(request.caller, sent, namespace)
        defined = await self._broker.streams.define(
            sent.name, namespace, definition, sent.source_queue_names, recut=sent.recut
        )
        await audit(self._broker, request, "stream.define", sent.name, namespace=namespace)
        stream = defined.stream
        answer = wire.DefineAnswer(
            True, str(stream.uuid), stream.name, defined.created, defined.changed
        )
        return Response(201, msgspec.json.encode(answer))

    async def _check_sight(self, caller: Caller, sent: wire.DefineRequest, namespace: str) -> None:
        """See that the stream, as it is and as it would be, and its sources are the caller's."""
        if not caller.sees(namespace):
            raise NotFound(f"Namespace {namespace!r} not found")
        stream = await self._broker.streams.find(sent.name)
        if stream is not None and not caller.sees(stream.namespace):
            raise NotFound(f"Stream {sent.name!r} not found")
        for source in sent.source_queue_names:
            await self._broker.scope.queue(caller, source)

    # ---- lease ----

    async def poll(self, request: Request) -> Response | None:
        if len(request.body) > SMALL_BODY_BYTES:
            # It would be held for as long as the poll waits.
            raise PayloadTooLarge(f"a poll is larger than {SMALL_BODY_BYTES} bytes")
        sent = decode_body(_poll, request.body)
        check_name("consumer group", sent.consumerGroup)
        check_name("stream", sent.streamName)
        stream = await self._broker.streams.recent(sent.streamName)
        check_stream_is_seen(request.caller, stream)
        starts_at = await self._starts_at(sent)
        work = self._broker.work
        polling = self._lease_window(stream, sent, starts_at)
        granted = await (unless_gone(request, polling) if sent.timeout else polling)
        if granted is None:
            return EMPTY
        if request.connection.is_gone:
            # The client hung up in the same moment: nobody would read the answer.
            await work.give_back(granted)
            return EMPTY
        return await answer_in_parts(request, await self._render(granted, sent.maxInlineBytes))

    async def _lease_window(
        self, stream: Stream, sent: wire.PollRequest, starts_at: datetime | None
    ) -> LeasedWindow | None:
        work, group = self._broker.work, sent.consumerGroup
        consumer, timeout_s = sent.consumer or "", sent.timeout / 1000
        group_id = await work.recent_group(stream, group, starts_at)
        try:
            return await work.poll(stream, group, group_id, consumer, timeout_s)
        except NotFound:
            # It was deleted a moment ago: who comes by its name is a new group.
            group_id = await work.group(stream, group, starts_at)
            return await work.poll(stream, group, group_id, consumer, timeout_s)

    async def _starts_at(self, sent: wire.PollRequest) -> datetime | None:
        """Return where a group begins that is new; None is the first message."""
        mode, start = sent.subscriptionMode or "", sent.subscriptionFrom or ""
        if mode in ("new", "new-only") or start == "now":
            return await self._broker.clock.now()
        if start and start not in ("all", "beginning"):
            return parse_time("subscriptionFrom", start)
        if mode not in ("", "all", "timestamp"):
            raise BadRequest(f"subscriptionMode {mode!r} is not known: all, new or timestamp")
        return None

    async def _render(self, granted: LeasedWindow, max_bytes: int) -> Iterator[bytes]:
        content = self._broker.content
        partitions = await self._broker.catalog.partitions(
            span.partition_id for span in granted.spans
        )
        ranges = ranges_of(granted.spans, partitions)
        pieces = None
        if granted.bytes <= max_bytes:
            pieces = await content.parts(granted.spans, max_bytes)
        if pieces is None:
            lost = await content.lost(granted.spans)
            return window_bits(granted, ranges, None, lost)
        stored = sum(piece.high - piece.low for piece in pieces)
        return window_bits(granted, ranges, pieces, granted.messages - stored)

    async def messages(self, request: Request) -> Response | None:
        query = Query(request.query)
        row = await self._broker.work.find_leased(request.caller, query.text("leaseId"))
        spans = spans_of(row)
        accept = request.headers.get(b"accept", b"")
        if CONTENT_TYPE.encode() in accept:
            frames = self._broker.content.frames(spans, accepted=accepted_frames(accept))
            await stream_frames(request, frames)
            return None
        limit = limit_of(query, _PAGE, 10_000)
        pieces, place = await self._broker.content.page(spans, _place(query.text("after")), limit)
        following = b"null" if place is None else b'"%d-%d"' % place
        return await answer_in_parts(request, page_bits(pieces, following))

    # ---- settle ----

    async def ack(self, request: Request) -> Response:
        sent = decode_body(_ack, request.body)
        lease = window_lease(sent.leaseId)
        owner = await self._owner(request.caller, lease)
        items = sent.push
        if (items or sent.sink) and not sent.success:
            raise BadRequest("results go with success only; nothing was done")
        if items and sent.sink:
            raise BadRequest("results are pushed or staged, not both; nothing was done")
        if sent.giveUp and (sent.success or sent.release):
            raise BadRequest("giveUp goes with success false and no release; nothing was done")
        if sent.release:
            return await self._release(owner, lease, sent)
        batch = None
        if sent.sink is not None:
            sink = sent.sink
            batch = await self._broker.sinks.batch(request.caller, sink.query, sink)
        add_trace(items, trace_of(request.headers))
        planned, later = await self._broker.intake.plan_all(request.caller, items)
        first = await self._broker.work.settle(
            owner,
            lease,
            success=sent.success,
            error=sent.error,
            give_up=sent.giveUp,
            appends=[plan.append for plan in planned],
            scheduled=[scheduled.message for scheduled in later],
            batch=batch,
        )
        pushed = list(pushed_items(planned, later).values()) if first else []
        answer = wire.AckAnswer(True, sent.success, pushed)
        return Response(200, msgspec.json.encode(answer))

    async def _release(self, owner: Owner, lease: Lease, sent: wire.AckRequest) -> Response:
        if sent.success:
            raise BadRequest("release goes with success false only; nothing was done")
        await self._broker.work.release(owner, lease)
        return Response(200, msgspec.json.encode(wire.AckAnswer(True, False, [])))

    async def renew(self, request: Request) -> Response:
        sent = decode_body(_renew, request.body)
        lease = parse_window_lease(sent.leaseId)
        until = None
        if lease is not None:
            try:
                await self._owner(request.caller, lease)
                until = await self._broker.work.renew(lease, sent.extend_ms)
            except LeaseLost:
                pass
        if until is None:
            raise NotFound("Lease not found or expired")
        return Response(200, msgspec.json.encode(wire.RenewAnswer(True, iso(until))))

    async def _owner(self, caller: Caller, lease: Lease) -> Owner:
        owner = await self._broker.work.owner(lease)
        if not caller.sees(owner.namespace):
            raise LeaseLost
        return owner

    async def seek(self, request: Request) -> Response:
        sent = decode_body(_seek, request.body)
        check_name("consumer group", sent.consumerGroup)
        stream = await self._broker.scope.stream(request.caller, sent.streamName)
        at = await self._instant(sent.timestamp)
        work = self._broker.work
        group_id = await work.group(stream, sent.consumerGroup, at)
        await work.seek(stream, group_id, at)
        target = f"{sent.streamName}/{sent.consumerGroup}"
        await audit(self._broker, request, "stream.seek", target, to=sent.timestamp)
        return Response(200, msgspec.json.encode(wire.SeekAnswer(True)))

    async def _instant(self, text: str) -> datetime:
        if text in ("beginning", "all"):
            return BEGINNING
        if text in ("now", "end"):
            return await self._broker.clock.now()
        return max(parse_time("timestamp", text), datetime(1970, 1, 1, tzinfo=UTC))


def _definition_of(sent: wire.DefineRequest) -> StreamDefinition:
    names = [("stream", sent.name)]
    names += [("namespace", sent.namespace)] if sent.namespace else []
    names += [("queue", source) for source in sent.source_queue_names]
    for kind, name in names:
        reason = reason_against_name(kind, name)
        if reason:
            raise BadRequest(reason)
    if not sent.source_queue_names:
        raise BadRequest("source_queue_names must name at least one queue")
    if len(set(sent.source_queue_names)) < len(sent.source_queue_names):
        raise BadRequest("source_queue_names names a queue twice")
    try:
        return complete(sent.definition())
    except ValueError as error:
        # Msgspec's own errors are of this class too.
        raise BadRequest(str(error)) from None


def _place(text: str) -> PagePosition:
    if not text:
        return PagePosition(0, 0)
    span, _, offset = text.partition("-")
    if not (span.isdecimal() and offset.isdecimal() and len(text) < 40):
        raise BadRequest(f"after is not a place that a page has given: {text!r}")
    return PagePosition(int(span), int(offset))
