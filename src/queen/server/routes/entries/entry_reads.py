"""/stream/{stream}/group/{group}/…: what a group reads, has pending, and is done with.

A read that waits holds its own connection and nothing else. It ends with the client, and with the
server: that answers it as it answers everybody whom it cannot serve any more.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from queen.server.answers.entries import message_bits, named_ids
from queen.server.api.failures import decode_body
from queen.server.api.routing import Doc, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.answer_parts import answer_in_parts
from queen.server.protocol.http import Query, Request, Response
from queen.server.protocol.long_poll import unless_gone
from queen.server.stream_backend import StreamBackend
from queen.wire import entries as wire

MAX_BLOCK_MS = 3_600_000
_TAG = "stream broker"
_GROUP = "/stream/{stream}/group/{group}"
_LARGEST = 2**63 - 1
_LONGEST_MS = 366 * 24 * 3600 * 1000
_ID = "1767225600000-0"

_READ = Doc(
    _TAG,
    "Read as a consumer of a group",
    "Messages that nobody of the group has had yet; they are pending until acknowledged. There "
    "are none where there is no such stream or group.",
    query=(
        Param("count", wire.Limit, "At most so many; 0 is no limit.", 1),
        Param(
            "block",
            Annotated[int, Meta(ge=0, le=MAX_BLOCK_MS)],
            "Milliseconds to wait when there are none.",
            0,
        ),
        Param("claimIdle", wire.Milliseconds, "First take over what is pending for so long."),
        Param("noAck", bool, "Let nothing become pending: deliver at most once.", False),
        Param(
            "historyAfter",
            str,
            "Return what this consumer has pending already, after an id; `0` is all of it.",
        ),
    ),
    answers={200: wire.EntriesRead},
)
_ACK = Doc(
    _TAG,
    "Acknowledge messages",
    body=wire.NamedEntries,
    answers={200: wire.EntriesChanged},
    example={"messageIds": [_ID]},
)
_NACK = Doc(
    _TAG,
    "Give messages back",
    "Any claim takes them at once, or after the delay.",
    body=wire.ReleasedEntries,
    answers={200: wire.EntriesChanged},
    example={"messageIds": [_ID], "delayMs": 0},
)
_PENDING = Doc(
    _TAG,
    "List what is pending in a group",
    "Nothing is delivered by that.",
    query=(Param("count", wire.Limit, "At most so many, the oldest; 0 is no limit.", 0),),
    answers={200: wire.EntriesPending},
)
_PENDING_OF = _PENDING._replace(summary="List what is pending for a consumer of a group")
_CLAIM = Doc(
    _TAG,
    "Take over what is pending for too long",
    "The messages named, or the oldest, whoever has them.",
    body=wire.EntryClaim,
    answers={200: wire.EntriesRead},
    example={"consumer": "worker-2", "minIdleMs": 60_000, "count": 10},
)

_released = msgspec.json.Decoder(wire.ReleasedEntries)
_claim = msgspec.json.Decoder(wire.EntryClaim)


class EntryReadRoutes:
    def __init__(self, backend: StreamBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        consumer = _GROUP + "/consumer/{consumer}"
        return [
            Route("GET", consumer, Role.WRITE, self.read, _READ, scoped=True),
            Route("POST", _GROUP + "/ack", Role.WRITE, self.ack, _ACK, scoped=True),
            Route("POST", _GROUP + "/nack", Role.WRITE, self.nack, _NACK, scoped=True),
            Route("GET", _GROUP + "/pending", Role.READ, self.pending, _PENDING, scoped=True),
            Route("GET", consumer + "/pending", Role.READ, self.pending, _PENDING_OF, scoped=True),
            Route("POST", _GROUP + "/claim", Role.WRITE, self.claim, _CLAIM, scoped=True),
        ]

    async def read(self, request: Request) -> Response | None:
        stream, group, consumer = request.params
        query = Query(request.query)
        block_ms = query.number("block", 0, 0, MAX_BLOCK_MS)
        reading = self._backend.broker_for(request.caller).xreadgroup(
            group,
            consumer,
            stream,
            query.number("count", 1, 0, _LARGEST),
            block_ms,
            claim_idle_ms=query.number("claimIdle", -1, 0, _LONGEST_MS)
            if query.text("claimIdle")
            else None,
            no_ack=query.flag("noAck"),
            history_after=query.text("historyAfter") or None,
        )
        messages = await (unless_gone(request, reading) if block_ms else reading)
        about = {"stream": stream, "group": group, "consumer": consumer}
        return await answer_in_parts(request, message_bits(about, messages or []))

    async def ack(self, request: Request) -> Response:
        stream, group = request.params
        ids = named_ids(request.body)
        count = await self._backend.broker_for(request.caller).xack(stream, group, ids)
        return _json({"status": "acknowledged", "count": count})

    async def nack(self, request: Request) -> Response:
        stream, group = request.params
        ids = named_ids(request.body)
        delay_ms = decode_body(_released, request.body).delayMs
        streams = self._backend.broker_for(request.caller)
        count = await streams.nack(stream, group, ids, delay_ms)
        return _json({"status": "released", "count": count})

    async def pending(self, request: Request) -> Response | None:
        stream, group, *consumer = request.params
        streams = self._backend.broker_for(request.caller)
        count = Query(request.query).number("count", 0, 0, _LARGEST)
        messages = await streams.xpending(stream, group, consumer[0] if consumer else None, count)
        about = {"stream": stream, "group": group}
        return await answer_in_parts(request, message_bits(about, messages))

    async def claim(self, request: Request) -> Response | None:
        stream, group = request.params
        claim = decode_body(_claim, request.body)
        streams = self._backend.broker_for(request.caller)
        if claim.messageIds is None:
            claiming = streams.xautoclaim(
                stream, group, claim.consumer, claim.minIdleMs, claim.count
            )
        else:
            claiming = streams.xclaim(
                stream, group, claim.consumer, claim.minIdleMs, claim.messageIds
            )
        about = {"stream": stream, "group": group, "consumer": claim.consumer}
        return await answer_in_parts(request, message_bits(about, await claiming))


def _json(answer: dict[str, Any]) -> Response:
    return Response(200, msgspec.json.encode(answer))
