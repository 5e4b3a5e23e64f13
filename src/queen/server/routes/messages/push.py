"""POST /api/v1/push: messages as JSON, or whole segments as frames."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queen.core.frame import CONTENT_TYPE
from queen.core.payload import is_plain, without_surrogates
from queen.errors import BadRequest, InvalidItem, QueenError, UnsupportedMedia
from queen.server.api.failures import UNDECODABLE, bad_json, details_of, failure
from queen.server.api.push_answers import in_order, placed_results, push_body
from queen.server.api.routing import Doc, Other, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import MAX_BODY_BYTES, Request, Response
from queen.service.broker import Broker
from queen.service.intake.items import Planned
from queen.service.log.append import Append
from queen.wire.answers import MAX_ITEMS
from queen.wire.requests import LoosePushRequest, PushItem, PushRequest
from queen.wire.results import PushResult, SegmentResult

_FRAMES = CONTENT_TYPE.encode()
_SENT_WITH_JSON = frozenset(
    (b"application/json", b"application/x-www-form-urlencoded", b"text/plain", b"text/json")
)

_decoder = msgspec.json.Decoder(PushRequest)
_loose_decoder = msgspec.json.Decoder(LoosePushRequest)
_item_decoder = msgspec.json.Decoder(PushItem)


_DOC = Doc(
    "messages",
    "Push messages",
    """\
Stores messages; when the answer comes, they are on disk. A queue or partition that does not
exist yet is made. Items of one request to one partition keep their order. When some items
are wrong, the others are stored all the same: the 400 lists both.

Whole segments can be sent as frames; each is stored as it came, and answered by one result.""",
    body=PushRequest,
    other_body=Other(CONTENT_TYPE, "Frames, one after the other; see `queen.core.frame`."),
    answers={201: (list[PushResult], list[SegmentResult])},
    example={
        "items": [
            {
                "queue": "orders",
                "partition": "customer-7",
                "transactionId": "order-1042",
                "payload": {"order": 1042, "total": 99.5},
            },
            {"queue": "orders", "payload": {"order": 1043}},
        ]
    },
)


class PushRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [Route("POST", "/api/v1/push", Role.WRITE, self.push, _DOC, scoped=True)]

    async def push(self, request: Request) -> Response:
        body = request.body
        media_type = request.headers.get(b"content-type", b"").lower()
        if media_type.startswith(_FRAMES):
            return await self._push_frames(request)
        _check_media(media_type)
        items, indexes, undecoded = decode_items(body)
        trusted = not undecoded and is_plain(body) and b"\n" not in body
        pushed = await self._broker.intake.push(request.caller, items, indexes, trusted=trusted)
        refused, failed = undecoded + pushed.refused, pushed.failed
        if refused or failed:
            return _partly_refused(refused, failed, placed_results(pushed.planned, pushed.later))
        return Response(201, push_body(pushed.planned, pushed.later))

    async def _push_frames(self, request: Request) -> Response:
        appends = await self._broker.intake.push_frames(
            request.caller, request.body, MAX_BODY_BYTES
        )
        results = [_segment_result(append) for append in appends]
        for append in appends:
            if append.error is not None:
                return failure(append.error, results=results)
        return Response(201, msgspec.json.encode(results))


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


def decode_items(body: bytes) -> tuple[list[PushItem], Sequence[int], list[InvalidItem]]:
    """Return the items that decode, their places in the request, and the others' reasons."""
    if not body:
        raise BadRequest("Empty request body")
    try:
        items = _decoder.decode(body).items
        refused: list[InvalidItem] = []
        indexes: Sequence[int] = range(len(items))
    except UNDECODABLE as error:
        items, indexes, refused = _decode_one_by_one(body, error)
    if len(items) + len(refused) > MAX_ITEMS:
        raise BadRequest(f"more than {MAX_ITEMS} items in one request")
    return items, indexes, refused


def _decode_one_by_one(
    body: bytes, error: Exception
) -> tuple[list[PushItem], list[int], list[InvalidItem]]:
    """One item is wrong somewhere: find out which, and keep the others."""
    try:
        raw_items = _loose_decoder.decode(without_surrogates(body)).items
    except UNDECODABLE:
        raise bad_json(error) from None
    items, indexes, refused = [], [], []
    for index, raw in enumerate(raw_items):
        try:
            items.append(_item_decoder.decode(raw))
            indexes.append(index)
        except UNDECODABLE as reason:
            refused.append(InvalidItem(index, str(reason)))
    return items, indexes, refused


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
    return result
