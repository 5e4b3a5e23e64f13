"""POST /api/v1/push: messages as JSON, or whole segments as frames."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from queen.core.columns.headers import trace_of
from queen.core.frame import CONTENT_TYPE
from queen.core.payload import is_plain, without_surrogates
from queen.errors import BadRequest, InvalidItem, QueenError, UnsupportedMedia
from queen.server.answers.pushes import in_order, placed_results, push_body
from queen.server.api.failures import UNDECODABLE, bad_json, details_of, failure
from queen.server.api.routing import Doc, Other, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import (
    JSON_HEADERS,
    MAX_BODY_BYTES,
    Headers,
    Query,
    Request,
    Response,
)
from queen.service.broker import Broker
from queen.service.intake.items import Planned, add_trace
from queen.service.intake.pushes import BegunPush, Pushed
from queen.service.log.append import Append
from queen.service.spooling.entrance import Buffering
from queen.wire.answers import MAX_ITEMS
from queen.wire.requests import (
    MAX_BUFFER_MS,
    MAX_BUFFERED,
    LoosePushRequest,
    PlainPushRequest,
    PushItem,
    PushRequest,
)
from queen.wire.results import PushResult, SegmentResult

_FRAMES = CONTENT_TYPE.encode()
_JSON = b"application/json"
# Tells those who sent JSON that frames are taken too.
_HEADERS: Headers = (*JSON_HEADERS, ("accept-post", f"application/json, {CONTENT_TYPE}"))
_SENT_WITH_JSON = frozenset(
    (_JSON, b"application/x-www-form-urlencoded", b"text/plain", b"text/json")
)

_plain_decoder = msgspec.json.Decoder(PlainPushRequest)
_decoder = msgspec.json.Decoder(PushRequest)
_loose_decoder = msgspec.json.Decoder(LoosePushRequest)
_item_decoder = msgspec.json.Decoder(PushItem)


_DOC = Doc(
    "messages",
    "Push messages",
    """\
Stores messages; when the answer comes, they are on disk: 201 in the database, 202 in the spool of
the server, from where they are stored in order. That is where they go while the database is
away, behind others of their partition, or because they asked for it with `qos0`, `bufferMs` or
`bufferMax`; what asked for it may be lost with the machine. A queue or partition that does not
exist yet is made. Items of one request to one partition keep their order. When some items are
wrong, the others are stored all the same: the 400 lists both.

Whole segments can be sent as frames; each is stored as it came, and answered by one result. When
one message in them is wrong, nothing is stored: sent as items, it is named. The header
`Accept-Post` of an answer to items says that this server takes frames.

A request with the header `traceparent` (and `tracestate`) gives it to those of its messages that
have none of their own.""",
    body=PushRequest,
    other_body=Other(CONTENT_TYPE, "Frames, one after the other; see `queen.core.frame`."),
    query=(
        Param("qos0", bool, "As in the body, for frames.", False),
        Param("bufferMs", Annotated[int, Meta(ge=0, le=MAX_BUFFER_MS)], "As in the body."),
        Param("bufferMax", Annotated[int, Meta(ge=1, le=MAX_BUFFERED)], "As in the body."),
    ),
    answers={
        201: (list[PushResult], list[SegmentResult]),
        202: (list[PushResult], list[SegmentResult]),
    },
    errors=(507,),
    example={
        "items": [
            {
                "queue": "orders",
                "partition": "customer-7",
                "transactionId": "order-1042",
                "payload": {"order": 1042, "total": 99.5},
                "headers": {"source": "shop"},
            },
            {"queue": "orders", "payload": {"order": 1043}},
        ]
    },
)


class PushRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/api/v1/push",
                Role.WRITE,
                self.push,
                _DOC,
                scoped=True,
                quick=self.begin_push,
            )
        ]

    def begin_push(self, request: Request) -> Response | _BegunPush | None:
        """Begin to store the items of an ordinary request: JSON without anything unusual."""
        body, sent = request.body, request.headers
        media_type = sent.get(b"content-type", _JSON)
        if media_type != _JSON or request.query or b"traceparent" in sent:
            return None
        if not _is_trusted(body):
            return None
        try:
            push = _plain_decoder.decode(body)
        except UNDECODABLE:
            return None
        asked = _asked_in_body(push)
        if asked is not _NOTHING and asked.buffering is not None:
            planned = self._broker.intake.buffer(request.caller, push.items, asked.buffering)
            return None if planned is None else Response(202, push_body(planned), _HEADERS)
        begun = self._broker.intake.begin(request.caller, push.items)
        return None if begun is None else _BegunPush(begun)

    async def push(self, request: Request) -> Response:
        body = request.body
        media_type = request.headers.get(b"content-type", b"").lower()
        if media_type.startswith(_FRAMES):
            return await self._push_frames(request)
        _check_media(media_type)
        items, indexes, undecoded, asked = _decode(body)
        trusted = not undecoded and _is_trusted(body)
        add_trace(items, trace_of(request.headers))
        pushed = await self._broker.intake.push(
            request.caller,
            items,
            indexes,
            trusted=trusted,
            buffering=_buffering(asked, request),
        )
        return _answer_of(pushed, undecoded)

    async def _push_frames(self, request: Request) -> Response:
        appends = await self._broker.intake.push_frames(
            request.caller,
            request.body,
            MAX_BODY_BYTES,
            _asked_in_query(request).buffering,
            trace_of(request.headers),
        )
        results = [_segment_result(append) for append in appends]
        for append in appends:
            if append.error is not None:
                return failure(append.error, results=results)
        is_buffered = any(append.is_buffered for append in appends)
        return Response(202 if is_buffered else 201, msgspec.json.encode(results))


class _BegunPush:
    """A push that is on its way into the log; see `queen.server.protocol.http.Begun`."""

    __slots__ = ("_begun", "then")

    def __init__(self, begun: BegunPush) -> None:
        self._begun = begun
        self.then = begun.then

    def answer(self) -> Response | Coroutine[Any, Any, Response]:
        begun = self._begun
        if begun.is_done():
            return Response(201, push_body(begun.planned), _HEADERS)
        return self._rest()

    async def _rest(self) -> Response:
        return _answer_of(await self._begun.pushed(), [])

    def leave(self) -> None:
        """What was sent is stored all the same."""


def _answer_of(pushed: Pushed, undecoded: list[InvalidItem]) -> Response:
    refused, failed = undecoded + pushed.refused, pushed.failed
    if refused or failed:
        return _partly_refused(refused, failed, placed_results(pushed.planned, pushed.later))
    status = 202 if pushed.is_buffered else 201
    return Response(status, push_body(pushed.planned, pushed.later), _HEADERS)


def _is_trusted(body: bytes) -> bool:
    """Whether no payload can have bad bytes, bad escapes or line breaks."""
    return is_plain(body) and b"\n" not in body


def _check_media(media_type: bytes) -> None:
    """Raise `UnsupportedMedia` for a type that is certainly not JSON.

    Clients that do not name one send what their library fills in, a text or a form.
    """
    name = media_type.partition(b";")[0].strip()
    if name and name not in _SENT_WITH_JSON and not name.endswith(b"+json"):
        raise UnsupportedMedia(
            f"content type {name.decode('latin-1')!r} is not supported: send application/json, or "
            f"frames as {CONTENT_TYPE}"
        )


class _Decoded(NamedTuple):
    """The items that decode, their places in the request, and what is wrong with the others."""

    items: list[PushItem]
    indexes: Sequence[int]
    refused: list[InvalidItem]
    asked: _Asked


def _decode(body: bytes) -> _Decoded:
    if not body:
        raise BadRequest("Empty request body")
    try:
        push = _decoder.decode(body)
        decoded = _Decoded(push.items, range(len(push.items)), [], _asked_in_body(push))
    except UNDECODABLE as error:
        decoded = _decode_one_by_one(body, error)
    if len(decoded.items) + len(decoded.refused) > MAX_ITEMS:
        raise BadRequest(f"more than {MAX_ITEMS} items in one request")
    return decoded


def _decode_one_by_one(body: bytes, error: Exception) -> _Decoded:
    """One item is wrong somewhere: find out which, and keep the others."""
    try:
        push = _loose_decoder.decode(without_surrogates(body))
    except UNDECODABLE:
        raise bad_json(error) from None
    items, indexes, refused = [], [], []
    for index, raw in enumerate(push.items):
        try:
            items.append(_item_decoder.decode(raw))
            indexes.append(index)
        except UNDECODABLE as reason:
            refused.append(InvalidItem(index, str(reason)))
    return _Decoded(items, indexes, refused, _asked_in_body(push))


class _Asked(NamedTuple):
    """What a request says of buffering; None where it says nothing."""

    qos0: bool | None = None
    within_ms: float | None = None
    most: int | None = None

    def or_else(self, other: _Asked) -> _Asked:
        """Return this, and what the other says where this says nothing."""
        return _Asked(
            other.qos0 if self.qos0 is None else self.qos0,
            other.within_ms if self.within_ms is None else self.within_ms,
            other.most if self.most is None else self.most,
        )

    @property
    def buffering(self) -> Buffering | None:
        """Return how to buffer; `qos0: false` asks not to, whatever else is said."""
        is_asked = self.within_ms is not None or self.most is not None
        if (self.qos0 is None and not is_asked) or self.qos0 is False:
            return None
        return Buffering(self.within_ms, self.most)


def _asked_in_body(push: PushRequest | LoosePushRequest | PlainPushRequest) -> _Asked:
    if push.qos0 is None and push.bufferMs is None and push.bufferMax is None:
        return _NOTHING
    return _Asked(push.qos0, push.bufferMs, push.bufferMax)


def _buffering(asked: _Asked, request: Request) -> Buffering | None:
    """Return how a push asks to be buffered: in its body, or else in the query."""
    if asked is _NOTHING and not request.query:
        # As nearly all do.
        return None
    return asked.or_else(_asked_in_query(request)).buffering


def _asked_in_query(request: Request) -> _Asked:
    """Return the same as the query says it, for a body that has no place for it."""
    if not request.query:
        return _NOTHING
    query = Query(request.query)
    flag = query.text("qos0")
    if flag not in _FLAGS:
        raise BadRequest("query parameter 'qos0' must be true or false")
    within_ms = query.number("bufferMs", -1, low=0, high=MAX_BUFFER_MS)
    most = query.number("bufferMax", 0, low=1, high=MAX_BUFFERED)
    return _Asked(_FLAGS[flag], within_ms if within_ms >= 0 else None, most or None)


_NOTHING = _Asked()
_FLAGS = {"": None, "true": True, "1": True, "false": False, "0": False}


def _partly_refused(
    refused: list[InvalidItem], failed: list[Planned], placed: list[tuple[int, str]]
) -> Response:
    """Some items cannot be taken: say which and why, and what became of the others."""
    reasons: dict[int, QueenError] = {error.index: error for error in refused}
    for append, indexes, _ in failed:
        if append.error is not None:
            reasons |= dict.fromkeys(indexes, append.error)
    return failure(
        reasons[min(reasons)],
        items=[
            {"index": index, "reason": getattr(error, "reason", error.message), "code": error.code}
            for index, error in sorted(reasons.items())
        ],
        results=[msgspec.Raw(text.encode()) for text in in_order(placed)],
    )


def _segment_result(append: Append) -> dict[str, object]:
    target = append.target
    if append.is_buffered:
        where = {"queue": append.queue, "partition": append.partition}
        return {**where, "status": "buffered", "count": len(append)}
    if append.error is not None:
        where = {"queue": append.queue, "partition": append.partition}
        told = details_of(append.error)
        names = {"error", "code", "retryable", "left"}
        why = {name: value for name, value in told.items() if name in names}
        return {**where, "status": "refused", "count": 0, **why}
    assert target is not None
    duplicates = (
        [at for at in range(len(append)) if append.is_duplicate(at)] if append.repeats else []
    )
    result: dict[str, object] = {
        "queue": append.queue,
        "partition": append.partition,
        "partitionId": target.uuid,
        "status": "queued" if len(duplicates) < len(append) else "duplicate",
        "count": len(append) - len(duplicates),
        # Of messages that were there before it is where the first of them is.
        "baseOffset": append.base_offset if len(duplicates) < len(append) else append.offset_of(0),
    }
    if duplicates:
        result["duplicates"] = duplicates
    if append.repeats:
        result["offsets"] = [append.offset_of(at) for at in range(len(append))]
    return result
