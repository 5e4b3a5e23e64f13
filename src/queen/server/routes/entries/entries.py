"""/stream/…: streams and the messages in them."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.errors import BadRequest
from queen.server.answers.entries import message_bits, named_ids
from queen.server.api.failures import UNDECODABLE, decode_body
from queen.server.api.routing import Doc, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.answer_parts import answer_in_parts
from queen.server.protocol.http import Query, Request, Response
from queen.server.stream_backend import StreamBackend
from queen.streambroker.interface import DEFAULT_PRODUCER
from queen.wire import entries as wire

_TAG = "stream broker"
_ROOT = "/stream"
_STREAM = _ROOT + "/{stream}"
_LARGEST = 2**63 - 1
_IDS = {"messageIds": ["1767225600000-0"]}

_LIST = Doc(
    _TAG,
    "List the streams",
    query=(Param("pattern", str, "Only names like this: `*`, `?`, `[a-z]`, `\\`.", "*"),),
    answers={200: wire.EntryStreams},
)
_CAPABILITIES = Doc(
    _TAG, "Say what the streams of this server can do", answers={200: wire.EntryCapabilities}
)
_ADD = Doc(
    _TAG,
    "Add a message",
    "The body is the message: any JSON value. A missing stream is created.",
    query=(
        Param("key", wire.AnyName, "Of the messages with a key, a group has one at a time."),
        Param("idempotencyKey", wire.AnyName, "Add nothing when the producer has used it before."),
        Param("producer", wire.AnyName, "Whose idempotency key it is.", DEFAULT_PRODUCER),
        Param("allowNull", bool, "Take null for a message too.", False),
        Param("maxLength", wire.Number, "Keep only so many of the newest; 0 keeps all.", 0),
    ),
    body=Any,
    answers={200: wire.EntryAdded},
    example={"task": "send-email", "to": "user@example.com"},
    errors=(409,),
)
_INFO = Doc(
    _TAG,
    "Show a stream and its groups",
    "A stream that does not exist is empty.",
    answers={200: wire.EntryStreamInfo},
)
_LENGTH = Doc(_TAG, "Count the messages of a stream", answers={200: wire.EntryStreamLength})
_RANGE = Doc(
    _TAG,
    "List messages by their ids",
    "No group notices. Both ends are included; `(` before an id excludes it.",
    query=(
        Param("from", str, "The first: an id, or `-` for the oldest.", "-"),
        Param("to", str, "The last: an id, or `+` for the newest.", "+"),
        Param("count", wire.Limit, "At most so many; 0 is no limit.", 0),
    ),
    answers={200: wire.EntryRange},
)
_DELETE = Doc(
    _TAG,
    "Delete messages",
    "Groups that have them pending keep them pending, without their data.",
    body=wire.NamedEntries,
    answers={200: wire.EntriesChanged},
    example=_IDS,
)
_TRIM = Doc(
    _TAG,
    "Keep the newest messages only",
    body=wire.Trimming,
    answers={200: wire.EntriesChanged},
    example={"maxLength": 10_000},
)
_REDRIVE = Doc(
    _TAG,
    "Add dead letters to their stream again",
    "The oldest first.",
    body=wire.Redrive,
    body_optional=True,
    answers={200: wire.EntriesChanged},
)

_trimming = msgspec.json.Decoder(wire.Trimming)
_redrive = msgspec.json.Decoder(wire.Redrive)


class EntryRoutes:
    def __init__(self, backend: StreamBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        return [
            Route("GET", _ROOT, Role.READ, self.all, _LIST, scoped=True),
            Route(
                "GET",
                _ROOT + "/capabilities",
                Role.READ,
                self.capabilities,
                _CAPABILITIES,
                scoped=True,
            ),
            Route("POST", _STREAM + "/add", Role.WRITE, self.add, _ADD, scoped=True),
            Route("GET", _STREAM + "/info", Role.READ, self.info, _INFO, scoped=True),
            Route("GET", _STREAM + "/length", Role.READ, self.length, _LENGTH, scoped=True),
            Route("GET", _STREAM + "/messages", Role.READ, self.range, _RANGE, scoped=True),
            Route("POST", _STREAM + "/delete", Role.WRITE, self.delete, _DELETE, scoped=True),
            Route("POST", _STREAM + "/trim", Role.WRITE, self.trim, _TRIM, scoped=True),
            Route("POST", _STREAM + "/redrive", Role.WRITE, self.redrive, _REDRIVE, scoped=True),
        ]

    async def all(self, request: Request) -> Response:
        pattern = Query(request.query).text("pattern") or "*"
        names = await self._backend.broker_for(request.caller).scan_streams(pattern)
        return _json({"count": len(names), "streams": names})

    async def capabilities(self, request: Request) -> Response:
        streams = self._backend.broker_for(request.caller)
        await streams.open()
        words = sorted(capability.value for capability in streams.capabilities)
        return _json({"capabilities": words})

    async def add(self, request: Request) -> Response:
        (stream,) = request.params
        query = Query(request.query)
        data = _data_of(request.body, is_null_data=query.flag("allowNull"))
        message_id = await self._backend.broker_for(request.caller).xadd(
            stream,
            data,
            key=query.text("key") or None,
            idempotency_key=query.text("idempotencyKey") or None,
            producer=query.text("producer") or DEFAULT_PRODUCER,
            max_length=query.number("maxLength", 0, 0, _LARGEST) or None,
        )
        return _json({"status": "added", "messageId": message_id, "stream": stream})

    async def info(self, request: Request) -> Response:
        (stream,) = request.params
        streams = self._backend.broker_for(request.caller)
        length, groups = await streams.xlen(stream), await streams.get_group_info(stream)
        return _json({"stream": stream, "length": length, "groups": groups})

    async def length(self, request: Request) -> Response:
        (stream,) = request.params
        length = await self._backend.broker_for(request.caller).xlen(stream)
        return _json({"stream": stream, "length": length})

    async def range(self, request: Request) -> Response | None:
        (stream,) = request.params
        query = Query(request.query)
        messages = await self._backend.broker_for(request.caller).xrange(
            stream,
            query.text("from") or "-",
            query.text("to") or "+",
            query.number("count", 0, 0, _LARGEST),
        )
        return await answer_in_parts(request, message_bits({"stream": stream}, messages))

    async def delete(self, request: Request) -> Response:
        (stream,), ids = request.params, named_ids(request.body)
        count = await self._backend.broker_for(request.caller).xdel(stream, ids)
        return _json({"status": "deleted", "count": count})

    async def trim(self, request: Request) -> Response:
        (stream,), trimming = request.params, decode_body(_trimming, request.body)
        count = await self._backend.broker_for(request.caller).xtrim(stream, trimming.maxLength)
        return _json({"status": "trimmed", "count": count})

    async def redrive(self, request: Request) -> Response:
        (stream,), redrive = request.params, decode_body(_redrive, request.body or b"{}")
        count = await self._backend.broker_for(request.caller).redrive(stream, redrive.count)
        return _json({"status": "redriven", "count": count})


def _data_of(body: bytes, *, is_null_data: bool) -> msgspec.Raw:
    """Return the message that is added, as it came; raises when there is none."""
    try:
        is_data = msgspec.json.decode(body) is not None or is_null_data
    except UNDECODABLE:
        is_data = False
    if not is_data:
        raise BadRequest("message data required")
    return msgspec.Raw(body)


def _json(answer: dict[str, Any]) -> Response:
    return Response(200, msgspec.json.encode(answer))
