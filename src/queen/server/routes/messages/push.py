"""POST /api/v1/push: messages as JSON, or whole segments as frames."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, cast

import msgspec
from msgspec.structs import astuple

from queen.core.frame import CONTENT_TYPE, Frame, unpack_frames
from queen.core.framecheck import check_payloads, checked_ids
from queen.core.ids import message_id
from queen.core.names import (
    DEFAULT_PARTITION,
    MAX_TRANSACTION_ID_BYTES,
    is_uuid,
    reason_against_name,
    reason_against_transaction_id,
)
from queen.core.payload import (
    as_line,
    is_plain,
    longest_is_shallow,
    reason_against_payload,
    without_surrogates,
)
from queen.core.schedule import BadTime, due_at
from queen.errors import (
    BadRequest,
    EncryptionUnavailable,
    InvalidFrame,
    InvalidItem,
    ItemNotFound,
    NotFound,
    PayloadTooLarge,
    QueenError,
    UnsupportedMedia,
)
from queen.server.api.failures import UNDECODABLE, bad_json, details_of, failure
from queen.server.api.routing import Doc, Other, Route
from queen.server.api.scope import hidden_queues
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import MAX_BODY_BYTES, Request, Response
from queen.service.broker import Broker
from queen.service.log.append import Append
from queen.service.outbox.scheduled import Scheduled
from queen.wire import answers
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


class Planned(NamedTuple):
    """An append, which items of the request it holds, and their transaction ids."""

    append: Append
    indexes: Sequence[int]
    ids: Sequence[str]


class PushRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [Route("POST", "/api/v1/push", Role.WRITE, self.push, _DOC, scoped=True)]

    async def push(self, request: Request) -> Response:
        body = request.body
        media_type = request.headers.get(b"content-type", b"").lower()
        if media_type.startswith(_FRAMES):
            return await self._push_frames(request.caller, body)
        _check_media(media_type)
        items, indexes, refused = decode_items(body)
        trusted = not refused and is_plain(body) and b"\n" not in body
        caller = request.caller
        planned, bad, timed = plan(items, indexes, trusted=trusted, subject=caller.subject)
        if timed:
            return await self._push_timed(caller, items, indexes, refused)
        refused += bad
        if caller.namespaces is not None:
            planned, hidden = await only_visible(self._broker, caller, planned)
            refused += hidden
        await self._broker.pusher.push([one.append for one in planned])
        failed = [one for one in planned if one.append.error is not None]
        if refused or failed:
            return _partly_refused(refused, failed, _placed(planned))
        return Response(201, push_body(planned))

    async def _push_timed(
        self,
        caller: Caller,
        items: list[PushItem],
        indexes: Sequence[int],
        refused: list[InvalidItem],
    ) -> Response:
        """Push what is due now, and stage the rest."""
        parted = await part_by_time(self._broker, caller, items, indexes)
        planned, bad, _ = plan(parted.items, parted.indexes, trusted=False, subject=caller.subject)
        planned, hidden = await only_visible(self._broker, caller, planned)
        # A failed push may be repeated without harm, a stage not: it comes last.
        await self._broker.pusher.push([one.append for one in planned])
        await self._broker.staging.stage([one.message for one in parted.later])
        placed = _placed(planned, parted.later)
        refused += parted.refused + bad + hidden
        failed = [one for one in planned if one.append.error is not None]
        if refused or failed:
            return _partly_refused(refused, failed, placed)
        return Response(201, push_body(planned, parted.later))

    async def _push_frames(self, caller: Caller, body: bytes) -> Response:
        appends = await appends_of_frames(self._broker, caller, body)
        await self._broker.pusher.push(appends)
        results = [_segment_result(one) for one in appends]
        for one in appends:
            if one.error is not None:
                return failure(one.error, results=results)
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


async def appends_of_frames(broker: Broker, caller: Caller, body: bytes) -> list[Append]:
    """Return the frames of a request, each checked as if a stranger had made it."""
    frames = list(unpack_frames(body))
    if not frames:
        raise InvalidFrame("the body holds no frame")
    # Added up before anything is inflated: many small frames can hold as much as one.
    if sum(frame.raw_bytes for frame in frames) > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"the frames inflate to more than {MAX_BODY_BYTES} bytes")
    appends = [_append_of_frame(frame, index) for index, frame in enumerate(frames)]
    for name in await hidden_queues(broker, caller, {one.queue for one in appends}):
        raise NotFound(f"Queue {name!r} not found; nothing was stored")
    if caller.subject is not None:
        for one in appends:
            _stamp(one, caller.subject)
    return appends


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


class Later(NamedTuple):
    """A message that is due later, and its place in the request."""

    place: int
    message: Scheduled


class Parted(NamedTuple):
    """The items of a request by when they are due."""

    items: list[PushItem]
    indexes: list[int]
    later: list[Later]
    refused: list[InvalidItem]


async def part_by_time(
    broker: Broker, caller: Caller, items: list[PushItem], indexes: Sequence[int]
) -> Parted:
    """Check items, and part those that are due later from those that are pushed now."""
    good, places, refused = _sift(items, indexes)
    parted = Parted([], [], [], refused)
    now = await broker.now()
    hidden = await hidden_queues(broker, caller, {item.queue for item in good if item.is_timed})
    encrypted = await broker.staging.encrypted(item.queue for item in good if item.is_timed)
    for index, item in zip(places, good, strict=True):
        if item.queue in hidden:
            refused.append(ItemNotFound(index, f"Queue {item.queue!r} not found"))
            continue
        try:
            at = due_at(item.deliverAt, item.delay, item.delayMs, now)
            if at is None:
                parted.items.append(item)
                parted.indexes.append(index)
                continue
            message = _scheduled(item, at, caller.subject)
            if item.queue in encrypted:
                message = broker.staging.closed(message)
            parted.later.append(Later(index, message))
        except (BadTime, EncryptionUnavailable) as reason:
            refused.append(InvalidItem(index, str(reason)))
    return parted


def _scheduled(item: PushItem, at: datetime, subject: str | None) -> Scheduled:
    return Scheduled(
        item.queue,
        item.partition or DEFAULT_PARTITION,
        item.transactionId or str(uuid.uuid4()),
        item.traceId,
        bytes(item.payload),
        at,
        subject,
        is_named=bool(item.transactionId),
    )


def plan(
    items: list[PushItem], indexes: Sequence[int], *, trusted: bool, subject: str | None = None
) -> tuple[list[Planned], list[InvalidItem], bool]:
    """Turn items into appends, one for each partition, in the order of the request.

    `trusted` says that no payload has bad bytes, bad escapes or line breaks: then, unless
    something else is unusual, no item is looked at by itself. `subject` is who sends them.
    The last value returned says whether an item names a time, which is for the caller to heed.
    """
    if subject is None and trusted and len(items) == 1 and _is_ordinary(items[0]):
        return [_plan_one(items[0], indexes)], [], False
    refused: list[InvalidItem] = []
    columns = Columns.of(items)
    timed = columns.are_timed()
    one_partition = columns.are_one_partition()
    if timed or not (trusted and columns.are_ordinary(one_partition)):
        items, indexes, refused = _sift(items, indexes)
        columns = Columns.of(items)
        one_partition = columns.are_one_partition()
    if not items:
        return [], refused, timed
    if one_partition:
        return [columns.planned(indexes, subject)], refused, timed
    groups: dict[tuple[str, str], list[int]] = {}
    for at, item in enumerate(items):
        groups.setdefault((item.queue, item.partition or DEFAULT_PARTITION), []).append(at)
    planned = [
        Columns.of([items[at] for at in group]).planned([indexes[at] for at in group], subject)
        for group in groups.values()
    ]
    return planned, refused, timed


def _is_ordinary(item: PushItem) -> bool:
    """Return whether a lone item needs no closer look."""
    one = item.transactionId
    return (
        one is not None
        and one.isascii()
        and 0 < len(one) <= MAX_TRANSACTION_ID_BYTES
        and "\0" not in one
        and item.traceId is None
        and not item.is_timed
        and longest_is_shallow(len(item.payload))
        and not reason_against_name("queue", item.queue)
        and not (item.partition is not None and reason_against_name("partition", item.partition))
    )


def _plan_one(item: PushItem, indexes: Sequence[int]) -> Planned:
    one = cast("str", item.transactionId)
    partition = item.partition or DEFAULT_PARTITION
    weight = len(item.payload) + 64
    append = Append(item.queue, partition, (one.encode(),), (item.payload,), weight)
    return Planned(append, indexes, (one,))


class Columns(NamedTuple):
    """The fields of all items, field by field: checked together, not one by one."""

    queues: tuple[str, ...]
    payloads: tuple[bytes, ...]
    partitions: tuple[str | None, ...]
    ids: tuple[str | None, ...]
    traces: tuple[str | None, ...]
    times: tuple[str | None, ...]
    delays: tuple[float | None, ...]
    delays_ms: tuple[float | None, ...]

    @classmethod
    def of(cls, items: Sequence[PushItem]) -> Columns:
        return cls(*(zip(*map(astuple, items), strict=True) if items else ((),) * 8))

    def are_one_partition(self) -> bool:
        count, queues, partitions = len(self.ids), self.queues, self.partitions
        return (
            count > 0
            and queues.count(queues[0]) == count
            and partitions.count(partitions[0]) == count
        )

    def are_timed(self) -> bool:
        """Return whether an item says when it is due."""
        unset = self.times.count(None) + self.delays.count(None) + self.delays_ms.count(None)
        return unset < 3 * len(self.ids)

    def are_ordinary(self, one_partition: bool) -> bool:
        """Return whether nothing calls for a closer look at single items."""
        count = len(self.ids)
        if not count or self.ids.count(None) or self.traces.count(None) != count:
            return False
        lengths = list(map(len, cast("tuple[str, ...]", self.ids)))
        text = "".join(cast("tuple[str, ...]", self.ids))
        return (
            text.isascii()
            and "\0" not in text
            and min(lengths) > 0
            and max(lengths) <= MAX_TRANSACTION_ID_BYTES
            and longest_is_shallow(max(map(len, self.payloads)))
            and self._names_are_good(one_partition)
        )

    def _names_are_good(self, one_partition: bool) -> bool:
        queues = self.queues[:1] if one_partition else set(self.queues)
        partitions = self.partitions[:1] if one_partition else set(self.partitions)
        return not any(reason_against_name("queue", name) for name in queues) and not any(
            name is not None and reason_against_name("partition", name) for name in partitions
        )

    def planned(self, indexes: Sequence[int], subject: str | None) -> Planned:
        """Return the items as one append; all of them go to the same partition."""
        ids = cast("Sequence[str]", self.ids)
        if self.ids.count(None):
            ids = [one if one is not None else str(uuid.uuid4()) for one in self.ids]
        extras: dict[str, Sequence[str | None]] = {}
        if self.traces.count(None) < len(ids):
            extras["traceId"] = self.traces
        if subject is not None:
            extras["producerSub"] = [subject] * len(ids)
        weight = sum(map(len, self.payloads)) + 64 * len(ids)
        partition = self.partitions[0] or DEFAULT_PARTITION
        encoded = list(map(str.encode, ids))
        append = Append(self.queues[0], partition, encoded, self.payloads, weight, extras or None)
        return Planned(append, indexes, ids)


def _sift(
    items: list[PushItem], indexes: Sequence[int]
) -> tuple[list[PushItem], list[int], list[InvalidItem]]:
    kept, places, refused = [], [], []
    for index, item in zip(indexes, items, strict=True):
        reason = _reason_against(item)
        if reason:
            refused.append(InvalidItem(index, reason))
            continue
        item.payload = msgspec.Raw(as_line(bytes(item.payload)))
        kept.append(item)
        places.append(index)
    return kept, places, refused


def _reason_against(item: PushItem) -> str | None:
    reason = reason_against_name("queue", item.queue)
    if reason is None and item.partition is not None:
        reason = reason_against_name("partition", item.partition)
    if reason is None and item.transactionId is not None:
        reason = reason_against_transaction_id(item.transactionId)
    if reason is None and item.traceId is not None and not is_uuid(item.traceId):
        reason = "traceId is not a UUID"
    return reason or reason_against_payload(bytes(item.payload))


def _append_of_frame(frame: Frame, index: int) -> Append:
    partition = frame.partition or DEFAULT_PARTITION
    reason = reason_against_name("queue", frame.queue) or reason_against_name(
        "partition", partition
    )
    if reason:
        raise InvalidFrame(f"frame {index}: {reason}")
    try:
        segment = frame.segment()
        ids = checked_ids(segment)
        check_payloads(segment)
    except InvalidFrame as error:
        raise InvalidFrame(f"frame {index}: {error.message}") from None
    append = Append(frame.queue, partition, ids, None, frame.raw_bytes, segment.extras, segment)
    append.encoded = (frame.codec, frame.body)
    return append


def _stamp(append: Append, subject: str) -> None:
    """Write into a frame who has sent it. What a frame itself says of that was refused."""
    segment = append.segment
    assert segment is not None
    segment.extras = append.extras = {**segment.extras, "producerSub": [subject] * segment.count}
    append.encode()


async def only_visible(
    broker: Broker, caller: Caller, planned: list[Planned]
) -> tuple[list[Planned], list[InvalidItem]]:
    """Return what goes to queues that the caller may see, and the items that do not."""
    hidden = await hidden_queues(broker, caller, {one.append.queue for one in planned})
    refused: list[InvalidItem] = [
        ItemNotFound(index, f"Queue {one.append.queue!r} not found")
        for one in planned
        if one.append.queue in hidden
        for index in one.indexes
    ]
    return [one for one in planned if one.append.queue not in hidden], refused


def push_body(planned: list[Planned], later: Sequence[Later] = ()) -> bytes:
    if len(planned) == 1 and not later and _is_plain_success(planned[0].append):
        return answers.queued_body(_stored(planned[0]))
    return b"[" + ",".join(_in_order(_placed(planned, later))).encode() + b"]"


def _placed(planned: list[Planned], later: Sequence[Later] = ()) -> list[tuple[int, str]]:
    """Return the results of what was stored, with their places in the request."""
    stored = [
        pair
        for one in planned
        if one.append.error is None
        for pair in zip(one.indexes, _results(one), strict=True)
    ]
    return stored + [(one.place, _scheduled_text(one)) for one in later]


def _in_order(placed: list[tuple[int, str]]) -> list[str]:
    return [text for _, text in sorted(placed)]


def _scheduled_text(later: Later) -> str:
    message = later.message
    return answers.scheduled_item(
        later.place, message.transaction_id, message.trace_id, message.queue, message.deliver_at
    )


def _is_plain_success(append: Append) -> bool:
    return append.repeats is None and not (append.extras and "traceId" in append.extras)


def _stored(planned: Planned) -> answers.Stored:
    append, target = planned.append, planned.append.target
    assert target is not None
    return answers.Stored(planned.ids, append.base_offset, target.prefix, target.uuid, append.queue)


def _results(planned: Planned) -> list[str]:
    append, target = planned.append, planned.append.target
    if _is_plain_success(append):
        return answers.queued_items(planned.indexes, _stored(planned))
    assert target is not None
    traces = append.extras.get("traceId") if append.extras else None
    return [
        answers.push_item(
            index,
            planned.ids[at],
            "duplicate" if append.is_duplicate(at) else "queued",
            message_id(target.id, append.offset_of(at)),
            target.uuid,
            traces[at] if traces else None,
            append.queue,
        )
        for at, index in enumerate(planned.indexes)
    ]


def _partly_refused(
    refused: list[InvalidItem], failed: list[Planned], placed: list[tuple[int, str]]
) -> Response:
    """Some items cannot be taken: say which and why, and what became of the others."""
    reasons: dict[int, QueenError] = {error.index: error for error in refused}
    for one in failed:
        if one.append.error is not None:
            reasons |= dict.fromkeys(one.indexes, one.append.error)
    return failure(
        reasons[min(reasons)],
        items=[
            {"index": index, "reason": getattr(error, "reason", error.message), "code": error.code}
            for index, error in sorted(reasons.items())
        ],
        results=[msgspec.Raw(text.encode()) for text in _in_order(placed)],
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
        "baseOffset": append.base_offset,
    }
    if duplicates:
        result["duplicates"] = duplicates
    return result
