"""/stream/{stream}/group/{group}: the groups of a stream, and their consumers."""

from __future__ import annotations

from typing import Any

import msgspec

from queen.errors import NotFound
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response
from queen.server.stream_backend import StreamBackend
from queen.streambroker.records import ConsumerGroupInfo
from queen.wire import entries as wire

_TAG = "stream broker"
_GROUP = "/stream/{stream}/group/{group}"
_KEEP = Param("keepPending", bool, "Let others claim what it has, instead of losing it.", True)

_SHOW = Doc(_TAG, "Show a group of a stream", answers={200: wire.EntryGroup})
_CREATE = Doc(
    _TAG,
    "Create a group of a stream",
    "A missing stream is created. A group that is there stays as it is, and with `strict` it is "
    "an error.",
    body=wire.GroupStart,
    body_optional=True,
    answers={200: wire.EntryGroupSet},
    example={"startId": "0"},
    errors=(409,),
)
_MOVE = Doc(
    _TAG,
    "Let a group of a stream read on after another message",
    "What is pending stays pending.",
    body=wire.GroupMove,
    answers={200: wire.EntryGroupSet},
    example={"startId": "0"},
)
_DELETE = Doc(
    _TAG,
    "Delete a group of a stream, with all that it has pending",
    "That there is none is no error, but 404 for a caller limited to some namespaces.",
    answers={200: wire.EntryGroupDeleted},
)
_DELETE_CONSUMER = Doc(
    _TAG,
    "Delete a consumer of a group",
    "That there is none is no error, but 404 for a caller limited to some namespaces.",
    query=(_KEEP,),
    answers={200: wire.EntryConsumerDeleted},
)
_LIMIT = Doc(
    _TAG,
    "Limit how often a message is delivered to a group",
    "What was delivered so often, and is to be delivered again, goes to the stream `….dlq`.",
    body=wire.DeliveryLimit,
    answers={200: wire.DeliveryLimitSet},
    example={"limit": 5},
)

_start = msgspec.json.Decoder(wire.GroupStart)
_move = msgspec.json.Decoder(wire.GroupMove)
_limit = msgspec.json.Decoder(wire.DeliveryLimit)


class EntryGroupRoutes:
    def __init__(self, backend: StreamBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        consumer, limit = _GROUP + "/consumer/{consumer}", _GROUP + "/delivery-limit"
        return [
            Route("GET", _GROUP, Role.READ, self.show, _SHOW, scoped=True),
            Route("POST", _GROUP, Role.WRITE, self.create, _CREATE, scoped=True),
            Route("PUT", _GROUP, Role.WRITE, self.move, _MOVE, scoped=True),
            Route("DELETE", _GROUP, Role.WRITE, self.delete, _DELETE, scoped=True),
            Route(
                "DELETE",
                consumer,
                Role.WRITE,
                self.delete_consumer,
                _DELETE_CONSUMER,
                scoped=True,
            ),
            Route("PUT", limit, Role.WRITE, self.limit, _LIMIT, scoped=True),
        ]

    async def show(self, request: Request) -> Response:
        stream, group = request.params
        return Response(200, msgspec.json.encode(await self._info(request, stream, group)))

    async def create(self, request: Request) -> Response:
        stream, group = request.params
        start = decode_body(_start, request.body or b"{}")
        await self._backend.broker_for(request.caller).create_group(
            stream, group, start.startId, strict=start.strict
        )
        about = {"stream": stream, "group": group, "startId": start.startId}
        return _json({"status": "created", **about})

    async def move(self, request: Request) -> Response:
        stream, group = request.params
        start = decode_body(_move, request.body).startId
        await self._backend.broker_for(request.caller).set_group_id(stream, group, start)
        return _json({"status": "moved", "stream": stream, "group": group, "startId": start})

    async def delete(self, request: Request) -> Response:
        stream, group = request.params
        await self._check_sight(request)
        await self._backend.broker_for(request.caller).delete_group(stream, group)
        return _json({"status": "deleted", "stream": stream, "group": group})

    async def delete_consumer(self, request: Request) -> Response:
        stream, group, consumer = request.params
        keep = Query(request.query).text("keepPending") not in ("false", "0")
        await self._check_sight(request)
        pending = await self._backend.broker_for(request.caller).delete_consumer(
            stream, group, consumer, keep_pending=keep
        )
        about = {"stream": stream, "group": group, "consumer": consumer}
        return _json({"status": "deleted", **about, "pending": pending})

    async def _check_sight(self, request: Request) -> None:
        """Refuse a limited caller what it may not see, and alike what is not there at all."""
        if request.caller.namespaces is not None:
            stream, group, *_ = request.params
            await self._info(request, stream, group)

    async def _info(self, request: Request, stream: str, group: str) -> ConsumerGroupInfo:
        info = await self._backend.broker_for(request.caller).get_stream_group_info(stream, group)
        if info is None:
            raise NotFound("no such stream or group")
        return info

    async def limit(self, request: Request) -> Response:
        stream, group = request.params
        limit = decode_body(_limit, request.body).limit
        await self._backend.broker_for(request.caller).set_delivery_limit(stream, group, limit)
        return _json({"status": "limited", "stream": stream, "group": group, "limit": limit})


def _json(answer: dict[str, Any]) -> Response:
    return Response(200, msgspec.json.encode(answer))
